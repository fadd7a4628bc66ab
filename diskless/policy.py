"""What a path asks for: the keys there are, their good values, and what is inherited. Pure.

A policy is set on a path and holds for all that is below it, unless a path nearer to it says
something else. It belongs to the path, whatever is there: renames do not carry it along.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from diskless import retention
from diskless.config import PARITY_SHARDS_MAX, parse_bytes
from diskless.errors import BadRequest, BadSettings
from diskless.model import PRIORITIES, PRIORITY_DEFAULT

DURABILITY = "durability"
PARITY = "parity"
PRIORITY = "priority"
QUOTA = "quota"
MEMORY, ASYNC, BARRIER, SYNC = "memory", "async", "barrier", "sync"
DURABILITIES = (MEMORY, ASYNC, BARRIER, SYNC)
NEED_A_TIER = (BARRIER, SYNC)
"""They would promise what nothing keeps without one."""
QUOTA_BYTES_MAX = 1 << 60
KEEP_IN_MEMORY = "keep-in-memory"
KEEP_BATCHES_MAX = 1_000_000
WITH_ROOM = "all that there is room for"
PIN = "pin"
YES, NO = "yes", "no"

COVERED_BY_BARRIER = "sinks that commit a whole batch under its id, after its job"
NOT_COVERED_BY_BARRIER = (
    "Real-Time Mode",
    "asynchronous progress tracking",
    "sinks that commit by task",
)
"""What stays exactly-once after the loss of everything, and what does not: they act before, or
without, a plan that could be waited for."""

HISTORY = "history"
NO_HISTORY = "none"
HISTORY_POINTS_MAX = 1000
HISTORY_CHARS_MAX = 88
"""More than rules take that anybody means."""
HISTORY_IN = "history-in"
TIER = "tier"


@dataclass(frozen=True)
class Key:
    """One thing that a path may ask for."""

    good: str
    """What its values are, in words: for the error and for help."""

    accepts: Callable[[str], bool]

    default: str = ""
    """What holds where no path above says anything; durability's comes from the cluster."""


def one_of(*values: str, default: str = "") -> Key:
    return Key(", ".join(values), values.__contains__, default)


def _is_quota(value: str) -> bool:
    try:
        return 0 < parse_bytes(value) <= QUOTA_BYTES_MAX
    except BadSettings:
        return False


def _is_count(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= 2 and str(int(value)) == value


def number(least: int, most: int, what: str, *, default: str = "") -> Key:
    """Whole numbers, as people write them."""

    def accepts(value: str) -> bool:
        plain = value.isascii() and value.isdigit() and len(value) <= len(str(most))
        return plain and value == str(int(value)) and least <= int(value) <= most

    return Key(f"a number of {what} from {least} to {most}", accepts, default)


def _is_history(value: str) -> bool:
    if value == NO_HISTORY:
        return True
    try:
        rules = retention.parse(value)
    except BadSettings:
        return False
    points = sum(rule.keep_ms // rule.every_ms for rule in rules)
    return 0 < points <= HISTORY_POINTS_MAX and len(value) <= HISTORY_CHARS_MAX


KEYS: dict[str, Key] = {
    DURABILITY: one_of(*DURABILITIES),
    PARITY: Key(
        "0 to the cluster's k", lambda value: _is_count(value) and int(value) <= PARITY_SHARDS_MAX
    ),
    PRIORITY: Key("0 to 9", lambda value: _is_count(value) and int(value) in PRIORITIES, "5"),
    QUOTA: Key("a size such as 10GiB", _is_quota, "none"),
    KEEP_IN_MEMORY: number(1, KEEP_BATCHES_MAX, "batches", default=WITH_ROOM),
    PIN: one_of(YES, NO, default=NO),
    HISTORY: Key(
        f'{NO_HISTORY}, or rules such as "every 1m keep 1h; every 1h keep 7d", for '
        f"{HISTORY_POINTS_MAX} snapshots at most",
        _is_history,
        NO_HISTORY,
    ),
    HISTORY_IN: one_of(MEMORY, TIER, default=MEMORY),
}

Table = Mapping[str, Mapping[str, str]]
"""By path and key what was set there."""


class Effective(NamedTuple):
    value: str
    source: str
    """The path that it was set on; empty if it is the default."""


def check_key(key: str) -> None:
    """Raises BadRequest for a key that there is not."""
    if key not in KEYS:
        raise BadRequest(f"no policy {key[:80]!r}: there is {', '.join(sorted(KEYS))}")


def check(key: str, value: str) -> None:
    """Raises BadRequest for a key that there is not, or a value that it cannot have."""
    check_key(key)
    if not KEYS[key].accepts(value):
        raise BadRequest(f"{key} cannot be {value[:80]!r}: it is {KEYS[key].good}")


def needs_a_tier(key: str, value: str) -> bool:
    """Whether it is refused where there is none."""
    return (key == DURABILITY and value in NEED_A_TIER) or (key == HISTORY_IN and value == TIER)


def effective(table: Table, path: str, key: str, *, default: str) -> Effective:
    """What holds at a path, and where it comes from."""
    while True:
        own = table.get(path)
        if own is not None and key in own:
            return Effective(own[key], path)
        if path == "/":
            return Effective(default, "")
        path = path[: path.rfind("/")] or "/"


# -- grades ---------------------------------------------------------------------------

Grade = int
"""How well a file is looked after: its priority and its parity, as one number that its record
keeps. 0 is what a path gets that asks for nothing: priority 5, all of the cluster's parity."""

GRADE_DEFAULT: Grade = 0
_PARITIES = 16  # one of them stands for all that the cluster has


def grade(priority: int = PRIORITY_DEFAULT, parity: int | None = None) -> Grade:
    """`parity` is None for all that the cluster has."""
    return (priority - PRIORITY_DEFAULT) % len(PRIORITIES) * _PARITIES + (
        0 if parity is None else parity + 1
    )


def priority_of(grade: Grade) -> int:
    """0 to 9: what is repaired, brought back after a cold start and kept in memory first has
    the highest."""
    return (grade // _PARITIES + PRIORITY_DEFAULT) % len(PRIORITIES)


def parity_of(grade: Grade, parity_shards: int) -> int:
    """How many parity shards it asks for in a cluster that has so many: never more."""
    asked = grade % _PARITIES
    return min(asked - 1, parity_shards) if asked else parity_shards


def with_priority(grade_: Grade, priority: int) -> Grade:
    """Another priority, and the same parity."""
    return grade(priority) + grade_ % _PARITIES


def highest(one: Grade, other: Grade) -> Grade:
    """The higher priority, and the higher parity, of both."""
    if one == other:
        return one
    first, second = one % _PARITIES, other % _PARITIES
    parity = None if not (first and second) else max(first, second) - 1
    return grade(max(priority_of(one), priority_of(other)), parity)


UNSAID = -1
GradeRow = tuple[str, int, int]
"""Path, priority and parity; UNSAID for what the path says nothing about."""


class Grades:
    """What paths ask for of parity and priority, ready to be looked up. Never changes."""

    __slots__ = ("_known", "rows")

    def __init__(self, rows: Iterable[GradeRow] = ()) -> None:
        self.rows: tuple[GradeRow, ...] = tuple(rows)
        self._known = {path: (priority, parity) for path, priority, parity in self.rows}

    @classmethod
    def of(cls, table: Table) -> "Grades":
        return cls(
            (path, int(own.get(PRIORITY, UNSAID)), int(own.get(PARITY, UNSAID)))
            for path, own in table.items()
            if PRIORITY in own or PARITY in own
        )

    def __bool__(self) -> bool:
        return bool(self.rows)

    def at(self, path: str) -> Grade:
        """Of what is written at a path."""
        if not self._known:
            return GRADE_DEFAULT
        priority = parity = UNSAID
        while True:
            own = self._known.get(path)
            if own is not None:
                priority = own[0] if priority == UNSAID else priority
                parity = own[1] if parity == UNSAID else parity
            if path == "/" or (priority != UNSAID and parity != UNSAID):
                break
            path = path[: path.rfind("/")] or "/"
        return grade(
            PRIORITY_DEFAULT if priority == UNSAID else priority,
            None if parity == UNSAID else parity,
        )

    def within(self, path: str) -> set[Grade]:
        """All that may hold at a path and below it."""
        above = path.rstrip("/") + "/"
        below = [own for own in self._known if own.startswith(above)]
        return {self.at(path), *map(self.at, below)}


NO_GRADES = Grades()
