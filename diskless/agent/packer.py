"""Commits: gathers puts that wait together into one flush and one command.

A flush decides for all that wait: few bytes travel inline in the command, more are
packed into shared stripes first. A lone put is flushed at once; while a flush is
under way, others gather. All puts that lie in a stripe are in the command that
defines it, so a stripe is never half known.
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
    PathIsDirectory,
    PathIsFile,
    ShardsAway,
    StaleShards,
    TooFewShards,
    UploadLost,
)
from diskless.model import Extent, Stripe, cut
from diskless.namespace import commands as c

log = logging.getLogger(__name__)

FLUSH_BYTES_MAX = 4 << 20
FLUSH_PUTS_MAX = 512
FLUSH_META_BYTES_MAX = 6 << 20
"""Of paths and stripes: one command must fit in one message between agents."""
FLUSHES_MAX = 8
PATIENCE_S = 0.05
"""A flush that takes longer lets the next one start beside it."""
GATHER_S_MAX = 0.004
"""The longest that a flush waits for company; never longer than the last one took."""
STALE_RETRIES_MAX = 20
STALE_PAUSE_S = 0.1

NEVER_DONE = (AlreadyExists, PathIsDirectory, PathIsFile, BadRequest)
"""Refusals that prove that no try of this put has been carried out, nor will be."""

ReadStripe = Callable[[Stripe], Awaitable[bytes]]


class PendingFile(Struct, frozen=True):
    path: str
    size: int
    checksum: int


class PendingPut(Struct):
    """What a client wants to become visible: the bytes of `sealed`, then `tail`,
    cut into `files` one after the other."""

    session: int
    sequence: int
    overwrite: bool
    files: Sequence[PendingFile]
    sealed: list[Stripe]
    tail: bytes | bytearray | memoryview


class _Waiting:
    __slots__ = ("future", "put", "tries")

    def __init__(self, put: PendingPut) -> None:
        self.put = put
        self.tries = 0
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
        self._flushes: dict[asyncio.Task[None], float] = {}
        self._company = 0  # puts to wait for, for a moment, before the next flush
        self._timer: asyncio.TimerHandle | None = None

    async def commit(self, put: PendingPut) -> c.Done:
        """Makes a put visible and returns the namespace's answer.

        Raises what the namespace refused it with, or why it could not be protected.
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
        finally:
            for stripe in put.sealed:
                self._writer.release(stripe)

    def _start_flush(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._waiting and self._may_flush(now):
            group = self._take()
            self._company = 0
            task = asyncio.create_task(self._flush(group))
            self._flushes[task] = now
            task.add_done_callback(partial(self._flush_ended, group))
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._start_flush()

    def _may_flush(self, now: float) -> bool:
        if len(self._waiting) < self._company:
            return False
        return len(self._flushes) < FLUSHES_MAX and all(
            now - started >= PATIENCE_S for started in self._flushes.values()
        )

    def _flush_ended(self, group: list[_Waiting], task: asyncio.Task[None]) -> None:
        """Starts the next flush, at once unless the last one had company.

        Then the same clients are about to come back: waiting for them a moment makes
        one full flush of what would else become two half-empty ones.
        """
        loop = asyncio.get_running_loop()
        took_s = loop.time() - self._flushes.pop(task)
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
        """Every put of the group gets its answer or its error, or is tried again."""
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
                waiting.put.sealed = await self._reseal(waiting.put.sealed)
            except DisklessError as error:
                _fail(waiting, error)
                return
            self._waiting.append(waiting)
            self._start_flush()

        task = asyncio.create_task(again())
        waiting.future.add_done_callback(lambda _: task.cancel())

    async def _reseal(self, stripes: list[Stripe]) -> list[Stripe]:
        fresh: list[Stripe] = []
        for stripe in stripes:
            holders = [self._roster.holder(place) for place in stripe.places]
            if all(agent is not None and agent.up for agent in holders):
                fresh.append(stripe)
                continue
            try:
                fresh.append(await self._writer.seal(await self._read_stripe(stripe)))
            except ShardsAway:
                raise  # They may be back: ask again.
            except TooFewShards as error:
                raise UploadLost(f"too many agents were lost during the upload: {error}") from None
            self._writer.release(stripe)
        return fresh

    async def _commit_group(self, group: list[_Waiting]) -> tuple[c.Result, ...]:
        self._writer.check_protectable()
        inline = self._fits_inline(group)
        tails = b"" if inline else b"".join(waiting.put.tail for waiting in group)
        fresh = await self._seal_all(tails)
        stripes = [stripe for waiting in group for stripe in waiting.put.sealed] + fresh
        try:
            spread = [Extent(stripe.id, 0, stripe.payload_bytes) for stripe in fresh]
            puts: list[c.Put] = []
            at = 0
            for waiting in group:
                size = 0 if inline else len(waiting.put.tail)
                puts.append(_command(waiting.put, cut(spread, at, size), inline=inline))
                at += size
            results = await self._namespace.execute(c.Commit(tuple(stripes), tuple(puts)))
            if all(isinstance(r, c.Refused) and isinstance(r.error(), NEVER_DONE) for r in results):
                for stripe in fresh:
                    self._writer.give_up(stripe)
            return results
        finally:
            for stripe in fresh:
                self._writer.release(stripe)

    def _fits_inline(self, group: list[_Waiting]) -> bool:
        return (
            sum(len(waiting.put.tail) for waiting in group) <= self._tuning.inline_flush_bytes_max
            and self._roster.inline_room
            and not any(waiting.put.sealed for waiting in group)
            and all(
                file.size <= self._tuning.inline_bytes_max
                for waiting in group
                for file in waiting.put.files
            )
        )

    async def _seal_all(self, data: bytes) -> list[Stripe]:
        size = self._tuning.stripe_bytes
        payloads = [data[at : at + size] for at in range(0, len(data), size)]
        sealed = await asyncio.gather(
            *(self._writer.seal(payload) for payload in payloads), return_exceptions=True
        )
        stripes = [stripe for stripe in sealed if isinstance(stripe, Stripe)]
        for error in sealed:
            if isinstance(error, BaseException):
                for stripe in stripes:
                    self._writer.release(stripe)
                raise error
        return stripes


def _meta_bytes(put: PendingPut) -> int:
    """About how much of a command the put takes, its inline bytes aside."""
    return 200 * len(put.sealed) + sum(64 + 2 * len(file.path) for file in put.files)


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
    return c.Put(put.session, put.sequence, put.overwrite, tuple(files))


def _fail(waiting: _Waiting, error: DisklessError) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
