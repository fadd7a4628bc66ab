"""Whoever cannot prove itself, at either end of a gateway's connection, gets nothing."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskless.client.caller import Caller
from diskless.client.client import Client
from diskless.client.descriptor import Descriptor
from diskless.client.greeting import Greeter
from diskless.client.routes import Routes, address
from diskless.errors import Unauthorized, Unavailable
from diskless.gateway.lobby import STRANGERS_MAX
from diskless.identity.claims import Credential, Keyring
from diskless.identity.handshake import Doorkeeper
from diskless.identity.refusals import Refusals
from diskless.protocol import messages as m
from diskless.protocol import operating
from diskless.protocol.frames import HELLO_BYTES_MAX, VERSION, pack_head, pack_header
from diskless.protocol.messages import Kind, Peer
from tests.unit.fake_cluster import (
    ADMIN,
    CLUSTER,
    KEYRING,
    SECRET,
    FakeCluster,
    LoopThread,
    RawClient,
    wait_until,
)
from tests.unit.test_gateway import Harness

TIMEOUT_S = 20.0


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(LoopThread(uvloop.new_event_loop), tmp_path / "doors" / "agent.sock")
    yield harness
    for client in harness.clients:
        client.close()
    if hasattr(harness, "gateway"):
        harness.open_gate()
        harness.thread.run(harness.gateway.stop())
        wait_until(lambda: not any(harness.gateway._weigh().values()), "nothing is held")
    harness.thread.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with closing(FakeCluster(tmp_path / "c")) as cluster:
        yield cluster


def test_an_agent_that_is_not_the_one_that_was_meant_is_asked_for_nothing(idle):
    idle.start()
    known = Descriptor(cluster=CLUSTER, name="orders", key=SECRET)
    meant = Peer(5, f"127.0.0.1:{idle.gateway.tcp_port}", "", "here", True)
    with pytest.raises(Unavailable, match="turned out to be agent-0"):
        Greeter(known).connect(meant, client="test", deadline=time.monotonic() + TIMEOUT_S)
    assert idle.backend.started == 0


# Tokens at the door.


def first_words(harness: Harness, credential: Credential) -> m.Refusal:
    """What whoever has this credential is refused with."""
    client = harness.connect(credential=None)
    client.knock(credential)
    refusal = client.refusal()
    assert client.is_closed()
    return refusal


def test_tokens_that_are_no_good_are_refused_and_counted(idle):
    now_s, revoked = 1000.0, {"stolen"}
    refusals = Refusals()
    keeper = Doorkeeper(KEYRING, slot=0, revoked=revoked, wall_s=lambda: now_s)
    idle.start(doorkeeper=keeper, refusals=refusals)
    cases = [
        (KEYRING.client("old", expires_s=999), "'old' has expired"),
        (KEYRING.client("stolen"), "'stolen' was revoked"),
        (Keyring(cluster="other", root=bytes(32)).client("q"), "another cluster"),
        (Credential("e30", bytes(32)), "no token of diskless"),
        (Credential("x" * 5000, bytes(32)), "no token of diskless"),
        (KEYRING.agent("agent-1"), "clients and admins"),
    ]
    for credential, why in cases:
        refusal = first_words(idle, credential)
        assert refusal.reason == "Unauthorized"
        assert why in refusal.message
    assert sum(refusals.counts.values()) == len(cases)
    assert idle.still_serves()
    assert idle.backend.started == 1


def test_a_key_that_does_not_fit_the_claims_proves_nothing(idle):
    idle.start()
    wider = Credential(KEYRING.client("q", paths=["/"]).text, KEYRING.client("q", paths=["/q"]).key)
    client = idle.connect(credential=None)
    caller = client.knock(wider)
    challenge = client.challenge()
    assert caller.answer(challenge) is None  # such a client sees no agent there
    client.send(Kind.PROVE, m.Prove(caller._proof("caller", challenge)))
    assert client.refusal().reason == "Unauthorized"
    assert client.is_closed()


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_open_connections_end_with_their_token(idle, how):
    now_s, revoked = [1000.0], set[str]()
    keeper = Doorkeeper(KEYRING, slot=0, revoked=revoked, wall_s=lambda: now_s[0])
    idle.start(doorkeeper=keeper)
    other = idle.client()
    client = idle.connect(credential=KEYRING.client("q", expires_s=2000)).greeted()
    client.send(Kind.STAT, m.Stat("/a"))
    assert client.receive()[0].kind == Kind.DONE
    if how == "revoked":
        revoked.add("q")
        idle.thread.loop.call_soon_threadsafe(idle.gateway.recheck)
    else:
        now_s[0] = 2000.0  # The gateway looks by itself.
    refusal = client.refusal()
    assert refusal.reason == "Unauthorized"
    assert how in refusal.message
    assert client.is_closed()
    other.send(Kind.STAT, m.Stat("/a"))
    assert other.receive()[0].kind == Kind.DONE


def test_what_a_token_does_not_cover_is_refused_at_the_gate(idle):
    idle.start()
    client = idle.connect(credential=KEYRING.client("q", paths=["/q"])).greeted()
    client.send(Kind.STAT, m.Stat("/other"), request=5)
    assert client.refusal().reason == "Forbidden"
    client.send(Kind.DRAIN, operating.Drain(0), request=6)
    assert client.refusal().reason == "Forbidden"
    assert idle.backend.started == 0
    client.send(Kind.STAT, m.Stat("/q"), request=7)
    assert client.receive()[0].kind == Kind.DONE
    assert idle.gateway.refusals.counts["gateway", "Forbidden"] == 2


# Crowds.


def test_the_eldest_stranger_makes_room_for_the_next(idle):
    idle.start(strangers_max=3)
    members = [idle.client() for _ in range(4)]  # They have proved themselves, and count apart.
    strangers = [idle.connect(credential=None) for _ in range(3)]
    wait_until(lambda: idle.gateway.counters.connections == 7, "all are there")
    assert idle.still_serves()  # A fourth for a moment: the eldest had to go.
    refusal = strangers[0].refusal()
    assert (refusal.reason, refusal.retryable) == ("Unavailable", True)
    assert "have not proved who they are" in refusal.message
    assert strangers[0].is_closed()
    strangers[1].prove(ADMIN)
    strangers[1].greeted()
    for member in members:
        member.send(Kind.STAT, m.Stat("/a"))
        assert member.receive()[0].kind == Kind.DONE


def test_thousands_of_strangers_are_never_more_than_a_few_and_hold_nothing(idle, caplog):
    idle.start()
    member = idle.client()
    with caplog.at_level(logging.WARNING):
        for number in range(1500):
            with closing(socket.socket(socket.AF_UNIX)) as stranger:
                stranger.connect(str(idle.path))
                with suppress(OSError):
                    stranger.sendall(pack_header(Kind.HELLO, 1, meta_bytes=HELLO_BYTES_MAX)[:20])
                if number % 3:
                    stranger.detach()  # It stays open, and says no more.
            assert len(idle.gateway.lobby.strangers) <= STRANGERS_MAX
    member.send(Kind.STAT, m.Stat("/a"))
    assert member.receive()[0].kind == Kind.DONE
    assert idle.still_serves()
    assert idle.gateway.parked_bytes <= 20 * (STRANGERS_MAX + 1)
    assert len(caplog.records) <= 3


def test_a_stranger_has_a_time_for_the_whole_handshake(idle):
    idle.start()
    silent = idle.connect(credential=None)
    halfway = idle.connect(credential=None)
    halfway.knock(ADMIN)
    halfway.challenge()
    idle.hurry(hello_timeout_s=0.3)
    for client in (silent, halfway):
        assert client.refusal().reason == "DeadlineExceeded"
        assert client.is_closed()
    idle.hurry()
    assert idle.still_serves()


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=300),
            st.builds(
                lambda kind, meta: pack_head(kind, 1, meta, version=VERSION),
                st.sampled_from([Kind.HELLO, Kind.PROVE, Kind.STAT]),
                st.one_of(
                    st.binary(max_size=100),
                    st.builds(
                        lambda claims, nonce: m.encode(m.Hello(claims, nonce)),
                        st.sampled_from([ADMIN.text, "", "e30", "x" * 4000]),
                        st.one_of(st.text(max_size=40), st.just("0" * 32)),
                    ),
                    st.text("0123456789abcdef", max_size=64).map(lambda p: m.encode(m.Prove(p))),
                ),
            ),
        ),
        max_size=4,
    )
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_garbage_is_a_handshake(idle, frames):
    if not hasattr(idle, "gateway"):
        idle.start()
    stranger = idle.connect(credential=None)
    with suppress(OSError):
        stranger.socket.sendall(b"".join(frames))
        stranger.socket.shutdown(socket.SHUT_WR)
    heard = b""
    with suppress(OSError):
        while piece := stranger.socket.recv(65536):
            heard += piece
    stranger.close()
    assert b'"agents"' not in heard  # No welcome.
    assert idle.backend.started == 0
    client = idle.client()
    client.close()


# Impostors.


class Impostor:
    """Listens where an agent was, answers as it likes, and keeps all that it hears."""

    def __init__(self, listener: socket.socket, answers: list[bytes]) -> None:
        self.heard: list[bytes] = []
        self._listener = listener
        self._answers = answers
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with closing(caller):
                caller.settimeout(20.0)
                heard = b""
                with suppress(OSError):
                    heard += caller.recv(65536)
                    for answer in self._answers:
                        caller.sendall(answer)
                    while piece := caller.recv(65536):
                        heard += piece
                self.heard.append(heard)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def reply(meta: Any, kind: Kind = Kind.DONE) -> bytes:
    return pack_head(kind, 1, m.encode(meta), version=VERSION)


ANSWERS = {
    "a guess": reply(m.Challenged(0, "0" * 32, "0" * 64)),
    "a welcome": reply(m.Welcome([])),
    "a refusal": reply(m.Refusal("Unauthorized", "your token has expired"), Kind.REFUSED),
    "another refusal": reply(m.Refusal("NotFound", "nothing is here"), Kind.REFUSED),
    "silence": b"",
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_an_impostor_on_a_dead_agents_door_gets_nothing_that_lets_it_in(
    cluster, tmp_path, door, answer
):
    token = KEYRING.client("q", paths=["/q"])
    peer = cluster.state.peers[0]
    cluster.kill(0)
    wait_until(lambda: not Path(peer.socket).exists(), "it is dead")
    if door == "unix":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(peer.socket)
    else:
        host, _, port = peer.gateway.rpartition(":")
        listener = socket.create_server((host, int(port)))
        peer = msgspec.structs.replace(peer, socket="")
    listener.listen()
    seeds = [peer, cluster.state.peers[1]]
    known = Descriptor(cluster=CLUSTER, name="test", token=token.token, gateways=seeds)
    with closing(Impostor(listener, [ANSWERS[answer]])) as impostor:
        for _ in range(3):  # Each begins at one of the two, by chance.
            with closing(Caller(known, timeout_s=TIMEOUT_S)) as caller:
                assert Client(caller).exists("/q/a") is False
        cluster.state.leader = 0  # Now all of them are sent there, once they have heard of it.
        with closing(Caller(known, timeout_s=TIMEOUT_S)) as caller:
            assert [Client(caller).exists("/q/a") for _ in range(3)] == [False] * 3
        wait_until(lambda: bool(impostor.heard), "it has heard something")
    assert any(impostor.heard)
    for heard in impostor.heard:
        assert token.key.hex() not in heard.hex()
        assert token.token.encode() not in heard
        assert b"proof" not in heard
        replay(cluster, heard)


def replay(cluster: FakeCluster, heard: bytes) -> None:
    """What was heard lets nobody in at a real agent."""
    asked = len(cluster.state.asked)
    with closing(RawClient(cluster.state.peers[1].socket, credential=None)) as client:
        with suppress(OSError):
            client.socket.sendall(heard)
            client.socket.sendall(pack_head(Kind.STAT, 9, m.encode(m.Stat("/q")), version=VERSION))
        answer = b""
        with suppress(OSError):
            while piece := client.socket.recv(65536):
                answer += piece
    assert b"data_shards" not in answer
    assert len(cluster.state.asked) == asked


def test_a_recorded_handshake_opens_no_door(cluster):
    """All that both sides said, on a socket that was listened to."""
    path = cluster.state.peers[1].socket
    with closing(RawClient(path, credential=None)) as client:
        caller = client.knock(ADMIN)
        knock = m.encode(m.Hello(*msgspec.structs.astuple(caller.knock())))
        proof = caller.answer(client.challenge())
        assert proof is not None
        client.send(Kind.PROVE, m.Prove(proof.proof))
        client.greeted()
    for slot in (0, 1):
        with closing(RawClient(cluster.state.peers[slot].socket, credential=None)) as thief:
            thief.send(Kind.HELLO, knock)
            thief.challenge()
            thief.send(Kind.PROVE, m.Prove(proof.proof))
            assert thief.refusal().reason == "Unauthorized"
            assert thief.is_closed()


def test_a_client_says_who_is_no_agent_if_nobody_is(tmp_path):
    """Somebody else's cluster listens at all the addresses that it knows."""
    stranger = Keyring(cluster=CLUSTER, root=bytes(32))
    with closing(FakeCluster(tmp_path / "c", local=False, keyring=stranger)) as other:
        known = Descriptor(
            cluster=CLUSTER, name="orders", key=SECRET, gateways=list(other.state.peers.values())
        )
        with closing(Caller(known, timeout_s=60)) as caller, pytest.raises(Unauthorized) as refused:
            Client(caller).exists("/a")
        addresses = [peer.gateway for peer in other.state.peers.values()]
        assert str(refused.value) in [
            f"the process at {address} is not an agent of cluster orders" for address in addresses
        ]
        assert other.state.asked == []


def test_a_strangers_refusal_counts_only_if_no_agent_proves_itself(cluster, tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    liar = Peer(7, f"127.0.0.1:{port}", "", "here", True)
    with closing(Impostor(listener, [ANSWERS["a refusal"]])):
        both = Descriptor(
            cluster=CLUSTER, name="x", key=SECRET, gateways=[liar, cluster.state.peers[0]]
        )
        for _ in range(4):
            with closing(Caller(both, timeout_s=TIMEOUT_S)) as caller:
                assert Client(caller).exists("/a") is False
        alone = Descriptor(cluster=CLUSTER, name="x", key=SECRET, gateways=[liar])
        with (
            closing(Caller(alone, timeout_s=TIMEOUT_S)) as caller,
            pytest.raises(Unauthorized, match="your token has expired"),
        ):
            Client(caller).exists("/a")


def test_half_of_the_agents_are_not_most_of_them():
    peers = [Peer(slot, f"h:{slot}", "", "h", True) for slot in range(4)]
    routes = Routes(peers, salt="any", is_local=lambda path: False)
    routes.replace(peers, version=1, now=0.0)
    for peer in peers:
        routes.failed(peer, 0.0)
    refusing = [address(peer) for peer in peers]
    assert not routes.no_agent_left(refusing[:2])
    assert routes.no_agent_left(refusing[:3])


def test_an_agent_that_answers_is_no_stranger_whatever_it_said_before(cluster):
    with closing(Caller(cluster.descriptor, timeout_s=TIMEOUT_S)) as caller:
        client = Client(caller)
        client.write("/a", b"1")
        for peer in cluster.state.peers.values():
            caller._strangers[address(peer)] = Unauthorized("your token has expired")
        assert client.read("/a") == b"1"  # on the connection that there is
        assert address(cluster.state.peers[0]) not in caller._strangers


@pytest.mark.parametrize("dead", [None, 0, 2], ids=["all live", "the leader dead", "another dead"])
def test_a_client_whose_token_is_revoked_while_it_works_is_told_so(cluster, dead):
    """Also if an agent is dead that its roster has as up: that one never says so."""
    token = KEYRING.client("q", paths=["/q"])
    known = msgspec.structs.replace(cluster.descriptor, key="", token=token.token)
    with closing(Caller(known, timeout_s=60)) as caller:
        client = Client(caller)
        client.write("/q/a", b"1")
        if dead is not None:
            cluster.kill(dead)
        for gateway in cluster.gateways.values():
            gateway.lobby.doorkeeper.revoked = {"q"}
            cluster._thread.loop.call_soon_threadsafe(gateway.recheck)
        wait_until(
            lambda: not any(g.counters.connections for g in cluster.gateways.values()), "it is out"
        )
        with pytest.raises(Unauthorized, match="'q' was revoked"):
            client.read("/q/a")


def test_agents_of_two_clusters_do_not_take_each_other_for_their_own(cluster, tmp_path):
    other_keys = Keyring(cluster="another", root=bytes(range(32)))  # even with the same root
    with closing(FakeCluster(tmp_path / "o", agents=1, keyring=other_keys)) as other:
        for credential in (ADMIN, KEYRING.client("q")):
            client = RawClient(other.state.peers[0].socket, credential=None)
            client.knock(credential)
            assert client.refusal().reason == "Unauthorized"
            client.close()
