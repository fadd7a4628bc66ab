"""Files larger than a segment: in parts on their way to the tier, there, and back."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from diskless.agent.chunks import CHUNK_BYTES
from diskless.agent.cold import CACHE_SHARE, cold_extent
from diskless.agent.uploader import IN_HAND_SHARE
from diskless.checksum import file_checksum
from diskless.config import MIB
from diskless.launch.local import LocalCluster
from diskless.model import Extent
from diskless.node import Node
from diskless.tier.address import open_store
from diskless.tier.chain import Chain
from diskless.tier.sweep import tidy
from diskless.tier.verify import Report, verify
from tests.cluster.test_eviction import CROWDED, evict
from tests.cluster.test_tier import Clusters, drained, hydrated, tier_of
from tests.support import BRISK, content, eventually, leader, of_leader, record_of

SIZE = 41 * MIB + 17
MEMORY = 128 * MIB
BORDERS = (16 * MIB, 32 * MIB)


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    found = Clusters(tmp_path / "tier")
    with found.stack:
        yield found


def parts_of(cluster: LocalCluster, path: str) -> list[tuple[int, int]]:
    """Start and size of each part that the tier has of a file."""

    def look(node: Node) -> list[tuple[int, int]]:
        state = node.replica.state
        parts = state.tier.parts(state.get(path).record.id)
        return [(part.start, part.size) for part in parts]

    return of_leader(cluster, look)


def verified(clusters: Clusters) -> Report:
    chain = Chain(open_store(clusters.uri), cluster="", name="", epoch=0)
    return asyncio.run(verify(chain, full=True))


def segments(clusters: Clusters) -> set[str]:
    return {path.name for path in (clusters.root / "segments").iterdir()}


def puts(clusters: Clusters) -> list[int]:
    """Which agents wrote segments, in order."""
    seen = clusters.watch.seen
    return [slot for slot, verb, name in seen if verb == "put" and name.startswith("segments/")]


def test_a_large_file_goes_to_the_tier_in_parts_and_comes_back_from_there(
    clusters: Clusters,
) -> None:
    data = content(SIZE, "large")
    cluster = clusters.start(watched=True, memory_bytes=MEMORY)
    client = clusters.connect(cluster)
    in_hand: list[int] = []
    request = clusters.watch.request

    async def watched(slot: int, verb: str, name: str) -> None:
        in_hand.append(max(node.memory.of("segments") for node in cluster.nodes.values()))
        await request(slot, verb, name)

    clusters.watch.request = watched  # type: ignore[method-assign]
    client.write("/large", data)
    drained(client)
    parts = [(0, 16 * MIB), (16 * MIB, 16 * MIB), (32 * MIB, 9 * MIB + 17)]
    assert parts_of(cluster, "/large") == parts
    assert len(puts(clusters)) == 3
    assert len(set(puts(clusters))) == 1, "one agent compares the whole"
    assert max(in_hand) == IN_HAND_SHARE * MEMORY == 2 * 16 * MIB, "no more than one part of it"
    assert verified(clusters).sound
    cluster.kill(*list(cluster.nodes))
    again = clusters.restore(memory_bytes=MEMORY)
    client = clusters.connect(again)
    for border in BORDERS:
        assert client.read("/large", offset=border - 5, length=10) == data[border - 5 : border + 5]
    assert client.read("/large") == data
    hydrated(client)
    assert parts_of(again, "/large") == parts, "it is still there too"
    client.delete("/large")
    client.write("/small", b"x")
    drained(client)
    assert verified(clusters).sound


def test_what_an_agent_has_in_hand_of_a_large_file_does_not_end_the_round(
    clusters: Clusters,
) -> None:
    """A part and its packed copy are half of this memory, and files more than another third."""
    cluster = clusters.start(watched=True, memory_bytes=MEMORY // 2)
    client = clusters.connect(cluster)
    client.write("/other", content(12 * MIB, "other"))
    drained(client)
    clusters.watch.seen.clear()
    request, seen = clusters.watch.request, asyncio.Event()
    leading = leader(cluster).leading
    assert leading is not None

    def sees_it() -> bool:
        pulses = leading.monitor.pulses.values()
        return any(pulse.bytes_used > 0.9 * pulse.bytes_max for pulse in pulses)

    async def slow(slot: int, verb: str, name: str) -> None:
        while verb == "put" and name.startswith("segments/") and not seen.is_set():
            if sees_it():
                await asyncio.sleep(3 * BRISK.janitor_interval_s)
                seen.set()
            await asyncio.sleep(0.01)
        await request(slot, verb, name)

    clusters.watch.request = slow  # type: ignore[method-assign]
    client.write("/large", content(56 * MIB, "large"))
    drained(client)
    assert seen.is_set()
    assert len(puts(clusters)) == 4, "each part of it once"


@pytest.mark.parametrize("part", [1, 2])
def test_an_agent_that_dies_between_two_parts_is_replaced(clusters: Clusters, part: int) -> None:
    data = content(SIZE, "large")
    cluster = clusters.start(watched=True, memory_bytes=MEMORY)
    client = clusters.connect(cluster)
    client.write("/first", b"1")
    drained(client)
    watch = clusters.watch
    watch.seen.clear()
    request, stopped = watch.request, asyncio.Event()

    async def stopping(slot: int, verb: str, name: str) -> None:
        await request(slot, verb, name)
        mine = verb == "put" and name.startswith("segments/") and name.endswith("-1")
        if mine and len(puts(clusters)) > part:
            stopped.set()
            await asyncio.Event().wait()  # until it dies

    watch.request = stopping  # type: ignore[method-assign]
    client.write("/large", data)
    eventually(stopped.is_set)
    victim = puts(clusters)[0]
    cluster.kill(victim)
    drained(client)
    assert len(parts_of(cluster, "/large")) == 3
    assert victim not in puts(clusters)[-3:], "all of it by another agent"
    report = verified(clusters)
    assert report.sound, report.problems
    assert report.files == 2
    store = open_store(clusters.uri)
    chain = Chain(store, cluster="", name="", epoch=0)

    async def collect() -> int:
        newest = await chain.newest()
        assert newest is not None
        return (await tidy(chain, newest, (), dry_run=False)).deleted

    assert asyncio.run(collect()) == part, "what the dead one had uploaded is garbage"
    assert verified(clusters).sound
    cluster.kill(*list(cluster.nodes))
    assert clusters.connect(clusters.restore(memory_bytes=MEMORY)).read("/large") == data


def test_a_thousand_readers_of_a_large_evicted_file_cost_one_download(clusters: Clusters) -> None:
    size = 22 * MIB
    data = content(size, "hot")
    cluster = clusters.start(watched=True, tuning=CROWDED, memory_bytes=1024 * MIB)
    assert size < 1024 * MIB * CACHE_SHARE, "else what was fetched is let go of, and fetched again"
    client = clusters.connect(cluster)
    client.write("/hot", data)
    drained(client)
    assert evict(cluster, "/hot") == 1
    record = record_of(cluster, "/hot")
    clusters.watch.seen.clear()

    async def read_everywhere() -> set[int]:
        async def one(number: int) -> int:
            """A part of it, as clients ask for it."""
            reader = cluster.nodes[number % len(cluster.nodes)].storage.reader
            start = number % 22 * MIB
            (part,) = await reader.read([Extent(cold_extent(record).stripe, start, MIB)])
            return file_checksum(part) ^ start

        return set(await asyncio.gather(*(one(number) for number in range(1000))))

    pieces = [data[at : at + MIB] for at in range(0, size, MIB)]
    expected = {file_checksum(piece) ^ n * MIB for n, piece in enumerate(pieces)}
    assert cluster.run(read_everywhere()) == expected
    gets = Counter(name for _, verb, name in clusters.watch.seen if verb == "get")
    assert len(gets) == 2, "two parts"
    assert gets.total() <= -(-size // CHUNK_BYTES), "no chunk twice, and no index of what is plain"
    assert client.read("/hot") == data


def test_a_large_file_that_is_not_what_was_written_never_reaches_the_tier(
    clusters: Clusters,
) -> None:
    """Each of its blocks verifies, and the whole does not, as after a fault of ours."""
    cluster = clusters.start(watched=True, memory_bytes=MEMORY)
    client = clusters.connect(cluster)
    clusters.watch.away = True
    client.write("/large", random.Random(1).randbytes(SIZE))
    client.write("/good", content(MIB, "good"))

    def damage(node: Node) -> None:
        file = node.replica.state.get("/large")
        first, second, *rest = file.record.extents
        file.record = replace(file.record, extents=(second, first, *rest))

    eventually(lambda: tier_of(client).state == "failing")  # no round of before is under way
    of_leader(cluster, damage)
    clusters.watch.away = False
    drained(client)
    assert tier_of(client).files_lost == 1
    assert parts_of(cluster, "/large") == []
    assert len(parts_of(cluster, "/good")) == 1
    assert verified(clusters).sound
