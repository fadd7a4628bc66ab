"""A persistent stream between two agents that carries batches of calls.

`Link` is the calling side: calls that wait together leave in one message, answers
come back matched by id. `serve` is the other side. Both know no service: they get
functions that join and split its batches, and that open a stream (`rpc.introduction`).
A stream that breaks, or does not open, fails every call without an answer at once; the
next call opens a new one.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio

from diskless.errors import AgentGone, BadFrame, DisklessError, InternalError, Unavailable
from diskless.identity.refusals import one_line
from diskless.rpc.wire import Buffer

log = logging.getLogger(__name__)

BATCH_CALLS_MAX = 256
BATCH_BYTES_MAX = (1 << 20) + (64 << 10)
"""The shards that four stripes have for one agent, and what is said about them."""
QUEUE_BYTES_MAX = 32 << 20
REFUSED = "Connection refused"
"""What gRPC's text has of the system's ECONNREFUSED; its status codes do not tell."""
SERVING_MAX = 1024
"""Calls of one stream that an agent works on at once; then it stops reading."""
ANSWERS_BYTES_MAX = 32 << 20
"""What waits on one stream for a caller that does not read; then no more of its calls are read."""

Item = tuple[Any, Buffer | None]
"""A call or an answer (a protobuf message) and its payload."""
Join = Callable[[Sequence[Item]], bytes]
Split = Callable[[bytes], Iterable[tuple[Any, memoryview]]]


class Link:
    """The calling side of a stream to one agent, opened on demand."""

    def __init__(
        self,
        open_stream: Callable[[], Awaitable[Any]],
        *,
        peer: str,
        join: Join,
        split: Split,
        count_message: Callable[[], None],
        on_broken: Callable[[], None] | None = None,
    ) -> None:
        """`open_stream` raises Unavailable or AioRpcError. `on_broken` is told whenever a stream
        ends that we did not close, or does not open."""
        self._on_broken = on_broken
        self._open_stream = open_stream
        self._peer = peer
        self._join = join
        self._split = split
        self._count_message = count_message
        self._next_id = 0
        self._waiting: dict[int, Future[tuple[Any, memoryview]]] = {}
        self._queue: list[_Sized] = []
        self._closed = False
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._stream: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    async def call(
        self, call: Any, payload: Buffer | None = None, *, timeout_s: float
    ) -> tuple[Any, memoryview]:
        """Sends one call and waits for its answer, given back with its payload.

        Raises Unavailable when the stream breaks or time runs out: then the call may
        or may not have been carried out.
        """
        self._next_id += 1
        call.id = number = self._next_id
        try:
            async with asyncio.timeout(timeout_s):
                await self._room.wait()
                self._ensure_open()
                future: Future[tuple[Any, memoryview]] = asyncio.get_running_loop().create_future()
                self._waiting[number] = future
                self._enqueue(call, payload)
                return await future
        except TimeoutError:
            raise Unavailable(f"{self._peer} did not answer within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def post(self, call: Any, size: int) -> None:
        """Sends a call that has no answer, or drops it when too much waits already."""
        if self._closed or self._queue_bytes + size > QUEUE_BYTES_MAX:
            return
        self._ensure_open()
        self._enqueue(call, None)

    def close(self) -> None:
        self._on_broken = None
        self._closed = True
        self._break(Unavailable(f"the connection to {self._peer} was closed"))

    def interrupt(self, why: str) -> None:
        """Takes the stream for broken, as if it had ended."""
        if self._stream is not None:
            self._lost(why)

    def _enqueue(self, call: Any, payload: Buffer | None) -> None:
        size = _size_of(call, payload)
        self._queue.append((call, payload, size))
        self._queue_bytes += size
        if self._queue_bytes > QUEUE_BYTES_MAX:
            self._room.clear()
        self._wake.set()

    def _ensure_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the connection to {self._peer} was closed")
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._open())]

    async def _open(self) -> None:
        try:
            self._stream = stream = await self._open_stream()
        except grpc.aio.AioRpcError as error:
            self._lost(error.details())
        except Unavailable as error:
            self._lost(error)
        except Exception as error:  # a bug must not leave calls waiting, now and ever after
            log.exception("no stream opened peer=%s", self._peer)
            self._lost(f"{type(error).__name__}: {error}")
        else:
            self._tasks = [
                asyncio.create_task(self._send(stream)),
                asyncio.create_task(self._receive(stream)),
            ]

    async def _send(self, stream: Any) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    batch, size = _take_batch(self._queue)
                    self._queue_bytes -= size
                    if self._queue_bytes <= QUEUE_BYTES_MAX:
                        self._room.set()
                    self._count_message()
                    await self._write(stream, self._join(batch))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._broken(stream, error)

    async def _write(self, stream: Any, data: bytes) -> None:
        await stream.write(data)

    def _heard_stream(self) -> None:
        """The stream brought something: whoever has another way beside it wants to know."""

    def _take(self, data: bytes) -> None:
        """Raises BadFrame."""
        for answer, payload in self._split(data):
            future = self._waiting.pop(answer.id, None)
            if future is not None and not future.done():
                future.set_result((answer, payload))

    async def _receive(self, stream: Any) -> None:
        try:
            while (data := await stream.read()) is not grpc.aio.EOF:
                self._heard_stream()
                self._take(data)
            self._broken(stream, None)
        except (grpc.aio.AioRpcError, BadFrame) as error:
            self._broken(stream, error)

    def _broken(self, stream: Any, error: Exception | None) -> None:
        if stream is not self._stream:
            return
        self._lost(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)

    def _lost(self, detail: object) -> None:
        gone = isinstance(detail, AgentGone) or REFUSED in str(detail)
        kind = AgentGone if gone else Unavailable
        why = one_line(detail or "stream ended")
        self._break(kind(f"{self._peer} cannot be reached: {why}"))
        if self._on_broken is not None:
            self._on_broken()

    def _break(self, error: Unavailable) -> None:
        stream, self._stream = self._stream, None
        waiting, self._waiting = self._waiting, {}
        self._queue, self._queue_bytes = [], 0
        self._wake.clear()
        self._room.set()
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
        current = asyncio.current_task() if _in_loop() else None
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._tasks = []
        if stream is not None:
            stream.cancel()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


Handler = Callable[[Any, memoryview], Item | Awaitable[Item]]
"""Answers one call, at once or later; raises DisklessError to refuse it."""


async def serve(
    requests: Any,
    context: grpc.aio.ServicerContext,
    *,
    split: Split,
    join: Join,
    handle: Handler,
    refuse: Callable[[DisklessError], Any],
) -> None:
    """The answering side: reads batches until the caller goes, answers in batches."""
    outbox = _Outbox(context, join)
    tasks: set[asyncio.Task[None]] = set()
    slots = asyncio.Semaphore(SERVING_MAX)

    async def later(call: Any, pending: Awaitable[Item]) -> None:
        try:
            outbox.put(call.id, await _answer(pending, refuse))
        finally:
            slots.release()

    try:
        async for data in requests:
            await outbox.room.wait()
            for call, payload in split(data):
                answer = _first_step(handle, call, payload, refuse)
                if isinstance(answer, tuple):
                    outbox.put(call.id, answer)
                    continue
                await slots.acquire()
                task = asyncio.create_task(later(call, answer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
    except BadFrame as error:
        log.warning("malformed batch peer=%s error=%s", context.peer(), error)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    finally:
        for task in tasks:
            task.cancel()
        outbox.close()


def answer_at_once(
    data: bytes,
    *,
    split: Split,
    join: Join,
    handle: Callable[[Any, memoryview], Item],
    refuse: Callable[[DisklessError], Any],
) -> bytes:
    """As `serve`, for one batch of calls that need no waiting. Raises BadFrame."""
    answers: list[Item] = []
    for call, payload in split(data):
        answer = _first_step(handle, call, payload, refuse)
        assert isinstance(answer, tuple)
        answer[0].id = call.id
        answers.append(answer)
    return join(answers)


def _first_step(
    handle: Handler, call: Any, payload: memoryview, refuse: Callable[[DisklessError], Any]
) -> Item | Awaitable[Item]:
    try:
        return handle(call, payload)
    except DisklessError as error:
        return refuse(error), None


async def _answer(pending: Awaitable[Item], refuse: Callable[[DisklessError], Any]) -> Item:
    try:
        return await pending
    except DisklessError as error:
        return refuse(error), None
    except Exception as error:  # the edge of the process: a bug must not hang the caller
        log.exception("a call failed")
        return refuse(InternalError(f"{type(error).__name__}: {error}")), None


class _Outbox:
    """Answers that wait for the stream; those that wait together leave together."""

    def __init__(self, context: grpc.aio.ServicerContext, join: Join) -> None:
        self._context = context
        self._join = join
        self._ready: list[_Sized] = []
        self._bytes = 0
        self.room = asyncio.Event()
        """Cleared while more waits than ANSWERS_BYTES_MAX."""
        self.room.set()
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def put(self, number: int, answer: Item) -> None:
        answer[0].id = number
        size = _size_of(*answer)
        self._ready.append((*answer, size))
        self._bytes += size
        if self._bytes > ANSWERS_BYTES_MAX:
            self.room.clear()
        self._wake.set()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._ready:
                batch, size = _take_batch(self._ready)
                try:
                    await self._context.write(self._join(batch))
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.RpcError):
                    self.room.set()
                    return  # the caller has gone; its link counts these calls as lost
                self._bytes -= size
                if self._bytes <= ANSWERS_BYTES_MAX:
                    self.room.set()


_Sized = tuple[Any, Buffer | None, int]
"""An item and how many bytes of a message it takes."""


def _size_of(item: Any, payload: Buffer | None) -> int:
    size: int = len(item) if isinstance(item, bytes) else item.ByteSize()
    return size + (len(payload) if payload is not None else 0)


def _take_batch(waiting: list[_Sized]) -> tuple[list[Item], int]:
    """Removes from the front what fits in one message; also its size."""
    count, total = 0, 0
    for _, _, size in waiting[:BATCH_CALLS_MAX]:
        if count and total + size > BATCH_BYTES_MAX:
            break
        count += 1
        total += size
    batch: list[Item] = [(item, payload) for item, payload, _ in waiting[:count]]
    del waiting[:count]
    return batch, total
