"""Moves shards to agents that have more room, a wave at a time, while there is nothing to repair.

Runs on the leader. `diskless.balance` decides which shard goes where. The `Mover` does it at the
pace of repair. A successor needs nothing from here: how full agents are follows from the namespace
and the pulses, and a move that was not committed is chosen again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from diskless.agent.leading.mover import Job, Mover
from diskless.agent.memory import RESERVE_SHARE, lasting
from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.shards import SHARD_OVERHEAD_BYTES
from diskless.balance import Load, Scales, Walk
from diskless.model import AgentInfo, BalanceStatus
from diskless.namespace.state import NamespaceState
from diskless.repair import Cluster, diagnose

log = logging.getLogger(__name__)

STRETCHES_MAX = 20
"""Steps of the search for shards to move, before repair is checked again."""
AGAIN_S = 10.0
"""The delay before a retry after agents did not take shards."""


class Balancer:
    def __init__(
        self,
        *,
        replica: Replica,
        roster: Roster,
        mover: Mover,
        pulses: Mapping[int, Pulse],
        now_s: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._roster = roster
        self._mover = mover
        self._pulses = pulses
        self._now_s = now_s
        self._walk: Walk | None = None
        self._left: Iterator[str | None] = iter(())
        self._moved = self._failed = False  # on this walk
        self._reached: tuple[object, float] = (None, 0.0)  # the agents, their deviation
        self._again_s = 0.0
        self._began_s = 0.0
        self._bytes_done = 0
        self._waits = True

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    def give_way(self) -> None:
        """There may be something to repair. Repair comes first."""
        self._waits = True

    async def balance(self, cluster: Cluster) -> bool:
        """Moves the next few shards, if any should move. Returns whether there is more to do."""
        scales = self._weigh(cluster)
        self._waits = scales is None or cluster.awaits_agents
        if scales is None or self._waits:
            return False
        if self._walk is not None and scales.is_even:
            self._end(scales, cluster)
        if self._walk is None and not self._begins(scales, cluster):
            return False
        assert self._walk is not None
        self._walk.scales = scales
        jobs, over = await self._next(cluster, self._walk)
        if jobs:
            await self._carry_out(jobs, cluster)
        if over and self._moved:  # shards without a target may have one now
            self._set_out(scales)
        elif over:
            self._end(scales, cluster)
        return self._walk is not None

    def _weigh(self, cluster: Cluster) -> Scales | None:
        """None until all agents have reported how full they are."""
        health, loads = self._state.health, []
        placed = health.shards_placed
        for agent in cluster.agents.values():
            if not agent.up or agent.leaves:
                continue
            pulse = self._pulses.get(agent.slot)
            if pulse is None or pulse.boot != agent.boot:
                return None
            # Shards are counted from the namespace: it shows a move before the next pulse does.
            shards = health.bytes_placed[agent.slot]
            shards += SHARD_OVERHEAD_BYTES * placed[agent.slot]
            there = pulse.memory.get("shards", 0)
            rest = lasting(pulse.memory) - there
            loads.append(
                Load(
                    slot=agent.slot,
                    host=agent.host,
                    bytes_max=int(pulse.bytes_max * (1 - RESERVE_SHARE)),
                    bytes_used=shards + rest,
                    bytes_dead=max(there - shards, 0),
                    takes=not (
                        agent.slow or agent.slot in cluster.unsteady or self._shuns(agent, cluster)
                    ),
                )
            )
        return Scales(loads)

    def _shuns(self, agent: AgentInfo, cluster: Cluster) -> bool:
        """Whether an agent recently did not take shards, or did not answer."""
        return agent.slot in cluster.unfit or self._roster.suspects(agent)

    def _begins(self, scales: Scales, cluster: Cluster) -> bool:
        if self._now_s() < self._again_s or not scales.is_off(reached=self._reached_here(cluster)):
            return False
        log.info("shards begin to move bytes=%d", scales.bytes_left)
        self._began_s, self._bytes_done = self._now_s(), 0
        self._set_out(scales)
        return True

    def _reached_here(self, cluster: Cluster) -> float:
        """The deviation that remained the last time; 0 if the set of agents has changed."""
        agents, deviation = self._reached
        return deviation if agents == self._agents_of(cluster) else 0.0

    def _agents_of(self, cluster: Cluster) -> object:
        return self._state.roster_version, cluster.unsteady

    def _set_out(self, scales: Scales) -> None:
        self._walk = Walk(self._state.health, scales, overhead=SHARD_OVERHEAD_BYTES)
        self._left = iter(self._walk)
        self._moved = self._failed = False

    def _end(self, scales: Scales, cluster: Cluster) -> None:
        self._walk = None
        self._reached = (self._agents_of(cluster), scales.deviation)
        if not scales.is_even and (scales.awaits_room or self._is_hindered(cluster)):
            self._reached, self._again_s = (None, 0.0), self._now_s() + AGAIN_S
        log.info("shards have moved bytes=%d", self._bytes_done)

    def _is_hindered(self, cluster: Cluster) -> bool:
        """Whether agents did not take shards now but may take some soon."""
        return self._failed or any(self._shuns(a, cluster) for a in cluster.agents.values() if a.up)

    async def _next(self, cluster: Cluster, walk: Walk) -> tuple[list[Job], bool]:
        """The next few moves that a bounded search finds, and whether the walk is over."""
        jobs: dict[str, Job] = {}
        stretches, size = 0, self._mover.wave_stripes()
        for id_ in self._left:
            if id_ is not None:
                job = self._job(id_, cluster, walk) if id_ not in jobs else None
                if job is not None:
                    jobs[id_] = job
                if len(jobs) >= size:
                    break
                continue
            stretches += 1
            if stretches >= STRETCHES_MAX:
                break
            await asyncio.sleep(0)  # let other tasks run
        else:
            return list(jobs.values()), True
        return list(jobs.values()), False

    def _job(self, id_: str, cluster: Cluster, walk: Walk) -> Job | None:
        entry = self._state.ledger.live(id_)
        if entry is None:
            return None
        stripe = entry.stripe
        if len(diagnose(stripe, cluster).sound) < len(stripe.places):
            return None
        size = walk.size_of(stripe)
        found = walk.scales.choose([place.slot for place in stripe.places], size)
        if found is None:
            return None
        index, taker = found
        walk.scales.move(stripe.places[index].slot, taker, size)
        return stripe, {index: taker}

    async def _carry_out(self, jobs: list[Job], cluster: Cluster) -> None:
        failed, self._failed = self._failed, True  # until all moves are known to be done
        done = await self._mover.wave(jobs, cluster)
        made = {move.stripe for move in await self._mover.move(done)}
        self._failed = failed or len(made) < len(jobs)
        self._moved = self._moved or bool(made)
        self._bytes_done += sum(stripe.shard_bytes for stripe, _ in done if stripe.id in made)

    def report(self, cluster: Cluster) -> BalanceStatus:
        scales = self._weigh(cluster)
        if scales is None:
            return BalanceStatus(state="waiting")
        moving, reached = self._walk is not None, self._reached_here(cluster)
        state = "idle"
        if moving or scales.is_off(reached=reached):
            state = "waiting" if self._waits else "moving"
        elif reached and scales.is_off():
            state = "settled"
        left = scales.bytes_left if state in ("waiting", "moving") else 0
        took_s = self._now_s() - self._began_s if moving else 0.0
        rate = self._bytes_done / took_s if took_s > 0 else 0.0
        return BalanceStatus(
            state=state,
            bytes_left=left,
            bytes_done=self._bytes_done,
            bytes_per_s=round(rate),
            eta_s=round(left / rate, 1) if rate else None,
            mean_share=round(scales.mean, 4),
            fullest_share=round(scales.fullest, 4),
            emptiest_share=round(scales.emptiest, 4),
        )
