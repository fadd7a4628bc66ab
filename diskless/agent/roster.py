"""What this agent believes about the others: who is up, where, and who leads.

The leader's beats bring the truth as the namespace records it; suspicion is this
agent's own and short-lived: it only keeps new shards away from a silent agent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from diskless.model import AgentInfo, Place


class Roster:
    def __init__(
        self, *, slot: int, seeds: Mapping[int, str], now_s: Callable[[], float], suspect_s: float
    ) -> None:
        """`seeds` are addresses of voters, as they gave them themselves."""
        self.slot = slot
        self.version = -1
        self.agents: dict[int, AgentInfo] = {}
        self.inline_room = True
        self.changed = asyncio.Event()
        self.addresses_by_slot = dict(seeds)
        self._now_s = now_s
        self._suspect_s = suspect_s
        self._suspect_until: dict[tuple[int, int], float] = {}
        self._down_since: dict[tuple[int, int], float] = {}
        self._leader: int | None = None
        self._until_leader_moves: set[asyncio.Timeout] = set()

    @property
    def leader(self) -> int | None:
        """Who leads, as far as is known here."""
        return self._leader

    @leader.setter
    def leader(self, slot: int | None) -> None:
        if slot == self._leader:
            return
        self._leader = slot
        # Each only once: one that is due already must not be touched, and raises if it is.
        due, self._until_leader_moves = self._until_leader_moves, set()
        for limit in due:
            limit.reschedule(0)

    @asynccontextmanager
    async def until_leader_moves(self) -> AsyncIterator[None]:
        """Ends the block with TimeoutError as soon as somebody else leads, or nobody."""
        async with asyncio.timeout(None) as limit:
            self._until_leader_moves.add(limit)
            try:
                yield
            finally:
                self._until_leader_moves.discard(limit)

    def update(self, *, version: int, agents: Iterable[AgentInfo]) -> None:
        before = self.agents
        self.version = version
        self.agents = {agent.slot: agent for agent in agents}
        for agent in self.agents.values():
            known = before.get(agent.slot)
            if agent.slot not in self.addresses_by_slot or (known and known.boot != agent.boot):
                self.addresses_by_slot[agent.slot] = agent.address
        down = [(agent.slot, agent.incarnation) for agent in self.agents.values() if not agent.up]
        self._down_since = {key: self._down_since.get(key, self._now_s()) for key in down}
        self.changed.set()

    def alive(self) -> list[AgentInfo]:
        """Agents that are there, as far as is known here."""
        return [agent for agent in self.agents.values() if agent.up and not self.suspects(agent)]

    def takers(self) -> list[AgentInfo]:
        """Agents that a new shard may go to."""
        return [agent for agent in self.alive() if not agent.draining]

    def holder(self, place: Place) -> AgentInfo | None:
        """The agent that still has what was stored at `place`, up or not."""
        agent = self.agents.get(place.slot)
        return agent if agent is not None and agent.incarnation == place.incarnation else None

    def down_s(self, agent: AgentInfo) -> float:
        """How long an agent has been down, as far as this agent saw it."""
        since = self._down_since.get((agent.slot, agent.incarnation))
        return 0.0 if since is None else self._now_s() - since

    def suspect(self, agent: AgentInfo) -> None:
        """Notes that an agent did not answer."""
        key = (agent.slot, agent.incarnation)
        self._suspect_until[key] = self._now_s() + self._suspect_s

    def suspects(self, agent: AgentInfo) -> bool:
        key = (agent.slot, agent.incarnation)
        until = self._suspect_until.get(key)
        if until is not None and until <= self._now_s():
            del self._suspect_until[key]
            until = None
        return until is not None

    def meet(self, seeds: Mapping[int, str]) -> None:
        """Takes addresses that agents gave for themselves; newer than any roster's."""
        self.addresses_by_slot.update(seeds)

    def addresses(self) -> set[str]:
        return {agent.address for agent in self.agents.values()} | set(
            self.addresses_by_slot.values()
        )

    def address_of(self, slot: int) -> str | None:
        """Where an agent is: as it told us, or as the roster did, whichever is later."""
        return self.addresses_by_slot.get(slot)
