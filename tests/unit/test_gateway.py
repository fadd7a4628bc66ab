"""The gateway on real sockets: what one client does never hurts another, and limits hold."""

import asyncio
import logging
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskless.agent.memory import Memory
from diskless.config import KIB, MIB, Tuning
from diskless.errors import DisklessError, LaunchFailed, NoQuorum, NotFound, NotLeader
from diskless.gateway import server
from diskless.gateway.backend import Answer
from diskless.gateway.connection import (
    REPLY_BYTES_MAX,
    REQUESTS_MAX,
    UNSENT_BYTES_HIGH,
    expected_reply_bytes,
)
from diskless.gateway.server import REPLIES_SHARE
from diskless.gateway.visitor import Visitor
from diskless.identity.certificates import (
    Certificates,
    Pair,
    client_context,
    issue,
    make_authority,
)
from diskless.identity.claims import Credential
from diskless.model import Extent
from diskless.protocol import messages as m
from diskless.protocol.frames import (
    HELLO_BYTES_MAX,
    META_BYTES_MAX,
    NO_LEADER,
    PAYLOAD_BYTES_MAX,
    SPARE_BUFFERS_MAX,
    _buffers,
    pack_header,
    pack_within,
)
from diskless.protocol.messages import Kind
from tests.unit.fake_cluster import (
    ADMIN,
    CLUSTER,
    LoopThread,
    MortalGateway,
    RawClient,
    start_gateway,
    wait_until,
)


class Backend:
    """Answers by path: `/wait` when told to, `/bug` never, the rest at once."""

    def __init__(self) -> None:
        self.leading: int | None = 2
        self.version = 65536 + 5
        self.started = 0
        self.held_bytes = 0
        self.held_bytes_max = 0
        self.order: list[int] = []
        self.gone: list[int] = []
        self.open_gate = asyncio.Event()
        self.hindered_by: DisklessError | None = None
        self.before_wait: Callable[[], object] = lambda: None

    def leader(self) -> int | None:
        return self.leading

    def hindrance(self) -> DisklessError | None:
        return self.hindered_by

    def roster_version(self) -> int:
        return self.version

    def welcome(self) -> m.Welcome:
        return m.Welcome([])

    def roster(self) -> m.Roster:
        return m.Roster([m.Peer(0, "127.0.0.1:1", "/s", "h", True)])

    def disconnected(self, connection: int) -> None:
        self.gone.append(connection)

    def handle(self, visitor: Visitor, kind: Kind, meta: Any, payload: Any) -> Any:
        self.started += 1
        if kind is Kind.STAT:
            return self._stat(meta.path)
        if kind is Kind.READ:
            return self._read(meta)
        if kind is Kind.WRITE:
            return self._write(visitor.number, meta, payload)
        return m.Empty(), ()

    def _stat(self, path: str) -> Any:
        if path == "/bug":
            raise ZeroDivisionError("a bug")
        if path == "/gone":
            raise NotFound("/gone does not exist")
        if path == "/wait":
            self.before_wait()
            return self._wait_and_answer()
        if path == "/huge":
            return b" " * (META_BYTES_MAX + 1), ()
        return m.Status(path, False, 1, 2, 3, ""), ()

    async def _wait_and_answer(self) -> Answer:
        await self.open_gate.wait()
        raise NotLeader("agent-1 leads")

    async def _read(self, meta: m.Read) -> Answer:
        await asyncio.sleep(0)
        return m.Empty(), [bytes(extent.length) for extent in meta.extents]

    async def _write(self, connection: int, meta: m.Write, payload: Any) -> Answer:
        self.order.append(connection)
        self.held_bytes += len(payload)
        self.held_bytes_max = max(self.held_bytes, self.held_bytes_max)
        await self.open_gate.wait()
        self.held_bytes -= len(payload)
        if payload:
            assert payload[0] == payload[-1] == meta.offset % 251
        return m.Written(meta.offset + len(payload), 0, []), ()


class Harness:
    def __init__(self, thread: LoopThread, path: Path, *, authority: Pair | None = None) -> None:
        """With an authority clients come by TCP, encrypted; else by the Unix socket."""
        self.authority = authority
        self.thread = thread
        self.path = path
        self.clients: list[RawClient] = []
        self.backend: Backend
        self.gateway: MortalGateway

    def start(self, **options: Any) -> "Harness":
        self.backend = self.thread.run(self._make_backend())
        if self.authority is not None:
            pair = issue(self.authority, cluster=CLUSTER, slot=0, hosts=["127.0.0.1"])
            options.setdefault("tls", Certificates(pair, self.authority.chain))
        self.gateway = self.thread.run(start_gateway(self.backend, self.path, **options))
        return self

    async def _make_backend(self) -> Backend:
        return Backend()

    def connect(self, **options: Any) -> RawClient:
        if self.authority is None:
            client = RawClient(str(self.path), **options)
        else:
            tls = client_context(self.authority.chain)
            client = RawClient(port=self.gateway.tcp_port, tls=tls, **options)
        self.clients.append(client)
        return client

    def client(self) -> RawClient:
        return self.connect().greeted()

    def open_gate(self) -> None:
        self.thread.loop.call_soon_threadsafe(self.backend.open_gate.set)

    def hurry(self, *, hello_timeout_s: float = 60.0, reply_timeout_s: float = 60.0) -> None:
        """From now on whoever is there has so much time, counted from when it began. What a test
        does before has all the time that it takes."""
        self.gateway.lobby._timeout_s = hello_timeout_s
        self.gateway._reply_timeout_s = reply_timeout_s

    def still_serves(self) -> bool:
        client = self.client()
        client.send(Kind.STAT, m.Stat("/a"), request=9)
        header, _, _ = client.receive()
        client.close()
        return (header.kind, header.request) == (Kind.DONE, 9)


AUTHORITY = make_authority("test", CLUSTER)
TCP_BUFFERS_MIB = 8
"""What the kernel takes of a TCP connection's replies before anybody fetches them."""


@pytest.fixture(params=["uvloop", "asyncio", "uvloop-tls"])
def idle(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A harness on either event loop, or with TLS, whose gateway the test starts itself."""
    loop, _, tls = request.param.partition("-")
    new_loop = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    path = tmp_path / "doors" / "agent.sock"
    harness = Harness(LoopThread(new_loop), path, authority=AUTHORITY if tls else None)
    yield harness
    for client in harness.clients:
        client.close()
    if hasattr(harness, "gateway"):
        harness.open_gate()
        harness.thread.run(harness.gateway.stop())
        assert harness.gateway.requests_in_flight == 0
        wait_until(lambda: not any(harness.gateway._weigh().values()), "nothing is held")
    harness.thread.close()


@pytest.fixture
def harness(idle: Harness) -> Harness:
    return idle.start()


# Greeting.


def test_a_proof_is_answered_with_the_agents_and_every_reply_names_leader_and_roster(harness):
    header, meta, _ = harness.connect().receive()
    assert msgspec.json.decode(meta, type=m.Welcome) == m.Welcome([])
    assert (header.leader, header.roster) == (2, 5)
    harness.backend.leading = None
    client = harness.connect()
    assert client.receive()[0].leader == NO_LEADER


def test_the_tcp_door_speaks_the_same_frames(harness):
    tls = client_context(AUTHORITY.chain) if harness.authority else None
    client = RawClient(port=harness.gateway.tcp_port, tls=tls)
    client.greeted().send(Kind.ROSTER, m.Empty())
    _, meta, _ = client.receive()
    assert msgspec.json.decode(meta, type=m.Roster).agents[0].socket == "/s"
    client.close()


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    wait_until(lambda: bool(caplog.records), "a line is logged")
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    return record.getMessage()


def forged(credential: Credential) -> Credential:
    return Credential(credential.text, bytes(32))


@pytest.mark.parametrize("proof", ["", "0" * 64, "ö\ud800"])
def test_a_wrong_proof_is_refused_and_logged_once(harness, caplog, proof):
    client = harness.connect(credential=None)
    client.knock(ADMIN)
    client.challenge()
    meta = msgspec.json.encode({"proof": proof.encode("utf8", "replace").decode()})
    client.send(Kind.PROVE, meta)
    assert client.refusal().reason == "Unauthorized"
    assert client.is_closed()
    assert "wrong key" in only_warning(caplog)
    assert harness.backend.gone == []


def test_the_agent_proves_itself_first_and_only_for_the_keys_of_its_cluster(harness):
    client = harness.connect(credential=None)
    assert client.knock(ADMIN).answer(client.challenge()) is not None
    client = harness.connect(credential=None)
    assert client.knock(forged(ADMIN)).answer(client.challenge()) is None


def test_anything_but_hello_is_refused_at_first(harness):
    client = harness.connect(credential=None)
    client.send(Kind.STAT, m.Stat("/a"), request=77)
    header, meta, _ = client.receive()
    assert (header.kind, header.request) == (Kind.REFUSED, 77)
    assert msgspec.json.decode(meta, type=m.Refusal).reason == "BadFrame"
    assert client.is_closed()
    assert harness.backend.started == 0


@pytest.mark.parametrize("admitted", [False, True])
@pytest.mark.parametrize("meta", [m.Hello("x", "0" * 32), m.Prove("0" * 64)])
def test_a_handshake_cannot_begin_again(harness, admitted, meta):
    client = harness.connect(credential=None)
    if admitted:
        client.prove(ADMIN)
        client.greeted()
    elif isinstance(meta, m.Hello):
        client.knock(ADMIN)
        client.challenge()
    client.send(Kind.HELLO if isinstance(meta, m.Hello) else Kind.PROVE, meta)
    assert client.refusal().reason == "BadFrame"
    assert client.is_closed()


def test_a_stranger_cannot_make_the_agent_hold_more_than_6_kib(harness):
    client = harness.connect(credential=None)
    client.socket.sendall(pack_header(Kind.HELLO, 1, meta_bytes=HELLO_BYTES_MAX, payload_bytes=1))
    assert "6144" in client.refusal().message
    assert client.is_closed()


def test_a_client_that_does_not_greet_in_time_is_closed_even_if_it_drips_bytes(idle):
    idle.start()
    client = idle.connect(credential=None)
    client.socket.settimeout(0.02)
    hello = pack_header(Kind.HELLO, 1, meta_bytes=4000)

    def drip_until_closed() -> bool:
        try:
            client.socket.send(hello[:1])
            return client.socket.recv(1) != b"x"
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    client.socket.sendall(hello)
    idle.hurry(hello_timeout_s=0.2)
    wait_until(drip_until_closed, "it is closed")
    idle.hurry()
    assert idle.still_serves()


def test_requests_may_follow_the_proof_in_the_same_packet(harness):
    client = harness.connect(credential=None)
    proof = client.knock(ADMIN).answer(client.challenge())
    prove, stat_ = m.encode(m.Prove(proof.proof)), m.encode(m.Stat("/a"))
    client.socket.sendall(
        pack_header(Kind.PROVE, 1, meta_bytes=len(prove))
        + prove
        + pack_header(Kind.STAT, 2, meta_bytes=len(stat_))
        + stat_
    )
    assert [client.receive()[0].request for _ in range(2)] == [1, 2]


# Bad frames.


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (99, b"{}"),
        (Kind.DONE, b"{}"),
        (Kind.STAT, b"{}"),
        (Kind.STAT, b'{"path": 3}'),
        (Kind.STAT, b"[]"),
        (Kind.STAT, b""),
        (Kind.STAT, b'{"path": "\xff"}'),
        (Kind.READ, b'{"extents": [["a", 1]]}'),
        (Kind.STAT, b'{"path": "a\nb'),
    ],
)
def test_a_meta_that_is_not_expected_costs_the_connection_and_one_line(harness, caplog, kind, meta):
    client = harness.client()
    client.send(kind, meta, request=12)
    header, refusal, _ = client.receive()
    assert (header.kind, header.request) == (Kind.REFUSED, 12)
    assert msgspec.json.decode(refusal, type=m.Refusal).reason == "BadFrame"
    assert client.is_closed()
    assert "\n" not in only_warning(caplog)
    assert harness.still_serves()


@given(
    garbage=st.one_of(
        st.binary(min_size=1, max_size=200),
        st.binary(max_size=200).map(lambda tail: b"\xd1\x5c\x01" + tail),
        st.builds(
            lambda kind, meta, sizes: (
                pack_header(kind, 5, meta_bytes=sizes[0], payload_bytes=sizes[1]) + meta
            ),
            st.integers(0, 255),
            st.binary(max_size=100),
            st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
        ),
    ),
    greeted=st.booleans(),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_garbage_hurts_nobody_but_its_sender(harness, garbage, greeted):
    neighbour = harness.client()
    client = harness.client() if greeted else harness.connect(credential=None)
    client.socket.sendall(garbage)
    client.socket.shutdown(socket.SHUT_WR)
    while not client.is_closed():
        pass
    client.close()
    neighbour.send(Kind.STAT, m.Stat("/b"), request=3)
    assert neighbour.receive()[0].kind == Kind.DONE
    neighbour.close()
    assert harness.still_serves()


def test_a_client_that_vanishes_inside_a_payload_gives_its_room_back(harness):
    client = harness.client()
    client.socket.sendall(
        pack_header(Kind.WRITE, 1, meta_bytes=30, payload_bytes=PAYLOAD_BYTES_MAX) + b"x" * 99
    )
    wait_until(lambda: harness.gateway.requests.reserved > 0, "the body is reserved")
    client.close()
    wait_until(lambda: harness.gateway.requests.reserved == 0, "the room is free")


def test_a_client_that_falls_silent_inside_a_frame_is_closed(idle):
    idle.start(frame_timeout_s=0.2)
    quiet, client = idle.client(), idle.client()
    client.socket.sendall(pack_header(Kind.WRITE, 1, meta_bytes=30, payload_bytes=MIB) + b"x" * 99)
    assert client.refusal().reason == "BadFrame"
    assert client.is_closed()
    quiet.send(Kind.STAT, m.Stat("/a"))
    assert quiet.receive()[0].kind == Kind.DONE


# Requests.


def test_a_thousand_pipelined_requests_get_a_reply_each(harness):
    client = harness.client()
    meta = m.encode(m.Stat("/a"))
    client.socket.sendall(
        b"".join(
            pack_header(Kind.STAT, number, meta_bytes=len(meta)) + meta for number in range(1000)
        )
    )
    assert sorted(client.receive()[0].request for _ in range(1000)) == list(range(1000))


def test_replies_may_overtake_one_another(harness):
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/wait"), request=1)
    client.send(Kind.STAT, m.Stat("/a"), request=2)
    assert client.receive()[0].request == 2
    harness.open_gate()
    refusal = client.refusal()
    assert (refusal.reason, refusal.retryable) == ("NotLeader", True)


def test_a_refusal_is_final_for_its_request_only(harness):
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/gone"), request=1)
    client.send(Kind.STAT, m.Stat("/a"), request=2)
    refusal = client.refusal()
    assert isinstance(refusal.error(), FileNotFoundError)
    assert client.receive()[0].request == 2


def test_a_bug_in_a_handler_is_logged_with_traceback_and_answered(harness, caplog):
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/bug"))
    assert client.refusal().reason == "InternalError"
    client.send(Kind.STAT, m.Stat("/a"))
    assert client.receive()[0].kind == Kind.DONE
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_a_reply_that_fits_in_no_frame_becomes_an_internal_error(harness):
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/huge"))
    assert client.refusal().reason == "InternalError"
    assert harness.still_serves()


def test_a_handler_that_hangs_is_answered_with_deadline_exceeded(idle):
    idle.start(tuning=Tuning(request_timeout_s=0.2))
    client = idle.client()
    client.send(Kind.STAT, m.Stat("/wait"))
    assert client.refusal().reason == "DeadlineExceeded"
    assert idle.still_serves()


@pytest.mark.parametrize("hindered_by", [None, NoQuorum("two voters are gone")])
def test_an_impatient_client_hears_in_time_that_there_is_no_answer_yet(harness, hindered_by):
    harness.backend.hindered_by = hindered_by
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/wait"), within=pack_within(0.3))
    client.send(Kind.STAT, m.Stat("/wait"), request=2)
    refusal = client.refusal()
    assert refusal.reason == ("NoQuorum" if hindered_by else "Unavailable")
    assert refusal.retryable
    harness.open_gate()
    assert client.receive()[0].request == 2  # the patient one


def test_a_disconnected_client_is_reported_once_and_its_requests_end(harness):
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/wait"))
    wait_until(lambda: harness.gateway.requests_in_flight == 1, "the request runs")
    client.close()
    wait_until(lambda: len(harness.backend.gone) == 1, "the backend hears of it")
    harness.open_gate()
    wait_until(lambda: harness.gateway.requests_in_flight == 0, "the request ends")


def test_large_payloads_arrive_and_leave_whole(harness):
    harness.open_gate()
    client = harness.client()
    for number, size in enumerate((65 * KIB, MIB + 1, PAYLOAD_BYTES_MAX)):
        payload = bytes([number]) * size
        client.send(Kind.WRITE, m.Write(1, number), payload, request=number)
        header, meta, _ = client.receive()
        assert (header.kind, header.request) == (Kind.DONE, number)
        assert msgspec.json.decode(meta, type=m.Written).received == number + size
        client.send(Kind.READ, m.Read([Extent("s", 0, size - 7), Extent("s", 0, 7)]))
        assert len(client.receive()[2]) == size


# Limits.


def test_at_most_256_requests_of_a_connection_are_in_flight(harness):
    client = harness.client()
    for number in range(REQUESTS_MAX + 44):
        client.send(Kind.STAT, m.Stat("/wait"), request=number)
    wait_until(lambda: harness.backend.started == REQUESTS_MAX, "256 run")
    assert harness.still_serves()
    assert harness.backend.started == REQUESTS_MAX + 1  # The other connection's one.
    harness.open_gate()
    numbers = {client.receive()[0].request for _ in range(REQUESTS_MAX + 44)}
    assert len(numbers) == REQUESTS_MAX + 44


def test_all_connections_together_hold_no_more_payload_than_the_budget(idle):
    idle.start(tuning=Tuning(gateway_bytes_max=3 * MIB))
    clients = [idle.client() for _ in range(4)]
    payload = bytes(MIB - 4 * KIB)

    def send(client: RawClient) -> None:
        for number in range(4):
            client.send(Kind.WRITE, m.Write(1, 0), payload, request=number)

    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    wait_until(lambda: idle.gateway.requests.waiting >= 2, "others wait")
    assert idle.still_serves()  # Small requests need no room.
    idle.open_gate()
    for thread in threads:  # A TLS socket of Python's must not be used by two at once.
        thread.join()
    for client in clients:
        assert {client.receive()[0].request for _ in range(4)} == set(range(4))
    assert 0 < idle.backend.held_bytes_max <= 3 * MIB


def test_a_busy_connection_does_not_starve_one_that_waits_for_room(idle):
    idle.start(tuning=Tuning(gateway_bytes_max=MIB))
    busy, modest = idle.client(), idle.client()
    payload = bytes(MIB - 4 * KIB)

    def send_many() -> None:
        for number in range(12):
            busy.send(Kind.WRITE, m.Write(1, 0), payload, request=number)

    sender = threading.Thread(target=send_many)
    sender.start()
    wait_until(lambda: idle.gateway.requests.waiting == 1, "the busy one waits for room")
    modest.socket.settimeout(10)
    other = threading.Thread(target=modest.send, args=(Kind.WRITE, m.Write(2, 0), payload))
    other.start()
    wait_until(lambda: idle.gateway.requests.waiting == 2, "the modest one waits behind it")
    idle.open_gate()
    # First: a TLS socket of Python's must not be used by two threads at once.
    sender.join()
    other.join()
    assert modest.receive()[0].kind == Kind.DONE
    for _ in range(12):
        busy.receive()
    (position,) = [i for i, number in enumerate(idle.backend.order) if number == 2]
    assert position <= 2


def test_a_slow_reader_stops_its_own_requests_and_not_the_agents_memory(request, harness):
    unbounded = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
    if unbounded and "asyncio" in request.node.name:
        pytest.skip("CVE-2024-12254: this asyncio's writelines knows no limit; agents use uvloop")
    client = harness.client()
    reads = 200
    meta = m.encode(m.Read([Extent("s", 0, MIB)]))
    frames = [pack_header(Kind.READ, number, meta_bytes=len(meta)) for number in range(reads)]
    client.socket.sendall(b"".join(header + meta for header in frames))
    limit = REPLY_BYTES_MAX // MIB + 1 + (TCP_BUFFERS_MIB if harness.authority else 0)
    wait_until(lambda: harness.backend.started >= 3, "some are read")
    assert all(harness.still_serves() for _ in range(20))
    assert harness.backend.started - 20 <= limit + 1
    numbers = {client.receive()[0].request for _ in range(reads)}
    assert numbers == set(range(reads))


def test_a_read_of_many_small_pieces_counts_as_a_large_one():
    one, many = (m.Read([Extent("s", 0, 1)] * count) for count in (1, 256))
    assert expected_reply_bytes(Kind.READ, one) == 4 * KIB
    assert expected_reply_bytes(Kind.READ, many) > 3 * MIB


def test_a_connection_over_the_limit_is_told_so(idle):
    idle.start(connections_max=2)
    first, second = idle.client(), idle.client()
    third = idle.connect()
    refusal = third.refusal()
    assert (refusal.reason, refusal.retryable) == ("Unavailable", True)
    assert "2 connections" in refusal.message
    assert third.is_closed()
    first.close()
    wait_until(lambda: idle.gateway.counters.connections == 1, "there is room again")
    assert idle.still_serves()
    second.close()


# Doors.


def test_only_this_user_can_reach_the_socket(harness):
    assert stat.S_IMODE(harness.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(harness.path.parent.stat().st_mode) == 0o700


def test_a_stale_socket_is_replaced_and_a_stopped_gateway_leaves_none(idle):
    idle.path.parent.mkdir()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(idle.path))
    stale.close()
    idle.start()
    assert idle.still_serves()
    idle.thread.run(idle.gateway.stop())
    assert not idle.path.exists()


def test_a_stopping_gateway_leaves_its_successors_socket_alone(idle):
    predecessor = idle.start().gateway
    idle.start()
    idle.thread.run(predecessor.stop())
    assert idle.still_serves()


def test_a_socket_path_that_is_too_long_fails_to_launch_with_one_line(idle):
    path = idle.path.parent / ("x" * 120)
    with pytest.raises(LaunchFailed, match=r"x{120}"):
        idle.thread.run(start_gateway(idle.thread.run(idle._make_backend()), path))


def test_stopping_refuses_what_is_in_flight_with_unavailable(harness):
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/wait"))
    wait_until(lambda: harness.gateway.requests_in_flight == 1, "the request runs")
    harness.thread.run(harness.gateway.stop())
    assert client.refusal().reason == "Unavailable"
    assert client.is_closed()


def test_stopping_refuses_also_what_has_not_begun_yet(harness):
    """A task that is cancelled before its first step could tell nobody."""
    stopping = []

    def stop() -> None:
        stopping.append(asyncio.ensure_future(harness.gateway.stop()))

    harness.backend.before_wait = stop
    client = harness.client()
    client.send(Kind.STAT, m.Stat("/wait"))
    assert client.refusal().reason == "Unavailable"
    assert client.is_closed()
    wait_until(stopping[0].done, "the gateway has stopped")


def test_counters_count_frames_and_bytes(harness):
    assert harness.still_serves()
    counters = harness.gateway.counters
    assert counters.frames_in == 3
    assert counters.bytes_in > 48
    assert counters.bytes_out > 48
    wait_until(lambda: counters.connections == 0, "the connection is gone")
    assert counters.connections_total == 1


# Replies that nobody fetches.


def unsent_bytes(harness: Harness) -> int:
    """What the gateway's transports hold for clients that do not read."""

    async def add_up() -> int:
        connections = list(harness.gateway._connections)
        return sum(c.transport.get_write_buffer_size() for c in connections)

    return int(harness.thread.run(add_up()))


def ask_for(client: RawClient, *, reads: int) -> None:
    meta = m.encode(m.Read([Extent("s", 0, MIB)]))
    frames = [pack_header(Kind.READ, number, meta_bytes=len(meta)) for number in range(reads)]
    client.socket.sendall(b"".join(header + meta for header in frames))


def test_many_clients_that_never_fetch_hold_a_part_of_the_memory_and_not_for_ever(
    idle, caplog, monkeypatch
):
    """Forty that ask for 50 MiB each, at an agent of 64 MiB."""
    monkeypatch.setattr(server, "CROWDED_TIMEOUT_S", 600.0)  # until the test says so
    memory = Memory(64 * MIB)
    idle.start(memory=memory)
    most = memory.part(REPLIES_SHARE, 64 * MIB)
    clients = [idle.client() for _ in range(40)]
    with caplog.at_level(logging.WARNING):
        for client in clients:
            ask_for(client, reads=50)
        wait_until(lambda: idle.gateway.replies.waiting > 30, "the others wait for room")
        assert MIB < unsent_bytes(idle) <= most + MIB
        assert memory.by_kind()["replies"] <= most + MIB + 40 * UNSENT_BYTES_HIGH
        assert idle.still_serves()
        idle.hurry(reply_timeout_s=0.5)
        wait_until(lambda: idle.gateway.counters.connections == 0, "all of them are closed")
    lines = [line for line in caplog.messages if "replies not fetched" in line]
    assert len(lines) == 40
    assert not any(idle.gateway._weigh().values())
    assert idle.still_serves()


def test_a_reader_that_is_slow_but_goes_on_fetching_gets_all_of_it(idle):
    idle.start(reply_timeout_s=4.0)
    client = idle.client()
    ask_for(client, reads=24)
    for _ in range(24):
        header, _, payload = client.receive()
        assert (header.kind, len(payload)) == (Kind.DONE, MIB)
        threading.Event().wait(0.2)  # What is under test is that time passes.


def test_small_replies_that_nobody_fetches_stop_their_client_and_end_it(idle, caplog):
    idle.start()
    client = idle.client()
    meta = m.encode(m.Stat("/a"))
    frames = (pack_header(Kind.STAT, 1, meta_bytes=len(meta)) + meta) * 40_000

    def send() -> None:
        with suppress(OSError):
            client.socket.sendall(frames)

    sender = threading.Thread(target=send)
    with caplog.at_level(logging.WARNING):
        sender.start()
        wait_until(lambda: bool(idle.gateway.slow), "it is slow")
        assert unsent_bytes(idle) <= UNSENT_BYTES_HIGH + 64 * KIB
        idle.hurry(reply_timeout_s=1.0)
        wait_until(lambda: idle.gateway.counters.connections == 0, "it is closed")
        sender.join()
    assert any("replies not fetched" in line for line in caplog.messages)


def test_few_idle_connections_keep_a_buffer_the_others_only_half_a_frame(harness):
    clients = [harness.client() for _ in range(40)]
    for client in clients[::4]:
        client.socket.sendall(pack_header(Kind.STAT, 1, meta_bytes=50) + b'{"path"')
    wait_until(lambda: harness.gateway.parked_bytes == 10 * 7, "halves of frames have come")
    parsers = [connection._parser for connection in harness.gateway._connections]
    assert sum(parser._buffer is not None for parser in parsers) <= SPARE_BUFFERS_MAX
    clients[0].socket.sendall(b': "/a"' + b" " * 36 + b"}")
    assert clients[0].receive()[0].kind == Kind.DONE
    wait_until(lambda: harness.gateway.parked_bytes == 9 * 7, "that one keeps nothing")
    for client in clients:
        client.close()
    wait_until(
        lambda: _buffers.keepers.isdisjoint(parsers), "those that kept a buffer gave it back"
    )
