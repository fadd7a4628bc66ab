"""A voter's stream and its lane: one fate, and nothing left of either."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc.aio

from diskless.rpc.exchange import Link
from diskless.rpc.lane import LaneDoor
from diskless.rpc.laned import VoterLink
from diskless.rpc.services import LANE_KEY, VOTER_BATCH
from tests.unit.voters import lane_door, visitor

DEADLINE_S = 60.0


class Voter:
    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def receive(self, sender: int, address: str, message: bytes) -> None:
        self.heard.append(message)


class Stream:
    """A gRPC call that tells of a lane, swallows what is written and ends when it is told to."""

    def __init__(self, port: str) -> None:
        self._port = port
        self.ended = asyncio.Event()
        self.cancelled = False
        self.written = 0

    async def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((LANE_KEY, self._port),)

    async def write(self, _: bytes) -> None:
        self.written += 1

    async def read(self) -> object:
        await self.ended.wait()
        return grpc.aio.EOF

    def cancel(self) -> None:
        self.cancelled = True


class Pair:
    """A link, and the door that its lanes lead to."""

    def __init__(self) -> None:
        self.voter = Voter()
        self.door: LaneDoor = lane_door(self.voter)
        self.streams: list[Stream] = []
        self.port = ""
        self.broke = 0
        self.counted = 0
        self.link = VoterLink(
            self._open,
            peer="agent-1",
            host="127.0.0.1",
            visitor=visitor(),
            join=VOTER_BATCH.join,
            split=VOTER_BATCH.split,
            count_message=self._count,
            on_broken=self._broken,
        )

    async def _open(self) -> Stream:
        self.streams.append(Stream(self.port))
        return self.streams[-1]

    def _count(self) -> None:
        self.counted += 1

    def _broken(self) -> None:
        self.broke += 1

    def has_lane(self) -> bool:
        return self.link._lane is not None and self.link._lane.usable

    async def open(self) -> None:
        self.link.post(b"")
        await until(self.has_lane)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


def with_pair(work: Callable[[Pair], Awaitable[None]]) -> None:
    async def run() -> None:
        pair = Pair()
        pair.port = str(await pair.door.start("127.0.0.1"))
        try:
            await work(pair)
        finally:
            pair.link.close()
            pair.door.stop()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:  # all were told to end
                with suppress(asyncio.CancelledError):
                    await asyncio.wait_for(task, DEADLINE_S)

    asyncio.run(run())


def test_what_goes_on_the_lane_is_counted_and_leaves_the_stream_alone() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        written, counted = pair.streams[0].written, pair.counted
        pair.link.post(b"a")
        pair.link.post(b"b")
        await until(lambda: pair.voter.heard == [b"a", b"b"])
        assert pair.counted == counted + 2
        assert pair.streams[0].written == written

    with_pair(work)


def test_what_waited_for_the_stream_does_not_change_over_to_the_lane() -> None:
    """Batches have another form than what a lane takes."""

    async def work(pair: Pair) -> None:
        await pair.open()
        written = pair.streams[0].written
        Link.post(pair.link, b"a", 1)
        await until(lambda: pair.streams[0].written > written)
        pair.link.post(b"b")
        await until(lambda: b"b" in pair.voter.heard)
        assert pair.voter.heard == [b"b"]

    with_pair(work)


def test_the_end_of_the_stream_is_that_of_the_lane_and_is_told_once() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        pair.streams[0].ended.set()
        await until(lambda: pair.broke)
        assert not pair.has_lane()
        await until(lambda: not pair.door._open)
        assert pair.broke == 1
        await pair.open()
        assert len(pair.streams) == 2

    with_pair(work)


def test_the_end_of_the_lane_is_that_of_the_stream_and_is_told_once() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        (inbound,) = pair.door._open
        inbound.abort()
        await until(lambda: pair.broke)
        assert pair.streams[0].cancelled
        await pair.open()
        assert (len(pair.streams), pair.broke) == (2, 1)

    with_pair(work)


def test_closing_ends_both_and_tells_nobody() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        pair.link.close()
        await until(lambda: not pair.door._open)
        assert pair.streams[0].cancelled
        pair.link.post(b"too late")
        assert (len(pair.streams), pair.broke) == (1, 0)

    with_pair(work)


def test_a_port_that_is_none_leaves_all_to_the_stream() -> None:
    async def work(pair: Pair) -> None:
        for pair.port in ("99999", "none", "-1"):
            before = len(pair.streams)
            pair.link.post(b"a")
            await until(lambda before=before: len(pair.streams) > before and pair.link._opening)
            stream = pair.streams[-1]
            opening = pair.link._opening
            assert opening is not None
            await asyncio.wait_for(opening, DEADLINE_S)
            await until(lambda stream=stream: stream.written)
            assert not pair.has_lane()
            stream.ended.set()
            await until(lambda: pair.broke == len(pair.streams))

    with_pair(work)
