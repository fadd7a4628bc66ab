"""A wire that flips bytes between the JVM and the agents: nothing of it is stored or read."""

from collections.abc import Iterator
from typing import Any

import pytest

import diskless
from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.launch.local import LocalCluster
from tests.flips import FlippingWire
from tests.support import content

AGENTS = 3
SIZES = {"small": 3000, "put": 900 * KIB, "stream": 5 * MIB + 3, "resumed": 24 * MIB + 1}


@pytest.fixture(scope="module")
def flawed() -> Iterator[LocalCluster]:
    """A cluster of its own, behind the wire."""
    with diskless.local_cluster(agents=AGENTS, data_shards=2, parity_shards=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def the_wire(flawed: LocalCluster) -> Iterator[FlippingWire]:
    with FlippingWire(flawed) as wire:
        yield wire


@pytest.fixture
def wire(the_wire: FlippingWire) -> Iterator[FlippingWire]:
    the_wire.flipped.clear()
    yield the_wire
    the_wire.choose = None


@pytest.fixture(scope="module")
def fs(spark: Any, jvm: Any, flawed: LocalCluster, the_wire: FlippingWire) -> Any:
    conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    conf.set("fs.diskless.timeout", "20s")
    return jvm.org.apache.hadoop.fs.FileSystem.newInstance(jvm.java.net.URI(flawed.uri), conf)


@pytest.fixture
def client(flawed: LocalCluster, wire: FlippingWire) -> Iterator[Client]:
    with flawed.connect() as client:
        yield client


def write(jvm: Any, fs: Any, wire: FlippingWire, path: str, data: bytes) -> None:
    out = fs.create(jvm.org.apache.hadoop.fs.Path(path), True)
    try:
        half = len(data) * 3 // 4
        out.write(bytearray(data[:half]))
        if path.endswith("resumed"):
            wire.break_all()  # it was told of sealed stripes, and goes on elsewhere
        out.write(bytearray(data[half:]))
    except BaseException:
        out.abort()
        raise
    out.close()


@pytest.mark.parametrize("way", SIZES)
def test_a_flipped_byte_on_the_way_in_is_sent_again(
    jvm: Any, fs: Any, wire: FlippingWire, client: Client, way: str
) -> None:
    path, data = f"/in/{way}", content(SIZES[way], way)
    wire.flip_first(2, up=True)
    write(jvm, fs, wire, path, data)
    assert wire.flipped
    assert client.read(path) == data


@pytest.mark.parametrize("way", SIZES)
def test_a_way_in_that_always_flips_is_corrupt_data_and_leaves_nothing(
    jvm: Any, fs: Any, wire: FlippingWire, client: Client, way: str
) -> None:
    path = f"/always/{way}"
    wire.flip_payloads(up=True)
    with pytest.raises(Exception, match="CorruptData"):
        write(jvm, fs, wire, path, content(SIZES[way], way))
    wire.choose = None
    assert not client.exists(path)


@pytest.mark.parametrize("size", [3000, 60 * KIB, MIB, 5 * MIB + 3])
def test_a_flipped_byte_on_the_way_out_is_asked_for_again(
    jvm: Any, fs: Any, wire: FlippingWire, client: Client, size: int
) -> None:
    path, data = f"/out/{size}", content(size)
    client.write(path, data)
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    for whole in (True, False):
        wire.flip_first(1, up=False, at=0.0)
        stream = fs.open(hadoop_path)
        if whole:
            assert bytes(stream.readAllBytes()) == data
        else:
            stream.seek(size // 2)
            assert bytes(stream.readNBytes(1000)) == data[size // 2 : size // 2 + 1000]
        stream.close()
    assert len(wire.flipped) >= 2


@pytest.mark.parametrize("size", [3000, MIB, 5 * MIB + 3])
def test_a_way_out_that_always_flips_is_corrupt_data(
    jvm: Any, fs: Any, wire: FlippingWire, client: Client, size: int
) -> None:
    path = f"/out-always/{size}"
    client.write(path, content(size))
    wire.flip_payloads(up=False)

    def read() -> None:
        stream = fs.open(jvm.org.apache.hadoop.fs.Path(path))
        stream.seek(size // 2)
        stream.readNBytes(1000)

    with pytest.raises(Exception, match="CorruptData"):
        read()
    assert len(wire.flipped) > 1, "it was not asked for again"


def test_one_agent_with_a_good_wire_is_enough(
    jvm: Any, fs: Any, wire: FlippingWire, client: Client
) -> None:
    data = content(5 * MIB)
    for up in (True, False):
        wire.flip_payloads(up=up, slots=range(AGENTS - 1))
        write(jvm, fs, wire, "/one-good", data)
        assert bytes(fs.open(jvm.org.apache.hadoop.fs.Path("/one-good")).readAllBytes()) == data
