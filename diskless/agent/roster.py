"""What this agent knows of the others: who is up, where, and who leads.

The leader's heartbeats bring what the namespace records. Suspicion is local and short-lived: it
only keeps new shards away from a silent agent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from diskless.ends import ending
from diskless.model import AgentInfo, Place
from diskless.placement import staying
from diskless.policy import NO_GRADES
from diskless.upkeep import USUAL


class Roster:
    def __init__(
        self, *, slot: int, seeds: Mapping[int, str], now_s: Callable[[], float], suspect_s: float
    ) -> None:
        """`seeds` are addresses of voters, as they gave them themselves."""
        self.slot = slot
        self.version = -1
        self.agents: dict[int, AgentInfo] = {}
        self.inline_room = True
        self.grades = NO_GRADES
        """The parity and priority of paths, as the leader last reported them."""
        self.grades_mark = 0
        self.unsteady: frozenset[int] = frozenset()
        """Slots of agents that come and go, as the leader last said."""
        self.upkeep_pace = USUAL
        """How fast to look through what there is, as the leader last said (`diskless.upkeep`)."""
        self.relief = False
        """Whether the leader makes room when memory is full, by evicting what the tier has."""
        self.ending: frozenset[int] = frozenset()
        """Slots of agents whose ends are announced, up or not."""
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
        # Each only once: one that has already expired raises if it is changed.
        due, self._until_leader_moves = self._until_leader_moves, set()
        for limit in due:
            limit.reschedule(0)

    @asynccontextmanager
    async def until_leader_moves(self) -> AsyncIterator[None]:
        """Ends the block with TimeoutError as soon as another agent leads, or none."""
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
        self.ending = ending(self.agents)
        down = [(agent.slot, agent.incarnation) for agent in self.agents.values() if not agent.up]
        self._down_since = {key: self._down_since.get(key, self._now_s()) for key in down}
        self.changed.set()

    def alive(self) -> list[AgentInfo]:
        """Agents that are up, as far as is known here."""
        up = [agent for agent in self.agents.values() if agent.up]
        return [agent for agent in up if not self.suspects(agent)] if self._suspect_until else up

    def registrar(self, file: int) -> AgentInfo | None:
        """The agent that registers who fetches a file from the tier; None if it is this one, or no
        agent is up."""
        there = sorted(a.slot for a in self.alive() if not a.slow) or [self.slot]
        slot = there[file % len(there)]
        return None if slot == self.slot else self.agents[slot]

    def takers(self) -> list[AgentInfo]:
        """Agents that a new shard may go to."""
        return [agent for agent in self.alive() if not agent.leaves]

    def takers_for(self, shards: int) -> list[AgentInfo]:
        """The same; with those whose ends are announced if there are not enough for so many."""
        alive = [agent for agent in self.alive() if not agent.draining]
        return list(staying(alive, enough=shards))

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
        """Stores addresses that agents reported themselves; they are newer than any roster's."""
        self.addresses_by_slot.update(seeds)

    def unmeet(self, slot: int) -> None:
        """Removes an address that an agent reported: it was restarted since."""
        if (agent := self.agents.get(slot)) is not None:
            self.addresses_by_slot[slot] = agent.address

    def addresses(self) -> set[str]:
        return {agent.address for agent in self.agents.values()} | set(
            self.addresses_by_slot.values()
        )

    def address_of(self, slot: int) -> str | None:
        """The address of an agent: its own report or the roster's, whichever is newer."""
        return self.addresses_by_slot.get(slot)
