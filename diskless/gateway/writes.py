"""What requests that write files mean: puts, uploads piece by piece, and their commits."""

import re
import time
from collections.abc import Awaitable, Sequence
from itertools import accumulate, pairwise

from diskless import paths
from diskless.agent.counts import Traffic
from diskless.agent.packer import Packer, PendingFile, PendingPut
from diskless.agent.uploads import FILES_MAX, Upload, Uploads
from diskless.checksum import file_checksum
from diskless.errors import (
    BadRequest,
    CapacityExceeded,
    CorruptData,
    DisklessError,
    MemoryFull,
    TooFewAgents,
)
from diskless.gateway.backend import Answer, Buffer, ConnectionId, Handlers, PersonalHandlers
from diskless.gateway.marks import Marks
from diskless.gateway.visitor import Visitor
from diskless.model import Stripe
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind

_CHECKSUM = re.compile("[0-9a-fA-F]{16}")


class WriteHandlers:
    """A part of the gateway's backend."""

    def __init__(self, *, packer: Packer, uploads: Uploads, marks: Marks, traffic: Traffic) -> None:
        self._packer = packer
        self._uploads = uploads
        self._marks = marks
        self._traffic = traffic
        self.handlers: Handlers = {Kind.PUT: self._put, Kind.ABORT: self._abort}
        self.personal: PersonalHandlers = {Kind.WRITE: self._write, Kind.COMMIT: self._commit}

    def disconnected(self, connection: ConnectionId) -> None:
        """Uploads wait a while: their client may come back to them."""
        self._uploads.detach(connection)

    async def _put(self, meta: m.Put, payload: Buffer) -> Answer:
        _check_files(meta.files, len(payload))
        return await self._make_visible(meta, _checked(meta.files, payload), [], payload)

    def _write(self, visitor: Visitor, meta: m.Write, payload: Buffer) -> Awaitable[Answer]:
        # Appending happens here and now, so that frames keep the order they came in.
        resumed = self._resumed(visitor, meta.resume)
        if meta.path:
            paths.split(meta.path)
        upload = self._uploads.get(meta.upload, meta.offset, resumed, meta.path)
        upload.append(meta.offset, payload, meta.ends)
        self._uploads.attach(meta.upload, visitor.number)
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

    def _commit(self, visitor: Visitor, meta: m.Commit, payload: Buffer) -> Awaitable[Answer]:
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
        self, meta: m.Put, files: Sequence[PendingFile], sealed: list[Stripe], tail: Buffer
    ) -> Answer:
        put = PendingPut(
            meta.session, meta.sequence, meta.overwrite, files, sealed, tail, meta.parents
        )
        began_s = time.monotonic()
        done = await self._packer.commit(put)
        self._traffic.committed(
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

    def _abort(self, meta: m.Abort, _: Buffer) -> Answer:
        self._uploads.discard(meta.upload)
        return m.Empty(), ()


def _check_files(files: Sequence[m.NewFile], size: int) -> None:
    if not 1 <= len(files) <= FILES_MAX:
        raise BadRequest(f"a put has 1 to {FILES_MAX} files, not {len(files)}")
    sizes = [file.size for file in files]
    if min(sizes) < 0 or sum(sizes) != size:
        raise BadRequest(f"the files' sizes do not add up to the {size} bytes sent")
    for file in files:
        paths.split(file.path)


def _checked(files: Sequence[m.NewFile], payload: Buffer) -> list[PendingFile]:
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
