"""A link's stream: opened on demand, and calls fail at once when it does not come about."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from diskless.errors import AgentGone, Unavailable
from diskless.rpc.exchange import Link
from diskless.rpc.services import MEMBERSHIP
from diskless.rpc.v1 import membership_pb2

DEADLINE_S = 10.0


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
        (AgentGone("whoever listens there is not agent-1"), AgentGone),
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
