"""Nothing is acknowledged, and nothing is served, that a bad wire has changed on its way.

Real agents, real sockets, and between them a wire that flips bytes. Every way in and every
way out: while good ways are left the operation succeeds with the right bytes, and when there
are none it fails with CorruptData, and leaves nothing behind.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import fsspec
import pytest

from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import CorruptData
from diskless.launch.local import LocalCluster
from diskless.protocol.messages import Kind
from tests.flips import FlippingWire, Passing
from tests.support import content, record_of, start_cluster

M, K, AGENTS = 2, 1, 3

T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_cluster(agents=AGENTS, data_shards=M, parity_shards=K, memory="2GiB") as cluster:
        yield cluster


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[FlippingWire]:
    with FlippingWire(cluster) as wire:
        yield wire


@pytest.fixture
def client(cluster: LocalCluster, wire: FlippingWire) -> Iterator[Client]:
    with cluster.connect() as client:
        yield client


# Ways in. Each writes FILES of its name below a directory.

FILES: dict[str, list[int]] = {
    "put inline": [20 * KIB],
    "put striped": [MIB],
    "write_many in one frame": [1000, 0, 200 * KIB, 30 * KIB],
    "write_many": [MIB + 5, 700 * KIB, 0, 2 * MIB, 3],
    "one large": [3 * MIB + 17],
    "stream": [5 * MIB + 3],
    "resumed stream": [24 * MIB + 9],
    "fsspec pipe": [MIB + 5, 700 * KIB],
    "fsspec file": [2 * MIB + 1],
}


def files_of(way: str, directory: str) -> dict[str, bytes]:
    return {f"{directory}/{n}": content(size, (way, n)) for n, size in enumerate(FILES[way])}


def write(client: Client, wire: FlippingWire, uri: str, way: str, directory: str) -> None:
    files = files_of(way, directory)
    ((path, data), *_) = files.items()
    if way.startswith("fsspec"):
        fs = fsspec.filesystem("diskless", cluster=uri, skip_instance_cache=True)
        fs._client, fs._resolve_at = client, float("inf")  # through the wire, like the rest
        if way == "fsspec pipe":
            fs.pipe(files)
        else:
            with fs.open(path, "wb") as file:
                file.write(data)
    elif "stream" in way:
        with client.open(path, "xb") as file:
            for at in range(0, len(data), MIB // 2):
                if way == "resumed stream" and at == 18 * MIB:
                    wire.break_all()  # it was told of sealed stripes, and goes on elsewhere
                file.write(data[at : at + MIB // 2])
    else:
        client.write_many(files)


def check_stored(cluster: LocalCluster, way: str, directory: str) -> None:
    """By a client of its own, beside the wire, whole and in parts."""
    with cluster.connect() as reader:
        for path, data in files_of(way, directory).items():
            assert reader.read(path) == data
            assert reader.read(path, len(data) // 2, 1000) == data[len(data) // 2 :][:1000]


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("way", FILES)
def test_a_flipped_byte_on_the_way_in_is_sent_again_before_it_is_acknowledged(
    cluster: LocalCluster, client: Client, wire: FlippingWire, way: str, at: float
) -> None:
    directory = f"/in/{way}/{at}"
    wire.flip_first(1, up=True, at=at)
    write(client, wire, cluster.uri, way, directory)
    assert wire.flipped
    check_stored(cluster, way, directory)


@pytest.mark.parametrize("way", ["write_many", "stream", "resumed stream"])
@pytest.mark.parametrize("nth", [1, 2, 3, -1])
def test_a_flip_in_any_frame_of_an_upload_is_noticed(
    cluster: LocalCluster, client: Client, wire: FlippingWire, way: str, nth: int
) -> None:
    """The last is the commit's own payload."""
    directory = f"/nth/{way}/{nth}"
    seen = 0

    def choose(passing: Passing) -> int | None:
        nonlocal seen
        if not passing.up or not passing.payload_bytes or wire.flipped:
            return None
        seen += 1
        hit = passing.kind is Kind.COMMIT if nth < 0 else seen == 1 + nth
        return passing.head_bytes if hit else None

    wire.choose = choose
    write(client, wire, cluster.uri, way, directory)
    assert len(wire.flipped) == 1
    check_stored(cluster, way, directory)


@pytest.mark.parametrize("way", FILES)
def test_a_way_in_that_always_flips_is_corrupt_data_and_leaves_nothing(
    cluster: LocalCluster, client: Client, wire: FlippingWire, way: str
) -> None:
    directory = f"/always/{way}"
    wire.flip_payloads(up=True)
    with pytest.raises(CorruptData, match="damaged on its way"):
        write(client, wire, cluster.uri, way, directory)
    wire.choose = None
    with cluster.connect() as reader:
        assert not reader.exists(directory)


@pytest.mark.parametrize("way", ["put inline", "put striped", "write_many", "stream"])
def test_one_agent_with_a_good_wire_is_enough_to_write(
    cluster: LocalCluster, client: Client, wire: FlippingWire, way: str
) -> None:
    directory = f"/one-good/{way}"
    wire.flip_payloads(up=True, slots=range(AGENTS - 1))
    write(client, wire, cluster.uri, way, directory)
    check_stored(cluster, way, directory)


# Ways out.


def read_whole(client: Client, path: str, data: bytes) -> None:
    assert client.read(path) == data


def read_range(client: Client, path: str, data: bytes) -> None:
    for start, count in ((0, 10), (len(data) // 3, 5000), (len(data) - 7, 100)):
        assert client.read(path, start, count) == data[start : start + count]


def read_file(client: Client, path: str, data: bytes) -> None:
    with client.open(path) as file:
        middle = len(data) // 2
        file.seek(middle)
        assert file.read(3000) == data[middle : middle + 3000]
        file.seek(0)
        found = b"".join(iter(lambda: file.read(100_000), b""))
        assert found == data


def read_by_fsspec(client: Client, path: str, data: bytes) -> None:
    fs = fsspec.filesystem("diskless", skip_instance_cache=True)
    fs._client, fs._resolve_at = client, float("inf")
    assert fs.cat_file(path, 5, len(data) - 5) == data[5:-5]
    with fs.open(path) as file:
        assert file.read() == data


READS = {
    "whole": read_whole, "ranges": read_range, "file": read_file, "fsspec": read_by_fsspec
}  # fmt: skip
SIZES = {"inline": 3000, "small": 60 * KIB, "one stripe": MIB, "large": 5 * MIB + 3}


@pytest.fixture(scope="module")
def stored(cluster: LocalCluster) -> dict[str, tuple[str, bytes]]:
    files = {name: (f"/out/{name}", content(size, name)) for name, size in SIZES.items()}
    with cluster.connect() as writer:
        for path, data in files.values():
            writer.write(path, data)
    assert record_of(cluster, "/out/inline").inline is not None
    return files


@pytest.mark.parametrize("at", [0.0, 1.0])
@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_byte_on_the_way_out_is_asked_for_again(
    stored: dict[str, tuple[str, bytes]],
    client: Client, wire: FlippingWire, size: str, how: str, at: float,
) -> None:  # fmt: skip
    path, data = stored[size]
    wire.flip_first(1, up=False, at=at)
    READS[how](client, path, data)
    assert len(wire.flipped) == 1


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("size", SIZES)
def test_a_way_out_that_always_flips_is_corrupt_data(
    stored: dict[str, tuple[str, bytes]], client: Client, wire: FlippingWire, size: str, how: str
) -> None:
    path, data = stored[size]
    wire.flip_payloads(up=False)
    with pytest.raises(CorruptData, match="damaged on its way"):
        READS[how](client, path, data)
    assert len(wire.flipped) >= 2, "it was not asked for again"
    assert len({passing.slot for passing in wire.flipped}) > 1, "nobody else was asked"


@pytest.mark.parametrize("how", READS)
def test_one_agent_with_a_good_wire_is_enough_to_read(
    stored: dict[str, tuple[str, bytes]], client: Client, wire: FlippingWire, how: str
) -> None:
    path, data = stored["large"]
    wire.flip_payloads(up=False, slots=range(AGENTS - 1))
    READS[how](client, path, data)


# Anywhere.


@pytest.mark.parametrize("seed", range(12))
def test_a_flip_anywhere_behind_the_header_of_any_frame_changes_nothing(
    cluster: LocalCluster, wire: FlippingWire, seed: int
) -> None:
    """A conversation in which every frame has one chance in four to be damaged: in its
    checksum, its meta or its payload. (A size that is damaged costs an attempt's time; that
    no flip of a header passes is for the frames' own tests.)"""
    chance = random.Random(seed)

    def choose(passing: Passing) -> int | None:
        if passing.kind in (Kind.HELLO, Kind.ROSTER) or chance.random() > 0.25:
            return None
        return chance.randrange(24, passing.head_bytes + passing.payload_bytes)

    with cluster.connect() as client:
        wire.choose = choose
        sizes = [chance.choice([10, 5000, 90_000, MIB, MIB + 1, 3 * MIB]) for _ in range(5)]
        for n, size in enumerate(sizes):
            many = {
                f"/fuzz/{seed}/{n}/{i}": content(part, (seed, n, i))
                for i, part in enumerate([size, chance.randrange(3000)])
            }
            statuses = _until_done(lambda many=many: client.write_many(many, overwrite=True))
            assert [status.path for status in statuses] == list(many)
            for path, data in many.items():
                start = chance.randrange(len(data) + 1)
                assert _until_done(lambda path=path: client.read(path)) == data
                assert (
                    _until_done(lambda path=path, start=start: client.read(path, start, 70_000))
                    == data[start : start + 70_000]
                )
    assert wire.flipped


def _until_done(operation: Callable[[], T]) -> T:
    """Enough bad luck in a row is CorruptData, which is no wrong answer."""
    for _ in range(20):
        with suppress(CorruptData):
            return operation()
    raise AssertionError("it never got through")
