"""Whole files near those who read them: copies serve the same bytes as shards, and give way."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import diskless
from diskless.agent.copies import Copies, Run
from diskless.agent.ports import CopyCounts
from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import CapacityExceeded, NotFound, TooFewShards
from diskless.launch.local import LocalCluster
from diskless.protocol import messages as m
from tests.cluster.test_eviction import evict, eviction_of
from tests.cluster.test_tier import Clusters, drained
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    connect_to_follower,
    content,
    eventually,
    is_whole,
    kill,
    on_loop,
    stripes_of,
)

SIZE = 3 * MIB + 5000
PREFETCH = 64 * KIB
"""What an opening brings, by way of the leader."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with diskless.local_cluster(chaos=True, tuning=STRIPED, cache="10%") as cluster:
        yield cluster


@pytest.fixture
def connect_here(cluster: LocalCluster) -> Iterator[Connect]:
    clients: list[Client] = []

    def begin(cluster: LocalCluster) -> Client:
        clients.append(cluster.connect())
        return clients[-1]

    yield begin
    for client in clients:
        client.close()


@pytest.fixture
def near(cluster: LocalCluster, connect_here: Connect) -> tuple[Client, int]:
    """A client, and the agent that its bulk goes through: not the leader. Clients go round agents
    that seem slow, as they do when they have just started on a busy machine."""
    eventually(lambda: is_whole(connect_here(cluster), cluster.settings.agents), every_s=0.2)
    return connect_to_follower(cluster, connect_here)


def copies_of(cluster: LocalCluster, slot: int) -> Copies:
    copies = cluster.nodes[slot].storage.copies
    assert copies is not None
    return copies


def counts(cluster: LocalCluster, slot: int) -> CopyCounts:
    return on_loop(cluster, copies_of(cluster, slot).counts)


def kept(cluster: LocalCluster, slot: int, ids: list[str]) -> list[str]:
    """Which of these stripes an agent has something of."""
    copies = copies_of(cluster, slot)
    return on_loop(cluster, lambda: [id_ for id_ in ids if id_ in copies._stripes])


def ids_of(cluster: LocalCluster, path: str) -> list[str]:
    return [stripe.id for stripe in stripes_of(cluster, path)]


def elsewhere(cluster: LocalCluster, path: str, slot: int) -> int:
    """How many bytes of a file other agents hold, but for the first ones."""
    found = 0
    for stripe in stripes_of(cluster, path):
        size = -(-stripe.payload_bytes // stripe.data_shards)
        for index, place in enumerate(stripe.places[: stripe.data_shards]):
            held = min(size, stripe.payload_bytes - index * size)
            found += held if place.slot != slot else 0
    return found - PREFETCH


def check_read(client: Client, path: str, data: bytes) -> None:
    """All of it, and some parts."""
    assert client.read(path) == data
    with client.open(path, "rb") as file:
        for at in (100 * KIB, len(data) // 2, len(data) - 10):
            file.seek(at)
            assert file.read(20 * KIB) == data[at : at + 20 * KIB]


def test_what_was_written_here_is_read_from_here(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, slot = near
    data = content(SIZE, "written")
    client.write("/written", data)
    before = counts(cluster, slot)
    check_read(client, "/written", data)
    after = counts(cluster, slot)
    assert after.misses == before.misses
    assert after.bytes_hit - before.bytes_hit >= elsewhere(cluster, "/written", slot)


def test_what_was_read_here_is_read_from_here_again_and_status_tells_it(
    cluster: LocalCluster, near: tuple[Client, int], connect_here: Connect
) -> None:
    writer, other = near
    client, slot = connect_to_follower(cluster, connect_here, but_not=other)
    data = content(SIZE, "read")
    writer.write("/read", data)
    before = counts(cluster, slot)
    assert client.read("/read") == data
    first = counts(cluster, slot)
    assert first.hits == before.hits
    assert first.bytes_missed - before.bytes_missed >= elsewhere(cluster, "/read", slot)
    check_read(client, "/read", data)
    again = counts(cluster, slot)
    assert again.misses == first.misses
    assert again.bytes_hit - first.bytes_hit >= elsewhere(cluster, "/read", slot)
    eventually(lambda: client.status().copies.bytes_hit >= again.bytes_hit)
    status = client.status()
    assert status.copies.bytes_max == 6 * cluster.settings.cache_bytes
    assert status.copies.bytes == sum(agent.memory["copies"] for agent in status.agents) > 0
    for agent in status.agents:
        assert agent.bytes_used == sum(agent.memory.values()) - agent.memory["copies"]


def test_an_overwritten_file_is_the_new_one_and_who_reads_the_old_one_goes_on(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, _ = near
    old, new = content(SIZE, "old"), content(SIZE, "new")
    client.write("/over", old)
    check_read(client, "/over", old)
    with client.open("/over", "rb") as file:
        assert file.read(10) == old[:10]
        client.write("/over", new, overwrite=True)
        check_read(client, "/over", new)
        with suppress(NotFound):  # if its bytes have been freed meanwhile
            file.seek(MIB)
            assert file.read(MIB) == old[MIB : 2 * MIB]


def test_a_deleted_file_is_gone_and_its_copies_go_with_its_shards(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, slot = near
    client.write("/deleted", content(SIZE, "deleted"))
    ids = ids_of(cluster, "/deleted")
    assert kept(cluster, slot, ids) == ids
    client.delete("/deleted")
    with pytest.raises(NotFound):
        client.read("/deleted")
    eventually(lambda: not kept(cluster, slot, ids))


def test_a_snapshot_is_read_from_the_copies_of_what_it_shows(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, slot = near
    old, new = content(SIZE, "before"), content(SIZE, "after")
    client.write("/s/a", old)
    client.snapshot("/s", name="one")
    client.write("/s/a", new, overwrite=True)
    before = counts(cluster, slot)
    check_read(client, "/s/.snapshot/one/a", old)
    check_read(client, "/s/a", new)
    after = counts(cluster, slot)
    assert after.misses == before.misses
    assert after.bytes_hit - before.bytes_hit >= (
        elsewhere(cluster, "/s/a", slot) + elsewhere(cluster, "/s/.snapshot/one/a", slot)
    )


def test_a_damaged_copy_is_read_from_shards_and_replaced(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, slot = near
    data = content(SIZE, "damaged")
    client.write("/damaged", data)
    ids, copies = ids_of(cluster, "/damaged"), copies_of(cluster, slot)

    def damage() -> set[str]:
        done = set()
        for id_ in ids:
            for runs in copies._stripes[id_].runs.values():
                bad = bytearray(runs[0].data)
                bad[len(bad) // 2] ^= 0x10
                runs[0] = Run(runs[0].first, memoryview(bytes(bad)), runs[0].checksums)
                done.add(id_)
        return done

    damaged = on_loop(cluster, damage)
    assert damaged
    before = counts(cluster, slot)
    assert client.read("/damaged") == data
    after = counts(cluster, slot)
    assert after.corrupt - before.corrupt == len(damaged), "all of a stripe's go with the first"
    check_read(client, "/damaged", data)
    assert counts(cluster, slot).misses == after.misses
    eventually(lambda: client.status().copies.corrupt >= len(damaged))
    assert sum(node.storage.reader.corrupt_shards_seen for node in cluster.nodes.values()) == 0


def test_a_file_of_more_than_half_the_cache_leaves_nothing_there(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, slot = near
    size = cluster.settings.cache_bytes // 2 + MIB
    data = content(size, "large")
    client.write("/large", data)
    ids = ids_of(cluster, "/large")
    assert not kept(cluster, slot, ids)
    assert client.read("/large") == data
    with client.open("/large", "rb") as file:
        assert file.read(2 * MIB) == data[: 2 * MIB]
    assert not [s for n in cluster.nodes for s in kept(cluster, n, ids)]


def test_what_the_agents_do_by_themselves_leaves_no_copies(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    """Files that are packed anew lie in other stripes: nobody has asked for these."""
    client, _ = near
    files = {f"/packed/{n}": content(100 * KIB, n) for n in range(10)}
    client.write_many(files)
    before = ids_of(cluster, "/packed/0")
    for number in range(1, 9):
        client.delete(f"/packed/{number}")
    eventually(lambda: ids_of(cluster, "/packed/0") != before)
    fresh = ids_of(cluster, "/packed/0")
    assert not [s for n in cluster.nodes for s in kept(cluster, n, fresh)]
    assert client.read("/packed/0") == files["/packed/0"]


def test_who_asks_for_places_hears_who_has_a_copy(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, slot = near
    client.write("/placed", content(SIZE, "placed"))
    for places in (True, False):
        asked = m.Open("/placed", 0, places)
        opened = client._caller.call(m.Kind.OPEN, asked, what="open").meta
        assert isinstance(opened, m.Opened)
        assert opened.near == (slot if places else None)


# Memory


def test_copies_are_the_first_to_go_and_reads_go_on(
    cluster: LocalCluster, near: tuple[Client, int]
) -> None:
    client, slot = near
    data = content(SIZE, "pressed")
    client.write("/pressed", data)
    ids, node = ids_of(cluster, "/pressed"), cluster.nodes[slot]

    def press(count: int) -> int:
        node.faults.ballast_bytes = count
        assert node.memory.used <= max(node.memory.bytes_max * 7 / 8, sum(node.memory.sums()))
        return node.memory.of("copies")

    assert on_loop(cluster, lambda: press(node.memory.bytes_max * 7 // 8)) == 0
    assert not kept(cluster, slot, ids)
    assert client.read("/pressed") == data
    assert not kept(cluster, slot, ids)
    on_loop(cluster, lambda: press(0))
    assert client.read("/pressed") == data
    assert kept(cluster, slot, ids) == ids


def test_a_cluster_takes_as_much_with_copies_as_without(
    start: StartCluster, connect: Connect
) -> None:
    taken = {}
    for cache in ("0", "50%"):
        cluster = start(memory="16MiB", tuning=STRIPED, cache=cache)
        client = connect(cluster)
        with suppress(CapacityExceeded):
            for number in range(200):
                client.write(f"/{number}", content(MIB, number))
                taken[cache] = number
                if number % 8 == 0:
                    client.read(f"/{number // 2}")
        accounts = [node.memory for node in cluster.nodes.values()]
        assert on_loop(cluster, lambda a=accounts: max(m.used / m.bytes_max for m in a)) <= 1.125
        assert client.read("/0") == content(MIB, 0)
        assert client.delete("/0")
    assert taken["50%"] >= taken["0"] - 1


def test_no_cache_is_no_cache(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=CALM, cache="0")
    client = connect(cluster)
    client.write("/a", content(SIZE))
    assert client.read("/a") == client.read("/a") == content(SIZE)
    assert [node.storage.copies for node in cluster.nodes.values()] == [None] * 6
    assert client.status().copies.bytes_max == 0
    assert all(agent.memory["copies"] == 0 for agent in client.status().agents)


# Losses


def test_copies_spare_reads_a_loss_and_count_in_no_promise(
    start: StartCluster, connect: Connect
) -> None:
    """With k losses nothing is reconstructed that is copied; with one more, who has no copy fails
    loudly, whatever others have."""
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=CALM, cache="25%")
    near, slot = connect_to_follower(cluster, connect, but_not=3)
    data = content(8 * MIB, "lost")
    near.write("/lost", data)
    far = connect(cluster)
    while far._caller._routes.pick(bulk=True, now=0.0).slot != 0:
        far = connect(cluster)
    kill(cluster, 3)
    degraded = cluster.nodes[slot].storage.reader.degraded_reads
    assert near.read("/lost") == data
    assert cluster.nodes[slot].storage.reader.degraded_reads == degraded
    with near.open("/lost", "rb") as file:  # the first bytes come from the leader
        kill(cluster, 3 - slot)
        file.seek(MIB)
        assert file.read(7 * MIB) == data[MIB:]
    assert near.status().stripes.lost > 0
    with pytest.raises(TooFewShards):
        far.read("/lost")


# The tier, and TLS


def test_an_evicted_file_is_read_from_the_tier_and_not_from_copies(tmp_path: Path) -> None:
    key = tmp_path / "tier.key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    clusters = Clusters(tmp_path / "tier")
    with clusters.stack:
        cluster = clusters.start(tuning=STRIPED, cache="25%", tier_key=str(key))
        client = clusters.connect(cluster)
        data = content(SIZE, "evicted")
        client.write("/evicted", data)
        drained(client)
        assert evict(cluster, "/evicted") == 1
        hits = sum(counts(cluster, slot).hits for slot in cluster.nodes)
        misses = eviction_of(client).misses
        assert client.read("/evicted") == data
        assert sum(counts(cluster, slot).hits for slot in cluster.nodes) == hits
        eventually(lambda: eviction_of(client).misses > misses)
        eventually(lambda: not client.status().tier.hydration.files_left)  # type: ignore[union-attr]
        assert client.read("/evicted") == client.read("/evicted") == data


def test_copies_serve_clients_that_come_by_tls(start: StartCluster, connect: Connect) -> None:
    cluster = start(agents=3, data_shards=2, parity_shards=1, tuning=CALM, cache="25%", tls=True)
    client, slot = connect_to_follower(cluster, connect)
    data = content(SIZE, "tls")
    client.write("/tls", data)
    before = counts(cluster, slot)
    check_read(client, "/tls", data)
    after = counts(cluster, slot)
    assert after.misses == before.misses
    assert after.bytes_hit > before.bytes_hit
