"""Agents that die under the JVM's hands: k of them are not noticed, k + 1 are said aloud."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import diskless
from diskless.client import Client
from diskless.config import MIB
from diskless.launch.local import LocalCluster
from tests.support import content, eventually, kill, leader

PARITY = 2
TIMEOUT = "20s"


@pytest.fixture
def doomed() -> Iterator[LocalCluster]:
    """A cluster of its own, to be broken."""
    with diskless.local_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(doomed: LocalCluster) -> Iterator[Client]:
    with doomed.connect() as client:
        yield client


@pytest.fixture
def fs(spark: Any, jvm: Any, doomed: LocalCluster) -> Any:
    """Hadoop's view of it, through its descriptor: by Unix sockets, as on a worker."""
    conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    conf.set("fs.diskless.timeout", TIMEOUT)
    return jvm.org.apache.hadoop.fs.FileSystem.newInstance(jvm.java.net.URI(doomed.uri), conf)


def test_an_upload_survives_k_agents_that_die_with_it_in_hand(
    jvm: Any, fs: Any, doomed: LocalCluster, client: Client
) -> None:
    """One after the other, so that whoever took it over dies too, with stripes sealed."""
    data = content(48 * MIB)
    out = fs.create(jvm.org.apache.hadoop.fs.Path("/big"))
    for part in range(PARITY + 1):
        out.write(bytearray(data[part * 16 * MIB : (part + 1) * 16 * MIB]))
        if part < PARITY:
            kill(doomed, uploader(doomed))
    out.close()
    assert client.read("/big") == data


def test_an_upload_survives_the_leader(
    jvm: Any, fs: Any, doomed: LocalCluster, client: Client
) -> None:
    data = content(12 * MIB)
    out = fs.create(jvm.org.apache.hadoop.fs.Path("/big"))
    out.write(bytearray(data[: 9 * MIB]))
    kill(doomed, leader(doomed).settings.slot)
    out.write(bytearray(data[9 * MIB :]))
    out.close()
    assert client.read("/big") == data


def test_small_files_go_on_while_k_agents_die(
    jvm: Any, fs: Any, doomed: LocalCluster, client: Client
) -> None:
    """A thread of the JVM writes and reads without a pause; no operation fails."""
    work = jvm.io.diskless.spark.Traffic(fs, "/traffic")
    work.start()
    for _ in range(PARITY):
        before = work.done()
        eventually(lambda before=before: work.done() > before + 20 or not work.isAlive())
        kill(doomed, leader(doomed).settings.slot)
    after = work.done()
    eventually(lambda: work.done() > after + 20 or not work.isAlive())
    assert work.finish() == ""
    names = [status.path for status in client.list("/traffic")]
    assert len(names) == work.done()


def test_reading_goes_on_while_k_agents_die(
    jvm: Any, fs: Any, doomed: LocalCluster, client: Client
) -> None:
    client.write("/big", content(16 * MIB))
    stream = fs.open(jvm.org.apache.hadoop.fs.Path("/big"))
    data = bytes(stream.readNBytes(5 * MIB))
    kill(doomed, *list(doomed.nodes)[-PARITY:])
    data += bytes(stream.readAllBytes())
    assert data == content(16 * MIB)


def test_with_more_than_k_agents_gone_everything_says_so(
    jvm: Any, fs: Any, doomed: LocalCluster, client: Client
) -> None:
    path = jvm.org.apache.hadoop.fs.Path
    client.write("/old", content(8 * MIB))
    out = fs.create(path("/new"))
    out.write(bytearray(content(6 * MIB)))
    doomed.kill(0, 1, 2)
    errors: list[str] = []

    def attempt(what: Any) -> None:
        with pytest.raises(Exception, match="diskless") as caught:
            what()
        errors.append(str(caught.value.java_exception.getMessage()))

    threads = [
        threading.Thread(target=attempt, args=(what,))
        for what in (out.close, lambda: fs.mkdirs(path("/d")), lambda: fs.exists(path("/old")))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == len(threads)
    for error in errors:
        assert "voters" in error, errors
        assert "\n" not in error


def uploader(cluster: LocalCluster) -> int:
    """The agent that has an upload in hand."""
    found: list[int] = []

    def find() -> bool:
        found[:] = [slot for slot, node in cluster.nodes.items() if node.storage.uploads._uploads]
        return bool(found)

    eventually(find)
    return found[0]
