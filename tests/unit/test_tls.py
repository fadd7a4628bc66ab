"""TLS at the gateway's TCP door: whom a client trusts, and that nothing else changes."""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import uvloop

from diskless.client.caller import Caller
from diskless.client.client import Client
from diskless.client.descriptor import Descriptor
from diskless.client.greeting import Greeter
from diskless.client.tls import TlsConnection
from diskless.config import MIB
from diskless.errors import Unauthorized, Unavailable
from diskless.identity.certificates import (
    Certificates,
    Pair,
    issue,
    make_authority,
)
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
        secret=SECRET,
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
    with pytest.raises(Unauthorized, match=r"whoever listens at 127.0.0.1:\d+ is not an agent of "
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


def greet_once(descriptor: Descriptor) -> None:
    deadline = time.monotonic() + 10
    Greeter(descriptor).connect(descriptor.gateways[0], client="test", deadline=deadline).close()


def test_a_client_that_knows_no_authority_is_told_what_is_missing(idle):
    idle.start()
    with pytest.raises(Unauthorized, match=r"speaks TLS alone.*set DISKLESS_CA"):
        greet_once(known(idle, authority=None))


def test_a_client_that_expects_tls_takes_nothing_less(idle):
    plain = Harness(idle.thread, idle.path)
    plain.start()
    try:
        with pytest.raises(Unavailable, match="does not speak TLS"):
            greet_once(known(plain))
    finally:
        idle.thread.run(plain.gateway.stop())
    idle.start()


def test_a_token_is_still_needed(idle):
    idle.start()
    wrong = msgspec.structs.replace(known(idle), secret="00" * 32)
    with pytest.raises(Unauthorized, match="is not an agent of cluster orders"):
        knock(wrong)


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
    idle.start(strangers_max=3, hello_timeout_s=0.5)
    member = idle.client()
    silent = [socket.create_connection(("127.0.0.1", idle.gateway.tcp_port)) for _ in range(5)]
    wait_until(lambda: idle.gateway.counters.connections_total == 6, "all have come")
    wait_until(lambda: idle.gateway.counters.connections == 4, "three stay, and the member")
    wait_until(lambda: idle.gateway.counters.connections == 1, "those had their time")
    for one in silent:
        one.settimeout(5)
        with suppress(ConnectionError):
            assert one.recv(1) == b""
        one.close()
    member.send(Kind.STAT, m.Stat("/a"))
    assert member.receive()[0].kind == Kind.DONE


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", bytes(3000), b"\x16\x03\x01\xff\xff"])
def test_what_is_no_tls_ends_its_connection_and_is_counted(idle, noise):
    idle.start(hello_timeout_s=0.5)
    with closing(socket.create_connection(("127.0.0.1", idle.gateway.tcp_port))) as stranger:
        stranger.settimeout(5)
        stranger.sendall(noise)
        with suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    assert sum(idle.gateway.refusals.counts.values()) == 1
    assert idle.still_serves()


def test_damage_below_tls_ends_the_connection_alone(idle):
    idle.start()
    client = idle.client()
    raw = socket.socket(fileno=client.socket.detach())
    raw.settimeout(5)
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
        connection = caller._greeter.connect(peer, client="x", deadline=time.monotonic() + 9)
        assert not connection.is_stale()
        cluster.kill(1)
        wait_until(connection.is_stale, "it is noticed")
