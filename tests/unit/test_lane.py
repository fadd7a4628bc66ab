"""The lane between voters: whole messages in order, and nothing from strangers."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.rpc import lane
from diskless.rpc.lane import Hello, LaneDoor, open_lane

HELLO = Hello("secret", 1, 3, "host:3")
DEADLINE_S = 10.0


class Voter:
    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.met: set[tuple[int, str]] = set()
        self.news = asyncio.Event()

    def receive(self, sender: int, address: str, message: bytes) -> None:
        self.met.add((sender, address))
        self.heard.append((sender, message))
        self.news.set()

    async def hears(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.heard) < count:
                self.news.clear()
                await self.news.wait()


def with_door(work: Callable[[Voter, int], Awaitable[None]]) -> Voter:
    """Runs `work` with the voter of slot 1 and the port of its door."""

    async def run() -> Voter:
        voter = Voter()
        door = LaneDoor(slot=1, secret="secret", voter=voter)
        try:
            await work(voter, await door.start("127.0.0.1"))
        finally:
            door.stop()
        return voter

    return asyncio.run(run())


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4) + message for message in messages)


async def closed_after(port: int, data: bytes, *, said: bytes = b"") -> None:
    """Sends `data` and waits until the door closes the connection, having said no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        with suppress(ConnectionResetError):
            assert said.startswith(await reader.read())
    writer.close()


class DeafTransport(asyncio.Transport):
    def write(self, data: object) -> None:
        pass


def test_messages_arrive_whole_and_in_order_with_their_sender() -> None:
    messages = [b"", b"a", bytes(3 << 20), b"last"]

    async def work(voter: Voter, port: int) -> None:
        sending = await open_lane("127.0.0.1", port, HELLO, lambda: None)
        for message in messages:
            sending.send(message)
        await voter.hears(len(messages))
        sending.close()

    voter = with_door(work)
    assert voter.heard == [(3, message) for message in messages]
    assert voter.met == {(3, "host:3")}


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(1, 50))
def test_a_stream_cut_anywhere_gives_the_same_messages(messages: list[bytes], piece: int) -> None:
    stream = framed(msgspec.msgpack.encode(HELLO), *messages)
    voter = Voter()
    door = LaneDoor(slot=1, secret="secret", voter=voter)
    inbound = lane._Inbound(door)
    inbound._transport = DeafTransport()
    for at in range(0, len(stream), piece):
        inbound.data_received(stream[at : at + piece])
    assert [message for _, message in voter.heard] == messages
    assert not inbound._buffer


@pytest.mark.parametrize(
    "data",
    [
        framed(msgspec.msgpack.encode(Hello("wrong", 1, 3, "host:3")), b"vote"),
        framed(msgspec.msgpack.encode(Hello("secret", 2, 3, "host:3")), b"vote"),
        framed(b"\xc1 garbage", b"vote"),
        framed(msgspec.msgpack.encode(HELLO)[:-7] + b"\x91" * 4000, b"vote"),
        framed(bytes(lane.HELLO_BYTES_MAX + 1)),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["wrong secret", "another slot", "no hello", "nested", "long hello", "another protocol"],
)
def test_what_is_no_voter_of_ours_is_not_heard_and_cut_off(data: bytes) -> None:
    async def work(_: Voter, port: int) -> None:
        await closed_after(port, data)

    assert with_door(work).heard == []


def test_a_message_that_is_too_large_ends_the_lane() -> None:
    data = framed(msgspec.msgpack.encode(HELLO)) + (lane.MESSAGE_BYTES_MAX + 1).to_bytes(4)

    async def work(_: Voter, port: int) -> None:
        await closed_after(port, data, said=lane.WELCOME)

    assert with_door(work).heard == []


def test_a_hello_that_will_be_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "HELLO_TIMEOUT_S", 3600)

    async def work(_: Voter, port: int) -> None:
        await closed_after(port, (lane.HELLO_BYTES_MAX + 1).to_bytes(4))

    with_door(work)


def test_callers_that_say_nothing_are_bounded_and_keep_no_voter_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "STRANGERS_MAX", 2)

    async def work(voter: Voter, port: int) -> None:
        voters = [await open_lane("127.0.0.1", port, HELLO, lambda: None) for _ in range(3)]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionResetError):
                assert await silent[0][0].read() == b""
        voters.append(await open_lane("127.0.0.1", port, HELLO, lambda: None))
        for sending in voters:
            sending.send(b"vote")
        await voter.hears(len(voters))
        for sending in voters:
            sending.close()
        for _, writer in silent:
            writer.close()

    assert len(with_door(work).heard) == 4


def test_both_ends_notice_a_host_that_is_gone() -> None:
    """Without its probes the receiving end, which sends nothing, would wait for ever."""

    async def run() -> None:
        door = LaneDoor(slot=1, secret="secret", voter=Voter())
        sending = await open_lane("127.0.0.1", await door.start("127.0.0.1"), HELLO, lambda: None)
        (inbound,) = door._open
        for end in (sending, inbound):
            sock = end._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
            assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
        sending.close()
        door.stop()

    asyncio.run(run())


def test_what_accepts_and_never_answers_is_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "OPEN_TIMEOUT_S", 0.1)

    async def run() -> None:
        lost = asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(TimeoutError):
            await open_lane("127.0.0.1", mute.getsockname()[1], HELLO, lost.set)
        assert not lost.is_set()

    asyncio.run(run())


def test_a_lane_that_is_given_up_while_it_opens_is_closed_and_tells_nobody() -> None:
    """Its end would be taken for that of the next lane."""

    async def run() -> None:
        lost, ended = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opening.cancel()
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
            ended.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            opening = asyncio.create_task(open_lane("127.0.0.1", port, HELLO, lost.set))
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(asyncio.CancelledError):
                    await opening
                await ended.wait()
        assert not lost.is_set()

    asyncio.run(run())


def test_a_caller_that_never_says_hello_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "HELLO_TIMEOUT_S", 0.05)

    async def work(_: Voter, port: int) -> None:
        await closed_after(port, b"")

    with_door(work)


def test_the_sender_is_told_when_its_lane_is_lost_but_not_when_it_closes_it() -> None:
    async def run() -> None:
        voter, lost = Voter(), asyncio.Event()
        door = LaneDoor(slot=1, secret="secret", voter=voter)
        port = await door.start("127.0.0.1")
        mine = await open_lane("127.0.0.1", port, HELLO, lost.set)
        mine.close()
        theirs = await open_lane("127.0.0.1", port, HELLO, lambda: None)
        theirs.send(b"later")
        await voter.hears(1)
        assert not lost.is_set()
        cut = await open_lane("127.0.0.1", port, HELLO, lost.set)
        door.stop()
        async with asyncio.timeout(DEADLINE_S):
            await lost.wait()
        assert not cut.usable

    asyncio.run(run())


def test_a_lane_that_is_refused_never_was_one() -> None:
    async def work(_: Voter, port: int) -> None:
        lost = asyncio.Event()
        with pytest.raises(ConnectionError):
            await open_lane("127.0.0.1", port, Hello("wrong", 1, 3, "host:3"), lost.set)
        assert not lost.is_set()

    with_door(work)


def test_what_a_stuck_voter_does_not_read_is_dropped_beyond_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "UNSENT_BYTES_MAX", 1 << 20)

    async def run() -> None:
        done = asyncio.Event()

        async def welcome(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(lane.WELCOME)  # and then it reads no more than a buffer full
            await done.wait()
            writer.transport.abort()

        async with await asyncio.start_server(welcome, "127.0.0.1", 0) as stuck:
            port = stuck.sockets[0].getsockname()[1]
            sending = await open_lane("127.0.0.1", port, HELLO, lambda: None)
            for _ in range(64):
                sending.send(bytes(1 << 19))
                assert sending._transport.get_write_buffer_size() <= (1 << 20) + 4
            sending.close()
            done.set()

    asyncio.run(run())
