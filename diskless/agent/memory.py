"""The account of an agent's memory: everything that it keeps is charged here, by kind.

`--memory` bounds the sum. Short-lived uses are charged and released; parts that keep their own
count, like the namespace, are metered. The account owns no bytes and frees none. A part that needs
memory asks first how much room is left for its use, because the last eighth is a reserve. Clients'
writes may not use the reserve, growth of the namespace may use a little of it, repair and repacking
nearly all. Deletes and leadership are never refused. So a full agent can still be emptied, repaired
and led. Kinds that are released by themselves may use the reserve too, each within its own limit.

Kinds that yield use only memory that is otherwise idle, and no part of the reserve. They do not
count when somebody asks for room, and are freed at once when the room is needed.

Bytes are counted as CPython allocates them, including objects, as far as they grow with use. What
an idle agent takes is not included.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from diskless.config import format_bytes
from diskless.errors import CapacityExceeded

RESERVE_SHARE = 1 / 8
PASSING_GRACE = 1 / 8
"""How far short-lived kinds may exceed the limit before clients' writes are refused: a stripe that
is being sealed takes 2.5 MiB for a moment, however small the memory is."""
METERED_FOR_S = 0.005
AMPLE_SHARE = 1 / 8
"""While more than this part of the memory is free, meters are read only this often, and the more
there is the less often: they cannot grow by as much in that time, and every stored shard asks for
room."""
LIMIT_STEPS = 64
"""Steps in which the namespace's limit changes, between nothing and all of the memory."""


class Use(Enum):
    """What room is needed for. The value is the part of the memory that must stay free."""

    DATA = RESERVE_SHARE
    """What clients write."""
    NAMESPACE = RESERVE_SHARE * 3 / 4
    """Commands that name what was just written. The namespace refuses what exceeds its limit."""
    REPAIR = RESERVE_SHARE / 8
    """Rebuilt shards, and those of repacked stripes, which free others."""
    TRANSIT = 0.0
    """Requests and replies in progress, deletes among them."""


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
"""Kinds that stay until something is deleted."""
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
    "notes",
)
"""Kinds that are released by themselves, each within its own limit."""
YIELDING = ("copies",)
"""Kinds that are freed as soon as anything else needs their room."""


class Meter(NamedTuple):
    """A part that keeps its own count."""

    by_kind: Callable[[], Mapping[str, int]]
    sums: Callable[[], tuple[int, int]]
    """The same in two numbers: what lasts, and what is released by itself. Called with every write,
    so it must be cheap."""


class Memory:
    def __init__(self, bytes_max: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self.bytes_max = bytes_max
        self._now_s = now_s
        self._charged: dict[str, int] = dict.fromkeys((*LASTING, *PASSING, *YIELDING), 0)
        self._charged_lasting = 0
        self._charged_passing = 0
        self._yielding = 0
        self._reclaim: Callable[[int], None] | None = None
        self._meters: list[Meter] = []
        self._metered = (0, 0)
        self._metered_s = float("-inf")
        self._last_sums = (-1, -1, -1)
        self._last_by_kind: dict[str, int] = {}
        self.version = 0
        """Changes whenever what `latest` returns has changed."""

    def charge(self, kind: str, count: int) -> None:
        """Counts `count` more bytes of a kind; fewer if it is negative."""
        self._charged[kind] += count
        if kind in _LASTING:
            self._charged_lasting += count
        elif kind in YIELDING:
            self._yielding += count
        else:
            self._charged_passing += count
        assert self._charged[kind] >= 0, (kind, count)
        if self._yielding and count > 0:
            self._make_way()

    def release(self, kind: str, count: int) -> None:
        self.charge(kind, -count)

    @contextmanager
    def charged(self, kind: str, count: int) -> Iterator[None]:
        """Counts bytes for as long as the block runs."""
        self.charge(kind, count)
        try:
            yield
        finally:
            self.release(kind, count)

    def meter(
        self, by_kind: Callable[[], Mapping[str, int]], sums: Callable[[], tuple[int, int]]
    ) -> None:
        """From now on also counts what a part reports."""
        self._meters.append(Meter(by_kind, sums))

    def give_way(self, reclaim: Callable[[int], None]) -> None:
        """From now on calls `reclaim` to free so many bytes of what yields when they are needed."""
        self._reclaim = reclaim

    def spare(self) -> int:
        """How much all kinds that yield may take together."""
        used = self._charged_lasting + self._charged_passing + sum(self._metered)
        return int(self.bytes_max * (1 - RESERVE_SHARE)) - used

    def _make_way(self) -> None:
        over = self._yielding - self.spare()
        if over > 0 and self._reclaim is not None:
            self._reclaim(over)

    def sums(self) -> tuple[int, int]:
        """What lasts, and what is released by itself; what yields is in neither."""
        lasting = passing = 0
        for meter in self._meters:
            more_lasting, more_passing = meter.sums()
            lasting += more_lasting
            passing += more_passing
        self._metered, self._metered_s = (lasting, passing), self._now_s()
        if self._yielding:
            self._make_way()
        return self._charged_lasting + lasting, self._charged_passing + passing

    def latest(self) -> dict[str, int]:
        """As `by_kind`, if the sums have changed since the last call. For heartbeats, so that an
        idle agent does no work for them."""
        sums = (*self.sums(), self._yielding)
        if sums != self._last_sums:
            self._last_sums, self._last_by_kind = sums, self.by_kind()
            self.version += 1
        return self._last_by_kind

    def of(self, kind: str) -> int:
        """What is charged of a kind, without what is metered."""
        return self._charged[kind]

    @property
    def used(self) -> int:
        """Everything, including what yields."""
        return sum(self.sums()) + self._yielding

    @property
    def lasting(self) -> int:
        return self.sums()[0]

    def by_kind(self) -> dict[str, int]:
        """Every kind, including empty ones."""
        found = dict(self._charged)
        for meter in self._meters:
            for kind, count in meter.by_kind().items():
                found[kind] += count
        return found

    def room(self, use: Use) -> int:
        """How many more bytes this use may take; negative if its limit is exceeded. Exact unless
        there is plenty."""
        lasting, passing = self._metered
        lasting, passing = self._charged_lasting + lasting, self._charged_passing + passing
        room = self._room(use, lasting, passing)
        times_ample = room / (AMPLE_SHARE * self.bytes_max)
        if times_ample > 1 and self._now_s() - self._metered_s < METERED_FOR_S * times_ample:
            return room
        return self._room(use, *self.sums())

    def _room(self, use: Use, lasting: int, passing: int) -> int:
        left = self.bytes_max - lasting - passing
        if use is Use.TRANSIT:
            return left
        grace = int(self.bytes_max * PASSING_GRACE)
        return min(int(self.bytes_max * (1 - use.value)) - lasting, left + grace)

    def check(self, count: int, use: Use, what: str) -> None:
        """Raises CapacityExceeded if there is no room for `count` more bytes."""
        room = self.room(use)
        if count > room:
            raise CapacityExceeded(
                f"no room for {what} of {format_bytes(count)}: {format_bytes(sum(self.sums()))} of "
                f"{format_bytes(self.bytes_max)} are in use and the rest is a reserve: delete "
                "files, or start the cluster with more --memory or --agents"
            )

    def part(self, share: float, most: int) -> int:
        """A share of the memory, for a buffer that needs at most `most` bytes."""
        return min(int(share * self.bytes_max), most)


def lasting(by_kind: Mapping[str, int]) -> int:
    """What of an account is not released by itself."""
    return sum(by_kind.get(kind, 0) for kind in LASTING)


def namespace_limit(
    *, bytes_max: int, namespace_bytes: int, voters: list[Mapping[str, int]], before: int
) -> int:
    """How large the namespace may become; the same for all voters.

    Half of an agent's memory, or less if a voter has less room left; `voters` are their accounts.
    It changes in steps, and grows by at least two of them at once, because each change is a command
    in the log.
    """
    step = bytes_max // LIMIT_STEPS
    end = int(bytes_max * (1 - Use.NAMESPACE.value))
    rooms = [end - lasting(account) for account in voters]
    wanted = min([bytes_max // 2, *(namespace_bytes + room for room in rooms)])
    limit = max(wanted // step, 1) * step
    return before if 0 < before < limit < before + 2 * step else limit
