"""Commits: combines waiting puts into one flush and one command.

A flush takes all waiting puts. Few bytes travel inline in the command; more are packed into shared
stripes first, each for files of one grade. A single put is flushed at once; while a flush is in
progress, others wait for the next. All puts of a stripe are in the command that defines it, so a
stripe is never partly known.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct

from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.writer import Writer
from diskless.config import Tuning
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DisklessError,
    InternalError,
    NotDurable,
    PathIsDirectory,
    PathIsFile,
    ShardsAway,
    StaleShards,
    TooFewShards,
    UploadLost,
)
from diskless.model import Extent, Stripe, cut
from diskless.namespace import commands as c
from diskless.policy import Grade

log = logging.getLogger(__name__)

FLUSH_BYTES_MAX = 4 << 20
FLUSH_PUTS_MAX = 512
FLUSH_META_BYTES_MAX = 6 << 20
"""Bytes of paths and stripes: one command must fit in one message between agents."""
FLUSHES_MAX = 64
"""Most of them only wait: the leader delays answers that must be durable first, and others must not
queue behind those."""
FLUSHES_BYTES_MAX = 8 * FLUSH_BYTES_MAX
PATIENCE_S = 0.05
"""A flush that takes longer lets the next one start beside it."""
GATHER_S_MAX = 0.004
"""The longest that a flush waits for more puts; never longer than the last flush took."""
STALE_RETRIES_MAX = 20
STALE_PAUSE_S = 0.1

NEVER_DONE = (AlreadyExists, PathIsDirectory, PathIsFile, BadRequest)
"""Refusals that prove that no attempt of this put was or will be executed."""

ReadStripe = Callable[[Stripe], Awaitable[bytes]]


class PendingFile(Struct, frozen=True):
    path: str
    size: int
    checksum: int


class PendingPut(Struct):
    """What a client commits: the bytes of `sealed`, then `tail`, split into `files` in order."""

    session: int
    sequence: int
    overwrite: bool
    files: Sequence[PendingFile]
    sealed: list[Stripe]
    tail: bytes | bytearray | memoryview
    parents: bool = True
    """Whether directories above them are made."""


class _Waiting:
    __slots__ = ("behind", "future", "put", "tries")

    def __init__(self, put: PendingPut) -> None:
        self.put = put
        self.tries = 0
        self.behind: NotDurable | None = None  # why there is no answer yet
        self.future: asyncio.Future[c.Done] = asyncio.get_running_loop().create_future()


class Packer:
    def __init__(
        self,
        *,
        tuning: Tuning,
        roster: Roster,
        writer: Writer,
        namespace: Router,
        read_stripe: ReadStripe,
    ) -> None:
        self._tuning = tuning
        self._roster = roster
        self._writer = writer
        self._namespace = namespace
        self._read_stripe = read_stripe
        self._waiting: list[_Waiting] = []
        self._flushes: dict[asyncio.Task[None], tuple[float, int]] = {}  # since when, bytes
        self._company = 0  # puts to wait for briefly before the next flush
        self._timer: asyncio.TimerHandle | None = None

    async def commit(self, put: PendingPut) -> c.Done:
        """Makes a put visible and returns the namespace's answer.

        Raises what the namespace refused it with, or why it could not be protected; NotDurable,
        also if it is cancelled while only that keeps the answer back.
        """
        waiting = _Waiting(put)
        self._waiting.append(waiting)
        self._start_flush()
        try:
            return await waiting.future
        except NEVER_DONE:
            for stripe in put.sealed:
                self._writer.give_up(stripe)
            raise
        except asyncio.CancelledError:
            if waiting.behind is not None:
                raise waiting.behind from None
            with self._writer.saying_why():
                raise
        finally:
            for stripe in put.sealed:
                self._writer.release(stripe)

    def _start_flush(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._waiting and self._may_flush(now):
            group = self._take()
            self._company = 0
            task = asyncio.create_task(self._flush(group))
            self._flushes[task] = now, sum(len(waiting.put.tail) for waiting in group)
            task.add_done_callback(partial(self._flush_ended, group))
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._start_flush()

    def _may_flush(self, now: float) -> bool:
        if len(self._waiting) < self._company:
            return False
        return not self._flushes or (
            len(self._flushes) < FLUSHES_MAX
            and sum(size for _, size in self._flushes.values()) < FLUSHES_BYTES_MAX
            and all(now - started >= PATIENCE_S for started, _ in self._flushes.values())
        )

    def _flush_ended(self, group: list[_Waiting], task: asyncio.Task[None]) -> None:
        """Starts the next flush, at once unless the last one had several puts.

        In that case the same clients are about to send again: waiting briefly makes one full flush
        instead of two half-empty ones.
        """
        loop = asyncio.get_running_loop()
        took_s = loop.time() - self._flushes.pop(task)[0]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a flush failed", exc_info=error)
            for waiting in group:
                _fail(waiting, InternalError(f"{type(error).__name__}: {error}"))
        if len(group) > 1 and not self._flushes:
            self._company = len(group) + len(self._waiting)
            loop.call_later(min(took_s, GATHER_S_MAX), self._stop_gathering)
        self._start_flush()

    def _stop_gathering(self) -> None:
        self._company = 0
        self._start_flush()

    def _take(self) -> list[_Waiting]:
        count, size, meta = 0, 0, 0
        for waiting in self._waiting[:FLUSH_PUTS_MAX]:
            size += len(waiting.put.tail)
            meta += _meta_bytes(waiting.put)
            if count and (size > FLUSH_BYTES_MAX or meta > FLUSH_META_BYTES_MAX):
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return [waiting for waiting in taken if not waiting.future.done()]

    async def _flush(self, group: list[_Waiting]) -> None:
        """Every put of the group gets its answer or its error, or is retried."""
        try:
            results = await self._commit_group(group)
        except DisklessError as error:
            for waiting in group:
                _fail(waiting, error)
            return
        for waiting, result in zip(group, results, strict=True):
            if isinstance(result, c.Done):
                if not waiting.future.done():
                    waiting.future.set_result(result)
            elif result.reason == StaleShards.__name__ and waiting.tries < STALE_RETRIES_MAX:
                self._retry_later(waiting)
            else:
                _fail(waiting, result.error())

    def _retry_later(self, waiting: _Waiting) -> None:
        """Shards were lost between sealing and commit: seal them again, then commit."""
        waiting.tries += 1

        async def again() -> None:
            await asyncio.sleep(STALE_PAUSE_S)  # until the roster shows what was lost
            try:
                waiting.put.sealed = await self._reseal(waiting.put)
            except DisklessError as error:
                _fail(waiting, error)
                return
            self._waiting.append(waiting)
            self._start_flush()

        task = asyncio.create_task(again())
        waiting.future.add_done_callback(lambda _: task.cancel())

    async def _reseal(self, put: PendingPut) -> list[Stripe]:
        fresh: list[Stripe] = []
        grade = self._grade(put)
        for stripe in put.sealed:
            holders = [self._roster.holder(place) for place in stripe.places]
            is_thin = stripe.parity_shards < self._writer.parity_of(grade)
            if not is_thin and all(agent is not None and agent.up for agent in holders):
                fresh.append(stripe)
                continue
            try:
                payload = await self._read_stripe(stripe)
                fresh.append(
                    await self._writer.seal(payload, grade=grade, patient=True, file_bytes=0)
                )
            except ShardsAway:
                raise  # They may be up again: retry.
            except TooFewShards as error:
                raise UploadLost(f"too many agents were lost during the upload: {error}") from None
            self._writer.release(stripe)
        return fresh

    async def _commit_group(self, group: list[_Waiting]) -> tuple[c.Result, ...]:
        self._writer.check_protectable()
        fresh: list[Stripe] = []
        extents: dict[_Waiting, list[Extent]] = {}
        inline = self._fits_inline(group)
        if not inline:
            fresh, extents = await self._seal_tails(group)
        stripes = [stripe for waiting in group for stripe in waiting.put.sealed] + fresh
        try:
            puts = [
                _command(waiting.put, extents.get(waiting, []), inline=inline) for waiting in group
            ]
            command = c.Commit(tuple(stripes), tuple(puts))
            results = await self._namespace.execute(command, partial(_tell, group))
            if fresh and all(
                isinstance(r, c.Refused) and isinstance(r.error(), NEVER_DONE) for r in results
            ):
                for stripe in fresh:
                    self._writer.give_up(stripe)
            return results
        finally:
            for stripe in fresh:
                self._writer.release(stripe)

    def _fits_inline(self, group: list[_Waiting]) -> bool:
        if not self._roster.inline_room:
            return False
        size, most = 0, self._tuning.inline_bytes_max
        for waiting in group:
            put = waiting.put
            if put.sealed:
                return False
            for file in put.files:
                if file.size > most:
                    return False
            size += len(put.tail)
        return size <= self._tuning.inline_flush_bytes_max

    def _grade(self, put: PendingPut) -> Grade:
        return self._writer.grade_of(file.path for file in put.files)

    async def _seal_tails(
        self, group: list[_Waiting]
    ) -> tuple[list[Stripe], dict[_Waiting, list[Extent]]]:
        """Packs what is left of each put into stripes, one grade per stripe; returns the stripes,
        and where each put's bytes are."""
        by_grade: dict[Grade, list[_Waiting]] = {}
        for waiting in group:
            by_grade.setdefault(self._grade(waiting.put), []).append(waiting)
        tails = {
            grade: b"".join(waiting.put.tail for waiting in members)
            for grade, members in by_grade.items()
        }
        sealed = await self._seal_all(tails)
        extents: dict[_Waiting, list[Extent]] = {}
        for grade, members in by_grade.items():
            spread = [Extent(stripe.id, 0, stripe.payload_bytes) for stripe in sealed[grade]]
            at = 0
            for waiting in members:
                extents[waiting] = cut(spread, at, len(waiting.put.tail))
                at += len(waiting.put.tail)
        return [stripe for stripes in sealed.values() for stripe in stripes], extents

    async def _seal_all(self, tails: dict[Grade, bytes]) -> dict[Grade, list[Stripe]]:
        size = self._tuning.stripe_bytes
        parts = [
            (grade, data[at : at + size])
            for grade, data in tails.items()
            for at in range(0, len(data), size)
        ]
        sealed = await asyncio.gather(
            *(
                self._writer.seal(payload, grade=grade, patient=True, file_bytes=len(payload))
                for grade, payload in parts
            ),
            return_exceptions=True,
        )
        stripes = [stripe for stripe in sealed if isinstance(stripe, Stripe)]
        for error in sealed:
            if isinstance(error, BaseException):
                for stripe in stripes:
                    self._writer.release(stripe)
                raise error
        found: dict[Grade, list[Stripe]] = {grade: [] for grade in tails}
        for (grade, _), stripe in zip(parts, stripes, strict=True):
            found[grade].append(stripe)
        return found


def _meta_bytes(put: PendingPut) -> int:
    """About how much of a command the put takes, its inline bytes aside."""
    return 200 * len(put.sealed) + sum([64 + 2 * len(file.path) for file in put.files])


def _command(put: PendingPut, tail: list[Extent], *, inline: bool) -> c.Put:
    """The put with its files' bytes located: inline, or in its extents."""
    extents = [Extent(stripe.id, 0, stripe.payload_bytes) for stripe in put.sealed] + tail
    files: list[c.NewFile] = []
    at = 0
    for file in put.files:
        if inline or file.size == 0:
            held = bytes(memoryview(put.tail)[at : at + file.size])
            files.append(c.NewFile(file.path, file.size, file.checksum, held))
        else:
            where = tuple(cut(extents, at, file.size))
            files.append(c.NewFile(file.path, file.size, file.checksum, None, where))
        at += file.size
    return c.Put(put.session, put.sequence, put.overwrite, tuple(files), put.parents)


def _tell(group: list[_Waiting], behind: NotDurable) -> None:
    """All of them must be durable first, or each got its own answer."""
    for waiting in group:
        waiting.behind = behind


def _fail(waiting: _Waiting, error: DisklessError) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
