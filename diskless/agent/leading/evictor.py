"""Makes room: when memory fills, files that the tier has are evicted, the least needed first.

Runs on the leader. A command evicts files, and only those within the horizon, whatever was
planned. The janitor drops the shards afterwards, as for a deleted file. While the tier does not
answer nothing is evicted: files that are only in the tier could not be read. If eviction has to
wait for the drain, the drain runs without pauses. Eviction starts above the high mark and stops
below the low mark, so that files are not evicted and hydrated in turns.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from diskless import eviction, policy
from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.drainer import Drainer
from diskless.agent.leading.hydrator import Hydrator
from diskless.agent.leading.janitor import DEAD_SHARE_MAX
from diskless.agent.memory import lasting
from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.agent.ticking import rest
from diskless.errors import DisklessError, MemoryFull
from diskless.eviction import Candidate
from diskless.model import EvictionStatus
from diskless.namespace import commands as c
from diskless.namespace.census import Census, census, is_still_there
from diskless.namespace.state import NamespaceState

log = logging.getLogger(__name__)

INTERVAL_S = 0.1
ABSENT_S = 1.0
"""How often it checks memory, and without a tier, whether there is one."""
EVICT_FILES = 500
"""Files in one command."""
PLAN_S = 10.0
"""How long a census is used."""
REST = 20
"""The pause after a census, as a multiple of its duration: it walks through all files."""
REST_PRESSED = 3
TIDY_S = 1.0
HOLD_S = 1.2
HOLD_STEP_S = 0.05
NAMESPACE_SPARE = 1 / 64
"""The fraction of the namespace's limit that must be free. With less, a put waits while eviction
makes room."""


class Evictor:
    def __init__(
        self,
        *,
        replica: Replica,
        drainer: Drainer,
        backlog: Backlog,
        hydrator: Hydrator,
        pulses: Mapping[int, Pulse],
        per_byte: float,
        now_s: Callable[[], float],
    ) -> None:
        """A byte of a file takes `per_byte` bytes of shards."""
        self._replica = replica
        self._drainer = drainer
        self._backlog = backlog
        self._hydrator = hydrator
        self._pulses = pulses
        self._per_byte = per_byte
        self._now_s = now_s
        self._plan: deque[Candidate] = deque()
        self._planned_s = float("-inf")
        self._next_census_s = float("-inf")
        self._tidied_op = -1
        self._stuck = False
        self.evicting = False
        self.files = 0
        self.bytes = 0
        """Evicted by this leader."""

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    # -- for others -----------------------------------------------------------------

    def helps(self) -> bool:
        """Whether a writer that finds memory full should wait, because room is being made."""
        tier = self._state.tier
        return tier.attached and self._drainer.superseded is None and not self._stuck

    def before(self, command: c.Command) -> Awaitable[None] | None:
        """As Leadership says. A put that a full namespace refuses is not retried, and the namespace
        may only be full because shards of files about to be evicted take its room."""
        if not isinstance(command, c.Commit) or not self._is_short() or not self.helps():
            return None
        return self._hold()

    def _is_short(self) -> bool:
        state = self._state
        spare = state.bytes_max * NAMESPACE_SPARE
        return self.evicting and 0 < state.bytes_max < state.bytes_used + spare

    async def _hold(self) -> None:
        until_s = self._now_s() + HOLD_S
        while self._is_short() and self.helps():
            if self._now_s() >= until_s:
                raise MemoryFull("memory is full until more of it is in the tier alone")
            await asyncio.sleep(HOLD_STEP_S)

    def report(self, pulses: Iterable[Pulse]) -> EvictionStatus:
        tier, counts = self._state.tier, [pulse.cache for pulse in pulses]
        hits, misses = sum(one.hits for one in counts), sum(one.misses for one in counts)
        waited_ms = sum(one.waited_ms for one in counts)
        return EvictionStatus(
            state="stuck" if self._stuck else "evicting" if self.evicting else "idle",
            files=len(tier.evicted),
            bytes=tier.evicted_bytes,
            files_done=self.files,
            bytes_done=self.bytes,
            hits=hits,
            misses=misses,
            hit_rate=round(hits / (hits + misses), 4) if hits + misses else None,
            hydration_ms=round(waited_ms / misses, 1) if misses else None,
        )

    # -- main loop ------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await rest(INTERVAL_S if self._state.tier.attached else ABSENT_S)
            try:
                await self.look()
            except DisklessError as error:
                log.info("eviction put off error=%s", error)
            except Exception:  # otherwise memory would stay full forever
                log.exception("eviction failed")

    async def look(self) -> None:
        """Evicts once, if it is due."""
        if not self._state.tier.attached:
            self.evicting = self._stuck = self._backlog.hurried = False
            return
        due = self._bytes_due()
        self.evicting = due > 0 or (self.evicting and self._is_above_low())
        self._backlog.hurried = due > 0
        if not due:
            self._stuck = False
            await self._tidy()
        elif self._drainer.is_trusted:
            await self._make_room(due)
        if self._backlog.hurried:
            self._backlog.work.set()

    def _fullness(self) -> tuple[list[int], list[int]]:
        pulses = list(self._pulses.values())
        return [lasting(pulse.memory) for pulse in pulses], [pulse.bytes_max for pulse in pulses]

    def _is_above_low(self) -> bool:
        return any(a > eviction.LOW_SHARE * b for a, b in zip(*self._fullness(), strict=True))

    def _bytes_due(self) -> int:
        used, most = self._fullness()
        freed = self._state.ledger.freed_bytes
        return eviction.bytes_to_free(
            lasting=used, bytes_max=most, freed_bytes=freed, evicting=self.evicting
        )

    # -- making room ----------------------------------------------------------------

    async def _make_room(self, due: int) -> None:
        if not self._plan or self._now_s() - self._planned_s > PLAN_S:
            if self._now_s() < self._next_census_s and not self._plan:
                return
            found = await self._census(REST_PRESSED)
            self._plan = deque([*found.surplus, *found.candidates])
            self._planned_s = self._now_s()
        chosen = self._take(due)
        if chosen:
            self._stuck = False
            await self._evict(chosen)
        else:
            self._stuck = self._is_hopeless()

    def _take(self, due: int) -> list[Candidate]:
        """The next candidates of the plan that still exist, for `due` bytes."""
        return eviction.choose(
            self._next(), stored_bytes=due, per_byte=self._per_byte, files_max=EVICT_FILES
        )

    def _next(self) -> Iterator[Candidate]:
        while self._plan:
            candidate = self._plan.popleft()
            if is_still_there(self._state, candidate):
                yield candidate

    def _is_hopeless(self) -> bool:
        """Whether nothing can be evicted, even when all is drained, reaped and repacked."""
        tier, ledger = self._state.tier, self._state.ledger
        drained = tier.change <= tier.horizon_change
        sparse = ledger.payload_bytes > DEAD_SHARE_MAX * ledger.live_bytes
        return drained and not ledger.freed_ms and not sparse

    async def _evict(self, chosen: list[Candidate]) -> None:
        rows = tuple((one.id, one.layout) for one in chosen)
        (result,) = await self._replica.execute(c.Evict(rows))
        if isinstance(result, c.Refused):
            raise result.error()
        self.files += result.number
        gone = self._state.tier.evicted
        self.bytes += sum(one.size for one in chosen if one.id in gone)
        log.info("evicted files=%d of=%d", result.number, len(chosen))

    # -- what policies ask for ------------------------------------------------------

    async def _tidy(self) -> None:
        """Evicts batches and snapshots that no policy keeps in memory, and has pinned files
        hydrated."""
        state, now_s = self._state, self._now_s()
        keys = {key for own in state.policies.table.values() for key in own}
        wishes = keys & {policy.KEEP_IN_MEMORY, policy.PIN, policy.HISTORY_IN}
        if not wishes or now_s < self._next_census_s:
            return
        moment = state.op
        if moment == self._tidied_op or not self._drainer.is_trusted:
            return
        found = await self._census(REST)
        self._hydrator.want(found.wanted)
        for at in range(0, len(found.surplus), EVICT_FILES):
            part = found.surplus[at : at + EVICT_FILES]
            if chosen := [one for one in part if is_still_there(self._state, one)]:
                self._hydrator.shun(one.id for one in chosen)
                await self._evict(chosen)
            await asyncio.sleep(0)
        self._tidied_op = moment

    async def _census(self, rest: int) -> Census:
        state = self._state
        priorities = eviction.priorities(state.policies.table)
        steps = census(state, priorities, self._hydrator.shunned)
        loop = asyncio.get_running_loop()
        took_s, began_s = 0.0, loop.time()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                took_s += loop.time() - began_s
                self._next_census_s = self._now_s() + max(rest * took_s, TIDY_S / REST * rest)
                found: Census = end.value
                self._hydrator.welcome(found.needed)
                return found
            took_s += loop.time() - began_s
            await asyncio.sleep(0)
            began_s = loop.time()
