"""Re-protects what dead agents held: the leader's plan, carried out by all agents.

Runs on the leader, over its state, and keeps nothing that a successor would need: the
plan follows from the namespace, storing a shard is idempotent, and a move that was not
committed is planned again. `diskless.repair` decides what is lost and where it goes,
agents that hold the rest of a stripe do the work (`Rebuilder`), `MoveShards` makes it
known. When no agent can take a lost shard, and when agents are back that narrow stripes
were written without, stripes are encoded anew in the shape that fits (`Rewriter`).
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from diskless.agent.leading.pacer import Pacer
from diskless.agent.leading.progress import Progress
from diskless.agent.leading.rewriter import REWRITE_BYTES_MAX, REWRITE_FILES_MAX, Rewriter
from diskless.agent.ports import Pulse, Rebuilt, ShardPeers, Workers
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.config import ClusterSettings
from diskless.errors import CapacityExceeded, DisklessError, TooFewShards, Unavailable
from diskless.model import AgentInfo, FileRecord, HeldShard, Place, ShardName, Stripe, slot_name
from diskless.namespace import commands as c
from diskless.namespace.state import NamespaceState
from diskless.namespace.survey import survey
from diskless.repair import Cluster, RepairPlan, Worklist, choose_targets, diagnose

log = logging.getLogger(__name__)

MOVE_STRIPES = 32
"""Rebuilt stripes whose moves are committed together."""
UNFIT_S = 3.0
"""How long an agent that did not take a shard is not offered another."""
HEALED_S = 3.0
"""How long an agent may take to say that a shard is not damaged any more."""
LOOK_ANYWAY_S = 30.0
LOOK_ANYWAY_DRAINING_S = 2.0
"""How often it plans although no agent has come or gone: a writer may have taken an agent
for dead, or not have heard yet that it is draining."""
WATCH_S = 0.25
"""How often it is asked whether an agent that works on a stripe is still up."""
FAILED_PAUSE_S = 0.1
"""After a wave of which nothing came."""
NO_ROOM_S = 10.0
"""Before stripes are encoded anew again after there was no room for it."""


_Rebuild = tuple[Stripe, dict[int, Place]]
"""A stripe as it was, and where some of its shards are stored now."""
T = TypeVar("T")


class Repairer:
    def __init__(
        self,
        *,
        settings: ClusterSettings,
        replica: Replica,
        roster: Roster,
        holders: ShardPeers,
        workers: Workers,
        rewriter: Rewriter,
        pacer: Pacer,
        pulses: Mapping[int, Pulse],
        overdue: Callable[[], frozenset[int]],
        now_s: Callable[[], float],
    ) -> None:
        """`pulses` are the latest answers of agents to this leader's beats; `overdue` tells
        which slots are down for so long that they are given up."""
        self._settings = settings
        self._replica = replica
        self._roster = roster
        self._holders = holders
        self._workers = workers
        self._rewriter = rewriter
        self._pacer = pacer
        self._pulses = pulses
        self._overdue = overdue
        self._now_s = now_s
        self.progress = Progress(now_s)
        self._turn = 0
        self._load: Counter[int] = Counter()
        self._unfit_until: dict[int, float] = {}
        self._healed_until: dict[ShardName, float] = {}
        self._requests_seen = 0
        self._well: tuple[object, ...] | None = None
        self._planned_without: frozenset[int] | None = None
        self._looked_s = 0.0
        self._room_again_s = 0.0

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    async def run(self) -> None:
        """Repairs until cancelled."""
        advanced = False
        while True:
            if not advanced:
                await asyncio.sleep(self._settings.tuning.repair_interval_s)
            try:
                advanced = await self.repair()
            except DisklessError as error:
                advanced = False
                log.info("repair put off error=%s", error)
            except Exception:  # else nothing would ever be repaired again
                advanced = False
                log.exception("repair failed")

    async def repair(self) -> bool:
        """Plans once and does what can be done; whether anything was."""
        cluster = self._look()
        key = (self._state.roster_version, cluster.gone, cluster.damaged, cluster.unfit)
        draining = any(agent.draining for agent in cluster.agents.values())
        anyway_s = LOOK_ANYWAY_DRAINING_S if draining else LOOK_ANYWAY_S
        if key == self._well and self._now_s() - self._looked_s < anyway_s:
            return False
        plan = await self._plan(cluster)
        self._looked_s = self._now_s()
        self._tell(plan)
        self._planned_without = frozenset(cluster.gone)
        self._well = key if plan.is_empty else None
        if plan.rebuild:
            return await self._rebuild(plan.rebuild)
        if plan.reshape:
            return await self._reshape(plan.reshape)
        return False

    def can_spare(self, slots: frozenset[int]) -> bool:
        """Whether nothing is lost without these agents: they are exactly those that the last
        look at all stripes took for gone, and no other is away."""
        away = frozenset(slot for slot, agent in self._state.agents.items() if not agent.up)
        return away == slots == self._planned_without and not self.progress.lost

    def damaged(self) -> frozenset[ShardName]:
        """Shards that their holders say are corrupt or missing, and should have."""
        now_s = self._now_s()
        self._healed_until = {n: t for n, t in self._healed_until.items() if t > now_s}
        found: set[ShardName] = set()
        for slot, pulse in self._pulses.items():
            agent = self._state.agents.get(slot)
            if agent is None or agent.boot != pulse.boot:
                continue
            here = Place(slot, agent.incarnation)
            found |= {name for name in pulse.damaged if self._place_of(*name) == here}
        return frozenset(found - self._healed_until.keys())

    def _place_of(self, stripe: str, index: int) -> Place | None:
        entry = self._state.ledger.entries.get(stripe)
        places = entry.stripe.places if entry is not None else ()
        return places[index] if index < len(places) else None

    # -- planning ---------------------------------------------------------------

    def _look(self) -> Cluster:
        state, settings, now_s = self._state, self._settings, self._now_s()
        self._unfit_until = {s: t for s, t in self._unfit_until.items() if t > now_s}
        return Cluster(
            agents=dict(state.agents),
            data_shards=settings.data_shards,
            parity_shards=settings.parity_shards,
            gone=self._overdue(),
            damaged=self.damaged(),
            unfit=frozenset(self._unfit_until),
        )

    async def _plan(self, cluster: Cluster) -> RepairPlan:
        steps = survey(self._state.ledger, cluster)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                plan: RepairPlan = done.value
                return plan
            await asyncio.sleep(0)  # others get their turn on the event loop

    def _tell(self, plan: RepairPlan) -> None:
        progress = self.progress
        if plan.lost.stripes > progress.lost:
            first = next(iter(plan.lost), None)
            log.error("stripes lost count=%d first=%s", plan.lost.stripes, first)
        progress.lost, progress.stuck = plan.lost.stripes, plan.stuck.stripes
        progress.waiting = plan.waiting.stripes
        progress.plan(
            stripes=plan.rebuild.stripes + plan.reshape.stripes,
            payload_bytes=plan.rebuild.payload_bytes + plan.reshape.payload_bytes,
            reshaping=not plan.rebuild,
        )

    # -- rebuilding -------------------------------------------------------------

    async def _rebuild(self, stripes: Worklist) -> bool:
        """Wave after wave, until each had its turn, agents came or went, or more is lost: that
        may be worse off than what is left here, which may only have to be spread out."""
        roster_version, before = self._state.roster_version, self._look()
        advanced = False
        left = iter(stripes)
        rebuilt: list[_Rebuild] = []
        while self._state.roster_version == roster_version and not self._more_lost(before):
            size = self._pacer.wave_stripes(clients_at_work=self._clients_at_work())
            wave = list(islice(left, size))
            if not wave:
                break
            done = await self._paced(self._wave(wave))
            if not done:
                await asyncio.sleep(FAILED_PAUSE_S)
            rebuilt += done
            if len(rebuilt) >= MOVE_STRIPES:
                advanced = await self._move(rebuilt) or advanced
                rebuilt = []
        return await self._move(rebuilt) or advanced

    def _more_lost(self, before: Cluster) -> bool:
        now = self._look()
        return bool({*now.gone} - {*before.gone} or {*now.damaged} - {*before.damaged})

    async def _paced(self, work: Awaitable[T]) -> T:
        began_s = self._now_s()
        self._pacer.wave_begins()
        try:
            done = await work
        finally:
            pause_s = self._pacer.wave_ends(
                self._now_s() - began_s, clients_at_work=self._clients_at_work()
            )
        await asyncio.sleep(pause_s)
        return done

    def _clients_at_work(self) -> bool:
        """Whether any agent has had a request since this was last asked."""
        seen, self._requests_seen = (
            self._requests_seen,
            sum(pulse.requests for pulse in self._pulses.values()),
        )
        return self._requests_seen > seen

    async def _wave(self, stripes: Iterable[str]) -> list[_Rebuild]:
        """Rebuilds some stripes, all at once; those that could be."""
        cluster = self._look()
        jobs: list[tuple[Stripe, dict[int, int]]] = []
        for id_ in stripes:
            entry = self._state.ledger.live(id_)
            if entry is None:
                continue
            self._turn += 1
            targets = choose_targets(entry.stripe, cluster, turn=self._turn)
            if (
                targets
                and len(diagnose(entry.stripe, cluster).readable) >= entry.stripe.data_shards
            ):
                jobs.append((entry.stripe, targets))
        outcomes = await asyncio.gather(*(self._job(*job, cluster) for job in jobs))
        return [
            (stripe, places) for (stripe, _), places in zip(jobs, outcomes, strict=True) if places
        ]

    async def _move(self, rebuilt: Sequence[_Rebuild]) -> bool:
        """Makes it known where rebuilt shards are; whether any stripe is still the same."""
        if not rebuilt:
            return False
        moves = [
            c.ShardMove(stripe.id, stripe.version, tuple(sorted(places.items())))
            for stripe, places in rebuilt
        ]
        (result,) = await self._replica.execute(c.MoveShards(tuple(moves)))
        assert isinstance(result, c.Done)
        log.info("shards moved stripes=%d of=%d", result.number, len(moves))
        entries = self._state.ledger.entries
        made = [
            move
            for move in moves
            if all(self._place_of(move.stripe, index) == place for index, place in move.places)
            and entries[move.stripe].stripe.version > move.version
        ]
        self.progress.done(entries[move.stripe].stripe.payload_bytes for move in made)
        self._note_healed(made)
        await self._drop_superseded([stripe for stripe, _ in rebuilt])
        return result.number > 0

    async def _job(
        self, stripe: Stripe, targets: Mapping[int, int], cluster: Cluster
    ) -> dict[int, Place]:
        """Has one agent that holds a part of a stripe rebuild the rest of it."""
        holders = [stripe.places[index].slot for index in diagnose(stripe, cluster).readable]
        agents = self._state.agents
        worker = min(
            holders,
            key=lambda slot: (
                self._roster.suspects(agents[slot]),
                agents[slot].slow,
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
                if not self._state.agents[worker].up:  # no need to wait for one that is frozen
                    raise Unavailable(f"{slot_name(worker)} went down while it rebuilt")
            return work.result()
        finally:
            work.cancel()

    def _note_healed(self, moves: Iterable[c.ShardMove]) -> None:
        """Their holders go on calling them damaged until their next heartbeats."""
        until_s = self._now_s() + HEALED_S
        moved = {(move.stripe, index) for move in moves for index, _ in move.places}
        self._healed_until |= dict.fromkeys(moved & self.damaged(), until_s)

    async def _drop_superseded(self, before: Iterable[Stripe]) -> None:
        """Drops what was moved off agents that are there, now that nothing names it.

        Others have it reviewed when they are back.
        """
        at: dict[int, list[HeldShard]] = defaultdict(list)
        for old in before:
            entry = self._state.ledger.entries.get(old.id)
            for index, place in enumerate(old.places):
                holder = self._roster.holder(place)
                moved = entry is not None and entry.stripe.places[index] != place
                if entry is not None and moved and holder is not None and holder.up:
                    at[place.slot].append(HeldShard(old.id, index, entry.stripe.version))
        await asyncio.gather(
            *(self._drop(self._roster.agents[slot], shards) for slot, shards in at.items())
        )

    async def _drop(self, agent: AgentInfo, shards: Sequence[HeldShard]) -> None:
        try:
            await self._holders.drop_superseded(agent, shards)
        except Unavailable as error:
            log.info("drop not delivered agent=%s error=%s", slot_name(agent.slot), error)

    # -- reshaping --------------------------------------------------------------

    async def _reshape(self, stripes: Worklist) -> bool:
        """Encodes stripes anew, a few at a time, in the shape that a write gets now."""
        if self._now_s() < self._room_again_s:
            self.progress.no_room()
            return False
        roster_version = self._state.roster_version
        advanced = False
        left = iter(stripes)
        while self._state.roster_version == roster_version:
            if len(self._roster.takers()) < len(self._look().takers):
                break  # a writer that suspects an agent would make them narrower than need be
            chosen, records = self._to_reshape(left)
            if not chosen:
                break
            try:
                moved = await self._paced(self._rewrite(list(records.values()), {*chosen}))
            except CapacityExceeded as error:
                log.warning("no room to encode stripes anew error=%s", error)
                self._room_again_s = self._now_s() + NO_ROOM_S
                self.progress.no_room()
                break
            advanced = advanced or moved
            self.progress.done(chosen.values())
        return advanced

    def _to_reshape(self, left: Iterator[str]) -> tuple[dict[str, int], dict[int, FileRecord]]:
        """The next few stripes, with their bytes of payload, and the files in them."""
        chosen: dict[str, int] = {}
        records: dict[int, FileRecord] = {}
        size = 0
        for id_ in left:
            entry = self._state.ledger.live(id_)
            if entry is None:
                continue
            chosen[id_] = entry.stripe.payload_bytes
            records |= {file: self._state.files[file].record for file in entry.files}
            size += entry.live_bytes
            if size >= REWRITE_BYTES_MAX or len(records) >= REWRITE_FILES_MAX:
                break
        return chosen, records

    async def _rewrite(self, records: list[FileRecord], stripes: set[str]) -> bool:
        try:
            return await self._rewriter.rewrite(records, sparse=stripes) > 0
        except TooFewShards as error:  # the others need not wait for these
            log.warning("not encoded anew error=%s", error)
            return False
