"""Calls that have answers, on a lane beside their stream."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from diskless.errors import BadFrame, Unavailable
from diskless.identity.refusals import Refusals
from diskless.rpc import lane
from diskless.rpc.exchange import answer_at_once
from diskless.rpc.lane import LaneDoor
from diskless.rpc.laned import STREAM_EVERY, LanedLink
from diskless.rpc.services import MEMBERSHIP
from diskless.rpc.tls import Tls
from diskless.rpc.v1 import membership_pb2
from tests.unit.test_voters import Stream, Voter, until
from tests.unit.voters import Wire, lane_door, tls_of, visitor

CALL_TIMEOUT_S = 10.0
CALLER = replace(visitor(), service=MEMBERSHIP.method)


class AnsweringStream(Stream):
    """Answers calls as their lane does, unless it is stuck."""

    def __init__(self, port: str, answer: Callable[[bytes], bytes]) -> None:
        super().__init__(port)
        self._answer = answer
        self._answers = asyncio.Queue[object]()
        self.stuck = False

    async def write(self, data: bytes) -> None:
        await super().write(data)
        if not self.stuck:
            self._answers.put_nowait(self._answer(data))

    async def read(self) -> object:
        return await self._answers.get()


class Pair:
    """A link for beats, and an agent that answers them."""

    def __init__(self, *, tls: bool = False) -> None:
        self.answer: Callable[[bytes], bytes] = self._pulse
        theirs, mine = (tls_of(1), tls_of(3)) if tls else (None, None)
        self.refusals = Refusals()
        self.door: LaneDoor = self._door(theirs)
        self.streams: list[AnsweringStream] = []
        self.port = ""
        self.link = LanedLink(
            self._open,
            peer="agent-1",
            host="127.0.0.1",
            visitor=replace(CALLER, tls=mine),
            join=MEMBERSHIP.calls.join,
            split=MEMBERSHIP.answers.split,
            count_message=lambda: None,
        )

    def _door(self, tls: Tls | None) -> LaneDoor:
        return lane_door(Voter(), self.refusals, tls, {MEMBERSHIP.method: self._serve})

    def _serve(self, data: bytes) -> bytes:
        return self.answer(data)

    def _pulse(self, data: bytes) -> bytes:
        return answer_at_once(
            data,
            split=MEMBERSHIP.calls.split,
            join=MEMBERSHIP.answers.join,
            handle=lambda call, _: (membership_pb2.BeatAnswer(shards=call.view), None),
            refuse=MEMBERSHIP.refuse,
        )

    async def _open(self) -> AnsweringStream:
        self.streams.append(AnsweringStream(self.port, self._serve))
        return self.streams[-1]

    async def beat(self, view: int, *, timeout_s: float = CALL_TIMEOUT_S) -> int:
        answer, _ = await self.link.call(membership_pb2.Beat(view=view), timeout_s=timeout_s)
        return int(answer.shards)

    async def open(self) -> None:
        self.link._ensure_open()
        await until(lambda: self.link._lane is not None and self.link._lane.usable)


def with_pair(work: Callable[[Pair], Awaitable[None]], *, tls: bool = False) -> None:
    async def run() -> None:
        pair = Pair(tls=tls)
        pair.port = str(await pair.door.start("127.0.0.1"))
        try:
            await work(pair)
        finally:
            pair.link.close()
            pair.door.stop()

    asyncio.run(run())


@pytest.mark.parametrize("tls", [False, True])
def test_calls_and_answers_go_by_the_lane_each_answer_to_its_call(tls: bool) -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        views = await asyncio.gather(*(pair.beat(view) for view in range(50)))
        assert views == list(range(50))
        assert pair.streams[0].written == 0

    with_pair(work, tls=tls)


def test_until_there_is_a_lane_the_stream_has_the_calls() -> None:
    async def work(pair: Pair) -> None:
        pair.port = "none"  # as an agent that knows no lanes for it
        calling = asyncio.create_task(pair.beat(7))
        await until(lambda: pair.streams and pair.streams[0].written)
        assert not pair.door._open
        calling.cancel()

    with_pair(work)


def test_one_of_so_many_calls_takes_the_stream() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        for view in range(3 * STREAM_EVERY):
            assert await pair.beat(view) == view
        assert pair.streams[0].written == 3
        assert len(pair.streams) == 1

    with_pair(work)


def test_a_stream_that_is_stuck_is_noticed_though_the_lane_answers() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        pair.streams[0].stuck = True
        for view in range(1, STREAM_EVERY):
            assert await pair.beat(view) == view
        for _ in range(3):  # the lane would answer: it must not say that all is well
            with pytest.raises(Unavailable, match="did not answer"):
                await pair.beat(7, timeout_s=0.01)
        assert pair.streams[0].written == 3
        pair.streams[0].stuck = False
        for view in range(STREAM_EVERY):
            assert await pair.beat(view) == view
        assert pair.streams[0].written == 4, "the lane has them again"

    with_pair(work)


def test_a_stream_that_is_in_doubt_has_the_next_call() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        assert await pair.beat(1) == 1
        pair.link.doubt_stream()
        for view in (2, 3):
            assert await pair.beat(view) == view
        assert pair.streams[0].written == 1, "and the lane those after it"

    with_pair(work)


def test_calls_that_wait_end_with_the_lane_and_the_next_open_both_again() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        pair.answer = lambda data: b""  # no answers in it

        async def beat() -> None:
            with pytest.raises(Unavailable, match="lane was lost"):
                await pair.beat(7)

        calling = asyncio.create_task(beat())
        await asyncio.sleep(0.05)
        for inbound in list(pair.door._open):
            inbound.abort()
        await calling
        assert pair.streams[0].cancelled
        pair.answer = pair._pulse
        await pair.open()
        assert await pair.beat(8) == 8
        assert len(pair.streams) == 2

    with_pair(work)


def test_an_answer_that_is_none_ends_the_lane() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        pair.answer = lambda data: b"\xff" * 20
        with pytest.raises(Unavailable):
            await pair.beat(7)
        await until(lambda: not pair.door._open)

    with_pair(work)


def test_an_answer_that_will_be_too_large_is_not_waited_for() -> None:
    async def work(pair: Pair) -> None:
        await pair.open()
        (inbound,) = pair.door._open
        inbound._transport.write((lane.MESSAGE_BYTES_MAX + 1).to_bytes(4))
        await until(lambda: not pair.door._open)

    with_pair(work)


def test_who_asks_and_does_not_read_is_cut_off_before_its_answers_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "UNSENT_BYTES_MAX", 1 << 20)

    async def work(pair: Pair) -> None:
        await pair.open()
        (inbound,) = pair.door._open
        assert pair.link._lane is not None
        pair.link._lane._transport.pause_reading()
        pair.answer = lambda data: bytes(1 << 19)
        for _ in range(64):  # far more than the sockets between them hold
            if not pair.door._open:
                break
            pair.link._lane.post(b"call")
            size = inbound._transport.get_write_buffer_size()
            assert size <= (1 << 20) + 4
            await asyncio.sleep(0.001)
        await until(lambda: not pair.door._open)
        assert sum(pair.refusals.counts.values()) == 1

    with_pair(work)


def test_a_malformed_call_is_refused() -> None:
    def answer(data: bytes) -> bytes:
        raise BadFrame("no beats")

    async def work(pair: Pair) -> None:
        pair.answer = answer
        await pair.open()
        with pytest.raises(Unavailable):
            await pair.beat(7)
        assert sum(pair.refusals.counts.values()) == 1

    with_pair(work)


def test_who_asks_for_what_a_lane_does_not_serve_is_refused_before_its_proof() -> None:
    async def work(pair: Pair) -> None:
        wire = await Wire.open(int(pair.port))
        caller = replace(CALLER, service="/diskless.v1.Shards/Exchange")
        with pytest.raises(asyncio.IncompleteReadError):
            await wire.prove(int(pair.port), caller)
        wire.writer.close()
        assert sum(pair.refusals.counts.values()) == 1

    with_pair(work)


def test_a_proof_for_votes_does_not_serve_for_calls() -> None:
    """What a lane is for is part of what both sides prove."""
    _, votes = visitor().greeting("host:1")
    _, calls = CALLER.greeting("host:1")
    assert votes.about("host:1") != calls.about("host:1")
