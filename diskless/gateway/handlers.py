"""What each client request means: from frames to the agent's parts and back.

Questions to the namespace go through the router, which answers them on the spot where this
agent leads; everything else waits for other agents and is a coroutine. Nothing here keeps
state of its own.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

from msgspec import Struct

from diskless import paths
from diskless.agent.cold import ColdReader, cold_extent, is_cold_extent
from diskless.agent.copies import kept_at
from diskless.agent.counts import Traffic
from diskless.agent.faults import NOT_ARMED, Faults
from diskless.agent.hits import Hits
from diskless.agent.notebook import Notebook
from diskless.agent.packer import Packer, PendingFile, PendingPut
from diskless.agent.reader import Reader
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.shards import ShardStore
from diskless.agent.uploads import FILES_MAX, Upload, Uploads
from diskless.checksum import file_checksum
from diskless.config import ClusterSettings
from diskless.errors import (
    BadRequest,
    CapacityExceeded,
    CorruptData,
    DisklessError,
    Forbidden,
    MemoryFull,
    NotFound,
    TooFewAgents,
    TooFewShards,
    Unavailable,
)
from diskless.gateway.batch import BatchHandlers
from diskless.gateway.certificate import CertificateHandlers
from diskless.gateway.history import HistoryHandlers
from diskless.gateway.marks import Marks
from diskless.gateway.notes import NoteHandlers
from diskless.gateway.server import Answer, ConnectionId
from diskless.gateway.tier import TierHandlers
from diskless.gateway.tokens import TokenHandlers
from diskless.gateway.visitor import Visitor
from diskless.identity.certificates import Certificates
from diskless.model import Extent, FileRecord, Stripe, cut, slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.lookback import Events
from diskless.namespace.tier import is_cold
from diskless.namespace.views import PathStatus
from diskless.protocol import messages as m
from diskless.protocol import operating, requests
from diskless.protocol.frames import PAYLOAD_BYTES_MAX
from diskless.protocol.messages import Kind

log = logging.getLogger(__name__)

Payload = bytes | bytearray | memoryview

_MUTATIONS = frozenset(
    kind for kind, request in requests.REQUESTS.items() if issubclass(request, requests.Mutation)
)
_UNCOUNTED = frozenset(
    (Kind.STATUS, Kind.EVENTS, Kind.FAULTS, Kind.FLUSH, Kind.NOTE_BATCHES, Kind.BATCH_NOTES)
)
_CHECKSUM = re.compile("[0-9a-fA-F]{16}")
READ_EXTENTS_MAX = 256
"""Of one read, as each takes some time of the loop, however small it is. The parts of a file that
fill a frame are fewer: a stripe has 64 KiB or more."""


class ClientHandlers:
    """The gateway's backend: one agent, as its clients see it."""

    def __init__(
        self,
        *,
        settings: ClusterSettings,
        cluster_id: str,
        roster: Roster,
        namespace: Router,
        packer: Packer,
        reader: Reader,
        cold: ColdReader,
        hits: Hits,
        uploads: Uploads,
        faults: Faults,
        shards: ShardStore,
        marks: Marks,
        notebook: Notebook,
        epoch: int = 0,
        tls: Certificates | None = None,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._namespace = namespace
        self._packer = packer
        self._reader = reader
        self._cold = cold
        self._hits = hits
        self._uploads = uploads
        self._faults = faults
        self._shards = shards
        self._marks = marks
        self._epoch = epoch
        self.requests = 0
        """Of clients at work; those of onlookers are not counted."""
        self.traffic = Traffic()
        self._handlers: dict[Kind, Callable[[Any, Payload], Answer | Awaitable[Answer]]] = {
            Kind.PUT: self._put,
            Kind.ABORT: self._abort,
            Kind.MKDIRS: self._mkdirs,
            Kind.RENAME: self._rename,
            Kind.DELETE: self._delete,
            Kind.SUMMARY: self._summary,
            Kind.STATUS: self._status,
            **(history := HistoryHandlers(namespace)).handlers,
            **(tokens := TokenHandlers(namespace, cluster_id=cluster_id)).handlers,
            **(tier := TierHandlers(namespace)).handlers,
            Kind.RENEW: CertificateHandlers(tls).renew,
            Kind.FAULTS: self._plant,
            **NoteHandlers(notebook).handlers,
        }
        self._personal: dict[Kind, Callable[[Visitor, Any, Payload], Answer | Awaitable[Answer]]]
        """Those that depend on who asks."""
        self._personal = {
            Kind.SESSION: self._session,
            Kind.WRITE: self._write,
            Kind.COMMIT: self._commit,
            Kind.OPEN: self._open,
            Kind.READ: self._read,
            Kind.STAT: self._stat,
            Kind.LIST: self._list,
            Kind.EVENTS: self._events,
            Kind.DRAIN: self._drain,
            **history.personal,
            **tokens.personal,
            **tier.personal,
            Kind.OPEN_MANY: BatchHandlers(namespace, reader).open_many,
        }

    # -- what the gateway asks --------------------------------------------------

    def leader(self) -> int | None:
        return self._roster.leader

    def hindrance(self) -> DisklessError | None:
        return self._namespace.hindrance()

    def roster_version(self) -> int:
        return max(self._roster.version, 0)

    def roster(self) -> m.Roster:
        return m.Roster(
            [
                m.Peer(agent.slot, agent.gateway, agent.socket, agent.host, agent.up, agent.slow)
                for agent in self._roster.agents.values()
            ]
        )

    def welcome(self) -> m.Welcome:
        return m.Welcome(self.roster().agents, self._epoch)

    def handle(
        self, visitor: Visitor, kind: Kind, meta: Struct, payload: bytes | memoryview
    ) -> Answer | Awaitable[Answer]:
        if self._roster.version < 0 and kind is not Kind.FAULTS:
            # It would take the others for dead, and say so to the client.
            raise Unavailable(f"{slot_name(self._roster.slot)} has not joined the cluster yet")
        self.requests += kind not in _UNCOUNTED
        if kind in _MUTATIONS:
            self._recognize(visitor, cast(requests.Mutation, meta))
        handler = self._handlers.get(kind)
        if handler is not None:
            return handler(meta, payload)
        answer = self._personal[kind](visitor, meta, payload)
        if kind is Kind.WRITE:
            assert isinstance(meta, m.Write)
            self._uploads.attach(meta.upload, visitor.number)
        return answer

    def _recognize(self, visitor: Visitor, meta: requests.Mutation) -> None:
        """Makes of the number that a client has for its session the namespace's own. Whoever
        used another's could have its own answers taken for the other's. Raises Forbidden."""
        if meta.session != visitor.session:
            try:
                visitor.session_count = self._marks.session_count(visitor.principal, meta.session)
            except Forbidden:
                visitor.unwelcome = True  # the next guess costs a connection
                raise
            visitor.session = meta.session
        meta.session = visitor.session_count

    def disconnected(self, connection: ConnectionId) -> None:
        """Uploads wait a while: their client may come back to them."""
        self._uploads.detach(connection)

    # -- files ------------------------------------------------------------------

    async def _put(self, meta: m.Put, payload: Payload) -> Answer:
        _check_files(meta.files, len(payload))
        return await self._make_visible(meta, _checked(meta.files, payload), [], payload)

    def _write(self, visitor: Visitor, meta: m.Write, payload: Payload) -> Awaitable[Answer]:
        # Appending happens here and now, so that frames keep the order they came in.
        resumed = self._resumed(visitor, meta.resume)
        if meta.path:
            paths.split(meta.path)
        upload = self._uploads.get(meta.upload, meta.offset, resumed, meta.path)
        upload.append(meta.offset, payload, meta.ends)
        return self._written(visitor, meta.upload, upload)

    def _resumed(self, visitor: Visitor, stripes: Sequence[m.MarkedStripe]) -> list[Stripe]:
        """Stripes come back from clients, and must be as an agent gave them to this one."""
        return self._marks.resumed(visitor.principal, stripes) if stripes else []

    async def _written(self, visitor: Visitor, number: int, upload: Upload) -> Answer:
        try:
            with upload.saying_why():
                await self._uploads.room(upload)
            start, sealed = upload.news()
        except (CapacityExceeded, TooFewAgents):
            self._uploads.discard(number)  # the client gives up too
            raise
        except MemoryFull:
            if not upload.committing:
                self._uploads.put_off(number, upload)
            raise
        marked = self._marks.stripes(visitor.principal, sealed)
        return m.Written(upload.received, start, marked), ()

    def _commit(self, visitor: Visitor, meta: m.Commit, payload: Payload) -> Awaitable[Answer]:
        resumed = self._resumed(visitor, meta.resume)
        path = meta.files[0].path if meta.files else ""
        upload = self._uploads.get(meta.upload, meta.offset, resumed, path)
        _check_files(meta.files, upload.received + len(payload))
        ends = accumulate(file.size for file in meta.files)
        upload.append(meta.offset, payload, [end for end in ends if end > meta.offset])
        return self._committed(meta, upload)

    async def _committed(self, meta: m.Commit, upload: Upload) -> Answer:
        upload.committing = True
        try:
            with upload.saying_why():
                sealed, tail = await upload.finish()
            files = _verified(meta.files, upload)
            return await self._make_visible(meta, files, list(sealed), tail)
        except BaseException as error:
            if not isinstance(error, DisklessError) or error.retryable:
                self._uploads.keep(upload)
            raise
        finally:
            self._uploads.close(meta.upload, upload)

    async def _make_visible(
        self, meta: m.Put, files: Sequence[PendingFile], sealed: list[Stripe], tail: Payload
    ) -> Answer:
        put = PendingPut(
            meta.session, meta.sequence, meta.overwrite, files, sealed, tail, meta.parents
        )
        began_s = time.monotonic()
        done = await self._packer.commit(put)
        self.traffic.committed(
            files=len(files),
            size=sum(file.size for file in files),
            took_s=time.monotonic() - began_s,
        )
        statuses = [
            m.Status(
                file.path, False, file.size, done.time_ms, done.number + n, f"{file.checksum:016x}"
            )
            for n, file in enumerate(files)
        ]
        return m.Committed(statuses), ()

    def _abort(self, meta: m.Abort, _: Payload) -> Answer:
        self._uploads.discard(meta.upload)
        return m.Empty(), ()

    def _open(self, visitor: Visitor, meta: m.Open, _: Payload) -> Answer | Awaitable[Answer]:
        began_s = time.monotonic()
        opened = self._namespace.ask(q.Open(meta.path), lambda opened: opened)
        if not isinstance(opened, q.OpenedFile):
            return self._open_afar(visitor, meta, opened)
        if opened.record.inline is not None:
            self.traffic.read(size=opened.record.size, took_s=time.monotonic() - began_s)
            return self._opened(visitor, meta, opened), (opened.record.inline,)
        if meta.prefetch <= 0:
            return self._opened(visitor, meta, opened), (b"",)
        return self._prefetch(visitor, meta, opened)

    async def _open_afar(
        self, visitor: Visitor, meta: m.Open, asked: Awaitable[q.OpenedFile]
    ) -> Answer:
        began_s = time.monotonic()
        opened = await asked
        if opened.record.inline is not None:
            self.traffic.read(size=opened.record.size, took_s=time.monotonic() - began_s)
            return self._opened(visitor, meta, opened), (opened.record.inline,)
        return await self._prefetch(visitor, meta, opened)

    async def _prefetch(self, visitor: Visitor, meta: m.Open, opened: q.OpenedFile) -> Answer:
        answer = self._opened(visitor, meta, opened)
        wanted = min(meta.prefetch, opened.record.size, PAYLOAD_BYTES_MAX)
        if wanted <= 0 or (is_cold(opened.record) and wanted < opened.record.size):
            return answer, ()  # The rest is asked of another agent: that one is to fetch it all.
        wanted_extents = cut(_extents(opened.record), 0, wanted)
        return answer, await self._read_counted(wanted_extents, opened.record.size)

    def _opened(self, visitor: Visitor, meta: m.Open, opened: q.OpenedFile) -> m.Opened:
        self._reader.learn(opened.stripes)
        record = opened.record
        self._cold.learn(record.id, opened.place)
        found = _extents(record)
        places = _places(opened) if meta.places else []
        near = self._near(record) if meta.places else None
        if visitor.rights.bound:
            extents = self._marks.extents(visitor.principal, found)
        else:  # Without a mark they read as they are.
            extents = cast(list[m.MarkedExtent], list(found))
        return m.Opened(_file_status(meta.path, record), extents, places, near)

    def _near(self, record: FileRecord) -> int | None:
        return kept_at(
            record,
            self._roster.agents,
            cache_bytes=self._settings.cache_bytes,
            stripe_bytes=self._settings.tuning.stripe_bytes,
        )

    async def _read(self, visitor: Visitor, meta: m.Read, _: Payload) -> Answer:
        if len(meta.extents) > READ_EXTENTS_MAX:
            raise BadRequest(f"one read may ask for {READ_EXTENTS_MAX} extents at most")
        if visitor.rights.bound:
            self._marks.check_extents(visitor.principal, meta.extents)
        if any(extent.offset < 0 or extent.length <= 0 for extent in meta.extents):
            raise BadRequest("an extent needs an offset of 0 or more and at least one byte")
        if sum(extent.length for extent in meta.extents) > PAYLOAD_BYTES_MAX:
            raise BadRequest(f"one read may ask for {PAYLOAD_BYTES_MAX} bytes at most")
        return m.Empty(), await self._read_counted(meta.extents, meta.size)

    async def _read_counted(self, extents: Sequence[Extent], file_bytes: int) -> list[memoryview]:
        began_s = time.monotonic()
        away: list[TooFewShards] = []
        try:
            parts = await self._reader.read(extents, away=away, file_bytes=file_bytes)
        except asyncio.CancelledError:
            if not away:
                raise
            raise away[-1] from None  # its client cannot wait any longer, and hears for whom it was
        took_s = time.monotonic() - began_s
        self.traffic.read(size=sum(extent.length for extent in extents), took_s=took_s)
        if any(map(is_cold_extent, extents)):
            self._hits.missed(extents, waited_s=took_s)
        else:
            self._hits.hit()
        return parts

    # -- the namespace ----------------------------------------------------------

    def _ask(
        self, query: q.Query, reply: Callable[[Any], Struct | bytes]
    ) -> Answer | Awaitable[Answer]:
        """An answer without bytes."""
        return self._namespace.ask(query, lambda answer: (reply(answer), ()))

    def _stat(self, visitor: Visitor, meta: m.Stat, _: Payload) -> Answer | Awaitable[Answer]:
        if visitor.rights.covers(meta.path):
            return self._ask(q.Stat(meta.path), _path_status)
        return self._ask(q.Stat(meta.path), _way_status)

    def _list(self, visitor: Visitor, meta: m.List, _: Payload) -> Answer | Awaitable[Answer]:
        if not visitor.rights.covers(meta.path):
            return self._list_ways(visitor, meta)

        def reply(page: q.Listed) -> m.Listing:
            return m.Listing([_path_status(entry) for entry in page.entries], page.more)

        return self._ask(q.Page(meta.path, meta.after, meta.limit), reply)

    async def _list_ways(self, visitor: Visitor, meta: m.List) -> Answer:
        """Of a directory above a token's paths, what leads to them: a few names, whatever else
        there is."""
        _way_status(await self._namespace.query(q.Stat(meta.path)))
        names = [name for name in visitor.rights.ways(meta.path) if name > meta.after]
        found: list[m.Status] = []
        for name in names:
            path = f"{meta.path.rstrip('/')}/{name}"
            try:
                entry = await self._namespace.query(q.Stat(path))
            except NotFound:
                continue
            if entry.record is None or visitor.rights.covers(path):
                found.append(_path_status(entry))
        limit = max(meta.limit, 1)
        return m.Listing(found[:limit], len(found) > limit), ()

    def _summary(self, meta: m.Summary, _: Payload) -> Answer | Awaitable[Answer]:
        def reply(found: Any) -> m.Summed:
            return m.Summed(found.files, found.directories, found.bytes)

        return self._ask(q.Summarize(meta.path), reply)

    def _status(self, meta: m.Empty, _: Payload) -> Answer | Awaitable[Answer]:
        return self._ask(q.Report(), lambda report: report)

    async def _events(self, visitor: Visitor, meta: operating.Events, _: Payload) -> Answer:
        query = Events(
            meta.after,
            meta.limit,
            meta.who,
            meta.path,
            meta.since_ms,
            meta.before,
            within=visitor.principal.claims.paths if visitor.rights.bound else (),
            kinds=tuple(meta.kinds),
        )
        found = await self._namespace.query(query)
        # Who sees only a part would take what it does not see for what did not happen.
        oldest_ms = 0 if query.within else found.oldest_ms
        return operating.EventPage(found.events, found.before, oldest_ms), ()

    async def _drain(self, visitor: Visitor, meta: operating.Drain, _: Payload) -> Answer:
        if not meta.undo:
            self._check_drain(meta.slot)
        done = await self._namespace.run(c.Drain(meta.slot, not meta.undo, visitor.principal.name))
        return operating.Drained(done.changed), ()

    def _check_drain(self, slot: int) -> None:
        """Raises TooFewAgents if writes would have to be refused without that agent."""
        needed = self._settings.parity_shards + 1
        left = sum(agent.slot != slot for agent in self._roster.takers())
        if left < needed:
            raise TooFewAgents(
                f"without {slot_name(slot)} {left} agents would be left to write to, and a "
                f"write needs {needed}: bring others back, or end their draining, first"
            )

    async def _session(self, visitor: Visitor, meta: m.OpenSession, _: Payload) -> Answer:
        command = c.OpenSession(visitor.principal.name, meta.application)
        done = await self._namespace.run(command)
        return m.Session(self._marks.session(visitor.principal, done.number)), ()

    async def _mkdirs(self, meta: m.Mkdirs, _: Payload) -> Answer:
        done = await self._namespace.run(
            c.Mkdirs(meta.session, meta.sequence, meta.path, meta.parents)
        )
        return m.Created(done.changed), ()

    async def _rename(self, meta: m.Rename, _: Payload) -> Answer:
        await self._namespace.run(
            c.Rename(meta.session, meta.sequence, meta.source, meta.target, meta.overwrite)
        )
        return m.Empty(), ()

    async def _delete(self, meta: m.Delete, _: Payload) -> Answer:
        done = await self._namespace.run(
            c.Delete(meta.session, meta.sequence, meta.path, meta.recursive, meta.snapshots)
        )
        return m.Deleted(done.changed), ()

    # -- chaos ------------------------------------------------------------------

    def _plant(self, meta: operating.Faults, _: Payload) -> Answer:
        """Faults concern this agent alone, so nobody passes them on. Where none may be planted
        there is none to heal, and nothing to hide."""
        plants = meta.cut or meta.delays_ms or meta.ballast_bytes or meta.corrupt > 0
        if plants and not self._settings.chaos:
            raise Forbidden(NOT_ARMED)
        faults, mended, flipped = self._faults, 0, 0
        if meta.heal:
            faults.heal()
        if meta.heal or meta.mend:
            mended = self._shards.flip_back()
        if meta.cut is not None:
            faults.cut_off(meta.cut)
        if meta.delays_ms is not None:
            faults.slow_down({slot: ms / 1000 for slot, ms in meta.delays_ms.items()})
        if meta.ballast_bytes is not None:
            faults.ballast_bytes = max(meta.ballast_bytes, 0)
        if meta.corrupt > 0:
            flipped = self._shards.flip_bytes(meta.corrupt, random_seed=meta.seed)
        if meta != operating.Faults():
            log.warning("faults planted slot=%s %s", slot_name(self._roster.slot), meta)
        return operating.Planted(
            cut=sorted(faults.cut),
            delays_ms={slot: round(1000 * s) for slot, s in faults.delays_s.items()},
            ballast_bytes=faults.ballast_bytes,
            damaged=self._shards.flips_left(),
            flipped=flipped,
            mended=mended,
        ), ()


def _check_files(files: Sequence[m.NewFile], size: int) -> None:
    if not 1 <= len(files) <= FILES_MAX:
        raise BadRequest(f"a put has 1 to {FILES_MAX} files, not {len(files)}")
    sizes = [file.size for file in files]
    if min(sizes) < 0 or sum(sizes) != size:
        raise BadRequest(f"the files' sizes do not add up to the {size} bytes sent")
    for file in files:
        paths.split(file.path)


def _checked(files: Sequence[m.NewFile], payload: Payload) -> list[PendingFile]:
    """The files with their true checksums. Raises CorruptData if one does not agree."""
    view = memoryview(payload)
    at = 0
    found: list[PendingFile] = []
    for file in files:
        checksum = file_checksum(view[at : at + file.size])
        _check_claim(file, checksum)
        found.append(PendingFile(file.path, file.size, checksum))
        at += file.size
    return found


def _verified(files: Sequence[m.NewFile], upload: Upload) -> list[PendingFile]:
    """The files of an upload with their checksums, checked where this agent saw all of one.

    Of a file that another agent had sealed a part of, the client's word is taken: every frame
    of it was verified by the agent that it came to.
    """
    found: list[PendingFile] = []
    for file, (start, end) in zip(
        files, pairwise(accumulate((file.size for file in files), initial=0)), strict=True
    ):
        checksum = upload.checksums.value(start, end)
        if checksum is None:
            checksum = _claim(file)
        else:
            _check_claim(file, checksum)
        found.append(PendingFile(file.path, file.size, checksum))
    return found


def _claim(file: m.NewFile) -> int:
    if _CHECKSUM.fullmatch(file.checksum) is None:
        raise BadRequest(f"this upload needs the checksum of {file.path}, as 16 hex digits")
    return int(file.checksum, 16)


def _check_claim(file: m.NewFile, checksum: int) -> None:
    if file.checksum and file.checksum != f"{checksum:016x}":
        raise CorruptData(f"{file.path} was damaged on its way here: send it again")


def _places(opened: q.OpenedFile) -> list[list[int]]:
    holders = {
        stripe.id: [place.slot for place in stripe.places[: stripe.data_shards]]
        for stripe in opened.stripes
    }
    return [holders.get(extent.stripe, []) for extent in _extents(opened.record)]


def _extents(record: FileRecord) -> tuple[Extent, ...]:
    """Where a file's bytes can be read, in memory or in the tier."""
    return (cold_extent(record),) if is_cold(record) else record.extents


def _file_status(path: str, record: FileRecord) -> m.Status:
    return m.Status(path, False, record.size, record.mtime_ms, record.id, f"{record.checksum:016x}")


def _way_status(found: PathStatus) -> m.Status:
    """Of what is above a token's paths. A file would be in their way, and is not its own."""
    if found.record is not None:
        raise Forbidden(f"{found.path} is a file, and not covered by the token")
    return _path_status(found)


def _path_status(found: PathStatus) -> m.Status:
    if found.record is None:
        return m.Status(found.path, True, 0, found.mtime_ms, 0, "")
    return _file_status(found.path, found.record)
