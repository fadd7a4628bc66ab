"""Has agents store shards elsewhere, and commits the new places: for repair and for balance.

Runs on the leader. A shard is first stored at its new place, then `MoveShards` names the new
place, and only then the shard at the old place is dropped. A failure in between leaves the stripe
as it was, and a copy that the review of its holder finds.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from diskless.agent.holders import deliver
from diskless.agent.leading.pacer import Pacer
from diskless.agent.ports import Pulse, Rebuilt, ShardPeers, Workers
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.errors import DisklessError, Unavailable
from diskless.model import HeldShard, Place, Stripe, slot_name
from diskless.namespace import commands as c
from diskless.namespace.state import NamespaceState
from diskless.repair import Cluster, diagnose

log = logging.getLogger(__name__)

UNFIT_S = 3.0
"""How long an agent that did not take a shard gets no other."""
WATCH_S = 0.25
"""How often it is checked whether an agent that works on a stripe is still up."""
FAILED_PAUSE_S = 0.1
"""The pause after a wave in which nothing succeeded."""

Job = tuple[Stripe, dict[int, int]]
"""A stripe, and the slots to which some of its shards should go."""
Rebuild = tuple[Stripe, dict[int, Place]]
"""A stripe as it was, and the new places of some of its shards."""
T = TypeVar("T")


class Mover:
    def __init__(
        self,
        *,
        replica: Replica,
        roster: Roster,
        holders: ShardPeers,
        workers: Workers,
        pacer: Pacer,
        pulses: Mapping[int, Pulse],
        now_s: Callable[[], float],
        hurries: Callable[[], bool],
    ) -> None:
        """`hurries` returns whether there is no time for pauses. Clients are then slowed down."""
        self._replica = replica
        self._roster = roster
        self._holders = holders
        self._workers = workers
        self._pacer = pacer
        self._pulses = pulses
        self._now_s = now_s
        self._hurries = hurries
        self._load: Counter[int] = Counter()
        self._unfit_until: dict[int, float] = {}
        self._requests_seen = 0

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    def unfit(self) -> frozenset[int]:
        """Slots that recently did not take a shard."""
        now_s = self._now_s()
        self._unfit_until = {s: t for s, t in self._unfit_until.items() if t > now_s}
        return frozenset(self._unfit_until)

    # -- pace -------------------------------------------------------------------

    @property
    def pacer(self) -> Pacer:
        return self._pacer

    def wave_stripes(self) -> int:
        clients_at_work = self._clients_at_work() and not self._hurries()
        return self._pacer.wave_stripes(clients_at_work=clients_at_work)

    async def paced(self, work: Awaitable[T]) -> T:
        began_s = self._now_s()
        self._pacer.wave_begins()
        try:
            done = await work
        finally:
            pause_s = self._pacer.wave_ends(
                self._now_s() - began_s, clients_at_work=self._clients_at_work()
            )
        await asyncio.sleep(0 if self._hurries() else pause_s)
        return done

    def _clients_at_work(self) -> bool:
        """Whether any agent has had a request since the last call."""
        seen, self._requests_seen = (
            self._requests_seen,
            sum(pulse.requests for pulse in self._pulses.values()),
        )
        return self._requests_seen > seen

    # -- a wave -----------------------------------------------------------------

    async def wave(self, jobs: Sequence[Job], cluster: Cluster) -> list[Rebuild]:
        """Stores shards of some stripes in parallel. Returns those that succeeded."""
        done = await self.paced(self._wave(jobs, cluster))
        if not done:
            await asyncio.sleep(FAILED_PAUSE_S)
        return done

    async def _wave(self, jobs: Sequence[Job], cluster: Cluster) -> list[Rebuild]:
        outcomes = await asyncio.gather(*(self._job(*job, cluster) for job in jobs))
        return [
            (stripe, places) for (stripe, _), places in zip(jobs, outcomes, strict=True) if places
        ]

    async def move(self, rebuilt: Sequence[Rebuild]) -> list[c.ShardMove]:
        """Commits the new places of shards. Returns the moves that were made: those of stripes
        that have not changed."""
        if not rebuilt:
            return []
        moves = [
            c.ShardMove(stripe.id, stripe.version, tuple(sorted(places.items())))
            for stripe, places in rebuilt
        ]
        (result,) = await self._replica.execute(c.MoveShards(tuple(moves)))
        assert isinstance(result, c.Done)
        log.info("shards moved stripes=%d of=%d", result.number, len(moves))
        made = [move for move in moves if self._is_made(move)]
        await self._drop_superseded([stripe for stripe, _ in rebuilt])
        return made

    def _is_made(self, move: c.ShardMove) -> bool:
        entry = self._state.ledger.entries.get(move.stripe)
        return (
            entry is not None
            and entry.stripe.version > move.version
            and all(entry.stripe.places[index] == place for index, place in move.places)
        )

    async def _job(
        self, stripe: Stripe, targets: Mapping[int, int], cluster: Cluster
    ) -> dict[int, Place]:
        """Has one agent with a shard of the stripe rebuild the missing ones. A shard that is only
        moved is sent by its holder, unless the holder is leaving: then all holders share the
        work."""
        shards = diagnose(stripe, cluster)
        holders = [stripe.places[index].slot for index in shards.readable]
        copied = {stripe.places[index].slot for index in shards.sound if index in targets}
        agents = self._state.agents
        worker = min(
            holders,
            key=lambda slot: (
                self._roster.suspects(agents[slot]),
                agents[slot].slow,
                slot not in copied,
                self._load[slot],
                slot,
            ),
        )
        self._load[worker] += 1
        try:
            rebuilt = await self._ask(worker, stripe, targets)
        except DisklessError as error:
            log.warning(
                "not rebuilt stripe=%s worker=%s error=%s", stripe.id, slot_name(worker), error
            )
            if isinstance(error, Unavailable):
                self._roster.suspect(agents[worker])
            return {}
        finally:
            self._load[worker] -= 1
        for slot, why in rebuilt.failed.items():
            log.warning("shard not taken slot=%s error=%s", slot_name(slot), why)
            self._unfit_until[slot] = self._now_s() + UNFIT_S
        return rebuilt.places

    async def _ask(self, worker: int, stripe: Stripe, targets: Mapping[int, int]) -> Rebuilt:
        agent = self._state.agents[worker]
        work = asyncio.create_task(self._workers.rebuild(agent, stripe, targets))
        try:
            while not (await asyncio.wait([work], timeout=WATCH_S))[0]:
                if not self._state.agents[worker].up:  # it may be frozen: do not wait
                    raise Unavailable(f"{slot_name(worker)} went down while it rebuilt")
            return work.result()
        finally:
            work.cancel()

    async def _drop_superseded(self, before: Iterable[Stripe]) -> None:
        """Drops moved shards from the old places on agents that are up: nothing names them now.

        Agents that are down have their shards reviewed when they return. Agents whose end is
        announced keep them until then, for readers that do not know yet of the move.
        """
        at: dict[int, list[HeldShard]] = defaultdict(list)
        for old in before:
            entry = self._state.ledger.entries.get(old.id)
            for index, place in enumerate(old.places):
                holder = self._roster.holder(place)
                moved = entry is not None and entry.stripe.places[index] != place
                stays = holder is not None and holder.up and not holder.ends_ms
                if entry is not None and moved and stays:
                    at[place.slot].append(HeldShard(old.id, index, entry.stripe.version))
        told = ((self._roster.agents[slot], shards) for slot, shards in at.items())
        await asyncio.gather(
            *(
                deliver(agent, self._holders.drop_superseded(agent, shards))
                for agent, shards in told
            )
        )
