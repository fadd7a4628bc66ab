"""The lane between voters: both ends prove themselves, whole messages in order, and nothing
from strangers."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.errors import Unauthorized
from diskless.identity.claims import Claims, Role
from diskless.identity.handshake import Challenge, Knock, Proof
from diskless.identity.refusals import Refusals
from diskless.rpc import lane
from diskless.rpc.lane import Hello, Visitor, open_lane
from tests.unit.voters import (
    DEADLINE_S,
    KEYRING,
    OTHER_CLUSTER,
    OTHER_KEY,
    Voter,
    Wire,
    closed_after,
    framed,
    lane_door,
    tls_of,
    visitor,
    with_door,
)


class NotedTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.heard.append(bytes(data[4:]))

    def abort(self) -> None:
        self.aborted = True


def test_messages_arrive_whole_and_in_order_with_their_sender() -> None:
    messages = [b"", b"a", bytes(3 << 20), b"last"]

    async def work(voter: Voter, port: int) -> None:
        sending = await open_lane("127.0.0.1", port, visitor(), lambda: None)
        for message in messages:
            sending.send(message)
        await voter.hears(len(messages))
        sending.close()

    voter = with_door(work)
    assert voter.heard == [(3, message) for message in messages]
    assert voter.met == {(3, "host:3")}


def inbound_to(voter: Voter) -> tuple[Any, NotedTransport]:
    """A door's end of a connection, without one."""
    door = lane_door(voter)
    door.address = "host:1"
    inbound = lane._Inbound(door)
    inbound._transport = transport = NotedTransport()
    return inbound, transport


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(1, 50))
def test_a_stream_cut_anywhere_gives_the_same_messages(messages: list[bytes], piece: int) -> None:
    voter = Voter()
    inbound, transport = inbound_to(voter)

    def feed(stream: bytes) -> None:
        for at in range(0, len(stream), piece):
            inbound.data_received(stream[at : at + piece])

    caller, hello = visitor().greeting("host:1")
    feed(framed(msgspec.msgpack.encode(hello)))
    proof = caller.answer(msgspec.msgpack.decode(transport.heard[0], type=Challenge))
    feed(framed(msgspec.msgpack.encode(proof), *messages))
    assert transport.heard[1:] == [lane.WELCOME]
    assert [message for _, message in voter.heard] == messages
    assert not inbound._buffer


TEXT = st.text(max_size=50)
HELLOS = st.builds(
    Hello,
    st.builds(
        Knock,
        st.one_of(TEXT, st.just(KEYRING.agent("agent-3").text)),
        st.one_of(TEXT, st.just("0" * 32)),
    ),
    st.integers(0, 2),
    st.integers(-1, 4),
    TEXT,
)
ANYTHING = st.one_of(st.binary(max_size=200), HELLOS.map(msgspec.msgpack.encode),
                     st.builds(Proof, TEXT).map(msgspec.msgpack.encode))  # fmt: skip


@given(st.lists(ANYTHING, min_size=1, max_size=4), st.integers(1, 300), st.booleans())
def test_whatever_a_stranger_says_it_is_not_heard_and_the_door_stands(
    messages: list[bytes], piece: int, behind_lengths: bool
) -> None:
    voter = Voter()
    inbound, transport = inbound_to(voter)
    stream = framed(*messages) if behind_lengths else b"".join(messages)
    for at in range(0, len(stream), piece):
        if not transport.aborted:
            inbound.data_received(stream[at : at + piece])
    assert not voter.heard
    assert not inbound._admitted
    assert len(transport.heard) <= 1, "at most a challenge"
    assert len(inbound._buffer) <= lane.HANDSHAKE_BYTES_MAX + 4


def hello_of(by: Visitor, port: int) -> bytes:
    return msgspec.msgpack.encode(by.greeting(f"127.0.0.1:{port}")[1])


NOT_AN_AGENT = Visitor(credential=KEYRING.client("agent-3"), slot=1, sender=3, address="host:3")
FORGED = msgspec.structs.replace(
    KEYRING.agent("agent-3"),
    text=KEYRING.credential(Claims(cluster="c1", role=Role.ADMIN, name="agent-3")).text,
)


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (visitor(OTHER_CLUSTER), "another cluster"),
        (visitor(slot=2), "BadRequest"),
        (visitor(name="agent-2"), "wrong name"),
        (NOT_AN_AGENT, "wrong role"),
        (Visitor(credential=FORGED, slot=1, sender=3, address=""), "wrong role"),
    ],
    ids=["another cluster", "another slot", "another name", "a client", "an admin"],
)
def test_who_is_no_voter_of_ours_is_not_answered(by: Visitor, why: str) -> None:
    refusals = Refusals()

    async def work(_: Voter, port: int) -> None:
        await closed_after(port, framed(hello_of(by, port), b"vote"))

    assert with_door(work, refusals=refusals).heard == []
    assert refusals.counts == {("lane", why): 1}


@pytest.mark.parametrize(
    "data",
    [
        framed(b"\xc1 garbage", b"vote"),
        framed(msgspec.msgpack.encode(("", 1, 3, ""))[:-1] + b"\x91" * 4000, b"vote"),
        framed(bytes(lane.HANDSHAKE_BYTES_MAX + 1)),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["no hello", "nested", "long hello", "another protocol"],
)
def test_what_is_no_hello_is_not_heard_and_cut_off(data: bytes) -> None:
    async def work(_: Voter, port: int) -> None:
        await closed_after(port, data)

    assert with_door(work).heard == []


def test_a_wrong_key_gets_a_challenge_and_no_further() -> None:
    """Claims are no secret: whoever makes up those of an agent lacks their key."""
    refusals = Refusals()

    async def work(_: Voter, port: int) -> None:
        caller, hello = visitor(OTHER_KEY).greeting(f"127.0.0.1:{port}")
        wire = await Wire.open(port)
        wire.say(msgspec.msgpack.encode(hello))
        challenge = msgspec.msgpack.decode(await wire.hear(), type=Challenge)
        assert caller.answer(challenge) is None, "it has not proved that it has that key"
        wire.say(msgspec.msgpack.encode(Proof(challenge.proof)), b"vote")
        assert await wire.is_closed()
        wire.writer.close()

    assert with_door(work, refusals=refusals).heard == []
    assert refusals.counts == {("lane", "wrong key"): 1}


def test_a_recorded_handshake_lets_nobody_in_again() -> None:
    async def work(voter: Voter, port: int) -> None:
        first = await Wire.open(port)
        assert await first.prove(port, visitor()) == lane.WELCOME
        first.say(b"vote")
        await voter.hears(1)
        again = await Wire.open(port)
        again.say(*first.said)
        await again.hear()  # a challenge that was never seen before
        assert await again.is_closed()
        for wire in (first, again):
            wire.writer.close()

    assert [message for _, message in with_door(work).heard] == [b"vote"]


def test_a_relay_at_another_port_does_not_pass_for_the_voter() -> None:
    """It passes on whatever is said: what both sides prove names the address that was dialled."""

    async def work(voter: Voter, port: int) -> None:
        async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    writer.write(data)
            writer.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

        async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
            elsewhere = server.sockets[0].getsockname()[1]
            with pytest.raises(Unauthorized, match="not an agent of this cluster"):
                await open_lane("127.0.0.1", elsewhere, visitor(), lambda: None)

    assert with_door(work).heard == []


def test_an_impostor_gets_nothing_that_lets_it_in() -> None:
    """It keeps all that a voter says to it, and says that to a real door."""

    async def work(_: Voter, port: int) -> None:
        got = asyncio.Queue[bytes]()

        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            challenge = Challenge(1, "0" * 32, "0" * 64)
            writer.write(framed(msgspec.msgpack.encode(challenge)))
            said = framed(said) + await reader.read()
            got.put_nowait(said)
            writer.close()

        async with await asyncio.start_server(impostor, "127.0.0.1", 0) as server:
            theirs = server.sockets[0].getsockname()[1]
            with pytest.raises(Unauthorized):
                await open_lane("127.0.0.1", theirs, visitor(), lambda: None)
        async with asyncio.timeout(DEADLINE_S):
            said = await got.get()
        assert KEYRING.agent("agent-3").key not in said
        wire = await Wire.open(port)
        wire.writer.write(said + framed(b"vote"))
        await wire.hear()
        assert await wire.is_closed()
        wire.writer.close()

    assert with_door(work).heard == []


def test_a_message_that_is_too_large_ends_the_lane() -> None:
    async def work(_: Voter, port: int) -> None:
        wire = await Wire.open(port)
        assert await wire.prove(port, visitor()) == lane.WELCOME
        wire.writer.write((lane.MESSAGE_BYTES_MAX + 1).to_bytes(4))
        assert await wire.is_closed()
        wire.writer.close()

    assert with_door(work).heard == []


def test_a_hello_that_will_be_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "HANDSHAKE_TIMEOUT_S", 3600)

    async def work(_: Voter, port: int) -> None:
        await closed_after(port, (lane.HANDSHAKE_BYTES_MAX + 1).to_bytes(4))

    with_door(work)


def test_callers_that_say_nothing_are_bounded_and_keep_no_voter_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "STRANGERS_MAX", 2)

    async def work(voter: Voter, port: int) -> None:
        voters = [await open_lane("127.0.0.1", port, visitor(), lambda: None) for _ in range(3)]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionResetError):
                assert await silent[0][0].read() == b""
        voters.append(await open_lane("127.0.0.1", port, visitor(), lambda: None))
        for sending in voters:
            sending.send(b"vote")
        await voter.hears(len(voters))
        for sending in voters:
            sending.close()
        for _, writer in silent:
            writer.close()

    assert len(with_door(work).heard) == 4


@pytest.mark.parametrize(
    "said",
    [(lane.HANDSHAKE_BYTES_MAX + 1).to_bytes(4), framed(b"1", b"2", b"3")],
    ids=["long", "many"],
)
def test_whoever_listens_there_is_not_heard_out_before_it_has_proved_itself(said: bytes) -> None:
    sending = lane.Lane(lambda: None)
    sending._transport = transport = NotedTransport()
    sending.data_received(framed(b"challenge"))
    assert not transport.aborted
    sending.data_received(said)
    assert transport.aborted


def test_both_ends_notice_a_host_that_is_gone() -> None:
    """Without its probes the receiving end, which sends nothing, would wait forever."""

    async def run() -> None:
        door = lane_door(Voter())
        port = await door.start("127.0.0.1")
        sending = await open_lane("127.0.0.1", port, visitor(), lambda: None)
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
            await open_lane("127.0.0.1", mute.getsockname()[1], visitor(), lost.set)
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
            opening = asyncio.create_task(open_lane("127.0.0.1", port, visitor(), lost.set))
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(asyncio.CancelledError):
                    await opening
                await ended.wait()
        assert not lost.is_set()

    asyncio.run(run())


def test_a_caller_that_never_proves_itself_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "HANDSHAKE_TIMEOUT_S", 0.05)
    refusals = Refusals()

    async def work(_: Voter, port: int) -> None:
        await closed_after(port, b"")
        wire = await Wire.open(port)
        wire.say(hello_of(visitor(), port))
        await wire.hear()
        assert await wire.is_closed()
        wire.writer.close()

    with_door(work, refusals=refusals)
    assert refusals.counts == {("lane", "too late"): 2}


def test_lanes_are_bounded_and_one_too_many_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "LANES_MAX", 1)
    refusals = Refusals()

    async def work(_: Voter, port: int) -> None:
        first = await open_lane("127.0.0.1", port, visitor(), lambda: None)
        with pytest.raises(ConnectionError):
            await open_lane("127.0.0.1", port, visitor(), lambda: None)
        assert first.usable
        first.close()

    with_door(work, refusals=refusals)
    assert refusals.counts == {("lane", "too many lanes"): 1}


def test_the_sender_is_told_when_its_lane_is_lost_but_not_when_it_closes_it() -> None:
    async def run() -> None:
        voter, lost = Voter(), asyncio.Event()
        door = lane_door(voter)
        port = await door.start("127.0.0.1")
        mine = await open_lane("127.0.0.1", port, visitor(), lost.set)
        mine.close()
        theirs = await open_lane("127.0.0.1", port, visitor(), lambda: None)
        theirs.send(b"later")
        await voter.hears(1)
        assert not lost.is_set()
        cut = await open_lane("127.0.0.1", port, visitor(), lost.set)
        door.stop()
        async with asyncio.timeout(DEADLINE_S):
            await lost.wait()
        assert not cut.usable

    asyncio.run(run())


def test_a_lane_that_is_refused_never_was_one() -> None:
    async def work(_: Voter, port: int) -> None:
        lost = asyncio.Event()
        with pytest.raises(ConnectionError):
            await open_lane("127.0.0.1", port, visitor(slot=2), lost.set)
        assert not lost.is_set()

    with_door(work)


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
def test_what_a_stuck_voter_does_not_read_is_dropped_beyond_a_limit(
    monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    monkeypatch.setattr(lane, "UNSENT_BYTES_MAX", 1 << 20)

    async def run() -> None:
        door = lane_door(Voter(), tls=tls_of(1) if secured else None)
        port = await door.start("127.0.0.1")
        by = visitor(tls=tls_of(3) if secured else None)
        sending = await open_lane("127.0.0.1", port, by, lambda: None)
        (inbound,) = door._open
        inbound._transport.pause_reading()
        for _ in range(64):
            sending.send(bytes(1 << 19))
            assert sending.post(bytes(1 << 19)), "it is a lane still"
            assert sending._transport.get_write_buffer_size() <= (1 << 20) + 4
        sending.close()
        door.stop()

    asyncio.run(run())
