"""Memory is a cache of the tier: what it has leaves memory when that fills, and comes back when
somebody reads it; and more losses than k cost nothing that is within the horizon."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from diskless.agent.cold import cold_extent
from diskless.checksum import file_checksum
from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import (
    BadRequest,
    CapacityExceeded,
    DeadlineExceeded,
    DisklessError,
    NotFound,
    TooFewShards,
)
from diskless.launch.local import LocalCluster
from diskless.model import EvictionStatus
from diskless.namespace import commands as c
from diskless.namespace.tier import is_cold
from diskless.node import Node
from tests.cluster.test_tier import Clusters, drained, tier_of
from tests.support import (
    STRIPED,
    content,
    eventually,
    leader,
    of_leader,
    record_of,
)

MEMORY = 32 * MIB
CALM = replace(STRIPED, free_delay_s=3600.0)
CROWDED = replace(STRIPED, failure_timeout_s=30.0, fetch_timeout_s=30.0, store_timeout_s=30.0)
"""A thousand readers keep the one thread of all agents busy: none of these counts as dead for
it, or its chunks would be fetched by another."""


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    found = Clusters(tmp_path / "tier")
    with found.stack:
        yield found


def eviction_of(client: Client) -> EvictionStatus:
    return tier_of(client).eviction


def evict(cluster: LocalCluster, *paths: str, returns: bool = False) -> int:
    """Has the leader let go of these files' bytes, as it does when memory is full."""

    def rows(node: Node) -> tuple[tuple[int, int], ...]:
        records = [node.replica.state.get(path).record for path in paths]
        return tuple((record.id, record.layout) for record in records)

    evict = c.Evict(of_leader(cluster, rows), returns)
    return cluster.run(leader(cluster).namespace.run(evict)).number


def fill(client: Client, *, files: int, folder: str = "/") -> None:
    for number in range(files):
        client.write(f"{folder}{number}", content(2 * MIB, number))


def gets_of(clusters: Clusters) -> list[int]:
    """Who has read bytes of files in the tier; a leader also looks whether the chain is its own."""
    found = [(slot, name) for slot, verb, name in clusters.watch.seen if verb == "get"]
    return [slot for slot, name in found if name.startswith("segments/")]


def is_out(cluster: LocalCluster, path: str) -> bool:
    """Whether a file's bytes are in the tier alone."""
    return of_leader(cluster, lambda node: is_cold(node.replica.state.get(path).record))


# More than memory


def test_more_than_memory_is_written_and_read_back_and_no_writer_is_refused(
    clusters: Clusters,
) -> None:
    cluster = clusters.start(tuning=STRIPED, memory_bytes=MEMORY)
    client = clusters.connect(cluster)
    files = {f"/d/{number}": 2 * MIB + number for number in range(90)}
    assert sum(files.values()) > 2 * MEMORY * 4 / 1.5, "twice what fits"

    def write(path: str) -> None:
        with cluster.connect(timeout_s=60) as mine:
            mine.write(path, content(files[path], path))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, files))
    status = eviction_of(client)
    assert status.files > 0
    assert status.bytes > MEMORY
    for path, size in files.items():
        assert client.read(path) == content(size, path), path
    status = eviction_of(client)
    assert status.misses > 0
    assert status.hit_rate is not None
    assert status.hydration_ms is not None
    assert client.status().margin == 1


def test_without_a_tier_a_full_memory_refuses(clusters: Clusters) -> None:
    cluster = clusters._begin(tuning=STRIPED, memory_bytes=MEMORY)
    client = clusters.connect(cluster)
    with pytest.raises(CapacityExceeded):
        fill(client, files=90)
    assert client.read("/0") == content(2 * MIB, 0)


def test_what_may_not_be_in_the_tier_fills_memory_and_is_refused(clusters: Clusters) -> None:
    cluster = clusters.start(tuning=STRIPED, memory_bytes=MEMORY)
    client = clusters.connect(cluster)
    client.policies.set("/m", "durability", "memory")
    with pytest.raises((CapacityExceeded, DeadlineExceeded)):
        fill(client, files=90, folder="/m/")
    eventually(lambda: eviction_of(client).state == "stuck")
    with pytest.raises(CapacityExceeded):
        fill(client, files=20, folder="/m/last-")
    assert eviction_of(client).files == 0
    assert client.read("/m/0") == content(2 * MIB, 0)


def test_while_the_tier_is_away_writers_wait_and_nothing_is_evicted(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED, memory_bytes=MEMORY)
    client = clusters.connect(cluster, timeout_s=60.0)
    client.write("/first", content(MIB, "first"))
    drained(client)
    clusters.watch.away = True
    client.write("/second", b"2")
    eventually(lambda: tier_of(client).state == "failing")
    waiting = threading.Thread(target=lambda: fill(client, files=60))
    waiting.start()
    other = clusters.connect(cluster)
    eventually(lambda: eviction_of(other).state == "evicting")
    assert eviction_of(other).files == 0
    assert other.read("/first") == content(MIB, "first")
    clusters.watch.away = False
    waiting.join(60)
    assert not waiting.is_alive()
    assert eviction_of(other).files > 0
    for number in range(60):
        assert other.read(f"/{number}") == content(2 * MIB, number)


def test_who_waits_too_long_for_room_is_told_why(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED, memory_bytes=MEMORY)
    client = clusters.connect(cluster, timeout_s=9.0)
    clusters.watch.away = True
    with pytest.raises(DeadlineExceeded, match="MemoryFull: memory is full until more"):
        fill(client, files=60)


# What policies say


def checkpoint(client: Client, batches: int, path: str = "/q") -> None:
    for batch in range(batches):
        client.write(f"{path}/offsets/{batch}", b"offsets")
        client.write(f"{path}/state/0/0/{batch + 1}.delta", content(40 * KIB, (path, batch)))
        if batch % 10 == 9:
            client.write(f"{path}/state/0/0/{batch + 1}.snapshot", content(60 * KIB, batch))
        client.write(f"{path}/commits/{batch}", b"commits")


def test_only_what_a_restart_needs_of_a_checkpoint_stays_where_a_policy_says_so(
    clusters: Clusters,
) -> None:
    cluster = clusters.start(tuning=STRIPED)
    client = clusters.connect(cluster)
    client.policies.set("/q", "keep-in-memory", "2")
    client.policies.set("/q/state/0/0/3.delta", "pin", "yes")
    checkpoint(client, 35)
    checkpoint(client, 12, "/other")
    drained(client)
    # The 30th is the last full one: all since then is read by who starts again.
    gone = [f"/q/state/0/0/{n}.delta" for n in range(1, 30) if n != 3]
    gone += [f"/q/state/0/0/{n}.snapshot" for n in (10, 20)]
    eventually(lambda: all(is_out(cluster, path) for path in gone))
    stays = [f"/q/state/0/0/{n}.delta" for n in (3, *range(30, 36))]
    stays += ["/q/state/0/0/30.snapshot", "/q/commits/34", "/other/state/0/0/1.delta"]
    assert not [path for path in stays if is_out(cluster, path)]
    assert client.read("/q/state/0/0/1.delta") == content(40 * KIB, ("/q", 0))


def test_what_only_history_shows_leaves_memory_where_a_policy_says_so_and_can_be_returned_to(
    clusters: Clusters,
) -> None:
    cluster = clusters.start(tuning=STRIPED)
    client = clusters.connect(cluster)
    client.write("/q/metadata", b"{}")
    checkpoint(client, 3)
    client.policies.set("/q", "history", "every 1s keep 10m")
    client.policies.set("/q", "history-in", "tier")
    client.write("/q/commits/3", b"commits")

    def taken() -> list[str]:
        return [one.name for one in client.snapshots("/q") if one.name.startswith("history-")]

    eventually(taken)
    kept = taken()[0]
    client.snapshot("/q", "by-hand")
    old = [f"state/0/0/{n}.delta" for n in (1, 2, 3)]
    for name in old[1:]:
        client.delete(f"/q/{name}")
    drained(client)
    client.delete_snapshots("/q", "by-hand")
    shown = [f"/q/.snapshot/{kept}/{name}" for name in old]
    eventually(lambda: all(is_out(cluster, path) for path in shown[1:]))
    assert not is_out(cluster, shown[0]), "a path leads there"
    assert client.read(shown[1]) == content(40 * KIB, ("/q", 1))
    eventually(lambda: is_out(cluster, shown[1]))
    client.rollback("/q", kept)

    def is_back() -> bool:
        """It is read again and again, as by a query, and no more by way of the tier alone."""
        assert client.read(f"/q/{old[1]}") == content(40 * KIB, ("/q", 1))
        return not is_out(cluster, f"/q/{old[1]}")

    eventually(is_back)


def test_what_is_pinned_comes_back_and_only_then_is_the_tier_detached(clusters: Clusters) -> None:
    cluster = clusters.start(tuning=STRIPED)
    client = clusters.connect(cluster)
    for number in range(5):
        client.write(f"/{number}", content(300 * KIB, number))
    drained(client)
    assert evict(cluster, *(f"/{number}" for number in range(5))) == 5
    with pytest.raises(BadRequest, match=r"5 files have their bytes in .* pin=yes"):
        client.tier.detach()
    client.policies.set("/", "pin", "yes")
    eventually(lambda: not eviction_of(client).files)
    client.tier.detach()
    eventually(lambda: client.status().tier is None)
    for number in range(5):
        assert client.read(f"/{number}") == content(300 * KIB, number)


# Evicted files


def test_a_thousand_readers_of_an_evicted_file_cost_one_download(
    clusters: Clusters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diskless.agent.cold")  # it says why another one fetched it
    cluster = clusters.start(watched=True, tuning=CROWDED)
    client = clusters.connect(cluster)
    client.write_many({path: content(3 * MIB, path) for path in ("/hot", "/alike")})
    drained(client)  # of more than 4 MiB there are segments
    assert evict(cluster, "/hot", "/alike") == 2
    state = leader(cluster).replica.state

    async def read_everywhere(path: str, readers: int) -> set[int]:
        record = state.open(path)[0]

        async def one(number: int) -> int:
            node = cluster.nodes[number % len(cluster.nodes)]
            return file_checksum(b"".join(await node.storage.reader.read([cold_extent(record)])))

        return set(await asyncio.gather(*(one(number) for number in range(readers))))

    def readers_of(path: str, readers: int) -> list[int]:
        clusters.watch.seen.clear()
        data = content(3 * MIB, path)
        assert cluster.run(read_everywhere(path, readers)) == {file_checksum(data)}
        return gets_of(clusters)

    once = readers_of("/alike", 1)
    gets = readers_of("/hot", 1000)
    assert len(set(gets)) == 1, f"others ask the agent that fetches it: {clusters.watch.seen}"
    assert len(gets) == len(once) == 1


def test_a_lone_reader_has_one_agent_fetch_all_of_a_file(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster)
    client.policies.set("/q", "keep-in-memory", "1")  # so that it does not come back
    client.write_many({"/q/offsets/9": b"offsets", "/q/commits/9": b"commits"})
    data = {f"/q/state/0/0/{n}.zip": content(9 * MIB, n) for n in (1, 2, 3)}
    for path, each in data.items():
        client.write(path, each)
    drained(client)
    for path, each in data.items():
        eventually(lambda path=path: is_out(cluster, path))  # type: ignore[misc]
        clusters.watch.seen.clear()
        with client.open(path):
            assert not gets_of(clusters), "who is asked to open it need not be who reads it"
        assert client.read(path) == each
        gets = gets_of(clusters)
        assert len(set(gets)) == 1
        assert len(gets) == 3, "its chunks, each once"


def test_what_is_read_comes_back_into_memory(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster)
    for path, size in {"/small": 200 * KIB, "/large": 9 * MIB}.items():
        client.write(path, content(size, path))
    drained(client)
    assert evict(cluster, "/small", "/large") == 2
    assert client.read("/small") == content(200 * KIB, "/small")
    assert client.read("/large") == content(9 * MIB, "/large")
    eventually(lambda: not is_out(cluster, "/small") and not is_out(cluster, "/large"))
    clusters.watch.away = True
    assert client.read("/small") == content(200 * KIB, "/small")
    assert client.read("/large") == content(9 * MIB, "/large")


def test_a_file_that_is_evicted_while_it_is_read_is_read_on(clusters: Clusters) -> None:
    cluster = clusters.start(tuning=STRIPED)
    client = clusters.connect(cluster)
    data = content(9 * MIB)
    client.write("/f", data)
    drained(client)
    with client.open("/f") as file:
        assert file.read(1000) == data[:1000]
        before = of_leader(cluster, lambda node: node.replica.state.open("/f")[1])
        assert evict(cluster, "/f") == 1

        def is_dropped(node: Node) -> bool:
            return not any(s.id in node.replica.state.ledger.entries for s in before)

        eventually(lambda: of_leader(cluster, is_dropped))
        file.seek(5 * MIB)
        assert file.read() == data[5 * MIB :]


def test_evicted_files_are_renamed_replaced_deleted_and_kept_in_snapshots_like_others(
    clusters: Clusters,
) -> None:
    cluster = clusters.start(tuning=STRIPED)
    client = clusters.connect(cluster)
    for name in "abcd":
        client.write(f"/d/{name}", content(300 * KIB, name))
    client.snapshot("/d", "s")
    drained(client)
    assert evict(cluster, *(f"/d/{name}" for name in "abcd")) == 4
    client.rename("/d/a", "/moved")
    client.write("/d/b", b"new", overwrite=True)
    client.delete("/d/c")
    assert client.read("/moved") == content(300 * KIB, "a")
    assert client.read("/d/b") == b"new"
    with pytest.raises(NotFound):
        client.read("/d/c")
    client.clone("/d/.snapshot/s", "/e")
    for name in "abcd":
        assert client.read(f"/d/.snapshot/s/{name}") == content(300 * KIB, name)
        assert client.read(f"/e/{name}") == content(300 * KIB, name)
    client.delete("/e", recursive=True)
    drained(client)
    cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore())
    assert client.read("/moved") == content(300 * KIB, "a")
    assert client.read("/d/d") == content(300 * KIB, "d")


def test_nothing_beyond_the_horizon_is_evicted(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster)
    client.write("/old", content(300 * KIB, "old"))
    drained(client)
    clusters.watch.away = True
    client.write("/new", content(300 * KIB, "new"))
    assert evict(cluster, "/new", "/old") == 1
    assert is_out(cluster, "/old")
    assert client.read("/new") == content(300 * KIB, "new")
    clusters.watch.away = False
    assert client.read("/old") == content(300 * KIB, "old")


def test_hydration_goes_on_under_deletes_overwrites_and_leader_changes(clusters: Clusters) -> None:
    cluster = clusters.start(tuning=STRIPED)
    client = clusters.connect(cluster, timeout_s=60)
    paths = [f"/d/{number}" for number in range(60)]
    for path in paths:
        client.write(path, content(200 * KIB, path))
    client.snapshot("/d", "s")
    drained(client)
    assert evict(cluster, *paths, returns=True) == 60
    for number, path in enumerate(paths):
        if number % 3 == 0:
            client.delete(path)
        elif number % 3 == 1:
            client.write(path, content(100 * KIB, path), overwrite=True)
        if number == 30:
            cluster.kill(leader(cluster).slot)
    eventually(lambda: not tier_of(client).hydration.files_left, 60)
    for number, path in enumerate(paths):
        if number % 3 == 0:
            with pytest.raises(NotFound):
                client.read(path)
        else:
            size = 100 * KIB if number % 3 == 1 else 200 * KIB
            assert client.read(path) == content(size, path)
        assert client.read(path.replace("/d/", "/d/.snapshot/s/")) == content(200 * KIB, path)


@pytest.mark.parametrize("gets", [0, 3])
def test_a_store_that_stalls_amid_hydration_holds_nobody_up_but_who_wants_what_is_there(
    clusters: Clusters, gets: int
) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster)
    files = {"/d/small": 200 * KIB, "/d/large": 17 * MIB, "/d/gone": 9 * MIB, "/d/new": 9 * MIB}
    for path, size in files.items():
        client.write(path, content(size, path))
    client.write("/here", content(2 * MIB, "here"))
    drained(client)
    clusters.watch.gets_left = gets
    assert evict(cluster, *files, returns=True) == len(files)
    eventually(lambda: clusters.watch.gets_left < 0)  # type: ignore[operator]
    with cluster.connect(timeout_s=3) as hasty, pytest.raises(DisklessError):
        hasty.read("/d/large")
    assert client.read("/here") == content(2 * MIB, "here")
    client.write("/more", content(2 * MIB, "more"))
    client.delete("/d/gone")
    client.write("/d/new", content(2 * MIB, "new"), overwrite=True)
    for node in cluster.nodes.values():
        assert node.memory.by_kind()["replies"] <= 2 * 8 * MIB, "what is on its way is bounded"
    cluster.kill(leader(cluster).slot)  # and with it who brings files back
    clusters.watch.gets_left = None
    for path, size in {"/d/small": 200 * KIB, "/d/large": 17 * MIB}.items():
        assert client.read(path) == content(size, path)
    assert client.read("/d/new") == content(2 * MIB, "new")
    with pytest.raises(NotFound):
        client.read("/d/gone")
    eventually(lambda: not tier_of(client).hydration.files_left, 60)
    assert tier_of(client).files_lost == 0


def test_an_agent_that_the_store_does_not_answer_is_passed_over_by_who_waits_for_it(
    clusters: Clusters,
) -> None:
    cluster = clusters.start(watched=True, tuning=replace(STRIPED, fetch_timeout_s=3.0))
    client = clusters.connect(cluster)
    client.write_many({"/f": content(3 * MIB), "/more": content(3 * MIB, "more")})
    drained(client)  # of more than 4 MiB there are segments
    assert evict(cluster, "/f") == 1
    record = record_of(cluster, "/f")
    clusters.watch.silent_to = {1}
    clusters.watch.seen.clear()

    async def read() -> set[int]:
        first = asyncio.create_task(cluster.nodes[1].storage.reader.read([cold_extent(record)]))
        while not gets_of(clusters):
            await asyncio.sleep(0.01)
        others = [node for slot, node in cluster.nodes.items() if slot != 1]
        parts = await asyncio.gather(
            *(node.storage.reader.read([cold_extent(record)]) for node in others for _ in range(20))
        )
        clusters.watch.silent_to = set()
        return {file_checksum(b"".join(views)) for views in (*parts, await first)}

    assert cluster.run(read()) == {file_checksum(content(3 * MIB))}
    gets = gets_of(clusters)
    assert gets[0] == 1
    assert len(set(gets)) == 2, "one other has fetched it for all"


# Beyond k losses


def lose(cluster: LocalCluster, client: Client, *slots: int) -> None:
    cluster.kill(*slots)

    def known() -> bool:
        try:
            return sum(agent.state == "down" for agent in client.status().agents) == len(slots)
        except DisklessError:
            return False

    eventually(known)


def test_what_is_within_the_horizon_is_read_and_whole_again_after_more_than_k_losses(
    clusters: Clusters,
) -> None:
    cluster = clusters.start(tuning=STRIPED)
    client = clusters.connect(cluster, timeout_s=60)
    files = {"/small": 20 * KIB, "/d/middle": 700 * KIB, "/d/large": 6 * MIB}
    for path, size in files.items():
        client.write(path, content(size, path))
    client.snapshot("/d", "s")
    drained(client)
    lose(cluster, client, 2, 3)
    for path, size in files.items():
        assert client.read(path) == content(size, path), path

    def whole() -> bool:
        status = client.status()
        return (
            status.repair.lost == 0
            and status.stripes.lost == 0
            and status.stripes.degraded == 0
            and tier_of(client).hydration.files_left == 0
        )

    eventually(whole)
    clusters_away = clusters.root.rename(clusters.root.with_name("away"))
    for path, size in files.items():
        assert client.read(path) == content(size, path), path
    assert client.read("/d/.snapshot/s/large") == content(6 * MIB, "/d/large")
    clusters_away.rename(clusters.root)


def test_k_losses_ask_nothing_of_the_tier(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster)
    client.write("/f", content(6 * MIB))
    drained(client)  # of more than 4 MiB there are segments
    lose(cluster, client, 3)
    clusters.watch.seen.clear()
    assert client.read("/f") == content(6 * MIB)
    eventually(lambda: client.status().stripes.degraded == 0)
    assert not gets_of(clusters)


def test_what_is_beyond_the_horizon_is_lost_loudly_after_more_than_k_losses(
    clusters: Clusters,
) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster, timeout_s=10)
    client.write("/old", content(6 * MIB, "old"))
    drained(client)
    clusters.watch.away = True
    client.write("/new", content(6 * MIB, "new"))
    lose(cluster, client, 2, 3)
    eventually(lambda: client.status().repair.lost > 0)
    clusters.watch.away = False
    with pytest.raises((TooFewShards, DeadlineExceeded)):
        client.read("/new")
    assert client.read("/old") == content(6 * MIB, "old")


def test_more_than_k_losses_without_a_tier_are_lost_loudly(clusters: Clusters) -> None:
    cluster = clusters._begin(tuning=STRIPED)
    client = clusters.connect(cluster, timeout_s=10)
    client.write("/f", content(6 * MIB))
    lose(cluster, client, 2, 3)
    eventually(lambda: client.status().repair.lost > 0)
    with pytest.raises((TooFewShards, DeadlineExceeded)):
        client.read("/f")
