"""Uploads: files larger than a frame, sealed stripe by stripe while they arrive.

An upload is not bound to a connection: its client may reconnect, or continue with another agent,
which adopts the stripes sealed so far. The bytes of each upload, and of all of them, are bounded.
At the bound, buffered bytes are sealed in stripes that are not full, and uploads wait for each
other. An upload whose connection is gone for `keep_s` is forgotten. Its stripes are kept until
then, and for as long after a commit that may be retried.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain, pairwise

from diskless.agent.kept import Kept
from diskless.agent.known import STRIPE_CACHED_BYTES
from diskless.agent.memory import Memory, Use
from diskless.agent.ports import Hold
from diskless.agent.writer import Writer
from diskless.checksum import FileChecksums
from diskless.config import GIB, Tuning, format_bytes
from diskless.errors import (
    BadRequest,
    CapacityExceeded,
    DisklessError,
    InternalError,
    MemoryFull,
    UploadLost,
)
from diskless.model import Stripe, StripeId
from diskless.policy import GRADE_DEFAULT

FILES_MAX = 10_000
"""Of one upload, or one put."""
UPLOADS_SHARE = 1 / 8
"""The part of the agent's memory that uploads may take, including what is being sealed."""
ONE_UPLOAD_SHARE = 1 / 16
"""The part that one may have under way, if that is less than `upload_bytes_max`."""
UPLOAD_BYTES = 4096
"""Bytes of an upload besides those that it buffers."""
SEAL_TOGETHER = 4
"""Full stripes to gather while others are being sealed: a message costs more than its bytes,
and the shards that four stripes have for an agent go in one."""


class Upload:
    def __init__(
        self,
        *,
        writer: Writer,
        tuning: Tuning,
        resumed: list[Stripe],
        memory: Memory,
        bytes_max: int,
        path: str = "",
    ) -> None:
        """`bytes_max` is for all uploads of the agent. `path` is where its first file goes, if
        the client says so: that decides how much parity its stripes get."""
        self._writer = writer
        self._path = path
        self._tuning = tuning
        self._memory = memory
        self._bytes_max = bytes_max
        self._charged = 0
        self._charge(UPLOAD_BYTES + STRIPE_CACHED_BYTES * len(resumed))
        self._parts: list[bytes | bytearray | memoryview] = []
        self._buffered = 0
        self._sealed: list[Stripe] = list(resumed)
        self._reported = len(resumed)
        self._reported_bytes = sum(stripe.payload_bytes for stripe in resumed)
        self._lowest: dict[tuple[int, int], int] = {}
        for stripe in resumed:
            self._note(stripe)
        self._seals: list[asyncio.Task[Stripe]] = []  # in order, not yet in _sealed
        self._error: DisklessError | None = None
        self.received = self._reported_bytes
        self.checksums = FileChecksums(self._reported_bytes)
        self._files = 0
        self.touched_s = 0.0
        self.committing = False

    def append(
        self, offset: int, data: bytes | bytearray | memoryview, ends: Sequence[int] = ()
    ) -> None:
        """Appends the next bytes; never waits, so that frames keep their order. At `ends` one file
        ends and the next begins."""
        if offset != self.received:
            raise UploadLost(f"upload is at byte {self.received}, not {offset}: send it again")
        self._check_ends(offset, len(data), ends)
        self.received += len(data)
        self.checksums.update(data, ends)
        self._parts.append(data)
        self._buffered += len(data)
        self._charge(len(data))
        together = SEAL_TOGETHER if self._sealing else 1
        if self._buffered >= together * self._tuning.stripe_bytes:
            self._seal_full()

    def _check_ends(self, offset: int, size: int, ends: Sequence[int]) -> None:
        if any(a > b for a, b in pairwise([offset, *ends, offset + size])):
            raise BadRequest(f"a frame of {size} bytes from {offset} on has no such ends of files")
        self._files += len(ends)
        if self._files > FILES_MAX:
            raise BadRequest(f"an upload has {FILES_MAX} files at most")

    @property
    def gathered_bytes(self) -> int:
        """Received, and not being sealed yet."""
        return self._buffered

    def seal_rest(self) -> bool:
        """Seals the buffered bytes although they fill no stripe, to free memory; False if they are
        too few, or about to be committed."""
        self._seal_full()
        wanted = self._buffered > self._tuning.inline_flush_bytes_max and not self.committing
        if wanted:
            self._seal(self._buffered)
        return wanted

    def _charge(self, count: int) -> None:
        self._charged += count
        self._memory.charge("uploads", count)

    def _is_crowded(self) -> bool:
        return self._memory.of("uploads") + self._memory.of("stripes") > self._bytes_max

    def _seal_full(self) -> None:
        """Seals what fills stripes, all at once, so that their shards travel together."""
        while self._buffered >= self._tuning.stripe_bytes:
            self._seal(self._tuning.stripe_bytes)

    def _seal(self, size: int) -> None:
        grade = self._writer.grade_of([self._path]) if self._path else GRADE_DEFAULT
        seal = self._writer.seal(
            self._take(size), grade=grade, patient=True, file_bytes=self.received
        )
        task = asyncio.create_task(seal)
        task.add_done_callback(self._on_sealed)
        self._seals.append(task)

    @property
    def _sealing(self) -> bool:
        return any(not task.done() for task in self._seals)

    def _on_sealed(self, task: asyncio.Task[Stripe]) -> None:
        """Seals what was buffered meanwhile."""
        if not task.cancelled() and task.exception() is None and not self._sealing:
            self._seal_full()

    def saying_why(self) -> AbstractContextManager[None]:
        return self._writer.saying_why()

    async def room(self) -> None:
        """Waits until little enough is in progress. Raises the error of a failed seal."""
        self._collect()
        most = self._tuning.upload_bytes_max
        allowed = max(self._memory.part(ONE_UPLOAD_SHARE, most), 2 * self._tuning.stripe_bytes)
        while self._seals and (
            len(self._seals) * self._tuning.stripe_bytes >= allowed or self._is_crowded()
        ):
            await asyncio.wait([self._seals[0]])
            self._collect()

    def news(self) -> tuple[int, list[Stripe]]:
        """Stripes sealed since the last call, and the byte where they begin."""
        self._collect()
        start, news = self._reported_bytes, self._sealed[self._reported :]
        self._reported += len(news)
        self._reported_bytes += sum(stripe.payload_bytes for stripe in news)
        return start, news

    async def finish(self) -> tuple[list[Stripe], bytes | bytearray | memoryview]:
        """All the stripes, and the remaining bytes, too few for one. Raises the error of a failed
        seal.

        Those few share a stripe with others, or travel inline, after the rest is sealed. More bytes
        get a stripe of their own, sealed along with the rest.
        """
        self._seal_full()
        if self._buffered > self._tuning.inline_flush_bytes_max:
            self._seal(self._buffered)
        if self._seals:
            await asyncio.wait(self._seals)
        self._collect()
        self._writer.let_go(self._sealed, file_bytes=self.received)
        return self._sealed, self._take(self._buffered)

    def close(self, *, discard: bool = False) -> None:
        """Ends the upload. What it sealed is committed, or may be resumed elsewhere.

        `discard` drops at once only stripes that were never reported to the client: with the others
        it may have continued through another agent. Those are dropped later, by a fence.
        """
        self._parts, self._buffered = [], 0
        self._charge(-self._charged)
        end = self._writer.give_up if discard else self._writer.release
        for task in self._seals:
            if not task.cancel() and not task.cancelled() and task.exception() is None:
                end(task.result())  # sealed, but not reported yet
        for number, stripe in enumerate(self._sealed):
            if number < self._reported:
                self._writer.release(stripe)
            else:
                end(stripe)

    def holds(self) -> Iterable[Hold]:
        """The lowest stripe of each writer that is sealed here."""
        return [Hold(*writer, counter) for writer, counter in self._lowest.items()]

    def _note(self, stripe: Stripe) -> None:
        who = StripeId.parse(stripe.id)
        writer = (who.slot, who.incarnation)
        self._lowest[writer] = min(who.counter, self._lowest.get(writer, who.counter))

    def _take(self, size: int) -> bytes | bytearray | memoryview:
        taken: bytes | bytearray | memoryview
        if self._parts and len(self._parts[0]) == size:
            taken = self._parts.pop(0)  # as it came: nobody else has it
        else:
            joined = b"".join(self._parts)
            taken, rest = joined[:size], joined[size:]
            self._parts = [rest] if rest else []
        self._buffered -= size
        if self._charged:  # It may have been closed meanwhile.
            self._charge(-size)
        return taken

    def _collect(self) -> None:
        """Moves finished seals, in order, to the list; keeps the first error."""
        while self._seals and self._seals[0].done():
            task = self._seals.pop(0)
            if task.cancelled():
                self._error = self._error or UploadLost("the upload was dropped: send it again")
            elif isinstance(error := task.exception(), DisklessError):
                self._error = self._error or error
            elif error is not None:
                self._error = self._error or InternalError(f"{type(error).__name__}: {error}")
            elif self._error is None:
                self._sealed.append(task.result())
                self._charge(STRIPE_CACHED_BYTES if self._charged else 0)
                self._note(task.result())
            else:
                self._writer.release(task.result())
        if self._error is not None:
            raise self._error


class Uploads:
    def __init__(
        self,
        *,
        writer: Writer,
        tuning: Tuning,
        now_s: Callable[[], float],
        memory: Memory,
        relief: Callable[[], bool] = lambda: False,
    ) -> None:
        """`relief` tells whether eviction makes room."""
        self._relief = relief
        self._writer = writer
        self._tuning = tuning
        self._memory = memory
        self._bytes_max = memory.part(UPLOADS_SHARE, GIB)
        self._now_s = now_s
        self._kept = Kept(keep_s=tuning.keep_s, now_s=now_s)
        self._uploads: dict[int, Upload] = {}
        self._owners: dict[int, int] = {}  # upload -> the connection that works on it

    def get(self, number: int, offset: int, resume: list[Stripe], path: str = "") -> Upload:
        """The upload of that number: known, new, or taken over from another agent."""
        upload = self._uploads.get(number)
        if upload is None or upload.received != offset:
            if offset != sum(stripe.payload_bytes for stripe in resume):
                raise UploadLost(f"upload {number} is not known here: send it again")
            upload = self._open(number, resume, path)
        upload.touched_s = self._now_s()
        return upload

    async def room(self, upload: Upload) -> None:
        """Waits until little enough of an upload, and of all, is buffered here. Raises the error of
        a failed seal of this one."""
        await upload.room()
        while self._memory.of("uploads") > self._bytes_max:
            if self._make_room():
                await asyncio.sleep(0)  # it begins
            elif self._writer.is_sealing:
                await self._writer.one_sealed()
            else:
                return

    def _make_room(self) -> bool:
        """Seals the buffered bytes of the fullest upload, if possible. One at a time when memory is
        short: sealing briefly takes more than twice the size."""
        memory = self._memory
        if self._writer.is_sealing and memory.room(Use.TRANSIT) < 2 * self._tuning.stripe_bytes:
            return False
        fullest = max(self._uploads.values(), key=lambda one: one.gathered_bytes, default=None)
        return fullest is not None and fullest.seal_rest()

    def close(self, number: int, upload: Upload | None = None) -> None:
        """Ends an upload; given one, that one, even if its number has been taken over."""
        upload = upload or self._uploads.get(number)
        if upload is not None:
            upload.close()
        if self._uploads.get(number) is upload:
            self._uploads.pop(number, None)
            self._owners.pop(number, None)

    def keep(self, upload: Upload) -> None:
        """Its client may resume with what is sealed, at this agent or another one: keeps it for a
        while from now on, even if this upload is closed."""
        self._kept.keep(upload.holds())

    def put_off(self, number: int, upload: Upload) -> None:
        """Ends an upload whose client will retry with what is sealed."""
        self.keep(upload)
        self.close(number, upload)

    def discard(self, number: int) -> None:
        """Ends an upload that nobody will commit, and drops its shards.

        Not one whose commit is under way: its outcome decides.
        """
        upload = self._uploads.get(number)
        if upload is not None and not upload.committing:
            upload.close(discard=True)
            del self._uploads[number]
            self._owners.pop(number, None)

    def attach(self, number: int, connection: int) -> None:
        """A connection works on an upload: it does not expire while that is open."""
        if number in self._uploads:
            self._owners[number] = connection

    def detach(self, connection: int) -> None:
        """A connection is gone; its uploads wait a while for their client."""
        for number in [n for n, owner in self._owners.items() if owner == connection]:
            del self._owners[number]
            self._uploads[number].touched_s = self._now_s()

    def close_all(self) -> None:
        """The agent stops: nothing more is sealed."""
        for number in list(self._uploads):
            self.close(number)

    def expire(self) -> None:
        """Forgets uploads at rest."""
        latest = self._now_s() - self._tuning.keep_s
        for number, upload in list(self._uploads.items()):
            resting = upload.touched_s < latest and number not in self._owners
            if resting and not upload.committing:
                self.close(number)

    def holds(self) -> list[Hold]:
        """Stripes that some client still needs: the lowest of each writer. Every heartbeat reports
        them, so there are no more for a thousand uploads than for one."""
        lowest: dict[tuple[int, int], int] = {}
        of_uploads = (upload.holds() for upload in self._uploads.values())
        for hold in chain(self._kept.holds(), *of_uploads):
            writer = (hold.slot, hold.incarnation)
            lowest[writer] = min(hold.counter, lowest.get(writer, hold.counter))
        return [Hold(*writer, counter) for writer, counter in lowest.items()]

    def _open(self, number: int, resume: list[Stripe], path: str) -> Upload:
        self.expire()
        held = self._memory.of("uploads")
        short = self._memory.room(Use.TRANSIT) < self._tuning.stripe_bytes
        if held > self._bytes_max or (short and held > self._tuning.stripe_bytes):
            kind = MemoryFull if self._relief() else CapacityExceeded
            raise kind(
                f"{len(self._uploads)} uploads are open at this agent and take "
                f"{format_bytes(held)} of its memory: finish some, or start the cluster with more "
                "--memory or --agents"
            )
        self.close(number)
        upload = Upload(
            writer=self._writer,
            tuning=self._tuning,
            resumed=resume,
            memory=self._memory,
            bytes_max=self._bytes_max,
            path=path,
        )
        self._uploads[number] = upload
        return upload
