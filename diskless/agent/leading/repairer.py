"""Rebuilds what dead agents held: the leader plans, and all agents do the work.

Runs on the leader, over its state. A successor needs nothing from here: the plan follows from the
namespace, storing a shard is idempotent, and a move that was not committed is planned again.
`diskless.repair` decides what is lost and where it goes, agents with other shards of the stripe
rebuild (`Rebuilder`), and `MoveShards` commits the new places (`Mover`). If no agent can take a
lost shard, or if agents are back after stripes were written narrower without them, stripes are
encoded again in the shape that fits (`Rewriter`). While there is nothing to repair, shards are
moved to agents that have more room (`Balancer`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from diskless.agent.leading.balancer import Balancer
from diskless.agent.leading.mover import Job, Mover, Rebuild
from diskless.agent.leading.progress import Progress
from diskless.agent.leading.rewriter import REWRITE_BYTES_MAX, REWRITE_FILES_MAX, Rewriter
from diskless.agent.leading.salvager import Salvager
from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.ticking import rest
from diskless.config import ClusterSettings
from diskless.errors import CapacityExceeded, DisklessError, TooFewShards
from diskless.model import BalanceStatus, FileRecord, Place, RepairStatus, ShardName
from diskless.namespace import commands as c
from diskless.namespace.state import NamespaceState
from diskless.namespace.survey import survey
from diskless.repair import Cluster, RepairPlan, Worklist, choose_targets, diagnose

log = logging.getLogger(__name__)

MOVE_STRIPES = 32
"""Rebuilt stripes whose moves are committed together."""
HEALED_S = 3.0
"""How long an agent may take to report that a shard is no longer damaged."""
LOOK_ANYWAY_S = 30.0
LOOK_ANYWAY_LEAVING_S = 2.0
"""How often it plans although the set of agents has not changed: a writer may have wrongly
suspected an agent, or not know yet that an agent is draining or about to end."""
NO_ROOM_S = 10.0
"""The delay before stripes are encoded again after there was no room."""
FILES_COUNTED_MAX = 10_000
COUNT_STRETCH = 100
"""Stripes whose files are counted before other tasks run."""


class Repairer:
    def __init__(
        self,
        *,
        settings: ClusterSettings,
        replica: Replica,
        roster: Roster,
        mover: Mover,
        balancer: Balancer,
        rewriter: Rewriter,
        pulses: Mapping[int, Pulse],
        overdue: Callable[[], frozenset[int]],
        unsteady: Callable[[], frozenset[int]],
        now_s: Callable[[], float],
        salvager: Salvager,
    ) -> None:
        """`pulses` are the agents' latest answers to this leader's beats. `overdue` returns the
        slots that are down for so long that their shards count as lost, `unsteady` those that fail
        often."""
        self._settings = settings
        self._replica = replica
        self._roster = roster
        self._mover = mover
        self._balancer = balancer
        self._rewriter = rewriter
        self._pulses = pulses
        self._overdue = overdue
        self.unsteady = unsteady
        self._now_s = now_s
        self._salvager = salvager
        self.progress = Progress(now_s)
        self._turn = 0
        self._healed_until: dict[ShardName, float] = {}
        self._well: tuple[object, ...] | None = None
        self._planned_without: frozenset[int] | None = None
        self._looked_s = 0.0
        self._room_again_s = 0.0

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    def report(self) -> RepairStatus:
        """Its progress, and the chosen pace."""
        pacer = self._mover.pacer
        slower = pacer.slower
        return replace(
            self.progress.report(),
            share=round(pacer.share, 2),
            slower=round(slower, 1) if slower is not None else None,
        )

    async def run(self) -> None:
        """Repairs until cancelled."""
        advanced = False
        while True:
            if not advanced:
                await rest(self._settings.tuning.repair_interval_s)
            try:
                advanced = await self.repair()
            except DisklessError as error:
                advanced = False
                log.info("repair put off error=%s", error)
            except Exception:  # otherwise nothing would be repaired any more
                advanced = False
                log.exception("repair failed")

    async def repair(self) -> bool:
        """Plans once and does what is possible. Returns whether anything was done."""
        cluster = self._look()
        key = (self._state.roster_version, cluster.gone, cluster.damaged, cluster.unfit)
        leaving = any(agent.leaves for agent in cluster.agents.values())
        anyway_s = LOOK_ANYWAY_LEAVING_S if leaving else LOOK_ANYWAY_S
        if key == self._well and self._now_s() - self._looked_s < anyway_s:
            return await self._balancer.balance(cluster)
        self._balancer.give_way()
        plan = await self._plan(cluster)
        self._looked_s = self._now_s()
        saved = await self._salvager.salvage(plan.lost) if plan.lost else Counter[int]()
        self._tell(plan, saved)
        self.progress.lost_files = await self._count_files(plan.lost)
        self._planned_without = frozenset(cluster.gone)
        self._well = key if plan.is_empty else None
        if plan.rebuild:
            return await self._rebuild(plan.rebuild)
        if plan.reshape:
            return await self._reshape(plan.reshape)
        return False

    def can_spare(self, slots: frozenset[int]) -> bool:
        """Whether nothing that should survive is lost without these agents. They must be exactly
        the agents that the last plan counted as gone, and no other agent may be down."""
        away = frozenset(slot for slot, agent in self._state.agents.items() if not agent.up)
        return away == slots == self._planned_without and not self.progress.lost_protected

    def balance(self) -> BalanceStatus:
        return self._balancer.report(self._look())

    def damaged(self) -> frozenset[ShardName]:
        """Shards that their holders should have and report as corrupt or missing."""
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
        state, settings = self._state, self._settings
        return Cluster(
            agents=dict(state.agents),
            data_shards=settings.data_shards,
            parity_shards=settings.parity_shards,
            gone=self._overdue(),
            damaged=self.damaged(),
            unfit=self._mover.unfit(),
            unsteady=self.unsteady(),
        )

    async def _plan(self, cluster: Cluster) -> RepairPlan:
        steps = survey(self._state.ledger, cluster)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                plan: RepairPlan = done.value
                return plan
            await asyncio.sleep(0)  # let other tasks run

    def _tell(self, plan: RepairPlan, saved: Counter[int]) -> None:
        """`saved` counts the lost stripes whose files the tier has, by parity."""
        progress = self.progress
        lost = plan.lost.stripes - saved.total()
        if lost > progress.lost:
            first = next(iter(plan.lost), None)
            log.error("stripes lost count=%d first=%s", lost, first)
        progress.lost, progress.stuck = lost, plan.stuck.stripes
        k = self._settings.parity_shards
        left = plan.lost.by_parity - saved
        progress.lost_protected = sum(n for parity, n in left.items() if parity >= k)
        progress.waiting = plan.waiting.stripes
        progress.at_stake = plan.at_stake
        progress.plan(
            stripes=plan.rebuild.stripes + plan.reshape.stripes,
            payload_bytes=plan.rebuild.payload_bytes + plan.reshape.payload_bytes,
            reshaping=not plan.rebuild,
        )

    async def _count_files(self, stripes: Worklist) -> int:
        """The number of files in stripes, up to `FILES_COUNTED_MAX`."""
        found: set[int] = set()
        for steps, id_ in enumerate(stripes, start=1):
            entry = self._state.ledger.live(id_)
            if entry is not None:
                found.update(islice(entry.files, FILES_COUNTED_MAX))
            if len(found) >= FILES_COUNTED_MAX:
                break
            if steps % COUNT_STRETCH == 0:
                await asyncio.sleep(0)
        return len(found)

    # -- rebuilding -------------------------------------------------------------

    async def _rebuild(self, stripes: Worklist) -> bool:
        """Wave after wave, until all are done, the set of agents changes, or more is lost. New
        losses may be more urgent than the rest, which may only have to be spread out."""
        roster_version, before = self._state.roster_version, self._look()
        advanced = False
        left = iter(stripes)
        rebuilt: list[Rebuild] = []
        while self._state.roster_version == roster_version and not self._more_lost(before):
            wave = list(islice(left, self._mover.wave_stripes()))
            if not wave:
                break
            rebuilt += await self._wave(wave)
            if len(rebuilt) >= MOVE_STRIPES:
                advanced = await self._move(rebuilt) or advanced
                rebuilt = []
        return await self._move(rebuilt) or advanced

    def _more_lost(self, before: Cluster) -> bool:
        now = self._look()
        return bool({*now.gone} - {*before.gone} or {*now.damaged} - {*before.damaged})

    async def _wave(self, stripes: Iterable[str]) -> list[Rebuild]:
        """Rebuilds some stripes in parallel. Returns those that succeeded."""
        cluster = self._look()
        jobs: list[Job] = []
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
        return await self._mover.wave(jobs, cluster)

    async def _move(self, rebuilt: Sequence[Rebuild]) -> bool:
        """Commits the places of rebuilt shards. Returns whether any move was made."""
        made = await self._mover.move(rebuilt)
        entries = self._state.ledger.entries
        self.progress.done(
            entries[move.stripe].stripe.payload_bytes for move in made if move.stripe in entries
        )
        self._note_healed(made)
        return bool(made)

    def _note_healed(self, moves: Iterable[c.ShardMove]) -> None:
        """Holders still report these shards as damaged until their next pulses."""
        until_s = self._now_s() + HEALED_S
        moved = {(move.stripe, index) for move in moves for index, _ in move.places}
        self._healed_until |= dict.fromkeys(moved & self.damaged(), until_s)

    # -- reshaping --------------------------------------------------------------

    async def _reshape(self, stripes: Worklist) -> bool:
        """Encodes stripes again, a few at a time, in the shape that a write gets now."""
        if self._now_s() < self._room_again_s:
            self.progress.no_room()
            return False
        roster_version = self._state.roster_version
        advanced = False
        left = iter(stripes)
        while self._state.roster_version == roster_version:
            if len(self._roster.takers()) < len(self._look().takers):
                break  # a writer that suspects an agent would make them narrower than necessary
            chosen, records = self._to_reshape(left)
            if not chosen:
                break
            try:
                moved = await self._mover.paced(self._rewrite(list(records.values()), {*chosen}))
            except CapacityExceeded as error:
                log.warning("no room to encode stripes again error=%s", error)
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
        except TooFewShards as error:  # continue with the others
            log.warning("not encoded again error=%s", error)
            return False
