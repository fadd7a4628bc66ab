"""Checks in the background that every shard named by the namespace exists on its holder.

The opposite direction is `agent.sweeper`: there, holders ask whether the shards that they hold are
still named. A holder that misses a shard reports it with its pulses from then on. The shard then
counts as damaged, in the margin and for the repairer. Checks the stripes in slices. If an agent
reports fewer shards than are named there, all its shards are checked at once.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping

from diskless.agent.ports import Pulse, ShardPeers
from diskless.agent.replica import Replica
from diskless.agent.ticking import rest
from diskless.errors import DisklessError, Unavailable
from diskless.model import AgentInfo, Place, ShardName, slot_name
from diskless.namespace.state import NamespaceState
from diskless.upkeep import USUAL

log = logging.getLogger(__name__)

SLICE_STRIPES = 500
"""Stripes in one slice: blocks the event loop for a few milliseconds at most."""
REST_INTERVALS = 5
"""Intervals between the end of a pass and the next, at the usual pace. Without them, a small
cluster would check everything, and ask all agents, in every interval, even when idle. The number of
shards that an agent reports is compared in every interval."""
HURRY_PAUSE_S = 0.01
"""Between two slices while an agent has fewer shards than it should."""
HURRY_AGAIN_S = 60.0
"""Between two such passes for the same agent."""


class RollCall:
    def __init__(
        self,
        *,
        replica: Replica,
        holders: ShardPeers,
        pulses: Mapping[int, Pulse],
        interval_s: float,
        pace: Callable[[], float] = lambda: USUAL,
    ) -> None:
        """`interval_s / pace()` is the time between two slices."""
        self._pace = pace
        self._replica = replica
        self._holders = holders
        self._pulses = pulses
        self._interval_s = interval_s
        self._roll: list[str] = []
        self._named: dict[Place, int] = {}
        self._hurry_again_s: dict[int, float] = {}

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    async def run(self) -> None:
        """Runs until cancelled. After the last stripe it starts over."""
        slices_due = 0.0
        while True:
            await rest(self._interval_s)
            try:
                for slot in self.short():
                    await self.call_all(slot)
                slices_due += self._pace()
                while slices_due >= 1:
                    await self.call_next()
                    slices_due = slices_due - 1 if self._roll else 1.0 - REST_INTERVALS
            except DisklessError as error:
                log.info("roll call put off error=%s", error)
            except Exception:  # otherwise missing shards would not be found any more
                log.exception("roll call failed")

    async def call_all(self, slot: int) -> None:
        """Asks one agent about every shard that it should have."""
        roll = list(self._state.ledger.entries)
        for at in range(0, len(roll), SLICE_STRIPES):
            await self._ask(roll[at : at + SLICE_STRIPES], only=slot)
            await asyncio.sleep(HURRY_PAUSE_S)

    async def call_next(self) -> None:
        """Asks about the next slice of stripes."""
        if not self._roll:
            self._roll = list(reversed(self._state.ledger.entries))
        taken, self._roll = self._roll[-SLICE_STRIPES:], self._roll[:-SLICE_STRIPES]
        await self._ask(taken)

    def short(self) -> list[int]:
        """Slots that report fewer shards than were named there both at the last call and now:
        shards named since may be newer than the agent's pulse. The same slot is not returned again
        for a while, because shards that are known to be missing stay missing until repaired."""
        found = []
        now_s = asyncio.get_running_loop().time()
        before, self._named = self._named, {}
        for slot, pulse in self._pulses.items():
            agent = self._state.agents.get(slot)
            if agent is None or agent.boot != pulse.boot:
                continue
            place = Place(slot, agent.incarnation)
            named = self._named[place] = self._state.health.shards_at[place]
            is_short = pulse.shards < min(named, before.get(place, 0))
            if is_short and now_s >= self._hurry_again_s.get(slot, 0.0):
                self._hurry_again_s[slot] = now_s + HURRY_AGAIN_S
                found.append(slot)
        return found

    async def _ask(self, stripes: list[str], *, only: int | None = None) -> None:
        expected = self._expected(stripes, only)
        agents = self._state.agents
        await asyncio.gather(
            *(self._ask_one(agents[slot], names) for slot, names in expected.items())
        )

    def _expected(self, stripes: list[str], only: int | None) -> dict[int, list[ShardName]]:
        """The shards that agents which are up should have, in their current incarnation."""
        ledger, agents = self._state.ledger, self._state.agents
        expected: dict[int, list[ShardName]] = defaultdict(list)
        for stripe in stripes:
            if stripe in ledger.freed_ms or stripe not in ledger.entries:
                continue
            for index, place in enumerate(ledger.entries[stripe].stripe.places):
                agent = agents.get(place.slot)
                if only not in (None, place.slot) or agent is None or not agent.up:
                    continue
                if agent.incarnation == place.incarnation:
                    expected[place.slot].append((stripe, index))
        return expected

    async def _ask_one(self, agent: AgentInfo, names: list[ShardName]) -> None:
        try:
            missed = await self._holders.miss(agent, names)
        except Unavailable as error:
            log.info("roll not called agent=%s error=%s", slot_name(agent.slot), error)
            return
        if missed:
            log.error("shards missed agent=%s shards=%d", slot_name(agent.slot), missed)
