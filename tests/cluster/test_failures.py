"""Agents that die, restart, go silent or come back; strangers; many clients at once."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import msgspec
import pytest

import diskless
from diskless.client import Client
from diskless.client.descriptor import load
from diskless.client.greeting import Greeter
from diskless.config import KIB, MIB
from diskless.errors import (
    AlreadyExists,
    NoQuorum,
    TooFewShards,
    Unauthorized,
    Unavailable,
    UploadLost,
)
from diskless.identity.claims import Credential
from diskless.launch.local import LocalCluster
from diskless.model import Extent, slot_name
from diskless.namespace import queries as q
from diskless.node import Node, NodeSettings
from diskless.protocol.messages import Peer
from diskless.rpc.services import (
    MEMBERSHIP,
    NAMESPACE,
    PROTOCOL,
    SHARDS,
    format_protocol,
)
from diskless.rpc.v1 import shards_pb2
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    Relay,
    bytes_used,
    connect_to_follower,
    content,
    eventually,
    hidden_shards,
    kill,
    leader,
    on_loop,
    shards_stored,
    stripes_of,
)

OURS = format_protocol(PROTOCOL)


def together(*work: Callable[[], object]) -> None:
    """Runs everything at once, each in its thread; the first failure is raised."""
    errors: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# A client whose agent dies


def test_a_client_reads_and_writes_on_when_its_agent_dies(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=7, tuning=CALM)
    client, gateway = connect_to_follower(cluster, connect)
    client.write("/before", content(5 * MIB))
    reader = client.open("/before")
    assert reader.read(MIB) == content(5 * MIB)[:MIB]
    cluster.kill(gateway)
    assert client.read("/before") == content(5 * MIB)
    assert reader.read() == content(5 * MIB)[MIB:]
    reader.close()
    for size in (0, 100, 100 * KIB, 5 * MIB):
        client.write(f"/after/{size}", content(size))
        assert client.read(f"/after/{size}") == content(size)
    assert len(list(client.list("/after"))) == 4


@pytest.mark.parametrize("sent", [3 * MIB, 12 * MIB, 25 * MIB], ids=["3", "12", "25"])
def test_an_upload_goes_on_when_its_agent_dies(
    start: StartCluster, connect: Connect, sent: int
) -> None:
    """With less sent than a client keeps, and with more, so that stripes are taken over."""
    cluster = start(agents=7, tuning=CALM)
    client, gateway = connect_to_follower(cluster, connect)
    data = content(32 * MIB)
    with client.open("/large", "wb") as file:
        file.write(data[:sent])
        cluster.kill(gateway)
        file.write(data[sent:])
    assert client.read("/large") == data
    with client.open("/large") as found:
        assert found.read() == data


def test_an_upload_goes_on_through_one_agent_after_the_other(
    start: StartCluster, connect: Connect
) -> None:
    """Each takes over what those before it had sealed. All are lost, but not at once."""
    cluster = start(agents=7, tuning=CALM)
    client, gateway = connect_to_follower(cluster, connect)
    data = content(48 * MIB)
    with client.open("/large", "wb") as file:
        file.write(data[: 16 * MIB])
        cluster.kill(gateway)
        file.write(data[16 * MIB : 32 * MIB])
        uploading = [n.slot for n in cluster.nodes.values() if n.storage.uploads.holds() and n.slot]
        cluster.kill(*uploading)
        file.write(data[32 * MIB :])
    assert client.read("/large") == data


def test_writes_happen_once_however_often_their_agent_dies(
    start: StartCluster, connect: Connect
) -> None:
    """A write that is sent again after a failover never finds itself in the way."""
    # The dead refuse connections, which tells at once; on a busy machine the living may be
    # silent for a second, as all share a thread, and must not count as lost for it.
    cluster = start(agents=6, tuning=replace(CALM, failure_timeout_s=10.0))
    client, first = connect_to_follower(cluster, connect)
    victims = [first, 1 + first % 5]  # two slots at most are ever lost
    files = {f"/{n}": content((100 * KIB, 700 * KIB, 3 * MIB)[n % 3], n) for n in range(90)}
    written: list[str] = []

    def write() -> None:
        for path, data in files.items():
            client.write(path, data)
            written.append(path)

    def kill_and_revive() -> None:
        for turn in range(25):
            seen = len(written)
            slot = victims[turn % 2]
            cluster.kill(slot)
            cluster.revive(slot)
            eventually(lambda seen=seen: len(written) >= min(seen + 2, len(files)), 60.0)

    together(kill_and_revive, write)
    assert {path: client.read(path) for path in files} == files


# Shards lost between sealing and commit


@pytest.mark.parametrize("restarted", [1, 2])
def test_an_agent_that_restarts_before_the_commit_does_not_cost_the_upload(
    start: StartCluster, connect: Connect, restarted: int
) -> None:
    """The commit finds that shards are stale; they are rebuilt and sealed anew."""
    cluster = start(agents=6, tuning=CALM)
    client, gateway = connect_to_follower(cluster, connect)
    data = content(6 * MIB + 11)
    others = [slot for slot in range(1, 6) if slot != gateway][:restarted]
    with client.open("/file", "wb") as file:
        file.write(data)
        eventually(lambda: shards_stored(cluster) >= 6 * 6)
        cluster.kill(*others)
        cluster.revive(*others)
    lives = {agent.slot: agent.incarnation for agent in leader(cluster).roster.agents.values()}
    assert all(lives[slot] == 2 for slot in others)
    for stripe in stripes_of(cluster, "/file"):
        assert stripe.parity_shards == 2
        assert all(place.incarnation == lives[place.slot] for place in stripe.places)
    for lost in ((1, 2), (3, 4), (0, 5)):
        with hidden_shards(cluster, *lost):
            assert client.read("/file") == data


def test_more_restarts_than_parity_before_the_commit_are_an_upload_lost(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=6, tuning=CALM)
    client, gateway = connect_to_follower(cluster, connect, but_not=5)
    others = [5, *(slot for slot in range(1, 5) if slot != gateway)][:3]  # only two vote
    file = client.open("/file", "wb")
    file.write(content(20 * MIB))
    eventually(lambda: shards_stored(cluster) >= 12 * 6)
    cluster.kill(*others)
    cluster.revive(*others)
    with pytest.raises(UploadLost):
        file.close()
    assert not client.exists("/file")
    client.write("/file", content(20 * MIB))
    assert client.read("/file") == content(20 * MIB)


def test_what_is_acknowledged_after_a_death_survives_two_further_ones(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=6, tuning=CALM)
    client, gateway = connect_to_follower(cluster, connect, but_not=5)
    first, *later = [5, *(slot for slot in range(1, 5) if slot != gateway)]  # only two vote
    data = content(6 * MIB)
    with client.open("/file", "wb") as file:
        file.write(data)
        eventually(lambda: shards_stored(cluster) >= 5 * 6)
        kill(cluster, first)
    kill(cluster, *later[:2])
    assert client.read("/file") == data


# Unreachable is not lost


def test_an_agent_that_comes_back_in_the_same_life_still_has_its_shards(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=CALM)
    client, gateway = connect_to_follower(cluster, connect)
    absent, *others = [slot for slot in range(1, 6) if slot != gateway]
    with Relay(cluster, absent) as relay:
        _wait_for(cluster, absent, up=True)
        client.write("/before", content(3 * MIB))
        relay.cut()
        _wait_for(cluster, absent, up=False)
        client.write("/meanwhile", content(3 * MIB, 1))
        assert {stripe.data_shards for stripe in stripes_of(cluster, "/meanwhile")} == {3}
        assert client.read("/before") == content(3 * MIB)
        gone = rf"gone: .*{slot_name(absent)}"
        with hidden_shards(cluster, *others[:2]), pytest.raises(TooFewShards, match=gone):
            client.read("/before")
        relay.mend()
        _wait_for(cluster, absent, up=True)
        assert leader(cluster).roster.agents[absent].incarnation == 1
        with hidden_shards(cluster, *others[:2]):
            eventually(lambda: _can_read(client, "/before", content(3 * MIB)))
        eventually(lambda: _write_and_measure(cluster, client, "/after") == 4)


def _write_and_measure(cluster: LocalCluster, client: Client, path: str) -> int:
    """How many data shards a new file gets: fewer as long as an agent is suspected."""
    client.write(path, content(MIB), overwrite=True)
    (stripe,) = stripes_of(cluster, path)
    return stripe.data_shards


def test_an_agent_that_missed_the_order_to_drop_shards_drops_them_when_it_is_back(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    with Relay(cluster, 4) as relay:
        _wait_for(cluster, 4, up=True)
        client.write("/gone", content(3 * MIB))
        shards = cluster.nodes[4].storage.shards
        eventually(lambda: not shards._unconfirmed_since)  # known to be a file's
        relay.cut()
        _wait_for(cluster, 4, up=False)
        client.delete("/gone")
        eventually(lambda: leader(cluster).storage.shards.bytes_used == 0)
        assert shards.bytes_used > 0
        relay.mend()
        eventually(lambda: bytes_used(cluster) == 0)


def test_a_silent_agent_is_found_out_and_written_around(
    start: StartCluster, connect: Connect
) -> None:
    """Its connections stay open and nothing comes: only time tells."""
    cluster = start(agents=7, tuning=replace(CALM, failure_timeout_s=0.5, store_timeout_s=1.0))
    client, gateway = connect_to_follower(cluster, connect)
    silent = 1 + gateway % 6
    with Relay(cluster, silent) as relay:
        _wait_for(cluster, silent, up=True)
        client.write("/before", content(3 * MIB))
        relay.hold()
        client.write("/meanwhile", content(3 * MIB, 1))
        _wait_for(cluster, silent, up=False)
        for stripe in stripes_of(cluster, "/meanwhile"):
            assert stripe.parity_shards == 2
            assert silent not in {place.slot for place in stripe.places}
        assert client.read("/before") == content(3 * MIB)
        relay.pass_on()
        _wait_for(cluster, silent, up=True)
        assert leader(cluster).roster.agents[silent].incarnation == 1


def test_a_read_does_not_wait_for_a_slow_agent(start: StartCluster, connect: Connect) -> None:
    """What it has is rebuilt from the others after `hedge_delay`."""
    tuning = replace(CALM, failure_timeout_s=30.0, fetch_timeout_s=100.0, hedge_delay_s=0.1)
    cluster = start(tuning=tuning)
    client, gateway = connect_to_follower(cluster, connect)
    slow = 1 + gateway % 5
    with Relay(cluster, slow) as relay:
        _wait_for(cluster, slow, up=True)
        client.write("/file", content(3 * MIB))
        holding = [
            next(index for index, place in enumerate(stripe.places) if place.slot == slow)
            for stripe in stripes_of(cluster, "/file")
        ]
        assert any(index < 4 for index in holding), "it has no data of the file"
        began = time.monotonic()
        relay.hold()
        for node in cluster.nodes.values():
            if node.slot != slow:
                parts = cluster.run(node.storage.reader.read(_extents(cluster, "/file")))
                assert b"".join(parts) == content(3 * MIB)
        assert client.read("/file") == content(3 * MIB)
        assert time.monotonic() - began < 25.0, "some read waited for the slow agent"
        assert leader(cluster).roster.agents[slow].up, "it was held to be down, not slow"
        relay.pass_on()


def _extents(cluster: LocalCluster, path: str) -> list[Extent]:
    state = leader(cluster).replica.state
    return list(on_loop(cluster, lambda: state.open(path)[0].extents))


def _can_read(client: Client, path: str, expected: bytes) -> bool:
    """Agents wait a moment before they try again to reach one that refused them."""
    try:
        data = client.read(path)
    except TooFewShards:
        return False
    assert data == expected
    return True


def _wait_for(cluster: LocalCluster, slot: int, *, up: bool) -> None:
    """Until the leader and all that it reaches hold that agent to be up, or down."""

    def agreed() -> bool:
        nodes = [node for node in cluster.nodes.values() if up or node.slot != slot]
        return all(node.roster.agents[slot].up == up for node in nodes)

    eventually(lambda: on_loop(cluster, agreed))


# Strangers


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_a_client_with_a_wrong_key_is_refused(start: StartCluster, door: str) -> None:
    cluster = start()
    node = cluster.nodes[2]
    socket = node.settings.socket_path if door == "unix" else ""
    gateway = node.gateway_address if door == "tcp" else ""
    peer = Peer(2, gateway, socket, "localhost", True)
    deadline = time.monotonic() + 60
    known = load(cluster.settings.name)
    wrong = msgspec.structs.replace(known, key="00" * 32)
    with pytest.raises(Unauthorized, match="is not an agent of cluster"):
        Greeter(wrong).connect(peer, client="stranger", deadline=deadline)
    Greeter(known).connect(peer, client="friend", deadline=deadline).close()


def test_connecting_with_a_wrong_token_says_so(
    start: StartCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = start()
    uri = f"diskless://{cluster.nodes[1].gateway_address}/"
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    wrong = Credential(cluster.keyring.client("q").text, bytes(32)).token
    with pytest.raises(Unauthorized, match="is not an agent of cluster"):
        diskless.connect(uri, token=wrong)
    with diskless.connect(uri, token=cluster.token()) as client:
        client.write("/a", b"1")


@pytest.mark.parametrize("service", [SHARDS, NAMESPACE, MEMBERSHIP], ids=lambda s: s.method)
def test_a_grpc_call_of_a_stranger_is_refused(start: StartCluster, service: object) -> None:
    """Whatever it knows of how agents once proved that they may."""
    cluster = start(agents=3, data_shards=2, parity_shards=1)
    method = service.method  # type: ignore[attr-defined]
    drop = shards_pb2.ShardCall(drop=shards_pb2.DropStripes(stripes=["0.1.1"]))
    with cluster.connect() as client, grpc.insecure_channel(cluster.nodes[0].address) as channel:
        client.write("/a", content(MIB))
        before = shards_stored(cluster)
        call = channel.stream_stream(method)
        message = shards_pb2.ShardCalls(calls=[drop]).SerializeToString()
        for metadata in ((), (("diskless-secret", cluster.key),), (("authorization", "x"),)):
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([message]), metadata=metadata, timeout=60))
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert shards_stored(cluster) == before
        assert client.read("/a") == content(MIB)
        refused = on_loop(cluster, cluster.nodes[0].refusals.by_reason)
        assert refused == {"grpc": {"no handshake": 3}}


def test_an_agent_of_another_major_version_takes_no_part(
    start: StartCluster, connect: Connect
) -> None:
    """It is down to the others, who say why; nothing is ever stored on it."""
    cluster = start(agents=7, tuning=CALM)
    client = connect(cluster)
    cluster.kill(6)
    stranger = cluster.run(_start_stranger(cluster, 6))
    try:
        client.write("/a", content(8 * MIB))
        error = cluster.run(_error_of_query(cluster, stranger))
        assert f"agent-0 speaks protocol {OURS} and the caller 9.0" in error
        assert on_loop(cluster, lambda: len(stranger.storage.shards)) == 0
        eventually(lambda: not leader(cluster).replica.state.agents[6].up)
    finally:
        cluster.run(stranger.stop())


async def _start_stranger(cluster: LocalCluster, slot: int) -> Node:
    node = Node(
        NodeSettings(
            cluster=cluster.settings,
            cluster_id=cluster.cluster_id,
            key=cluster.key,
            slot=slot,
            socket_path=f"{cluster.nodes[0].settings.socket_path}.stranger",
            seeds={other: node.address for other, node in cluster.nodes.items()},
        )
    )
    node.peers.protocol = (9, 0)
    await node.start()
    await node.recover()
    return node


async def _error_of_query(cluster: LocalCluster, stranger: Node) -> str:
    """What the stranger hears when it asks the leader for anything."""
    try:
        await stranger.peers.query(0, cluster.nodes[0].address, q.Stat("/"), timeout_s=60.0)
    except Unavailable as error:
        return str(error)
    return ""


def test_descriptor_and_sockets_are_private(start: StartCluster) -> None:
    cluster = start()
    for node in cluster.nodes.values():
        assert os.stat(node.settings.socket_path).st_mode & 0o077 == 0
        assert node.address.startswith("127.0.0.1:")
        assert node.gateway_address.startswith("127.0.0.1:")


# Many clients at once


@pytest.mark.parametrize("size", [1 * KIB, 100 * KIB, 3 * MIB], ids=["1K", "100K", "3M"])
def test_of_eight_writers_without_overwrite_exactly_one_wins(
    start: StartCluster, connect: Connect, size: int
) -> None:
    cluster = start()
    clients = [connect(cluster) for _ in range(8)]
    for turn in range(5):
        path = f"/{turn}"
        winners: list[int] = []
        ready = threading.Barrier(len(clients))

        def write(
            n: int,
            client: Client,
            *,
            path: str = path,
            winners: list[int] = winners,
            ready: threading.Barrier = ready,
        ) -> None:
            ready.wait()
            try:
                client.write(path, content(size, n))
            except AlreadyExists:
                return
            winners.append(n)

        together(*(lambda n=n, c=c: write(n, c) for n, c in enumerate(clients)))
        assert len(winners) == 1
        assert clients[0].read(path) == content(size, winners[0])


def test_readers_during_overwrites_see_whole_files_that_never_go_back(
    start: StartCluster, connect: Connect
) -> None:
    """Versions of all sizes: inline, packed, in several stripes."""
    cluster = start()
    sizes = [100, 3 * MIB, 20 * KIB, 150 * KIB, MIB + 1, 0]
    versions = [content(sizes[n % len(sizes)] + 8 * n, n) for n in range(60)]
    by_size = {len(data): n for n, data in enumerate(versions)}
    assert len(by_size) == len(versions)
    writer = connect(cluster)
    writer.write("/file", versions[0])
    done = threading.Event()

    def overwrite() -> None:
        try:
            for data in versions[1:]:
                writer.write("/file", data, overwrite=True)
        finally:
            done.set()

    def read(client: Client) -> None:
        newest, reads = 0, 0
        while not done.is_set() or not reads:
            data = client.read("/file")
            version = by_size[len(data)]
            assert data == versions[version], f"version {version} is torn"
            assert version >= newest, f"version {version} after {newest}"
            newest, reads = version, reads + 1

    readers = [connect(cluster) for _ in range(3)]
    together(overwrite, *(lambda reader=reader: read(reader) for reader in readers))
    assert writer.read("/file") == versions[-1]


@pytest.mark.parametrize("size", [100, 40 * KIB, 700 * KIB], ids=["100", "40K", "700K"])
def test_write_many_makes_all_files_visible_or_none(
    start: StartCluster, connect: Connect, size: int
) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    files = {f"/d/{n}": content(size, n) for n in range(12)}
    client.write("/d/7", b"in the way")
    with pytest.raises(AlreadyExists, match="/d/7"):
        client.write_many(files)
    assert [entry.path for entry in client.list("/d")] == ["/d/7"]
    assert client.read("/d/7") == b"in the way"
    client.write_many(files, overwrite=True)
    assert {path: client.read(path) for path in files} == files
    eventually(lambda: bytes_used(cluster) < 1.6 * 12 * size + 100 * KIB)


def test_a_listing_during_write_many_shows_all_or_none(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start()
    writer, reader = connect(cluster), connect(cluster)
    writer.mkdirs("/d")
    done = threading.Event()

    def write() -> None:
        try:
            for turn in range(30):
                size = (100, 20 * KIB, 200 * KIB)[turn % 3]
                writer.write_many({f"/d/{n}": content(size, n) for n in range(10)})
                assert writer.delete("/d", recursive=True)
                writer.mkdirs("/d")
        finally:
            done.set()

    def watch() -> None:
        seen = set()
        while not done.is_set():
            try:
                seen.add(len(list(reader.list("/d"))))
            except FileNotFoundError:
                continue
        assert seen <= {0, 10}

    together(write, watch)


def test_an_agent_asked_by_the_impatient_learns_that_the_voters_are_too_few(
    start: StartCluster,
) -> None:
    """Nobody waits for as long as it would wait for a leader that has frozen."""
    cluster = start()
    bystander = cluster.nodes[5]

    async def ask_for(patience_s: float) -> None:
        with contextlib.suppress(TimeoutError, Unavailable):
            await asyncio.wait_for(bystander.namespace.query(q.Stat("/")), patience_s)

    first = leader(cluster).slot
    frozen = {first, (first + 1) % 5, (first + 2) % 5}

    def cut() -> None:
        for slot, node in cluster.nodes.items():
            node.faults.cut_off(set(cluster.nodes) - {slot} if slot in frozen else frozen)

    def knows_why() -> bool:
        cluster.run(ask_for(0.6))
        return isinstance(on_loop(cluster, bystander.namespace.hindrance), NoQuorum)

    on_loop(cluster, cut)
    eventually(knows_why)
    for node in cluster.nodes.values():
        on_loop(cluster, node.faults.heal)
    eventually(lambda: not knows_why())
