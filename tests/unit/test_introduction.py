"""How streams between agents begin: both sides prove themselves, and nothing is of use twice."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.errors import AgentGone, BadRequest, Unauthorized, Unavailable
from diskless.identity.claims import Credential, Keyring
from diskless.identity.handshake import (
    HANDSHAKE_TIMEOUT_S,
    PROOF_CHARS,
    Caller,
    Challenge,
    Doorkeeper,
    Knock,
    Proof,
)
from diskless.rpc import introduction
from diskless.rpc.introduction import (
    CHALLENGE_KEY,
    DOOR,
    KNOCK_KEY,
    PROOF_KEY,
    WELCOME_KEY,
    Answer,
    Facts,
    Introductions,
)
from diskless.rpc.services import (
    ADDRESS_KEY,
    FROM_KEY,
    KNOCK_METHOD,
    MEMBERSHIP,
    METHOD_KEY,
    PROTOCOL,
    PROTOCOL_KEY,
    REPLICA_METHOD,
    SHARDS,
    SLOT_KEY,
    format_protocol,
)
from tests.unit.agents import (
    Impostor,
    Metadata,
    agent,
    beat,
    calling,
    free_port,
    impostor,
    refused_with,
    run,
)
from tests.unit.voters import DEADLINE_S, KEYRING, OTHER_CLUSTER, OTHER_KEY

OURS = format_protocol(PROTOCOL)


def facts(at: str, /, **changed: Any) -> Facts:
    usual = {
        "method": SHARDS.method,
        "slot": 1,
        "dialled": at,
        "sender": 3,
        "address": "host:3",
        "protocol": OURS,
    }
    return Facts(**usual | changed)


# With a real agent


def test_agents_that_have_proved_themselves_talk_on_one_stream() -> None:
    async def work() -> None:
        async with agent() as there, calling() as peers:
            for _ in range(3):
                assert (await beat(peers, there.address)).boot == "boot"
            assert there.member.beats == 3
            assert not there.refusals.counts
            peers.post(1, there.address, b"vote")
            await there.voter.hears(1)
            assert there.voter.met == {(3, "host:3")}

    run(work)


@pytest.mark.parametrize("keyring", [OTHER_KEY, OTHER_CLUSTER], ids=["key", "cluster"])
def test_agents_of_different_clusters_do_not_talk(keyring: Keyring) -> None:
    async def work() -> None:
        async with agent() as there, calling(keyring) as peers:
            with pytest.raises(AgentGone, match="is not agent-1 of this cluster"):
                await beat(peers, there.address)
            peers.post(1, there.address, b"vote")
            with pytest.raises(AgentGone):
                await beat(peers, there.address)
            assert there.member.beats == 0
            assert there.voter.heard == []

    run(work)


def test_another_agent_of_the_cluster_does_not_answer_for_the_one_that_is_meant() -> None:
    async def work() -> None:
        async with agent() as there, calling() as peers:
            with pytest.raises(Unavailable, match="this is agent-1"):
                await beat(peers, there.address, slot=2)
            assert there.member.beats == 0

    run(work)


def test_a_client_has_no_business_at_the_door_of_agents() -> None:
    async def work() -> None:
        async with agent() as there:
            for credential in (KEYRING.client("agent-3"), KEYRING.admin("agent-3")):
                said = await knock(there.address, credential)
                assert said is None
            assert there.refusals.counts == {("grpc", "wrong role"): 2}

    run(work)


async def knock(address: str, credential: Credential, **changed: Any) -> Challenge | None:
    """What an agent answers, if anything."""
    about = facts(address, **changed)
    caller = Caller(credential, door=DOOR, about=about.about)
    async with grpc.aio.insecure_channel(address) as channel:
        given = (KNOCK_KEY, msgspec.msgpack.encode(caller.knock()))
        call = channel.stream_stream(KNOCK_METHOD)(
            metadata=(*about.metadata, given), timeout=DEADLINE_S
        )
        said = dict(await call.trailing_metadata()).get(CHALLENGE_KEY)
    return None if said is None else msgspec.msgpack.decode(said, type=Challenge)


def test_a_recorded_handshake_opens_nothing_again() -> None:
    async def work() -> None:
        async with agent() as there:
            about = facts(there.address)
            caller = Caller(KEYRING.agent("agent-3"), door=DOOR, about=about.about)
            first: Metadata = (
                *about.metadata,
                (KNOCK_KEY, msgspec.msgpack.encode(caller.knock())),
            )
            async with grpc.aio.insecure_channel(there.address) as channel:
                call = channel.stream_stream(KNOCK_METHOD)(metadata=first)
                said = dict(await call.trailing_metadata())[CHALLENGE_KEY]
                challenge = msgspec.msgpack.decode(said, type=Challenge)
                proof = caller.answer(challenge)
                assert proof is not None
                second: Metadata = (
                    (PROOF_KEY, msgspec.msgpack.encode(Answer(challenge.nonce, proof))),
                )
                stream = channel.stream_stream(SHARDS.method)(metadata=second)
                assert WELCOME_KEY in dict(await stream.initial_metadata())
                # While it is open, and with the same first words once more.
                denied = grpc.StatusCode.UNAUTHENTICATED
                assert await refused_with(there.address, SHARDS.method, second) is denied
                assert await refused_with(there.address, KNOCK_METHOD, first) is (
                    grpc.StatusCode.OK
                )
                assert await refused_with(there.address, SHARDS.method, second) is denied
                assert await refused_with(there.address, SHARDS.method, first + second) is denied
                stream.cancel()
            assert there.refusals.counts == {("grpc", "no challenge"): 3}

    run(work)


@pytest.mark.parametrize("method", [SHARDS.method, MEMBERSHIP.method, REPLICA_METHOD])
@pytest.mark.parametrize(
    "metadata",
    [(), (("diskless-secret", KEYRING.hex()),), ((PROOF_KEY, b"\xc1"),), ((PROOF_KEY, b""),)],
    ids=["nothing", "a secret", "garbage", "empty"],
)
def test_a_stream_without_a_proof_is_refused(method: str, metadata: Metadata) -> None:
    async def work() -> None:
        async with agent() as there:
            code = await refused_with(there.address, method, metadata)
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert there.refusals.counts == {("grpc", "no handshake"): 1}

    run(work)


def test_an_agent_from_before_there_were_knocks_hears_what_is_wrong() -> None:
    async def work() -> None:
        async with agent() as there, grpc.aio.insecure_channel(there.address) as channel:
            old = (("diskless-secret", "x"), (SLOT_KEY, "1"), (PROTOCOL_KEY, "3.0"))
            stream = channel.stream_stream(SHARDS.method)(metadata=old)
            assert await stream.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert f"agent-1 speaks protocol {OURS} and the caller 3.0" in await stream.details()

    run(work)


# With an impostor in an agent's place


async def _silence(_: grpc.aio.ServicerContext) -> None:
    await asyncio.Event().wait()


async def _made_up(context: grpc.aio.ServicerContext) -> None:
    said = msgspec.msgpack.encode(Challenge(1, "0" * 32, "0" * 64))
    await context.send_initial_metadata(((WELCOME_KEY, said),))
    context.set_trailing_metadata(((CHALLENGE_KEY, said),))


async def _garbage(context: grpc.aio.ServicerContext) -> None:
    context.set_trailing_metadata(((CHALLENGE_KEY, b"\xc1"),))


async def _refusal(context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send me\nyour secret")


async def _mirror(context: grpc.aio.ServicerContext) -> None:
    """Says what it was told."""
    given = dict(context.invocation_metadata() or ())
    data = given.get(KNOCK_KEY, b"")
    nonce = msgspec.msgpack.decode(data, type=Knock).nonce
    said = msgspec.msgpack.encode(Challenge(1, nonce, nonce * 2))
    context.set_trailing_metadata(((CHALLENGE_KEY, said),))


@pytest.mark.parametrize("answer", [_made_up, _garbage, _refusal, _mirror])
def test_an_impostor_is_an_agent_that_is_gone_and_gets_nothing_that_lets_it_in(
    answer: Callable[[grpc.aio.ServicerContext], Any],
) -> None:
    """What it got is sent to a real agent, in the order it came and as proofs."""

    async def work() -> None:
        async with impostor(answer) as (thief, address), calling() as peers:
            for _ in range(2):
                with pytest.raises(AgentGone, match="is not agent-1 of this cluster"):
                    await beat(peers, address)
            peers.post(1, address, b"vote")
            await until(lambda: len(thief.metadata) >= 3)
            await asyncio.sleep(0)
        assert thief.messages == []
        assert {method for method, _ in thief.metadata} == {KNOCK_METHOD}
        assert all(key not in repr(thief.metadata) for key in (KEYRING.hex(), "secret"))
        await replay(thief)

    run(work)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def replay(thief: Impostor) -> None:
    """All that an impostor got, against a real agent: it is challenged, and nothing opens."""
    async with agent() as there:
        for _, metadata in thief.metadata:
            await refused_with(there.address, KNOCK_METHOD, metadata)
            values = [value for _, value in metadata]
            proofs = [value for value in values if isinstance(value, bytes)]
            for method in (SHARDS.method, MEMBERSHIP.method, REPLICA_METHOD):
                for proof in proofs:
                    given = (*metadata, (PROOF_KEY, proof))
                    code = await refused_with(there.address, method, given)
                    assert code is grpc.StatusCode.UNAUTHENTICATED
        assert there.member.beats == 0
        assert there.voter.heard == []


def test_an_impostor_that_never_ends_a_knock_does_not_make_us_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(introduction, "HANDSHAKE_TIMEOUT_S", 0.2)

    async def work() -> None:
        async with impostor(_silence) as (_, address), calling() as peers:
            with pytest.raises(Unavailable, match="did not prove itself within"):
                await beat(peers, address)

    run(work)


def test_whoever_takes_a_proof_must_be_who_answered_the_knock() -> None:
    """Another process may have got the port between the two: it cannot welcome us."""
    introductions = Introductions(Doorkeeper(KEYRING, slot=1), slot=1, now_s=lambda: 0.0)

    async def half(context: grpc.aio.ServicerContext) -> None:
        given = dict(context.invocation_metadata() or ())
        if KNOCK_KEY in given:
            said = introductions.challenge(given)
            context.set_trailing_metadata(((CHALLENGE_KEY, said),))
        else:
            made_up = msgspec.msgpack.encode(Proof("0" * PROOF_CHARS))
            await context.send_initial_metadata(((WELCOME_KEY, made_up),))

    async def work() -> None:
        async with impostor(half) as (thief, address), calling() as peers:
            introductions.address = address
            with pytest.raises(AgentGone, match="it is not the agent that answered before"):
                await beat(peers, address)
        assert thief.messages == []
        await replay(thief)

    run(work)


def test_a_relay_at_another_port_does_not_pass_for_the_agent() -> None:
    async def work() -> None:
        async with agent() as there, calling() as peers:
            inner_port = int(there.address.rsplit(":", 1)[1])

            async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with suppress(ConnectionError):
                    while data := await reader.read(1 << 16):
                        writer.write(data)
                writer.close()

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                inner = await asyncio.open_connection("127.0.0.1", inner_port)
                await asyncio.gather(pipe(reader, inner[1]), pipe(inner[0], writer))

            async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
                address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
                with pytest.raises(AgentGone, match="it cannot prove that it is"):
                    await beat(peers, address)
            assert there.member.beats == 0
            assert (await beat(peers, there.address)).boot == "boot"

    run(work)


def test_a_stranger_that_speaks_something_else_fails_calls_and_nothing_hangs() -> None:
    async def work() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with calling() as peers:
                with pytest.raises(Unavailable):
                    await beat(peers, address)

    run(work)


def test_an_impostor_gets_one_line_in_the_log_however_often_it_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with impostor(_made_up) as (_, address), calling() as peers:
            for _ in range(20):
                with pytest.raises(AgentGone):
                    await beat(peers, address)

    with caplog.at_level(logging.INFO, logger="diskless"):
        run(work)
    (line,) = caplog.messages
    assert "is not agent-1 of this cluster" in line


def test_what_an_impostor_says_does_not_break_the_lines_of_a_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with impostor(_refusal) as (_, address), calling() as peers:
            with pytest.raises(AgentGone, match="send me your secret"):
                await beat(peers, address)

    run(work)
    assert all("\n" not in line for line in caplog.messages)


def test_an_agent_that_returns_to_its_port_is_heard_again() -> None:
    async def work() -> None:
        port = free_port()
        async with calling() as peers:
            async with agent(port=port) as there:
                await beat(peers, there.address)
            async with impostor(_made_up, port=port) as (_, address):
                with pytest.raises(Unavailable):
                    await beat(peers, address)
                with pytest.raises(AgentGone):
                    await beat(peers, address)
            async with agent(port=port) as there:

                async def answers() -> bool:
                    with suppress(Unavailable):
                        return (await beat(peers, there.address)).boot == "boot"
                    return False

                async with asyncio.timeout(DEADLINE_S):
                    while not await answers():
                        await asyncio.sleep(0.01)

    run(work)


# The answering side alone


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class Pair:
    """Both sides of introductions, without a network."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.there = Introductions(Doorkeeper(KEYRING, slot=1), slot=1, now_s=self.clock)
        self.there.address = "host:1"

    def knock(self, credential: Credential | None = None, **changed: Any) -> dict[str, Any]:
        """The metadata of a stream that is opened after a knock."""
        about = facts("host:1", **changed)
        caller = Caller(credential or KEYRING.agent("agent-3"), door=DOOR, about=about.about)
        knock = msgspec.msgpack.encode(caller.knock())
        said = self.there.challenge(dict((*about.metadata, (KNOCK_KEY, knock))))
        challenge = msgspec.msgpack.decode(said, type=Challenge)
        proof = caller.answer(challenge)
        assert proof is not None
        return {PROOF_KEY: msgspec.msgpack.encode(Answer(challenge.nonce, proof))}


def test_a_proof_is_for_one_method_once_and_in_time() -> None:
    pair = Pair()
    proof = pair.knock()
    assert pair.there.admit(SHARDS.method, proof).sender == 3
    with pytest.raises(Unauthorized, match="answers no challenge"):
        pair.there.admit(SHARDS.method, proof)
    with pytest.raises(Unauthorized, match="that proof is for"):
        pair.there.admit(REPLICA_METHOD, pair.knock())
    late = pair.knock()
    pair.clock.s += HANDSHAKE_TIMEOUT_S
    with pytest.raises(Unauthorized, match="too late"):
        pair.there.admit(SHARDS.method, late)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"slot": 2}, "this is agent-1"),
        ({"protocol": "9.0"}, "run one major version"),
        ({"protocol": ""}, "caller none"),
        ({"method": "/other/Method"}, "no such service"),
        ({"address": "h" * 1000}, "no address"),
    ],
)
def test_who_means_another_agent_or_speaks_otherwise_is_told(
    changed: dict[str, Any], error: str
) -> None:
    with pytest.raises(BadRequest, match=error):
        Pair().knock(**changed)


def test_nobody_speaks_for_another_agent() -> None:
    with pytest.raises(Unauthorized, match="agent-3 speaks for agent-4"):
        Pair().knock(sender=4)


@pytest.mark.parametrize("changed", [{"dialled": "host:2"}, {"address": "host:4"}])
def test_what_is_proved_names_both_addresses(changed: dict[str, Any]) -> None:
    pair = Pair()
    about = facts("host:1", **changed)
    caller = Caller(KEYRING.agent("agent-3"), door=DOOR, about=about.about)
    told = facts("host:1")
    knock = msgspec.msgpack.encode(caller.knock())
    said = pair.there.challenge(dict((*told.metadata, (KNOCK_KEY, knock))))
    assert caller.answer(msgspec.msgpack.decode(said, type=Challenge)) is None


def test_knocks_that_nobody_follows_up_are_bounded_and_the_newest_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(introduction, "PENDING_MAX", 8)
    pair = Pair()
    eldest = pair.knock()
    proofs = [pair.knock() for _ in range(8)]
    assert len(pair.there._expected) == 8
    with pytest.raises(Unauthorized):
        pair.there.admit(SHARDS.method, eldest)
    for proof in proofs:
        pair.there.admit(SHARDS.method, proof)
    assert not pair.there._expected
    pair.knock()
    pair.clock.s += HANDSHAKE_TIMEOUT_S
    pair.knock()
    assert len(pair.there._expected) == 1


VALUES = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=40),
    st.sampled_from(["1", "3", OURS, SHARDS.method, "host:3", "-1", "١", "1e3", "0" * 5000]),
    st.builds(
        Knock,
        st.one_of(st.text(max_size=80), st.just(KEYRING.agent("agent-3").text)),
        st.one_of(st.text(max_size=40), st.just("0" * 32)),
    ).map(msgspec.msgpack.encode),
    st.just(b"\x92" * 2000),
)
KEYS = (KNOCK_KEY, PROOF_KEY, METHOD_KEY, SLOT_KEY, FROM_KEY, ADDRESS_KEY, PROTOCOL_KEY)
RIGHT = dict(facts("host:1").metadata)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES), st.booleans())
def test_whatever_a_stranger_knocks_with_it_is_refused_or_challenged_and_never_admitted(
    given_: dict[str, Any], plausible: bool
) -> None:
    pair = Pair()
    metadata = RIGHT | given_ if plausible else given_
    with suppress(Unauthorized, BadRequest):
        pair.there.challenge(metadata)
    assert len(pair.there._expected) <= 1
    with pytest.raises((Unauthorized, BadRequest)):
        pair.there.admit(SHARDS.method, metadata)


@given(st.binary(max_size=300))
def test_whatever_an_impostor_answers_it_gets_no_proof(said: bytes) -> None:
    caller = Caller(KEYRING.agent("agent-3"), door=DOOR, about="")
    challenge = introduction._decode(said, Challenge)
    assert challenge is None or caller.answer(challenge) is None


# Strangers


def test_connections_that_say_nothing_and_idle_ones_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And those of agents, whose streams are silent for as long, are not."""
    limits = {"grpc.server_handshake_timeout_ms": 300, "grpc.max_connection_idle_ms": 300}
    monkeypatch.setattr(
        "diskless.rpc.server.SERVER_OPTIONS",
        tuple((name, limits.get(name, value)) for name, value in server_options()),
    )
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

    async def ended(port: int, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
        writer.close()

    async def work() -> None:
        async with agent() as there, calling() as peers:
            await beat(peers, there.address)
            link = peers._links[MEMBERSHIP.method, 1, there.address][1]
            stream = link._stream  # type: ignore[union-attr]
            port = int(there.address.rsplit(":", 1)[1])
            for data in (b"", preface, b"GET / HTTP/1.1\r\n\r\n"):
                await ended(port, data)
            await beat(peers, there.address)
            assert link._stream is stream  # type: ignore[union-attr]

    run(work)


def server_options() -> tuple[tuple[str, int], ...]:
    from diskless.rpc.server import SERVER_OPTIONS

    return SERVER_OPTIONS


def test_connections_are_capped_and_those_that_are_there_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cap = {"grpc.max_allowed_incoming_connections": 4}
    monkeypatch.setattr(
        "diskless.rpc.server.SERVER_OPTIONS",
        tuple((name, cap.get(name, value)) for name, value in server_options()),
    )

    async def work() -> None:
        async with agent() as there, calling() as peers:
            await beat(peers, there.address)
            port = int(there.address.rsplit(":", 1)[1])
            strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
            for stranger in strangers:
                stranger.setblocking(False)

            def ended() -> int:
                return sum(is_ended(stranger) for stranger in strangers)

            await until(lambda: ended() == 7)
            await beat(peers, there.address)
            for stranger in strangers:
                stranger.close()

    run(work)


def is_ended(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1 << 16, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
