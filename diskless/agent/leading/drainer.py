"""The drain: brings what was acknowledged into the durable tier, a whole prefix at a time.

Runs on the leader. A round takes all that was changed up to one moment, reads the bytes of the
files that are new and alive then, and becomes one manifest; commands then tell every voter where
the files lie and that the horizon has moved. Nothing is announced that is not in the chain, and a
round that fails leaves garbage, never half a prefix. A new leader first adopts what an earlier one
of the same epoch has appended. Whoever finds a later epoch in the chain stops for good.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from diskless.agent.leading import cut
from diskless.agent.leading.backlog import Backlog
from diskless.agent.ports import Draft, FileRow, Landed, SegmentRow, Tier, Uploaded
from diskless.agent.tiers import Tiers
from diskless.config import TierSettings
from diskless.errors import (
    CorruptData,
    DisklessError,
    NotFound,
    ShardsAway,
    StoreDown,
    Superseded,
    TooFewShards,
)
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace import picture
from diskless.namespace.journal import Journal
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import KEEP_ROWS_MAX

log = logging.getLogger(__name__)

UPLOADS_MAX = 6
"""Segments that are uploaded at once."""
JOURNAL_PIECE = 2000
DISTANCE_S = 0.3
"""Between the beginnings of two rounds that nobody waits for; more if a round takes long."""
DISTANCE_COST = 4.0
"""In what the last round took: the drain takes at most a fourth of the time."""
BACK_OFF_S_MIN = 0.1
BACK_OFF_S_MAX = 10.0


class Limits(Struct, frozen=True):
    """How rounds are cut; tests have smaller ones."""

    small_bytes: int = 4 << 20
    """A round with fewer bytes of files is one object."""
    segment_bytes: int = 16 << 20
    survey_after: int = 32
    """Rounds between two looks at what the chain holds."""
    whole_after: int = 256
    whole_after_bytes: int = 32 << 20
    """Manifests, and bytes of journals in them, after which one is whole again."""


class World(Protocol):
    """The namespace, as its leader has it."""

    @property
    def state(self) -> NamespaceState: ...
    @property
    def journal(self) -> Journal: ...
    async def execute(self, command: c.Command) -> tuple[c.Result, ...]: ...


class Source(Protocol):
    """How the bytes of files come to the tier."""

    async def read(self, record: FileRecord) -> bytes:
        """Raises TooFewShards, ShardsAway, NotFound, Unavailable."""
        ...

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        """Makes a segment of these files, by whichever agent. Raises as `read` does, and what the
        store does."""
        ...


class RoundEnded(DisklessError):
    """A round cannot go on, and the next one can: another leader was faster, or memory is short."""


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
    ) -> None:
        """`first` is the tier for a namespace that never had one."""
        self._limits = limits
        self._chance = chance or random.SystemRandom()
        self._world = world
        self._tiers = tiers
        self._source = source
        self._backlog = backlog
        self._now_s = now_s
        self._first = first
        self._followed: tuple[str, int] | None = None
        self._since_whole = 0
        self._journal_bytes = 0
        self._took_s = 0.0
        self._began_s: float | None = None
        self._short = False
        self.collecting = False
        """Whether a round needs bytes that may be dead by now: nothing may be reaped then."""
        self.rounds = 0
        self.files_lost: set[int] = set()
        """Files that could not be read any more, and are missing in the tier."""
        self.superseded: Superseded | None = None
        self.error: DisklessError | None = None
        self.error_since_s = 0.0

    @property
    def _state(self) -> NamespaceState:
        return self._world.state

    # -- its life -------------------------------------------------------------------

    async def run(self) -> None:
        """Drains until cancelled, or superseded."""
        pause_s = BACK_OFF_S_MIN
        while True:
            rounds = self.rounds
            try:
                await self.drain()
            except Superseded as error:
                log.error("the tier goes on without this cluster error=%s", error)
                self.superseded = error
                self._backlog.end(error)
                return
            except RoundEnded as error:
                log.info("a round begins anew error=%s", error)
            except DisklessError as error:
                self._failed(error)
            except Exception as error:  # else nothing would ever be durable again
                log.exception("a round failed")
                self._failed(StoreDown(f"a round failed: {type(error).__name__}: {error}"))
            pause_s = BACK_OFF_S_MIN if self.rounds > rounds else min(2 * pause_s, BACK_OFF_S_MAX)
            await asyncio.sleep(pause_s * self._chance.uniform(0.5, 1.0))

    def _failed(self, error: DisklessError) -> None:
        if self.error is None:
            self.error_since_s = self._now_s()
            log.warning("the tier falls behind error=%s", error)
        self.error = error
        self._backlog.failing = True

    async def drain(self) -> None:
        """Catches up with the chain, then goes on with rounds until something fails."""
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
        """Only once: whoever detached a tier does not want it back."""
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
        """Which chain the namespace has, and the epoch of its part in it."""
        return self._state.tier.uri, self._state.tier.epoch

    async def _until_due(self) -> None:
        """Returns when there is something to bring and it is time, or somebody waits for it."""
        while not self._is_due():
            self._backlog.work.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left_s()):
                    await self._backlog.work.wait()

    def _is_due(self) -> bool:
        tier = self._state.tier
        if not tier.attached:
            return False
        if not self._follows():
            return True
        if tier.change <= tier.horizon_change:
            return False
        return self._backlog.waiting > 0 or self._began_s is None or self._left_s() <= 0

    def _left_s(self) -> float:
        distance_s = max(DISTANCE_S, DISTANCE_COST * self._took_s)
        lag_max_s = self._state.tier.options.lag_max_s
        distance_s = min(distance_s, max(lag_max_s / 4, 2 * self._took_s))
        began_s = self._began_s if self._began_s is not None else self._now_s()
        left_s = began_s + distance_s - self._now_s()
        tier = self._state.tier
        return left_s if tier.change > tier.horizon_change else distance_s

    def end_round(self) -> None:
        """Memory is short: what the round keeps from being reaped is needed."""
        self._short = True

    # -- the chain ------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Adopts what earlier leaders have appended beyond what the namespace knows."""
        if self._state.marked is not None:
            await self._do(c.Unmark())  # of a leader that did not get to it
        tier = self._state.tier
        number = tier.number
        last = await self._tier.look(number, epoch=tier.epoch)
        self._follow(last)
        while found := await self._tier.look(self._state.tier.number + 1, epoch=tier.epoch):
            log.info("manifest adopted number=%d change=%d", found.number, found.change)
            await self._announce(found, found.segments, found.rows)
        if last is None and self._state.tier.number == number > 0:
            raise StoreDown(f"{tier.uri} lacks manifest {number}, and all after it")
        self._backlog.begin()
        self._followed = self._chain

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
        """Tells the namespace of a manifest that is in the chain."""
        named = {row[0]: row for row in segments}
        for at in range(0, len(rows), KEEP_ROWS_MAX):
            part = tuple(rows[at : at + KEEP_ROWS_MAX])
            told = tuple(named[number] for number in sorted({row[1] for row in part}))
            await self._do(c.Keep(landed.number, told, part))
        await self._do(
            c.Horizon(
                landed.epoch,
                landed.number,
                landed.change,
                landed.op or self._state.tier.horizon_op,
                landed.time_ms,
                landed.last_file,
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
        """Brings all that there is up to now into the tier. Raises RoundEnded, Superseded, and
        what the store, the agents and the namespace do."""
        draft = self._tier.draft(f"{self._chance.getrandbits(64):016x}")
        self._short = False
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
        """False if it takes a whole picture."""
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
        for at in range(0, len(found.entries), JOURNAL_PIECE):
            await draft.add_journal(found.entries[at : at + JOURNAL_PIECE])
        await self._bring(draft, found.records)
        self.collecting = False  # the store may take its time from here on
        await self._append(draft, found.moment, known=())
        return True

    async def _whole(self, draft: Draft) -> None:
        """A picture of one moment, which is marked, so that nothing of it goes meanwhile."""
        self.collecting = False
        survey = await self._tier.survey(self._live_bytes(), thorough=True)
        await self._do(c.Mark())
        try:
            whole = await self._paint(draft, survey.rewrite)
            await self._append(draft, whole.moment, known=whole.rows)
        finally:
            with suppress(DisklessError):  # else the next leader does it, or the next mark
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
            draft.name(held)
            await asyncio.sleep(0)
        await self._bring(draft, whole.records)
        return whole

    async def _append(self, draft: Draft, moment: cut.Moment, known: Sequence[FileRow]) -> None:
        landed = await draft.append(
            change=moment.change,
            op=moment.op,
            time_ms=moment.time_ms,
            last_file=moment.last_file,
        )
        had = {row[0] for row in known}
        rows = [row for row in landed.rows if row[0] not in had]
        await self._announce(landed, landed.segments, rows)
        if landed.round_id != draft.round_id:
            raise RoundEnded(f"manifest {landed.number} is of an earlier leader")
        await self._tier.clear(landed.number)

    # -- bytes ----------------------------------------------------------------------

    async def _bring(self, draft: Draft, records: Sequence[FileRecord]) -> None:
        """Adds the bytes of files: few to the manifest, many in segments by all agents."""
        if sum(record.size for record in records) < self._limits.small_bytes:
            for record in records:
                await self._bring_file(draft, record)
            return
        places = asyncio.Semaphore(UPLOADS_MAX)

        async def bring(part: list[FileRecord]) -> None:
            async with places:
                await self._bring_segment(draft, part)

        async with _Together() as group:
            for part in _parts(records, self._limits.segment_bytes):
                group.start(bring(part))

    async def _bring_segment(self, draft: Draft, records: list[FileRecord]) -> None:
        number, name = draft.reserve()
        latest = [self._latest(record) for record in records]
        try:
            uploaded = await self._source.upload(latest, number=number, name=name)
            await self._tier.confirm(uploaded)
            draft.name(uploaded)
        except ShardsAway:
            raise
        except (NotFound, TooFewShards, CorruptData):  # of one of them: then each for itself
            for record in latest:
                await self._bring_file(draft, record)

    async def _bring_file(self, draft: Draft, record: FileRecord) -> None:
        """One that is lost does not keep all others from the tier. Lost is only what cannot be
        read where it lies now: it may have been moved since the round began, and what it lay in
        then be gone."""
        while True:
            self._check_room()
            record = self._latest(record)
            try:
                data = await self._source.read(record)
                break
            except ShardsAway:
                raise
            except (NotFound, TooFewShards, CorruptData) as error:
                self._check_room()  # else it was not lost, but reaped
                if self._latest(record).layout != record.layout:
                    continue
                if isinstance(error, NotFound):
                    raise
                self._lose(record, error)
                return
        await draft.add_file(record.id, data)

    def _check_room(self) -> None:
        if self._short and self.collecting:
            raise RoundEnded("memory is short")

    def _latest(self, record: FileRecord) -> FileRecord:
        """As the namespace has it now, if it still does."""
        file = self._state.files.get(record.id)
        return record if file is None else file.record

    def _lose(self, record: FileRecord, error: DisklessError) -> None:
        if record.id not in self.files_lost:
            log.error("a file is lost and missing in the tier id=%d error=%s", record.id, error)
        self.files_lost.add(record.id)


def _parts(records: Sequence[FileRecord], segment_bytes: int) -> Iterator[list[FileRecord]]:
    """Shares of about a segment each; files that travel in commands by themselves, for only
    voters have them."""
    for inline in (True, False):
        part: list[FileRecord] = []
        size = 0
        for record in records:
            if (record.inline is not None) is not inline:
                continue
            part.append(record)
            size += record.size
            if size >= segment_bytes:
                yield part
                part, size = [], 0
        if part:
            yield part


class _Together:
    """Tasks that end together: the first error ends all others and is raised as it is."""

    async def __aenter__(self) -> "_Together":
        self._tasks: list[asyncio.Task[None]] = []
        return self

    def start(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
