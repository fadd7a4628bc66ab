"""Changes of queries that fail half way: nothing is lost, and nothing is left."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import diskless
from diskless.cli import exits
from diskless.client import Client
from diskless.errors import CheckpointInUse, InternalError
from diskless.launch.local import LocalCluster
from diskless.notes import BatchNote
from diskless.protocol.history import Swap
from diskless.spark import queries
from tests.support import eventually
from tests.unit.test_cli import Cli, cli  # noqa: F401 - a fixture
from tests.unit.test_queries import below, checkpoint, plan, put


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster:
        yield cluster


@pytest.fixture
def client(shared: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of a cluster, the default one meanwhile, with a query of nine batches."""
    monkeypatch.setenv("DISKLESS_CLUSTER", shared.settings.name)
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


def test_a_sink_loses_the_files_of_later_batches_whatever_they_are_called(client: Client) -> None:
    """Spark's log names them as URIs."""
    for n in range(4):
        name = f"day=a%3A{n}/part 1"
        row = json.dumps({"path": f"diskless:///my%20out/day=a%253A{n}/part%201", "action": "add"})
        client.write(f"/my out/{name}", b"rows")
        client.write(f"/my out/_spark_metadata/{n}", f"v1\n{row}".encode())
    queries.rollback(client, {"/ck/q": 1}, sinks={"/my out": 1})
    logs = {f"_spark_metadata/{n}" for n in range(2)}
    assert below(client, "/my out") == logs | {f"day=a%3A{n}/part 1" for n in range(2)}


def test_commands_that_are_told_mean_the_path_whatever_it_is_called(
    cli: Cli,  # noqa: F811
    client: Client,
) -> None:
    top = "/odd/it's; $(x) q"
    put(client, top, checkpoint(9))
    command = cli("query", "trace", top, "--batch", "4", "--json").json["command"]
    assert shlex.split(command) == ["diskless", "query", "rollback", top, "--batch", "3"]
    for asked in ([*shlex.split(command)[1:]], ["rollback", top, "before-batch-3"]):
        before = below(client, top)
        told = cli(*asked)
        assert told.status == exits.OK
        _, _, undo = told.text.partition("to undo it: ")
        assert cli(*shlex.split(undo)[1:]).status == exits.OK
        assert below(client, top) == before


def test_a_file_that_an_earlier_batch_wrote_too_stays(client: Client) -> None:
    def wrote(batch: str, *names: str) -> None:
        rows = [json.dumps({"path": f"diskless:///out/{name}", "action": "add"}) for name in names]
        client.write(f"/out/_spark_metadata/{batch}", "\n".join(("v1", *rows)).encode())
        for name in names:
            client.write(f"/out/{name}", b"rows", overwrite=True)

    wrote("0", "a")
    wrote("1", "a", "b")
    wrote("2.compact", "a", "b", "c")
    queries.rollback(client, {"/ck/q": 1}, sinks={"/out": 1})
    assert below(client, "/out") == {"_spark_metadata/0", "_spark_metadata/1", "a", "b"}
    client.write("/out/_spark_metadata/0", b"v1", overwrite=True)  # it wrote nothing
    wrote("1.compact", "a", "b")
    client.delete("/out/_spark_metadata/1")
    queries.rollback(client, {"/ck/q": 0}, sinks={"/out": 0})
    assert below(client, "/out") == {"_spark_metadata/0"}


def test_the_note_of_a_batch_that_will_run_again_is_not_shown(client: Client) -> None:
    query = queries.show(client, "/ck/q").query.query_id
    client.note_batches("/ck/q", query, [BatchNote(batch=n, time_ms=n, rows=1) for n in (7, 8)])
    eventually(lambda: queries.show(client, "/ck/q").batches[8].note is not None)
    queries.rollback(client, {"/ck/q": 7})
    client.write("/ck/q/offsets/8", plan(8))
    shown = queries.show(client, "/ck/q").batches
    assert [batch.note is not None for batch in shown[7:]] == [True, False]
