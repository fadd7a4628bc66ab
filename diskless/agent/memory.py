"""The account of an agent's memory: all that it keeps is charged here, by kind.

`--memory` bounds the sum. Parts that come and go are charged and released as they do; parts
that keep a count of their own, as the namespace does, are metered. It owns no bytes and frees
none: whoever wants some asks first how much room is left for what it wants them for, because
the last eighth is a reserve. What clients write ends before it, the namespace's growth soon
after, repair and repacking shortly before the end; deletes and leadership ask nobody. So a
full agent can still be emptied, repaired and led. Kinds that pass by themselves may use it
too, each within a limit of its own: they do not make an agent full, they fill what is left.

Bytes are counted as CPython takes them, with the objects around them, as far as they grow with
use. What an idle agent takes is not in it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from diskless.config import format_bytes
from diskless.errors import CapacityExceeded

RESERVE_SHARE = 1 / 8
PASSING_GRACE = 1 / 8
"""How far beyond the end what passes may take the sum before it costs clients a write: a
stripe that is being sealed takes 2.5 MiB for a moment, whatever the memory."""
LIMIT_STEPS = 64
"""In which the limit of the namespace moves between nothing and all of the memory."""


class Use(Enum):
    """What room is wanted for; the value is the part of the memory that it must leave."""

    DATA = RESERVE_SHARE
    """What clients write."""
    NAMESPACE = RESERVE_SHARE * 3 / 4
    """Commands that name what was just written; the namespace refuses what is beyond."""
    REPAIR = RESERVE_SHARE / 8
    """Shards that were lost, and those of repacked stripes, which free others."""
    TRANSIT = 0.0
    """Requests and replies on their way: a delete is one too."""


LASTING = (
    "shards",
    "inline",
    "files",
    "directories",
    "names",
    "snapshots",
    "ledger",
    "answers",
    "tokens",
    "policies",
    "tier",
    "mark",
    "ballast",
)
"""Kinds that stay until somebody deletes something."""
_LASTING = frozenset(LASTING)
PASSING = (
    "log",
    "events",
    "journal",
    "uploads",
    "segments",
    "stripes",
    "requests",
    "replies",
    "connections",
    "caches",
)
"""Kinds that pass by themselves, each within a limit of its own."""


class Meter(NamedTuple):
    """A part that keeps a count of its own."""

    by_kind: Callable[[], Mapping[str, int]]
    sums: Callable[[], tuple[int, int]]
    """The same in two numbers: what lasts, and what passes. Asked with every write, so that
    it must be cheap."""


class Memory:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._charged: dict[str, int] = dict.fromkeys((*LASTING, *PASSING), 0)
        self._charged_lasting = 0
        self._charged_passing = 0
        self._meters: list[Meter] = []
        self._last_sums = (-1, -1)
        self._last_by_kind: dict[str, int] = {}

    def charge(self, kind: str, count: int) -> None:
        """Counts `count` more bytes of a kind; fewer if it is negative."""
        self._charged[kind] += count
        if kind in _LASTING:
            self._charged_lasting += count
        else:
            self._charged_passing += count
        assert self._charged[kind] >= 0, (kind, count)

    def release(self, kind: str, count: int) -> None:
        self.charge(kind, -count)

    @contextmanager
    def charged(self, kind: str, count: int) -> Iterator[None]:
        """Counts bytes that are there for as long as the block runs."""
        self.charge(kind, count)
        try:
            yield
        finally:
            self.release(kind, count)

    def meter(
        self, by_kind: Callable[[], Mapping[str, int]], sums: Callable[[], tuple[int, int]]
    ) -> None:
        """From now on also counts what a part tells of itself."""
        self._meters.append(Meter(by_kind, sums))

    def sums(self) -> tuple[int, int]:
        """What lasts, and what passes."""
        lasting, passing = self._charged_lasting, self._charged_passing
        for meter in self._meters:
            more_lasting, more_passing = meter.sums()
            lasting += more_lasting
            passing += more_passing
        return lasting, passing

    def latest(self) -> dict[str, int]:
        """As `by_kind`, if the sums have changed since it was last asked: for heartbeats, which
        an idle agent sends for ever."""
        sums = self.sums()
        if sums != self._last_sums:
            self._last_sums, self._last_by_kind = sums, self.by_kind()
        return self._last_by_kind

    def of(self, kind: str) -> int:
        """What is charged of a kind, without what is metered."""
        return self._charged[kind]

    @property
    def used(self) -> int:
        return sum(self.sums())

    @property
    def lasting(self) -> int:
        return self.sums()[0]

    def by_kind(self) -> dict[str, int]:
        """Every kind, also those of which there is nothing."""
        found = dict(self._charged)
        for meter in self._meters:
            for kind, count in meter.by_kind().items():
                found[kind] += count
        return found

    def room(self, use: Use) -> int:
        """How many bytes more there may be for this use; negative if it is past its end."""
        lasting, passing = self.sums()
        left = self.bytes_max - lasting - passing
        if use is Use.TRANSIT:
            return left
        grace = int(self.bytes_max * PASSING_GRACE)
        return min(int(self.bytes_max * (1 - use.value)) - lasting, left + grace)

    def check(self, count: int, use: Use, what: str) -> None:
        """Raises CapacityExceeded if `count` bytes more have no room."""
        room = self.room(use)
        if count > room:
            raise CapacityExceeded(
                f"no room for {what} of {format_bytes(count)}: {format_bytes(self.used)} of "
                f"{format_bytes(self.bytes_max)} are in use and the rest is a reserve: delete "
                "files, or start the cluster with more --memory or --agents"
            )

    def part(self, share: float, most: int) -> int:
        """A part of the memory, for a buffer that needs no more than `most` bytes."""
        return min(int(share * self.bytes_max), most)


def lasting(by_kind: Mapping[str, int]) -> int:
    """What of an account does not pass by itself."""
    return sum(by_kind.get(kind, 0) for kind in LASTING)


def namespace_limit(
    *, bytes_max: int, namespace_bytes: int, voters: list[Mapping[str, int]], before: int
) -> int:
    """How large the namespace may get, which is the same for all voters.

    Half of an agent's memory, and less where a voter has less room left; `voters` are their
    accounts. It moves in steps, and up only by two at once: each is a command in the log.
    """
    step = bytes_max // LIMIT_STEPS
    end = int(bytes_max * (1 - Use.NAMESPACE.value))
    rooms = [end - lasting(account) for account in voters]
    wanted = min([bytes_max // 2, *(namespace_bytes + room for room in rooms)])
    limit = max(wanted // step, 1) * step
    return before if 0 < before < limit < before + 2 * step else limit
