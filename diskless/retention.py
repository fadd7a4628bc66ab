"""How long the past is kept: "every 1m keep 1h; every 1d keep 7d". Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from diskless.errors import BadSettings

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_RULE = re.compile(r"every\s+(\d+)([smhdw])\s+keep\s+(\d+)([smhdw])")
POINTS_MAX = 10_000


class Point(Protocol):
    """A state of the past: the later, the higher its number."""

    @property
    def number(self) -> int: ...

    @property
    def time_ms(self) -> int: ...


@dataclass(frozen=True)
class Rule:
    """Of each span of `every_ms` one point is kept, until `keep_ms` after the span's end."""

    every_ms: int
    keep_ms: int


def parse(text: str) -> tuple[Rule, ...]:
    """Raises BadSettings. No text is no rule: only what restoring the newest needs is kept."""
    rules = []
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        match = _RULE.fullmatch(piece)
        if match is None:
            raise BadSettings(f'{piece!r} is no rule such as "every 1m keep 1h"')
        every, keep = (int(match[at]) * _UNITS_S[match[at + 1]] * 1000 for at in (1, 3))
        if not 0 < every <= keep:
            raise BadSettings(f"{piece!r} keeps nothing")
        if keep > every * POINTS_MAX:
            raise BadSettings(f"{piece!r} keeps more than {POINTS_MAX} of them")
        rules.append(Rule(every, keep))
    return tuple(rules)


def thin(
    points: Iterable[Point],
    rules: Sequence[Rule],
    *,
    now_ms: int,
    whole: frozenset[int] = frozenset(),
) -> set[int]:
    """The numbers of the points that some rule keeps.

    Of each span it is the last whole one, which needs no other, or the last one. A span is kept
    until all of it is older than the rule says: a point that went for a better one of its span
    would be missed, if that one went first. So what is kept now was kept before, whenever this
    was asked.
    """
    kept: set[int] = set()
    ordered = sorted(points, key=lambda point: (point.number in whole, point.number))
    for rule in rules:
        spans = {}
        for point in ordered:
            span = point.time_ms // rule.every_ms
            if (span + 1) * rule.every_ms > now_ms - rule.keep_ms:
                spans[span] = point.number
        kept.update(spans.values())
    return kept
