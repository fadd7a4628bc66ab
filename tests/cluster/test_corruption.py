"""Damaged shards never yield wrong bytes: they count as missing, and are counted."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from diskless.checksum import BLOCK_BYTES, block_checksums, file_checksum, seed
from diskless.client import Client
from diskless.client.upload import Upload
from diskless.config import KIB, MIB
from diskless.errors import CorruptData, TooFewShards
from diskless.launch.local import LocalCluster
from diskless.model import Stripe
from diskless.protocol.messages import NewFile
from tests.support import (
    CALM,
    ShardAt,
    content,
    flipped,
    leader,
    needed_shards,
    on_loop,
    record_of,
    shards_stored,
    start_cluster,
    stripes_of,
)

M, K = 4, 2
TOTAL = M + K
FILES = {
    "/one-byte": content(1),
    "/small": content(20 * KIB),
    "/padded": content(MIB - 50_001),  # shards end within a block, the last in padding
    "/full": content(MIB),
}
LARGE = {"/padded", "/full"}
"""These have bytes in every data shard."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_cluster(data_shards=M, parity_shards=K, tuning=CALM) as cluster:
        with cluster.connect() as client:
            for path, data in FILES.items():
                client.write(path, data)
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.connect() as client:
        yield client


def shards_of(cluster: LocalCluster, path: str) -> list[ShardAt]:
    (stripe,) = stripes_of(cluster, path)
    return on_loop(cluster, lambda: [ShardAt(cluster, stripe, n) for n in range(TOTAL)])


def corrupt_seen(cluster: LocalCluster) -> int:
    return sum(node.storage.reader.corrupt_shards_seen for node in cluster.nodes.values())


def bits_of(shard: ShardAt) -> list[int]:
    """Bits at the ends, at both sides of every block's edge, and some by chance."""
    size = 8 * len(shard.data)
    edges = range(0, size, 8 * BLOCK_BYTES)
    chance = random.Random(size)
    picked = {0, size - 1, *edges, *(at - 1 for at in edges if at)}
    return sorted(picked | {chance.randrange(size) for _ in range(4)})


# Flipped bits


@pytest.mark.parametrize("path", FILES)
def test_a_flipped_bit_anywhere_in_any_shard_is_read_around(
    cluster: LocalCluster, client: Client, path: str
) -> None:
    needed = needed_shards(stripes_of(cluster, path)[0], record_of(cluster, path))
    for index, shard in enumerate(shards_of(cluster, path)):
        bits = bits_of(shard) if index in needed else [0]
        for bit in bits:
            before = corrupt_seen(cluster)
            shard.flip(bit)
            assert client.read(path) == FILES[path], f"shard {index}, bit {bit}"
            shard.restore()
            assert (corrupt_seen(cluster) > before) == (index in needed), f"{index}, bit {bit}"


@pytest.mark.parametrize("path", FILES)
def test_flipped_bits_in_any_k_shards_at_once_are_read_around(
    cluster: LocalCluster, client: Client, path: str
) -> None:
    shards = shards_of(cluster, path)
    for count in range(1, K + 1):
        for chosen in combinations(shards, count):
            for shard in chosen:
                shard.flip(len(shard.data) * 4)
            assert client.read(path) == FILES[path]
            for shard in chosen:
                shard.restore()


@pytest.mark.parametrize("path", FILES)
def test_flipped_bits_in_k_plus_1_shards_fail_loudly(
    cluster: LocalCluster, client: Client, path: str
) -> None:
    """All but a file whose own bytes are all in good shards."""
    shards = shards_of(cluster, path)
    (stripe,) = stripes_of(cluster, path)
    needed = needed_shards(stripe, record_of(cluster, path))
    for bad in combinations(range(TOTAL), K + 1):
        for index in bad:
            shards[index].flip(len(shards[index].data) * 8 - 1)
        if needed & set(bad):
            with pytest.raises(TooFewShards, match=f"stripe {stripe.id}: 3 of 4 required"):
                client.read(path)
        else:
            assert path not in LARGE
            assert client.read(path) == FILES[path]
        for index in bad:
            shards[index].restore()


def test_a_damaged_block_is_read_around_and_the_good_ones_beside_it_are_read(
    cluster: LocalCluster, client: Client
) -> None:
    """Damage costs the block that it is in: all shards may be damaged in different ones."""
    data, shards = FILES["/full"], shards_of(cluster, "/full")
    for index, shard in enumerate(shards):
        shard.flip(8 * BLOCK_BYTES * index)
    for block in range(len(data) // BLOCK_BYTES):
        at = block * BLOCK_BYTES
        assert client.read("/full", at, BLOCK_BYTES) == data[at : at + BLOCK_BYTES]
    for shard in shards:
        shard.restore()


# Other damage


@pytest.mark.parametrize("path", sorted(LARGE))
@pytest.mark.parametrize(
    "damage",
    [
        lambda data, sums: (data, flipped(sums, 5)),
        lambda data, sums: (data[:-1], sums),
        lambda data, sums: (data[: 2 * BLOCK_BYTES], sums[:16]),
        lambda data, sums: (b"\0" + data, sums),
        lambda data, sums: (b"", b""),
        lambda data, sums: (bytes(len(data)), sums),
        lambda data, sums: (data[BLOCK_BYTES:] + data[:BLOCK_BYTES], sums[8:] + sums[:8]),
    ],
    ids=["checksum", "cut", "blocks-lost", "longer", "empty", "zeros", "blocks-moved"],
)
def test_any_damage_to_k_shards_is_read_around_and_to_one_more_fails_loudly(
    cluster: LocalCluster, client: Client, path: str, damage: object
) -> None:
    assert callable(damage)
    shards = shards_of(cluster, path)
    for bad in combinations(shards, K):
        for shard in bad:
            shard.replace(*damage(shard.data, shard.checksums))
        assert client.read(path) == FILES[path]
        for shard in bad:
            shard.restore()
    for shard in shards[: K + 1]:
        shard.replace(*damage(shard.data, shard.checksums))
    with pytest.raises(TooFewShards):
        client.read(path)
    for shard in shards:
        shard.restore()


def test_shards_swapped_within_a_stripe_are_noticed(cluster: LocalCluster, client: Client) -> None:
    """Each comes with the checksums that are right for it, at another index."""
    shards = shards_of(cluster, "/full")
    for one, other in combinations(shards, 2):
        one.replace(other.data, other.checksums)
        other.replace(one.data, one.checksums)
        assert client.read("/full") == FILES["/full"]
        one.restore()
        other.restore()


def test_shards_swapped_between_stripes_are_noticed(cluster: LocalCluster, client: Client) -> None:
    for index in range(TOTAL):
        one, other = (shards_of(cluster, path)[index] for path in ("/full", "/padded"))
        one.replace(other.data, other.checksums)
        other.replace(one.data, one.checksums)
        for path in LARGE:
            assert client.read(path) == FILES[path]
        one.restore()
        other.restore()
    swapped = list(zip(shards_of(cluster, "/full"), shards_of(cluster, "/padded"), strict=True))
    for one, other in swapped[: K + 1]:
        one.replace(other.data, other.checksums)
        other.replace(one.data, one.checksums)
    for path in LARGE:
        with pytest.raises(TooFewShards):
            client.read(path)
    for one, other in swapped:
        one.restore()
        other.restore()


# On the way in


@pytest.mark.parametrize("target", [0, 3])
def test_a_store_with_damaged_bytes_is_refused(cluster: LocalCluster, target: int) -> None:
    """By the agent that receives it, over gRPC as well as in its own memory."""
    node = leader(cluster)
    data = content(3 * BLOCK_BYTES + 7)
    stripe = Stripe("5.1.999999", M, K, M * len(data), ())
    sums = block_checksums(data, seed=seed(stripe.id, 2))
    before = shards_stored(cluster)
    for damaged, index, checksums in [
        (flipped(data, 8 * BLOCK_BYTES), 2, sums),
        (data[:-1], 2, sums),
        (data, 2, sums[:-8]),
        (data, 2, flipped(sums, 3)),
        (data, 1, sums),
        (b"", 2, b""),
    ]:
        with pytest.raises(CorruptData):
            cluster.run(
                node.storage.writer.store(
                    node.roster.agents[target],
                    stripe.id,
                    index,
                    memoryview(damaged),
                    checksums,
                    from_reserve=False,
                )
            )
    assert shards_stored(cluster) == before


@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_a_file_that_does_not_match_its_checksum_is_refused(
    cluster: LocalCluster, client: Client, size: int
) -> None:
    """The client's checksum goes with the bytes, so damage before the agent shows."""
    damaged = memoryview(flipped(content(size), 4 * size))
    file = NewFile("/damaged", size, f"{file_checksum(content(size)):016x}")
    send = _put if size <= MIB else _upload
    with pytest.raises(CorruptData, match="/damaged was damaged"):
        send(client, file, damaged)
    assert not client.exists("/damaged")


def _put(client: Client, file: NewFile, data: memoryview) -> None:
    client._put([file], [data], overwrite=False, what="write /damaged")


def _upload(client: Client, file: NewFile, data: memoryview) -> None:
    upload = Upload(client._caller, what="write /damaged", path="/damaged")
    for at in range(0, 2 * MIB, MIB):
        upload.append(data[at : at + MIB])
    upload.commit([file], overwrite=False, tail=data[2 * MIB :])
