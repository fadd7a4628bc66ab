"""Changes of queries that fail half way: nothing is lost, and nothing is left."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import diskless
from diskless.client import Client
from diskless.errors import CheckpointInUse, InternalError
from diskless.launch.local import LocalCluster
from diskless.protocol.messages import Swap
from diskless.spark import queries
from tests.unit.test_queries import below, checkpoint, put


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster:
        yield cluster


@pytest.fixture
def client(shared: LocalCluster) -> Iterator[Client]:
    with shared.connect() as client:
        client._caller.application = ""
        put(client, "/ck/q", checkpoint(9))
        yield client
        client.delete("/", recursive=True, with_snapshots=True)


class Interrupted:
    """A client whose `replace` ends otherwise than with an answer, after or before it is done."""

    def __init__(self, client: Client, error: BaseException, *, done: bool) -> None:
        self.client, self.error, self.done = client, error, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def replace(self, swaps: Sequence[Swap], *, force: bool = False) -> None:
        if self.done:
            self.client.replace(swaps, force=force)
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InternalError("x"), CheckpointInUse("x")])
@pytest.mark.parametrize("done", [True, False])
def test_what_was_there_is_kept_if_the_step_was_made_whatever_was_heard_of_it(
    client: Client, error: BaseException, done: bool
) -> None:
    interrupted: Any = Interrupted(client, error, done=done)
    with pytest.raises(type(error)):
        queries.rollback(interrupted, {"/ck/q": 3})
    assert [status.path for status in client.list("/ck")] == ["/ck/q"]
    if done:
        (kept,) = client.snapshots("/ck/q")
        assert below(client, "/ck/q") == checkpoint(4).keys()
        assert below(client, f"/ck/q/.snapshot/{kept.name}") == checkpoint(9).keys()
    else:
        assert not list(client.snapshots("/ck/q"))
        assert below(client, "/ck/q") == checkpoint(9).keys()


class FailingSpark:
    """A session whose repartitioning fails half way."""

    def __init__(self, work: Callable[[], None]) -> None:
        here = SimpleNamespace(exists=lambda _: True)
        hadoop = SimpleNamespace(Path=lambda _: SimpleNamespace(getFileSystem=lambda _: here))
        apache = SimpleNamespace(hadoop=SimpleNamespace(fs=hadoop))
        self._jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
        self._jsc = SimpleNamespace(hadoopConfiguration=lambda: None)
        self.sparkContext = SimpleNamespace(applicationId="app-1")
        self._streamingCheckpointManager = self
        self.work = work

    def repartition(self, path: str, partitions: int) -> None:
        self.work()
        raise RuntimeError("Spark gave up")


@pytest.mark.parametrize(
    "application", ["app-1 (diskless query) on h since 1", "app-12 (q) on h", ""]
)
def test_a_repartitioning_that_fails_takes_nothing_from_another_application(
    shared: LocalCluster, client: Client, application: str
) -> None:
    path = f"/ck/r{len(application)}"  # a lease outlives its test
    put(client, path, checkpoint(6, "changelog"))
    with shared.connect() as writer:
        writer._caller.application = application
        failing: Any = FailingSpark(lambda: writer.write(f"{path}/offsets/6", b"v1\n{}"))
        theirs = application.startswith("app-12")
        with pytest.raises(CheckpointInUse if theirs else RuntimeError) as raised:
            queries.repartition(failing, client, path, 4)
    assert client.exists(f"{path}/offsets/6") == theirs
    snapshots = [one.name for one in client.snapshots(path)]
    assert snapshots == (["before-4-partitions"] if theirs else [])
    assert not theirs or "before-4-partitions" in str(raised.value)
