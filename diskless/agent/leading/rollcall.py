"""Whether what is named is there: the leader calls the roll of all shards, slowly.

Holders ask whether what they hold is wanted (`agent.sweeper`); here it is asked whether what
is wanted is held. A holder that misses a shard says so with its pulses from then on, so it
counts as damaged: in the margin, and for the repairer. Goes through the stripes in slices,
and at once through those of an agent that reports fewer shards than are named there.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping

from diskless.agent.ports import Pulse, ShardPeers
from diskless.agent.replica import Replica
from diskless.errors import DisklessError, Unavailable
from diskless.model import AgentInfo, Place, ShardName, slot_name
from diskless.namespace.state import NamespaceState

log = logging.getLogger(__name__)

SLICE_STRIPES = 500
"""Asked for at once: no turn of the loop takes longer for it than a few milliseconds."""
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
    ) -> None:
        """`interval_s` lies between two slices."""
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
        """Goes on until cancelled: after the last stripe come the first again."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                for slot in self.short():
                    await self.call_all(slot)
                await self.call_next()
            except DisklessError as error:
                log.info("roll call put off error=%s", error)
            except Exception:  # else nothing would ever be missed again
                log.exception("roll call failed")

    async def call_all(self, slot: int) -> None:
        """Asks one agent for everything that it should have."""
        roll = list(self._state.ledger.entries)
        for at in range(0, len(roll), SLICE_STRIPES):
            await self._ask(roll[at : at + SLICE_STRIPES], only=slot)
            await asyncio.sleep(HURRY_PAUSE_S)

    async def call_next(self) -> None:
        """Asks for the stripes whose turn it is."""
        if not self._roll:
            self._roll = list(reversed(self._state.ledger.entries))
        taken, self._roll = self._roll[-SLICE_STRIPES:], self._roll[:-SLICE_STRIPES]
        await self._ask(taken)

    def short(self) -> list[int]:
        """Slots with fewer shards than were named there at the last look and are now: what was
        named since may be newer than an agent's pulse. None again before a while is over: what
        is missed already is not missed less until it is repaired."""
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
        """What agents that are up should have, in the life that they are in."""
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
