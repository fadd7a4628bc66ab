"""The drain: copies acknowledged changes to the durable tier, always as a whole prefix of the log.

Runs on the leader. A round takes all changes up to one moment, reads the bytes of the new files
that exist then, and writes one manifest. Commands then inform every voter where the files are and
that the horizon has moved. Nothing is announced before it is in the chain. A round that fails
leaves garbage, never half a prefix. A new leader first adopts manifests that an earlier leader of
the same epoch has appended. A drainer that finds a later epoch in the chain never uses that chain
again: it waits until the namespace has another one.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from diskless.agent.leading import cut
from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.carrier import Carrier, Limits, Source
from diskless.agent.leading.distance import Distance, choose_distance
from diskless.agent.leading.pacer import Pacer
from diskless.agent.ports import Draft, FileRow, Landed, SegmentRow, Tier
from diskless.agent.ticking import rest
from diskless.agent.tiers import Tiers
from diskless.config import TierSettings
from diskless.errors import DisklessError, StoreDown, Superseded, without_frames
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace import picture
from diskless.namespace.journal import Journal
from diskless.namespace.parts import by_file
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import KEEP_ROWS_MAX

log = logging.getLogger(__name__)

JOURNAL_PIECE = 2000
ABSENT_S = 1.0
"""How often it checks whether there is a tier."""
WATCH_S = 5.0
"""How often an idle cluster checks that the chain exists and is still its own."""
PACED_SHARE = 0.5
BACK_OFF_S_MIN = 0.1
BACK_OFF_S_MAX = 10.0


class World(Protocol):
    """The leader's namespace."""

    @property
    def state(self) -> NamespaceState: ...
    @property
    def journal(self) -> Journal: ...
    async def execute(self, command: c.Command) -> tuple[c.Result, ...]: ...


class RoundEnded(DisklessError):
    """This round cannot continue, but the next one can: another leader was faster, or memory is
    short."""


class Drainer:
    def __init__(
        self,
        *,
        world: World,
        tiers: Tiers,
        source: Source,
        backlog: Backlog,
        now_s: Callable[[], float],
        first: TierSettings | None = None,
        limits: Limits = Limits(),  # noqa: B008 - it never changes
        chance: random.Random | None = None,
        pacer: Pacer | None = None,
    ) -> None:
        """`first` is the tier for a namespace that never had one. `pacer` is notified of clients'
        commands."""
        self.pacer = pacer or Pacer(share=PACED_SHARE)
        self._watched_s = now_s()
        self._limits = limits
        self._chance = chance or random.SystemRandom()
        self._world = world
        self._tiers = tiers
        self._backlog = backlog
        self._now_s = now_s
        self._first = first
        self._followed: tuple[str, int] | None = None
        self._aim = ("", 0)  # the chain that is followed, or soon will be
        self._since_whole = 0
        self._journal_bytes = 0
        self._took_s = 0.0
        self._began_s: float | None = None
        self._short = False
        self.collecting = False
        """Whether a round needs bytes of files that may be deleted by now. They must not be reaped
        then."""
        self.needed: frozenset[str] | None = None
        """The stripes with these bytes; None while they are not known."""
        self.rounds = 0
        self.rounds_failed = 0
        self.superseded: Superseded | None = None
        self.error: DisklessError | None = None
        self.error_since_s = 0.0
        self._carrier = Carrier(
            source=source,
            tier=lambda: self._tier,
            latest=self._latest,
            check_room=self._check_room,
            backlog=backlog,
            pacer=self.pacer,
            limits=limits,
            now_s=now_s,
        )

    @property
    def files_lost(self) -> set[int]:
        """Files that could no longer be read and are missing in the tier."""
        state, lost = self._state, self._carrier.files_lost
        lost &= {id_ for id_ in lost if id_ in state.files and id_ not in state.tier.places}
        return lost

    @property
    def _state(self) -> NamespaceState:
        return self._world.state

    # -- main loop ------------------------------------------------------------------

    async def run(self) -> None:
        """Drains until cancelled."""
        while True:
            await self.until_superseded()
            while self._chain == self._aim:
                await rest(ABSENT_S)
            log.info("the tier that another cluster continues with is not this one's any more")
            self.superseded = None
            self._backlog.resume()

    async def until_superseded(self) -> None:
        """Drains until another cluster continues with the chain."""
        pause_s = BACK_OFF_S_MIN
        while True:
            rounds = self.rounds
            try:
                await self.drain()
            except Superseded as error:
                log.error("another cluster continues with the tier error=%s", error)
                self.superseded = without_frames(error)
                self._backlog.end(error)
                return
            except RoundEnded as error:
                log.info("round restarted error=%s", error)
            except DisklessError as error:
                self._failed(error)
            except Exception as error:  # otherwise nothing would become durable any more
                log.exception("a round failed")
                self._failed(StoreDown(f"a round failed: {type(error).__name__}: {error}"))
            pause_s = BACK_OFF_S_MIN if self.rounds > rounds else min(2 * pause_s, BACK_OFF_S_MAX)
            await asyncio.sleep(pause_s * self._chance.uniform(0.5, 1.0))

    def _failed(self, error: DisklessError) -> None:
        self.rounds_failed += 1
        if self.error is None:
            self.error_since_s = self._now_s()
            log.warning("the tier falls behind error=%s", error)
        self.error = without_frames(error)
        self._backlog.failing = True

    async def drain(self) -> None:
        """Catches up with the chain, then runs rounds until something fails."""
        self._followed = None
        await self._attach()
        while True:
            await self._until_due()
            if not self._follows():
                await self.catch_up()
                continue
            self._began_s = self._now_s()
            await self.round()
            self._took_s = self._now_s() - self._began_s

    async def _attach(self) -> None:
        """Only once: a tier that was detached must not be attached again."""
        first, tier = self._first, self._state.tier
        if first is not None and not tier.attached and not tier.change:
            attach = c.AttachTier(first.uri, first.epoch, first.number, "", first.options)
            await self._do(attach)

    @property
    def _tier(self) -> Tier:
        return self._tiers.get()

    def _follows(self) -> bool:
        """Whether this leader knows the chain up to its end."""
        return self._followed == self._chain

    @property
    def _chain(self) -> tuple[str, int]:
        """The namespace's chain, and the epoch in which it appends there."""
        return self._state.tier.uri, self._state.tier.epoch

    async def _until_due(self) -> None:
        """Returns when there is something to upload and the round is due or somebody waits."""
        while not self._is_due():
            if not self._state.tier.attached and await self._clear_up():
                continue
            if self._is_idle() and self._now_s() - self._watched_s >= WATCH_S:
                await self._watch()
                continue
            self._backlog.work.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left_s()):
                    await self._backlog.work.wait()

    async def _clear_up(self) -> bool:
        """Removes what work with a detached tier may have left; False if nothing is left."""
        if self._state.marked is not None:
            await self._do(c.Unmark())  # it may have been set after the tier was detached
            return True
        if self._state.tier.places:
            await self._do(c.DetachTier())
            return True
        return False

    @property
    def is_trusted(self) -> bool:
        """Whether the tier may have bytes alone: this leader has found the chain's end, and its
        store has answered last."""
        return self._follows() and self.error is None and self.superseded is None

    def _is_idle(self) -> bool:
        """Whether the tier has everything, as far as this leader knows."""
        tier = self._state.tier
        return tier.attached and self._follows() and tier.change <= tier.horizon_change

    async def _watch(self) -> None:
        """Raises Superseded if another cluster continues with the chain, and the store's errors."""
        tier = self._state.tier
        found = await self._tier.look(tier.number + 1, epoch=tier.epoch, rows=False)
        self._watched_s = self._now_s()
        if found is not None:
            self._followed = None  # of another leader: adopt it
        elif self._is_idle():
            self.error, self._backlog.failing = None, False

    def _is_due(self) -> bool:
        tier = self._state.tier
        if not tier.attached:
            return False
        if not self._follows():
            return True
        if tier.change <= tier.horizon_change:
            return False
        hurried = self._backlog.is_awaited or self._backlog.hurried
        return hurried or self._began_s is None or self._left_s() <= 0

    @property
    def distance(self) -> Distance:
        """Between the starts of two rounds that nobody waits for."""
        tier = self._state.tier
        return choose_distance(
            took_s=self._took_s,
            waiting=max(tier.change - tier.horizon_change, 0),
            lag_max_s=tier.options.lag_max_s,
        )

    def _left_s(self) -> float:
        distance_s = self.distance.seconds
        began_s = self._began_s if self._began_s is not None else self._now_s()
        left_s = began_s + distance_s - self._now_s()
        tier = self._state.tier
        if not tier.attached:
            return ABSENT_S
        return left_s if tier.change > tier.horizon_change else distance_s

    def end_round(self) -> None:
        """Memory is short: what the round keeps from being reaped must be freed."""
        self._short = True

    # -- the chain ------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Adopts manifests of earlier leaders that the namespace does not know yet."""
        if self._state.marked is not None:
            await self._do(c.Unmark())  # an earlier leader did not remove it
        tier = self._state.tier
        number, self._aim = tier.number, self._chain
        last = await self._tier.look(number, epoch=tier.epoch, rows=False)
        self._follow(last)
        while found := await self._tier.look(self._state.tier.number + 1, epoch=tier.epoch):
            if found.epoch < tier.epoch:
                # A round of this cluster from before the tier was detached and attached again. Its
                # number is used up, and nothing builds on it.
                await self._pass_by(found)
                continue
            log.info("manifest adopted number=%d change=%d", found.number, found.change)
            await self._announce(found, found.segments, found.rows)
        if last is None and self._state.tier.number == number > 0:
            raise StoreDown(f"{tier.uri} lacks manifest {number}, and all after it")
        self._backlog.begin()
        self._followed = self._chain

    async def _pass_by(self, found: Landed) -> None:
        tier = self._state.tier
        await self._do(
            c.Horizon(
                tier.epoch, found.number, tier.horizon_change, tier.horizon_op,
                tier.horizon_time_ms, tier.horizon_file, self._aim[0],
            )
        )  # fmt: skip
        if self._state.tier.number < found.number:
            raise RoundEnded(f"manifest {found.number} of {tier.uri} is of epoch {found.epoch}")

    def _follow(self, last: Landed | None) -> None:
        """Counts how far the last manifest is from a whole one."""
        if last is None or not last.base:
            self._since_whole = self._limits.whole_after
        elif last.base == last.number:
            self._since_whole = self._journal_bytes = 0
        else:
            self._since_whole = last.number - last.base
            self._journal_bytes += last.journal_bytes

    async def _announce(
        self, landed: Landed, segments: Sequence[SegmentRow], rows: Sequence[FileRow]
    ) -> None:
        """Records a manifest of the chain in the namespace."""
        named = {row[0]: row for row in segments}
        for part in by_file(rows, KEEP_ROWS_MAX, file=lambda row: row[0]):
            told = tuple(named[number] for number in sorted({row[1] for row in part}))
            await self._do(c.Keep(landed.number, told, tuple(part), self._aim[0]))
        await self._do(
            c.Horizon(
                landed.epoch,
                landed.number,
                landed.change,
                landed.op or self._state.tier.horizon_op,
                landed.time_ms,
                landed.last_file,
                self._aim[0],
            )
        )
        self._follow(landed)
        self._backlog.moved()

    async def _do(self, command: c.Command) -> c.Done:
        (result,) = await self._world.execute(command)
        if isinstance(result, c.Refused):
            raise result.error()
        return result

    # -- a round --------------------------------------------------------------------

    async def round(self) -> None:
        """Copies all changes up to now to the tier. Raises RoundEnded, Superseded, and errors of
        the store, the agents and the namespace."""
        draft = self._tier.draft(f"{self._chance.getrandbits(64):016x}")
        self._short = False
        self.needed = None
        try:
            if not await self._increment(draft):
                await draft.abandon()
                draft = self._tier.draft(f"{self._chance.getrandbits(64):016x}")
                await self._whole(draft)
        finally:
            self.collecting = False
            await draft.abandon()
        self.rounds += 1
        self.error, self._backlog.failing = None, False

    async def _increment(self, draft: Draft) -> bool:
        """False if a whole picture is needed."""
        tier = self._state.tier
        limits = self._limits
        due = (
            self._since_whole >= limits.whole_after
            or self._journal_bytes >= limits.whole_after_bytes
        )
        if due or not self._world.journal.covers(tier.horizon_change):
            return False
        if self.rounds % limits.survey_after == limits.survey_after - 1:
            survey = await self._tier.survey(self._live_bytes(), thorough=False)
            if survey.whole:
                return False
        self.collecting = True
        found = await cut.increment(self._state, self._world.journal)
        if found is None:
            return False
        self.needed = found.stripes
        for at in range(0, len(found.entries), JOURNAL_PIECE):
            await draft.add_journal(found.entries[at : at + JOURNAL_PIECE])
        await self._carrier.bring(draft, found.records)
        self.collecting = False  # all bytes are read: a slow store delays no reaping from here on
        await self._append(draft, found.moment)
        return True

    async def _whole(self, draft: Draft) -> None:
        """Writes a picture of one moment. The mark keeps its content until the picture is done."""
        self.collecting = False
        survey = await self._tier.survey(self._live_bytes(), thorough=True)
        await self._do(c.Mark())
        try:
            whole = await self._paint(draft, survey.rewrite)
            await self._append(draft, whole.moment)
        finally:
            with suppress(DisklessError):  # then the next leader removes it, or the next mark
                await self._do(c.Unmark())

    def _live_bytes(self) -> dict[int, int]:
        segments = self._state.tier.segments
        return {number: segment.live_bytes for number, segment in segments.items()}

    async def _paint(self, draft: Draft, rewrite: frozenset[int]) -> cut.Whole:
        state = self._state
        marked = state.marked
        if marked is None:
            raise RoundEnded("the mark is gone")
        try:
            wanted = await cut.durable_ids(state)
            whole = cut.Whole(
                moment=cut.Moment(
                    change=marked.change,
                    op=marked.op,
                    time_ms=marked.time_ms,
                    last_file=marked.last_file,
                ),
                rewrite=rewrite,
            )
            for chunk in picture.rows(state):
                cut.sort_files(state, chunk, wanted, whole)
                await draft.add_picture(chunk)
                await asyncio.sleep(0)
        except picture.MarkGone as error:
            raise RoundEnded(str(error)) from None
        for held in whole.segments(state):
            draft.keep(held)
            await asyncio.sleep(0)
        await self._carrier.bring(draft, whole.records)
        return whole

    async def _append(self, draft: Draft, moment: cut.Moment) -> None:
        landed = await draft.append(
            change=moment.change,
            op=moment.op,
            time_ms=moment.time_ms,
            last_file=moment.last_file,
        )
        await self._announce(landed, landed.segments, landed.rows)
        if landed.round_id != draft.round_id:
            raise RoundEnded(f"manifest {landed.number} is of an earlier leader")
        await self._tier.clear(landed.number)

    def _check_room(self) -> None:
        if self._short and self.collecting:
            raise RoundEnded("memory is short")

    def _latest(self, record: FileRecord) -> FileRecord:
        """The file's current record, or `record` if the file is deleted."""
        file = self._state.files.get(record.id)
        return record if file is None else file.record
