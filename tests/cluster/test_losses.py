"""Any k agents gone: every byte comes back. One more: an error that says what is missing.

Most losses here are shards that vanish while their agent goes on answering, so that one
cluster serves for every combination, agent-0 included; some are agents really killed.
Which files can still be read is worked out from where the namespace says that their
shards are.
"""

import asyncio
import random
import re
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations

import pytest

from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import DeadlineExceeded, TooFewAgents, TooFewShards
from diskless.launch.local import LocalCluster
from diskless.model import FileRecord, Stripe, slot_name
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    bulk_gateway,
    content,
    hidden_shards,
    kill,
    leader,
    needed_shards,
    record_of,
    start_cluster,
    stripes_of,
    wait_until_down,
)

SIZES = [
    0, 1, 100, 4 * KIB, 64 * KIB, 65 * KIB, MIB - 1, MIB, MIB + 1, 3 * MIB + MIB // 2,
]  # fmt: skip
PACKED = {f"/packed/{n:02}": content(20 * KIB, n) for n in range(60)}
FILES = {f"/of-{size}": content(size) for size in SIZES} | PACKED

SHAPES = {(4, 2): 6, (2, 1): 3, (1, 2): 5, (3, 2): 5}
"""Agents by shape; with more than m+k of them, stripes lie on some only."""

ERROR = re.compile(
    r"stripe (\S+): (\d+) of (\d+) required shards readable \(gone: (agent-\d+(?:, agent-\d+)*)\)"
)


class Loaded:
    """A cluster with files in it, and the knowledge where they are."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        for path in FILES.keys() - PACKED.keys():
            self.client.write(path, FILES[path])
        self.client.write_many(PACKED)
        self.records = {path: record_of(cluster, path) for path in FILES}
        self.stripes = {s.id: s for path in FILES for s in stripes_of(cluster, path)}

    def is_readable(self, path: str, lost: Collection[int]) -> bool:
        """Whether the shards that are left hold the file, or enough to rebuild it."""
        record = self.records[path]
        stripes = [self.stripes[extent.stripe] for extent in record.extents]
        return all(_is_readable(stripe, record, lost) for stripe in stripes)

    def check_reads(self, lost: Collection[int]) -> int:
        """Reads everything with `lost` gone; returns how many files could not be had."""
        refused = 0
        for path, expected in FILES.items():
            if self.is_readable(path, lost):
                assert self.client.read(path) == expected, f"{path} without {lost}"
            else:
                refused += 1
                with pytest.raises(TooFewShards) as caught:
                    self.client.read(path)
                self.check_error(caught.value, path, lost)
        return refused

    def check_error(self, error: TooFewShards, path: str, lost: Collection[int]) -> None:
        """It names a stripe of the file, counts its shards, and says who is gone."""
        found = ERROR.search(str(error))
        assert found is not None, f"{path} without {lost}: {error}"
        stripe = self.stripes[found[1]]
        assert stripe.id in {extent.stripe for extent in self.records[path].extents}
        gone = sorted({place.slot for place in stripe.places} & set(lost))
        left = len(stripe.places) - len(gone)
        assert (int(found[2]), int(found[3])) == (left, stripe.data_shards)
        assert found[4].split(", ") == [slot_name(slot) for slot in gone]


def _is_readable(stripe: Stripe, record: FileRecord, lost: Collection[int]) -> bool:
    left = {index for index, place in enumerate(stripe.places) if place.slot not in lost}
    return len(left) >= stripe.data_shards or needed_shards(stripe, record) <= left


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}+{shape[1]}")
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    m, k = request.param
    with (
        start_cluster(agents=SHAPES[m, k], data_shards=m, parity_shards=k, tuning=CALM) as cluster,
        cluster.connect() as client,
    ):
        yield Loaded(cluster, client)


def losses(loaded: Loaded, count: int) -> Iterator[tuple[int, ...]]:
    return combinations(range(loaded.cluster.settings.agents), count)


# Every combination


def test_every_file_survives_every_loss_of_k_agents(loaded: Loaded) -> None:
    k = loaded.cluster.settings.parity_shards
    for lost in losses(loaded, k):
        with hidden_shards(loaded.cluster, *lost):
            assert loaded.check_reads(lost) == 0


def test_every_loss_of_one_more_fails_loudly_or_reads_right(loaded: Loaded) -> None:
    """A file whose own data shards are all left is still read; no other one is."""
    settings = loaded.cluster.settings
    spread = settings.agents > settings.data_shards + settings.parity_shards
    for lost in losses(loaded, settings.parity_shards + 1):
        with hidden_shards(loaded.cluster, *lost):
            refused = loaded.check_reads(lost)
        if not spread:
            # Stripes lie on every agent, so no file that fills one can be read.
            large = [path for path in FILES if len(FILES[path]) >= MIB - 1]
            assert not any(loaded.is_readable(path, lost) for path in large)
            assert refused >= len(large)


def test_a_slow_shard_is_read_when_it_is_all_that_is_left_of_a_file(
    start: StartCluster, connect: Connect
) -> None:
    """Every shard is slow here. Others are asked too, and are gone: k+1 of them."""
    cluster = start(tuning=replace(CALM, hedge_delay_s=1e-6))
    loaded = Loaded(cluster, connect(cluster))
    for lost in losses(loaded, cluster.settings.parity_shards + 1):
        with hidden_shards(cluster, *lost):
            assert loaded.check_reads(lost) < len(FILES)


def test_every_byte_range_survives_every_loss_of_k_agents(loaded: Loaded) -> None:
    path = f"/of-{SIZES[-1]}"
    whole = FILES[path]
    chance = random.Random("ranges")
    for lost in losses(loaded, loaded.cluster.settings.parity_shards):
        with hidden_shards(loaded.cluster, *lost):
            for _ in range(8):
                at = chance.randrange(len(whole))
                length = min(int(2 ** chance.uniform(0, 21)), len(whole) - at)
                found = loaded.client.read(path, at, length)
                assert found == whole[at : at + length], f"{lost} {at} {length}"


def test_every_agent_can_serve_a_degraded_read(loaded: Loaded) -> None:
    """Whichever gateway a client has, and whatever shards lie behind it."""
    path = f"/of-{SIZES[-1]}"
    record = loaded.records[path]
    for lost in losses(loaded, loaded.cluster.settings.parity_shards):
        with hidden_shards(loaded.cluster, *lost):
            for node in loaded.cluster.nodes.values():
                parts = loaded.cluster.run(node.storage.reader.read(record.extents))
                assert b"".join(parts) == FILES[path]


# Agents that really die


@pytest.mark.parametrize("lost", [(0, 1), (2, 5), (3, 4)], ids=str)
def test_files_survive_the_death_of_two_of_six(
    start: StartCluster, connect: Connect, lost: tuple[int, ...]
) -> None:
    cluster = start(tuning=CALM)
    loaded = Loaded(cluster, connect(cluster))
    loaded.cluster.kill(*lost)
    assert loaded.check_reads(lost) == 0  # while nobody has been told yet
    wait_until_down(loaded.cluster, *lost)
    assert loaded.check_reads(lost) == 0


@pytest.mark.parametrize("lost", [(0, 2, 5), (1, 3, 5)], ids=str)
def test_the_death_of_three_of_six_is_said_loudly(
    start: StartCluster, connect: Connect, lost: tuple[int, ...]
) -> None:
    cluster = start(tuning=CALM)
    loaded = Loaded(cluster, connect(cluster))
    loaded.cluster.kill(*lost)
    assert loaded.check_reads(lost) > 0
    wait_until_down(loaded.cluster, *lost)
    assert loaded.check_reads(lost) > 0
    assert loaded.client.status().margin == -1


def test_an_agent_that_came_back_empty_is_lost_for_old_files_until_they_are_repaired(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=CALM)
    loaded = Loaded(cluster, connect(cluster))
    kill(loaded.cluster, 1, 4)
    loaded.cluster.revive(1, 4)
    assert loaded.check_reads((1, 4)) == 0
    kill(loaded.cluster, 2)
    assert loaded.check_reads((1, 2, 4)) > 0


def test_inline_files_survive_every_loss_of_shards(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=replace(CALM, inline_bytes_max=64 * KIB))
    client = connect(cluster)
    files = {f"/{size}": content(size) for size in (0, 1, 100, 4 * KIB, 64 * KIB)}
    for path, data in files.items():
        client.write(path, data)
        assert record_of(cluster, path).inline == data
    with hidden_shards(cluster, *cluster.nodes):
        assert {path: client.read(path) for path in files} == files


# Writing while agents are down


@pytest.mark.parametrize(
    ("dead", "width"), [((), 4), ((3,), 3), ((0, 5), 2), ((0, 4, 5), 1)], ids=str
)
def test_a_stripe_is_narrower_with_agents_down_and_survives_two_further_losses(
    start: StartCluster, connect: Connect, dead: tuple[int, ...], width: int
) -> None:
    cluster = start(tuning=CALM)
    client = connect(cluster)
    kill(cluster, *dead)
    files = {f"/{size}": content(size) for size in (100, 70 * KIB, 3 * MIB + 5)}
    for path, data in files.items():
        client.write(path, data)
        for stripe in stripes_of(cluster, path):
            assert (stripe.data_shards, stripe.parity_shards) == (width, 2)
            assert not {place.slot for place in stripe.places} & set(dead)
    for lost in combinations(cluster.nodes, 2):
        with hidden_shards(cluster, *lost):
            assert {path: client.read(path) for path in files} == files
    with hidden_shards(cluster, *list(cluster.nodes)[:3]), pytest.raises(TooFewShards):
        client.read(f"/{3 * MIB + 5}")


def test_writes_are_refused_with_fewer_than_k_plus_1_agents(
    start: StartCluster, connect: Connect
) -> None:
    """With k+1 agents left the voters among them are no majority any more."""
    cluster = start(agents=7, data_shards=1, parity_shards=2, tuning=CALM)
    client = connect(cluster)
    kill(cluster, 3, 4, 5, 6)
    client.write("/enough", content(2 * MIB))
    impatient = connect(cluster, timeout_s=4.0)
    cluster.kill(2)
    with ThreadPoolExecutor() as pool:  # each waits for its whole time
        writes = [
            pool.submit(impatient.write, f"/too-few-{size}", content(size))
            for size in (1, 100 * KIB, 2 * MIB)
        ]
    for write in writes:
        with pytest.raises((TooFewAgents, DeadlineExceeded)):
            write.result()


def test_a_target_found_dead_is_replaced(start: StartCluster, connect: Connect) -> None:
    """Nobody has told the writer yet: it learns from the refused connection."""
    cluster = start(agents=10, tuning=replace(CALM, failure_timeout_s=60.0))
    client = connect(cluster)
    client.write("/warm", content(8 * MIB))  # every stream is open
    cluster.kill(3, 6)
    client.write("/after", content(8 * MIB, 1))
    assert all(agent.up for agent in leader(cluster).roster.agents.values()), "told too early"
    for stripe in stripes_of(cluster, "/after"):
        assert stripe.data_shards == 4
        assert not {place.slot for place in stripe.places} & {3, 6}
    assert client.read("/after") == content(8 * MIB, 1)
    assert client.read("/warm") == content(8 * MIB)


def test_a_target_that_dies_in_the_middle_of_a_scatter_is_replaced(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=10, tuning=CALM)
    client = connect(cluster)
    gateway = bulk_gateway(cluster, client)
    victims = [slot for slot in range(1, 8) if slot != gateway][:2]
    data = content(48 * MIB)
    shards = cluster.nodes[0].storage.shards
    watched = threading.Event()

    async def kill_meanwhile() -> None:
        """Where the agents run: it is not late, whoever else is."""
        watched.set()
        for slot in victims:
            seen = len(shards)
            while len(shards) <= seen + 3:
                await asyncio.sleep(0)
            await cluster.nodes.pop(slot).stop()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(cluster.run, kill_meanwhile())
        assert watched.wait(60)
        client.write("/large", data)
        killing.result()
    assert client.read("/large") == data
    # What was sealed after the deaths is on living agents, and as wide as ever.
    last = stripes_of(cluster, "/large")[-1]
    assert last.data_shards == 4
    assert not {place.slot for place in last.places} & set(victims)
