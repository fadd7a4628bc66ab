"""TLS at the gateway's TCP door: whom a client trusts, and that nothing else changes."""

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
import pytest
import uvloop

from diskless import malloc
from diskless.client.caller import Caller
from diskless.client.client import Client
from diskless.client.descriptor import Descriptor
from diskless.client.greeting import Greeter
from diskless.client.tls import TlsConnection
from diskless.config import KIB, MIB
from diskless.errors import Unauthorized
from diskless.gateway.server import CONNECTION_BYTES, TLS_CONNECTION_BYTES
from diskless.gateway.tls import RECEIVED_BYTES, ClientTls
from diskless.identity.certificates import (
    Certificates,
    Pair,
    any_server_name,
    client_context,
    issue,
    load_pair,
    make_authority,
    server_context,
)
from diskless.identity.refusals import Refusals
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind, Peer
from tests.support import content
from tests.unit.fake_cluster import (
    CLUSTER,
    SECRET,
    FakeCluster,
    LoopThread,
    wait_until,
)
from tests.unit.test_gateway import AUTHORITY, Harness

NOW = datetime.now(UTC)
CONNECTIONS = 200
LONG_AGO = NOW - timedelta(days=400)


def certificate(authority: Pair = AUTHORITY, *, slot: int = 0, now: datetime = NOW) -> Pair:
    return issue(authority, cluster=CLUSTER, slot=slot, hosts=["127.0.0.1"], now=now)


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Harness]:
    path = tmp_path / "doors" / "agent.sock"
    harness = Harness(LoopThread(uvloop.new_event_loop), path, authority=AUTHORITY)
    yield harness
    for client in harness.clients:
        client.close()
    harness.open_gate()
    harness.thread.run(harness.gateway.stop())
    wait_until(lambda: not any(harness.gateway._weigh().values()), "nothing is held")
    harness.thread.close()


def known(harness: Harness, *, slot: int = 0, authority: Pair | None = AUTHORITY) -> Descriptor:
    address = f"127.0.0.1:{harness.gateway.tcp_port}"
    return Descriptor(
        cluster=CLUSTER,
        name="orders",
        key=SECRET,
        authority=authority.chain.decode() if authority else "",
        gateways=[Peer(slot, address, "", "here", True)],
    )


def knock(descriptor: Descriptor) -> None:
    """Raises what a client says that tries to connect."""
    with closing(Caller(descriptor, timeout_s=20)) as caller:
        Client(caller).agents()


# Trust.


def test_an_agent_is_trusted_by_its_slot_by_any_or_by_its_host(idle):
    idle.start()
    knock(known(idle))
    knock(known(idle, slot=-1))
    knock(msgspec.structs.replace(known(idle), by_host=True))


def test_a_certificate_of_another_authority_is_not_trusted(idle):
    """So it is with whoever relays frames: it has none of the cluster's own."""
    other = make_authority("test", CLUSTER)
    idle.start(tls=Certificates(certificate(other), other.chain))
    with pytest.raises(Unauthorized, match=r"the process at 127.0.0.1:\d+ is not an agent of "
                       r"cluster orders: its certificate is not signed by"):  # fmt: skip
        knock(known(idle))
    assert idle.gateway.counters.frames_in == 0


def test_a_certificate_of_another_agent_is_not_trusted(idle):
    idle.start(tls=Certificates(certificate(slot=5), AUTHORITY.chain))
    with pytest.raises(Unauthorized, match=rf"does not name agent-0\.{CLUSTER}\.diskless"):
        knock(known(idle))
    knock(known(idle, slot=-1))


def test_a_certificate_for_another_host_is_not_trusted(idle):
    pair = issue(AUTHORITY, cluster=CLUSTER, slot=0, hosts=["10.9.9.9"])
    idle.start(tls=Certificates(pair, AUTHORITY.chain))
    with pytest.raises(Unauthorized, match=r"does not name 127\.0\.0\.1"):
        knock(msgspec.structs.replace(known(idle), by_host=True))


def test_an_expired_certificate_is_named_as_such(idle):
    idle.start(tls=Certificates(certificate(now=LONG_AGO), AUTHORITY.chain))
    with pytest.raises(Unauthorized, match=r"has expired.*diskless tls renew"):
        knock(known(idle))


def test_a_certificate_of_the_future_is_named_as_such(idle):
    idle.start(tls=Certificates(certificate(now=NOW + timedelta(days=9)), AUTHORITY.chain))
    with pytest.raises(Unauthorized, match=r"not good yet.*clocks"):
        knock(known(idle))


def test_a_stranger_cannot_fill_the_memory_with_a_handshake(idle):
    refusals = Refusals()
    idle.start(hello_timeout_s=600.0, refusals=refusals)
    with closing(socket.create_connection(("127.0.0.1", idle.gateway.tcp_port))) as stranger:
        stranger.settimeout(20.0)
        # A ClientHello of 96 KiB in records of 8, of which the last never comes.
        hello = b"\x01" + (96 * KIB).to_bytes(3) + b"\x03\x03" + bytes(88 * KIB)
        with suppress(ConnectionError):
            for start in range(0, len(hello), 8 * KIB):
                part = hello[start : start + 8 * KIB]
                stranger.sendall(b"\x16\x03\x01" + len(part).to_bytes(2) + part)
            assert stranger.recv(1) == b"", "it is closed"
    assert refusals.by_reason() == {"gateway": {"no TLS": 1}}


def greet_once(descriptor: Descriptor) -> None:
    deadline = time.monotonic() + 60
    Greeter(descriptor).connect(descriptor.gateways[0], client="test", deadline=deadline).close()


def test_a_client_that_knows_no_authority_is_told_what_is_missing(idle):
    idle.start()
    with pytest.raises(Unauthorized, match=r"speaks TLS alone.*set DISKLESS_CA"):
        greet_once(known(idle, authority=None))


def test_a_client_that_expects_tls_takes_nothing_less(idle):
    plain = Harness(idle.thread, idle.path)
    plain.start()
    try:
        with pytest.raises(Unauthorized, match=r"is not an agent.*does not speak TLS.*DISKLESS_CA"):
            greet_once(known(plain))
        with pytest.raises(Unauthorized, match="does not speak TLS"):
            knock(known(plain))  # it does not try until its time is over
    finally:
        idle.thread.run(plain.gateway.stop())
    idle.start()


def test_a_token_is_still_needed(idle):
    idle.start()
    wrong = msgspec.structs.replace(known(idle), key="00" * 32)
    with pytest.raises(Unauthorized, match="is not an agent of cluster orders"):
        knock(wrong)


def shake_hands(caller: ssl.SSLContext, door: ssl.SSLContext) -> None:
    """Raises ssl.SSLError if one of them will not."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    name = f"agent-0.{CLUSTER}.diskless"
    sides = [caller.wrap_bio(back, there, server_hostname=name)]
    sides.append(door.wrap_bio(there, back, server_side=True))
    for side in sides * 3:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()


@pytest.mark.parametrize("old", ["caller", "door"])
def test_nothing_older_than_tls_1_3_is_spoken(old):
    contexts = {
        "caller": client_context(AUTHORITY.chain),
        "door": server_context(certificate(), AUTHORITY.chain, callers_have_certificates=False),
    }
    shake_hands(**contexts)
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if old == "caller" else ssl.PROTOCOL_TLS_SERVER)
    plain.load_verify_locations(cadata=AUTHORITY.chain.decode())
    load_pair(plain, certificate())
    plain.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
        shake_hands(**contexts | {old: plain})


# Renewal.


def test_a_renewed_certificate_is_shown_to_new_connections_and_ends_no_old_one(idle):
    shown = Certificates(certificate(), AUTHORITY.chain)
    idle.start(tls=shown)
    old = idle.client()
    first = old.socket.getpeercert(binary_form=True)
    renewed = certificate()
    idle.thread.loop.call_soon_threadsafe(shown.renew, renewed)
    wait_until(lambda: _shown(idle) != first, "the new one is shown")
    own, end, _ = renewed.chain.decode().partition("-----END CERTIFICATE-----")
    assert _shown(idle) == ssl.PEM_cert_to_DER_cert(own + end)
    old.send(Kind.STAT, m.Stat("/a"))
    assert old.receive()[0].kind == Kind.DONE


def _shown(harness: Harness) -> bytes:
    client = harness.client()
    with closing(client):
        found: bytes = client.socket.getpeercert(binary_form=True)
        return found


# Strangers.


def test_strangers_count_before_they_shake_tls_hands(idle):
    idle.start(strangers_max=3, hello_timeout_s=60.0)
    member = idle.client()
    silent = [socket.create_connection(("127.0.0.1", idle.gateway.tcp_port)) for _ in range(5)]
    wait_until(lambda: idle.gateway.counters.connections_total == 6, "all have come")
    wait_until(lambda: idle.gateway.counters.connections == 4, "three stay, and the member")
    idle.hurry(hello_timeout_s=0.5)
    wait_until(lambda: idle.gateway.counters.connections == 1, "those had their time")
    for one in silent:
        one.settimeout(60)
        with suppress(ConnectionError):
            assert one.recv(1) == b""
        one.close()
    member.send(Kind.STAT, m.Stat("/a"))
    assert member.receive()[0].kind == Kind.DONE


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", bytes(3000), b"\x16\x03\x01\xff\xff"])
def test_what_is_no_tls_ends_its_connection_and_is_counted(idle, noise):
    idle.start()
    with closing(socket.create_connection(("127.0.0.1", idle.gateway.tcp_port))) as stranger:
        stranger.settimeout(60)
        stranger.sendall(noise)
        idle.hurry(hello_timeout_s=0.5)
        with suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    assert sum(idle.gateway.refusals.counts.values()) == 1
    idle.hurry()
    assert idle.still_serves()


def test_damage_below_tls_ends_the_connection_alone(idle):
    idle.start()
    client = idle.client()
    raw = socket.socket(fileno=client.socket.detach())
    raw.settimeout(60)
    raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    with closing(raw), suppress(ConnectionError):
        while raw.recv(4096):
            pass
    wait_until(lambda: idle.gateway.counters.connections == 0, "it is gone")
    assert idle.still_serves()


def test_the_agent_reads_on_after_its_last_refusal_so_that_it_is_not_lost(idle):
    idle.start()
    client = idle.client()
    client.send(99, b"{}")
    assert client.refusal().reason == "BadFrame"
    for _ in range(50):
        client.socket.sendall(bytes(MIB // 16))
    assert client.is_closed()  # in this direction


# Bytes.


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with closing(FakeCluster(tmp_path / "c", local=False, authority=AUTHORITY)) as cluster:
        yield cluster


def test_files_and_listings_of_all_sizes_come_back_byte_for_byte(cluster):
    with closing(Caller(cluster.descriptor, timeout_s=20)) as caller:
        client = Client(caller)
        for size in (0, 1, 100, 16 * 1024 - 60, 16 * 1024, 64 * 1024 + 1, MIB, 9 * MIB + 7):
            data = content(size)
            client.write(f"/f/{size}", data)
            assert client.read(f"/f/{size}") == data
            assert client.read(f"/f/{size}", size // 3, 70_000) == data[size // 3 :][:70_000]
            with client.open(f"/f/{size}") as file:
                assert file.read() == data
        client.write_many({f"/many/{'n' * 150}{n:05}": b"" for n in range(2500)})
        assert len(list(client.list("/many"))) == 2500
        idle = [one for kept in caller._idle.values() for one in kept]
        assert idle
        assert all(isinstance(one, TlsConnection) for one in idle)
        assert not any(one.is_stale() for one in idle)


def test_an_upload_goes_on_through_another_agent(cluster):
    data = content(20 * MIB)
    with closing(Caller(cluster.descriptor, timeout_s=20)) as caller:
        client = Client(caller)
        with client.open("/f", "wb") as file:
            file.write(data[: 12 * MIB])
            writer = cluster.state.kinds(Kind.WRITE)[-1]
            cluster.kill(writer)
            file.write(data[12 * MIB :])
        assert client.read("/f") == data


def test_a_connection_that_the_agent_closed_is_noticed_before_it_is_used(cluster):
    peer = cluster.state.peers[1]
    with closing(Caller(cluster.descriptor, timeout_s=20)) as caller:
        connection = caller._greeter.connect(peer, client="x", deadline=time.monotonic() + 60)
        assert not connection.is_stale()
        cluster.kill(1)
        wait_until(connection.is_stale, "it is noticed")


# What it takes.


_ROOM = memoryview(bytearray(MIB))
_TRUSTING = client_context(AUTHORITY.chain)


class Nowhere:
    """Takes the place of what is above and below a connection's TLS."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def connection_made(self, transport: object) -> None:
        pass

    def get_buffer(self, _: int) -> memoryview:
        return _ROOM

    def buffer_updated(self, _: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.sent += parts

    def taken(self) -> bytes:
        data, self.sent = b"".join(self.sent), []
        return data


def used(context: ssl.SSLContext, buffer: memoryview) -> ClientTls:
    """A door's end of a connection that has moved much, both ways."""
    nowhere = Nowhere()
    layer = ClientTls(nowhere, context, buffer)  # type: ignore[arg-type]
    layer.connection_made(nowhere)  # type: ignore[arg-type]
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    name = any_server_name(CLUSTER)
    client = _TRUSTING.wrap_bio(incoming, outgoing, server_hostname=name)

    def pass_on() -> None:
        said = outgoing.read()
        for start in range(0, len(said), len(buffer)):
            piece = said[start : start + len(buffer)]
            layer.get_buffer(-1)[: len(piece)] = piece
            layer.buffer_updated(len(piece))
        incoming.write(nowhere.taken())

    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        pass_on()
    client.write(bytes(MIB))
    pass_on()
    layer.writelines([bytes(MIB)])
    assert nowhere.taken(), "it is encrypted"
    return layer


def taken_by_each() -> float:
    """Bytes of resident memory for one more connection."""
    context = server_context(certificate(), AUTHORITY.chain, callers_have_certificates=False)

    async def measure() -> float:
        buffer = memoryview(bytearray(RECEIVED_BYTES))
        open_ones = [used(context, buffer) for _ in range(20)]  # What is taken only once is.
        malloc.trim()
        before = psutil.Process().memory_info().rss
        open_ones += [used(context, buffer) for _ in range(CONNECTIONS)]
        malloc.trim()
        return (psutil.Process().memory_info().rss - before) / CONNECTIONS

    return asyncio.run(measure())


def test_a_connection_with_tls_takes_no_more_than_is_charged_for_it() -> None:
    """In a process of its own: here others have left memory that would be used first."""
    program = "from tests.unit.test_tls import taken_by_each; print(taken_by_each())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    each = float(done.stdout)
    assert TLS_CONNECTION_BYTES / 2 <= each <= TLS_CONNECTION_BYTES - CONNECTION_BYTES
