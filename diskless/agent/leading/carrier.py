"""Uploads the bytes of a round's files to the tier: a small round inside the manifest, more bytes
in segments that all agents upload, and each large file in parts.

Runs on the leader, for the drainer. It never holds a whole large file, and names the parts of a
file only when all parts are uploaded: no manifest has half a file. A file that can no longer be
read is reported as lost, and does not stop the upload of the others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct

from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.pacer import Pacer
from diskless.agent.ports import Draft, Tier, Uploaded
from diskless.errors import (
    CorruptData,
    DisklessError,
    NotFound,
    ShardsAway,
    StoreDown,
    TooFewShards,
    Unavailable,
)
from diskless.model import FileRecord
from diskless.namespace.parts import Span, spans

log = logging.getLogger(__name__)

UPLOADS_MAX = 6
"""Segments and large files that are uploaded at once."""
PARTS_AT_ONCE = 3
"""Parts of one large file at once: one is read while others are written."""
SEGMENT_FILES_MAX = 5000
"""Files in one segment, and in the body of a manifest: their rows are handled in one step."""
SLICE_FILES = 2000
"""Files looked at before other tasks run."""
REST_SLICE_S = 0.02
"""During a pause, how often it is checked whether somebody waits for the tier."""

T = TypeVar("T")


class Limits(Struct, frozen=True):
    """Sizes of rounds. Tests use smaller ones."""

    small_bytes: int = 4 << 20
    """A round with fewer bytes of files is one object."""
    segment_bytes: int = 16 << 20
    """The size of a segment of several files, and of each part of a larger file."""
    survey_after: int = 32
    """Rounds between two surveys of what the chain holds."""
    whole_after: int = 256
    whole_after_bytes: int = 32 << 20
    """After so many manifests, or so many bytes of journals in them, a manifest is whole again."""


class PartRun(Protocol):
    """The upload of one large file by one agent."""

    async def upload(self, record: FileRecord, span: Span, *, number: int, name: str) -> Uploaded:
        """Makes a segment of the part. Parts are requested in order, several at once. Raises as
        `Source.upload` does. The last part raises CorruptData if the whole file fails its
        checksum."""
        ...

    def next_agent(self) -> bool:
        """Switches to another agent, which starts from the first part. False if there is none."""
        ...


class Source(Protocol):
    """How the bytes of files get to the tier."""

    async def read(self, record: FileRecord) -> bytes:
        """Raises TooFewShards, ShardsAway, NotFound, CorruptData, Unavailable."""
        ...

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        """Makes a segment of these files on any agent. Raises as `read` does, and the store's
        errors."""
        ...

    def begin_parts(self) -> PartRun:
        """Starts the upload of one large file."""
        ...


class Carrier:
    def __init__(
        self,
        *,
        source: Source,
        tier: Callable[[], Tier],
        latest: Callable[[FileRecord], FileRecord],
        check_room: Callable[[], None],
        backlog: Backlog,
        pacer: Pacer,
        limits: Limits,
        now_s: Callable[[], float],
    ) -> None:
        """`latest` returns a file's current record. `check_room` raises if the round must end
        because the memory that it keeps from being reaped is needed."""
        self._source = source
        self._tier = tier
        self._latest = latest
        self._check_room = check_room
        self._backlog = backlog
        self._pacer = pacer
        self._limits = limits
        self._now_s = now_s
        self._under_way = 0
        self.files_lost: set[int] = set()
        """Files that could no longer be read and are missing in the tier."""

    async def bring(self, draft: Draft, records: Sequence[FileRecord]) -> None:
        """Adds the bytes of these files to a round."""
        found = await sort(records, self._limits.segment_bytes)
        if found.bytes < self._limits.small_bytes and len(records) <= SEGMENT_FILES_MAX:
            for record in records:
                await self._bring_file(draft, record)
            return
        places = asyncio.Semaphore(self._at_once(UPLOADS_MAX))

        async def bring(share: Sequence[FileRecord]) -> None:
            async with places:
                if self._is_large(share[0]):
                    await self._bring_large(draft, share[0])
                else:
                    await self._paced(self._bring_segment(draft, share))

        async with Together() as group:
            for record in found.large:
                group.start(bring((record,)))
            for some in found.inline, found.others:
                for share in shares(some, self._limits.segment_bytes):
                    group.start(bring(share))
                    await asyncio.sleep(0)

    def _at_once(self, most: int) -> int:
        """One at a time while rounds fail: a slow store can then finish one upload, instead of
        letting all of them time out."""
        return 1 if self._backlog.failing else most

    def _is_large(self, record: FileRecord) -> bool:
        return is_large(record, self._limits.segment_bytes)

    async def _paced(self, work: Awaitable[T]) -> T:
        """Does a part of a round and yields to clients, as repair does, unless they wait for the
        tier or soon will."""
        began_s = self._now_s()
        self._pacer.wave_begins()
        self._under_way += 1
        try:
            done = await work
        finally:
            self._under_way -= 1
            pause_s = self._pacer.wave_ends(self._now_s() - began_s, clients_at_work=False)
            if self._under_way:
                self._pacer.wave_begins()  # others are still in progress
        await self._rest(pause_s)
        return done

    async def _rest(self, pause_s: float) -> None:
        """Pauses, but ends at once when clients start to wait for the tier."""
        while pause_s > 0 and not self._backlog.presses:
            slice_s = min(pause_s, REST_SLICE_S)
            await asyncio.sleep(slice_s)
            pause_s -= slice_s

    async def _bring_segment(self, draft: Draft, records: Sequence[FileRecord]) -> None:
        number, name = draft.reserve()
        latest = [self._latest(record) for record in records]
        try:
            uploaded = await self._source.upload(latest, number=number, name=name)
            await self._tier().confirm(uploaded)
            draft.name(uploaded)
        except ShardsAway:
            raise
        except (NotFound, TooFewShards, CorruptData):  # one of them: try each file alone
            for record in latest:
                await self._bring_file(draft, record)

    async def _bring_file(self, draft: Draft, record: FileRecord) -> None:
        if self._is_large(record):
            await self._bring_large(draft, record)
            return
        data = await self._unless_lost(record, self._source.read)
        if data is not None:
            await draft.add_file(record.id, data)

    async def _bring_large(self, draft: Draft, record: FileRecord) -> None:
        async def upload(latest: FileRecord) -> list[Uploaded]:
            run = self._source.begin_parts()
            while True:
                try:
                    return await self._upload_parts(draft, run, latest)
                except (StoreDown, ShardsAway):
                    raise  # not this agent's failure
                except (Unavailable, TooFewShards, CorruptData) as error:
                    # A file is not lost because one agent could not read it.
                    if not run.next_agent():
                        raise
                    log.info("a file is uploaded by another agent id=%d error=%s", record.id, error)

        parts = await self._unless_lost(record, upload)
        for uploaded in parts or ():
            draft.name(uploaded)

    async def _upload_parts(self, draft: Draft, run: PartRun, record: FileRecord) -> list[Uploaded]:
        """Uploads all parts. If one fails, none is named."""
        turn = asyncio.Semaphore(self._at_once(PARTS_AT_ONCE))
        done: list[Uploaded] = []

        async def upload(span: Span) -> None:
            async with turn:  # the semaphore is fair, so parts start in order
                self._check_room()
                number, name = draft.reserve()
                work = run.upload(self._latest(record), span, number=number, name=name)
                uploaded = await self._paced(work)
                await self._tier().confirm(uploaded)
                done.append(uploaded)

        async with Together() as group:
            for span in spans(record.size, self._limits.segment_bytes):
                group.start(upload(span))
        return done

    async def _unless_lost(
        self, record: FileRecord, work: Callable[[FileRecord], Awaitable[T]]
    ) -> T | None:
        """None if the file is lost: a lost file must not stop the upload of the others. A file is
        lost only if it cannot be read at its current place. It may have been moved since the round
        began, and its old stripes deleted."""
        while True:
            self._check_room()
            record = self._latest(record)
            try:
                return await work(record)
            except ShardsAway:
                raise
            except (NotFound, TooFewShards, CorruptData) as error:
                self._check_room()  # otherwise it may have been reaped, not lost
                if self._latest(record).layout != record.layout:
                    continue
                if isinstance(error, NotFound):
                    raise
                self._lose(record, error)
                return None

    def _lose(self, record: FileRecord, error: DisklessError) -> None:
        if record.id not in self.files_lost:
            log.error("a file is lost and missing in the tier id=%d error=%s", record.id, error)
        self.files_lost.add(record.id)


class Sorted(NamedTuple):
    """The files of a round."""

    large: list[FileRecord]
    """The largest first, because they take longest."""
    inline: list[FileRecord]
    """Only voters have them."""
    others: list[FileRecord]
    bytes: int
    """Of all of them."""


async def sort(records: Sequence[FileRecord], segment_bytes: int) -> Sorted:
    found = Sorted([], [], [], 0)
    size = 0
    for at in range(0, len(records), SLICE_FILES):
        for record in records[at : at + SLICE_FILES]:
            size += record.size
            if is_large(record, segment_bytes):
                found.large.append(record)
            elif record.inline is not None:
                found.inline.append(record)
            else:
                found.others.append(record)
        await asyncio.sleep(0)
    found.large.sort(key=lambda one: one.size, reverse=True)
    return found._replace(bytes=size)


def is_large(record: FileRecord, segment_bytes: int) -> bool:
    """Whether it is uploaded in parts."""
    return record.size > segment_bytes and len(spans(record.size, segment_bytes)) > 1


def shares(records: Iterable[FileRecord], segment_bytes: int) -> Iterator[list[FileRecord]]:
    """Shares of about a segment each: two segments at most, and SEGMENT_FILES_MAX files."""
    share: list[FileRecord] = []
    size = 0
    for record in records:
        if share and size + record.size > 2 * segment_bytes:
            yield share
            share, size = [], 0
        share.append(record)
        size += record.size
        if size >= segment_bytes or len(share) >= SEGMENT_FILES_MAX:
            yield share
            share, size = [], 0
    if share:
        yield share


class Together:
    """Tasks that end together: the first error cancels all others and is raised unchanged."""

    async def __aenter__(self) -> "Together":
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
