"""A link's stream: opened on demand, and calls fail at once when it does not come about."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc.aio
import pytest

from diskless.errors import AgentGone, Unavailable
from diskless.rpc.exchange import ANSWERS_BYTES_MAX, Link, serve
from diskless.rpc.services import MEMBERSHIP, SHARDS
from diskless.rpc.v1 import membership_pb2, shards_pb2

DEADLINE_S = 60.0


class Echo:
    """A gRPC stream that answers every beat with its id."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.cancelled = False

    async def write(self, data: bytes) -> None:
        answers = [
            (membership_pb2.BeatAnswer(id=call.id), None)
            for call, _ in MEMBERSHIP.calls.split(data)
        ]
        self._answers.put_nowait(MEMBERSHIP.answers.join(answers))

    async def read(self) -> object:
        return await self._answers.get()

    def cancel(self) -> None:
        self.cancelled = True


def link_to(open_stream: Callable[[], Awaitable[Any]], broke: list[int] | None = None) -> Link:
    return Link(
        open_stream,
        peer="agent-1 at host:1",
        join=MEMBERSHIP.calls.join,
        split=MEMBERSHIP.answers.split,
        count_message=lambda: None,
        on_broken=None if broke is None else lambda: broke.append(1),
    )


async def call(link: Link) -> None:
    await link.call(membership_pb2.Beat(), timeout_s=DEADLINE_S)


def rpc_error(details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=details)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unavailable("it did not prove itself"), Unavailable),
        (AgentGone("the process there is not agent-1"), AgentGone),
        (rpc_error("Socket closed"), Unavailable),
        (rpc_error("connect: Connection refused (111)"), AgentGone),
        (ValueError("a bug"), Unavailable),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:20]),
)
def test_a_stream_that_does_not_open_fails_all_calls_and_the_next_tries_again(
    error: Exception, kind: type[Unavailable]
) -> None:
    async def run() -> None:
        tries = 0

        async def fail_first() -> Echo:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise error
            return Echo()

        broke: list[int] = []
        link = link_to(fail_first, broke)
        results = await asyncio.gather(*(call(link) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [kind] * 3
        assert broke == [1]
        await call(link)
        assert tries == 2
        link.close()

    asyncio.run(run())


def test_calls_that_come_while_it_opens_use_the_one_stream() -> None:
    async def run() -> None:
        opened, may_open = [], asyncio.Event()

        async def slowly() -> Echo:
            await may_open.wait()
            opened.append(Echo())
            return opened[-1]

        link = link_to(slowly)
        calls = [asyncio.create_task(call(link)) for _ in range(5)]
        await asyncio.sleep(0)
        may_open.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*calls)
        assert len(opened) == 1
        link.close()
        assert opened[0].cancelled

    asyncio.run(run())


def test_closing_a_link_that_opens_ends_that_too() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def never() -> Echo:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

        link = link_to(never)
        waiting = asyncio.create_task(call(link))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        link.close()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Unavailable, match="was closed"):
                await waiting
            await ended.wait()

    asyncio.run(run())


def answer_with(size: int) -> Any:
    return shards_pb2.ShardAnswer(blocks=shards_pb2.Blocks(data_bytes=size))


class Lazy:
    """A caller that asks on and on, and reads answers only when it is told to."""

    def __init__(self, calls: int) -> None:
        self.asked = 0
        self.reads = asyncio.Event()
        self.read = 0
        self._calls = calls

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.asked < self._calls:
            self.asked += 1
            yield SHARDS.calls.join([(shards_pb2.ShardCall(id=self.asked), None)])
        while self.read < self._calls:
            await asyncio.sleep(0.001)

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        self.read += len(list(SHARDS.answers.split(data)))


def test_calls_of_one_who_does_not_read_the_answers_are_not_read_either() -> None:
    calls, payload = 200, memoryview(bytes(1 << 20))

    async def run() -> None:
        caller = Lazy(calls)
        serving = asyncio.create_task(
            serve(
                caller,
                cast(grpc.aio.ServicerContext, caller),
                split=SHARDS.calls.split,
                join=SHARDS.answers.join,
                handle=lambda call, _: (answer_with(len(payload)), payload),
                refuse=lambda error: shards_pb2.ShardAnswer(),
            )
        )
        for _ in range(4 * calls):
            await asyncio.sleep(0)
        assert 0 < caller.asked <= ANSWERS_BYTES_MAX // len(payload) + 3
        caller.reads.set()
        async with asyncio.timeout(DEADLINE_S):
            await serving
        assert (caller.asked, caller.read) == (calls, calls)

    asyncio.run(run())
