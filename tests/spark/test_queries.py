"""Queries that go back to an earlier batch, are cloned and cut, with real Spark on them.

The result and the state must be those of a query that never went wrong. `Said` insists that a
batch that is done again says the same again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import diskless
import diskless.spark
from diskless.cli import run as cli_run
from diskless.client import Client
from diskless.errors import CannotReturn, CheckpointInUse, SparkUnusable
from diskless.launch.local import LocalCluster
from diskless.spark import queries
from tests.conftest import Connect, StartCluster
from tests.spark import streams
from tests.spark.streams import Feed, Numbers, OtherJvm, Rows, Said, rows_of, totals
from tests.support import eventually

HDFS = {
    streams.PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
}
FORMATS: dict[str, dict[str, object]] = {
    "hdfs": HDFS,
    "rocksdb": {streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: "false"},
    "changelog": {streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: "true"},
    "rocksdb-2": {
        streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: "false", streams.STATE_FORMAT: 2,
    },
    "changelog-2": {
        streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: "true", streams.STATE_FORMAT: 2,
    },
}  # fmt: skip
OFTEN = {streams.MAINTENANCE: "1s", streams.DELTAS_PER_SNAPSHOT: 3}
"""So that a checkpoint has snapshots of its state between changes."""
RUN_S_MAX = 240
"""For so many batches on a busy machine."""
NUMBERS = Numbers(rows=10, keys=5)
SHORT, LONG = (8, 3), (30, 12)
"""How many batches, and which one to go back to."""


pytestmark = pytest.mark.usefixtures("end_all")


def run(
    spark: Any, client: Client, feed: Feed, path: str, said: Said, settings: dict[str, object]
) -> None:
    with streams.settings(spark, {**settings, **OFTEN}):
        at = f"diskless://{path}"
        with streams.running(totals(feed.stream(spark)), at, said, availableNow=True) as query:
            assert query.awaitTermination(RUN_S_MAX), f"{query.status} after {RUN_S_MAX} s"
    end(spark, client, path)


def end(spark: Any, client: Client, path: str) -> None:
    """Until the queries' stores are gone, and their leases: a driver ends those with them."""
    streams.end_all(spark)
    eventually(lambda: not client.leases(path))


def state_of(spark: Any, path: str, how: str) -> Rows:
    with streams.settings(spark, FORMATS[how]):
        reader = spark.read.format("statestore").load(f"diskless://{path}")
        return rows_of(reader.select("key.key", "value.count", "value.sum"))


def expected(spark: Any, feed: Feed) -> Rows:
    return rows_of(totals(feed.batch(spark)))


def check_return(
    spark: Any, client: Client, feed: Feed, path: str, how: str, size: tuple[int, int]
) -> None:
    batches, back = size
    said = Said()
    feed.arrive(batches)
    run(spark, client, feed, path, said, FORMATS[how])
    shown = queries.show(client, path)
    assert shown.query.last_batch == batches - 1
    assert shown.query.operators == ("stateStoreSave",)
    assert {batch.number: batch.why_not for batch in shown.batches} == dict.fromkeys(
        range(batches), ""
    )
    done = queries.rollback(client, {path: back})
    assert queries.show(client, path).query.last_batch == back
    assert not {batch.number for batch in queries.show(client, path).batches if batch.number > back}
    feed.arrive(3)
    run(spark, client, feed, path, said, FORMATS[how])
    assert sorted(said.batches) == list(range(batches + 3))
    assert said.latest == expected(spark, feed) == state_of(spark, path, how)
    assert queries.show(client, f"{path}/.snapshot/{done.snapshot}").query.last_batch == batches - 1


@pytest.mark.parametrize("how", ["hdfs", "changelog-2"])
def test_a_query_goes_on_from_the_batch_that_it_went_back_to(
    spark: Any, client: Client, feed: Feed, path: str, how: str
) -> None:
    check_return(spark, client, feed, path, how, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", FORMATS)
def test_a_query_of_thirty_batches_goes_back_to_any_format_of_state(
    spark: Any, client: Client, feed: Feed, path: str, how: str
) -> None:
    check_return(spark, client, feed, path, how, LONG)


def check_clone(
    spark: Any, client: Client, feed: Feed, path: str, how: str, size: tuple[int, int]
) -> None:
    """The original runs on while it is cloned, and when the clone runs."""
    batches, back = size
    said, canary = Said(), Said()
    feed.arrive(batches)
    run(spark, client, feed, path, said, FORMATS[how])
    made = queries.clone(client, path, f"{path}-canary", batch=back)
    assert made.batch == back
    assert made.query_id != queries.show(client, path).query.query_id
    feed.arrive(2)
    with streams.settings(spark, {**FORMATS[how], **OFTEN}):
        both = [
            streams.start(totals(feed.stream(spark)), f"diskless://{at}", sink, availableNow=True)
            for at, sink in ((path, said), (f"{path}-canary", canary))
        ]
        assert all(query.awaitTermination(RUN_S_MAX) for query in both)
        assert [query.exception() for query in both] == [None, None]
    end(spark, client, path)
    assert sorted(canary.batches) == list(range(back + 1, batches + 2))
    assert {n: rows for n, rows in said.batches.items() if n > back} == canary.batches
    truth = expected(spark, feed)
    assert said.latest == truth
    for at in (path, f"{path}-canary"):
        assert state_of(spark, at, how) == truth


def test_a_clone_runs_beside_the_original_from_the_same_state(
    spark: Any, client: Client, feed: Feed, path: str
) -> None:
    check_clone(spark, client, feed, path, "changelog", SHORT)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", FORMATS)
def test_a_clone_of_any_format_runs_beside_the_original(
    spark: Any, client: Client, feed: Feed, path: str, how: str
) -> None:
    check_clone(spark, client, feed, path, how, LONG)


@pytest.mark.slow
def test_a_query_is_cloned_while_it_runs(spark: Any, client: Client, path: str) -> None:
    """It goes on undisturbed, and its clone begins with the batch after the last committed one."""
    said, canary, at = Said(), Said(), f"diskless://{path}"
    with streams.running(totals(NUMBERS.stream(spark)), at, said) as query:
        streams.await_batch(query, 2)
        made = queries.clone(client, path, f"{path}-canary")
        streams.await_more(query, 3)
    end(spark, client, path)
    with streams.running(totals(NUMBERS.stream(spark)), f"{at}-canary", canary) as query:
        streams.await_more(query, 2)
    end(spark, client, f"{path}-canary")
    assert min(canary.batches) == made.batch + 1
    both = said.batches.keys() & canary.batches.keys()
    assert both
    assert all(said.batches[n] == canary.batches[n] for n in both)
    assert said.latest == rows_of(totals(NUMBERS.batch(spark, max(said.batches) + 1)))
    assert not list(client.snapshots(path))


class Chain:
    """Three queries: one writes files, one reads those and keeps totals, and one is apart."""

    def __init__(self, spark: Any, client: Client, feed: Feed, top: str) -> None:
        self.spark, self.client, self.feed, self.top = spark, client, feed, top
        self.first, self.second, self.third = (f"{top}/q{n}" for n in (1, 2, 3))
        self.out = f"{top}/out"
        self.said, self.apart = Said(), Said()

    def run(self) -> None:
        with streams.settings(self.spark, HDFS):
            writer = self.feed.stream(self.spark).where("value % 2 = 0").writeStream
            query = (
                writer.format("parquet")
                .option("checkpointLocation", f"diskless://{self.first}")
                .trigger(availableNow=True)
                .start(f"diskless://{self.out}")
            )
            assert query.awaitTermination(streams.QUERY_S_MAX)
            assert query.exception() is None
            found = self.spark.readStream.schema(Feed.SCHEMA).option("maxFilesPerTrigger", 1)
            even = found.parquet(f"diskless://{self.out}")
            streams.run(totals(even), f"diskless://{self.second}", self.said)
            streams.run(
                totals(self.feed.stream(self.spark)), f"diskless://{self.third}", self.apart
            )
        end(self.spark, self.client, self.top)

    def check(self) -> None:
        truth = self.feed.batch(self.spark)
        even = rows_of(totals(truth.where("value % 2 = 0")))
        assert self.said.latest == even
        assert self.apart.latest == rows_of(totals(truth))
        found = self.spark.read.schema(Feed.SCHEMA).parquet(f"diskless://{self.out}")
        assert rows_of(totals(found)) == even


def test_a_cut_over_queries_that_read_each_other_goes_back_together(
    spark: Any, client: Client, feed: Feed, path: str
) -> None:
    chain = Chain(spark, client, feed, path)
    feed.arrive(3)
    chain.run()
    members = [chain.first, chain.second, chain.third, chain.out]
    kept = queries.cut(client, f"cut-{path.strip('/').replace('/', '-')}", members)
    assert [member.batch for member in kept][:1] == [2]
    assert kept[3].batch is None
    feed.arrive(2)
    chain.run()
    chain.check()
    queries.cut_back(client, f"cut-{path.strip('/').replace('/', '-')}")
    assert queries.show(client, chain.first).query.last_batch == 2
    chain.run()
    chain.check()


def test_a_file_sink_goes_back_with_its_query(
    spark: Any, client: Client, feed: Feed, path: str
) -> None:
    """Alone, it would take the batches that are done again for done, and keep wrong ones."""
    chain = Chain(spark, client, feed, path)
    feed.arrive(4)
    chain.run()
    assert queries.show(client, chain.first).sinks == (chain.out,)
    told = queries.rollback(client, {chain.first: 1}, dry_run=True).words
    assert f"--sink {chain.out}" in " ".join(told)
    queries.rollback(
        client, {chain.first: 1, chain.second: 0, chain.third: 1}, sinks={chain.out: 1}
    )
    found = spark.read.schema(Feed.SCHEMA).parquet(f"diskless://{chain.out}")
    assert 0 < found.count() < feed.batch(spark).where("value % 2 = 0").count()
    chain.said.batches = {0: chain.said.batches[0]}  # its input comes in other files now
    chain.run()
    chain.check()


# One live writer.


def lease_of(client: Client, path: str) -> Any:
    """The one that a running query has; on a busy machine it is without one while a batch takes
    longer than a lease."""
    found: list[Any] = []

    def has_one() -> bool:
        found[:] = client.leases(path)
        return len(found) == 1

    eventually(has_one, streams.QUERY_S_MAX)
    return found[0]


def test_a_second_job_is_refused_and_the_first_is_right(
    spark: Any, client: Client, cluster: LocalCluster, path: str
) -> None:
    """The other job is an application of its own: it fails, and has overwritten nothing."""
    said, other = Said(), Said()
    at = f"diskless://{path}"
    with OtherJvm(cluster.uri, master="local[2]") as jvm:
        with streams.running(totals(NUMBERS.stream(spark)), at, said) as query:
            streams.await_batch(query, 2)
            lease = lease_of(client, path)
            assert spark.sparkContext.applicationId in lease.application
            assert queries.show(client, path).query.writer == lease.application
            with pytest.raises(CheckpointInUse, match=f"{path} is in use by"):
                queries.rollback(client, {path: 0})
            jvm.start("second", at, numbers=NUMBERS)
            eventually(lambda: not jvm.report("second", other)[0], streams.QUERY_S_MAX)
            error = str(jvm.report("second", other)[1])
            assert any(words in error for words in streams.OF_TWO_WRITERS), error
            streams.await_more(query, 2)
        batches = max(said.batches) + 1
        assert said.latest == rows_of(totals(NUMBERS.batch(spark, batches)))
        end(spark, client, path)
        jvm.start("third", at, numbers=NUMBERS)
        eventually(lambda: client.exists(f"{path}/commits/{batches + 1}"), streams.QUERY_S_MAX)
        jvm.stop("third")


def test_a_job_takes_over_when_the_lease_of_a_dead_one_is_over(
    spark: Any, client: Client, cluster: LocalCluster, path: str
) -> None:
    said = Said()
    at = f"diskless://{path}"
    with OtherJvm(cluster.uri, master="local[2]") as jvm:
        jvm.start("dies", at, numbers=NUMBERS)
        eventually(lambda: client.exists(f"{path}/commits/1"), streams.QUERY_S_MAX)
        lease = lease_of(client, path)
        jvm.kill()
    with streams.running(totals(NUMBERS.stream(spark)), at, said) as query:
        streams.await_more(query, 2)
        taken = lease_of(client, path)
        assert spark.sparkContext.applicationId in taken.application
        assert taken.application != lease.application


def test_a_job_that_was_held_up_does_not_go_on_where_its_batches_were_taken_back(
    client: Client, cluster: LocalCluster, path: str
) -> None:
    """It may start again, and reads the checkpoint anew then."""
    at = f"diskless://{path}"
    with OtherJvm(cluster.uri, master="local[2]") as jvm:
        jvm.start("held up", at, numbers=NUMBERS)
        eventually(lambda: client.exists(f"{path}/commits/3"), streams.QUERY_S_MAX)
        lease_of(client, path)
        with jvm.held_up():
            eventually(lambda: not client.leases(path), streams.QUERY_S_MAX)
            queries.rollback(client, {path: 1})
        eventually(lambda: not jvm.report("held up", Said())[0], streams.QUERY_S_MAX)
        error = str(jvm.report("held up", Said())[1])
        assert f"{path} went back while" in error
        assert not client.exists(f"{path}/commits/2")
        assert not client.exists(f"{path}/offsets/2")
        jvm.start("again", at, numbers=NUMBERS)
        eventually(lambda: client.exists(f"{path}/commits/3"), streams.QUERY_S_MAX)
        assert jvm.report("again", Said()) == (True, None)
        jvm.stop("again")


@pytest.mark.slow
def test_an_application_without_leases_takes_none_and_is_not_bound_by_others(
    client: Client, cluster: LocalCluster, path: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "spark-defaults.conf").write_text("spark.hadoop.fs.diskless.lease false\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with OtherJvm(cluster.uri, master="local[2]") as jvm:
        jvm.start("free", f"diskless://{path}", numbers=NUMBERS)
        eventually(lambda: client.exists(f"{path}/commits/1"), streams.QUERY_S_MAX)
        assert client.leases(path) == []
        with cluster.connect() as other:
            other.write(f"{path}/sources/taken", b"")
            (lease,) = client.leases(path)
            assert lease.application == other._caller.application
            done = len(list(client.list(f"{path}/commits")))
            eventually(lambda: client.exists(f"{path}/commits/{done + 2}"), streams.QUERY_S_MAX)
        assert jvm.report("free", Said()) == (True, None)
        jvm.stop("free")


# What changed, and who read it.


def test_the_diff_of_two_batches_is_what_changed_and_corrections_add_up(
    spark: Any, client: Client, feed: Feed, path: str
) -> None:
    how = "changelog-2"
    said = Said()
    feed.arrive(5)
    run(spark, client, feed, path, said, FORMATS[how])
    states = {n: {row[0]: row for row in _upto(said, n)} for n in (1, 4)}
    old, new = states[1], states[4]
    found = diskless.spark.changes(spark, path, 1, 4).collect()
    assert {(row.change, row.key.key) for row in found} == {
        (("added" if key not in old else "changed"), key) for key in new if old.get(key) != new[key]
    }
    for row in found:
        assert tuple(row.new) == new[row.key.key][1:]
        assert (row.old and tuple(row.old)) == (
            old[row.key.key][1:] if row.key.key in old else None
        )
    downstream = {key: [row[1], row[2]] for key, row in old.items()}
    for record in diskless.spark.corrections(diskless.spark.changes(spark, path, 1, 4)).collect():
        sums = downstream.setdefault(record.key.key, [0, 0])
        for at, value in enumerate(record.value):
            sums[at] += record.sign * value
    assert downstream == {key: [row[1], row[2]] for key, row in new.items()}
    back = diskless.spark.changes(spark, path, 4, 1)
    assert {row.change for row in back.collect()} <= {"changed", "removed"}


def _upto(said: Said, batch: int) -> Rows:
    in_order = (row for n, rows in sorted(said.batches.items()) if n <= batch for row in rows)
    return sorted({row[0]: row for row in in_order}.values())


def test_a_trace_goes_through_two_hops_and_its_command_brings_all_back(
    spark: Any, client: Client, feed: Feed, path: str
) -> None:
    """q1 writes files that q2 reads, which writes files that q3 reads."""
    hops = [f"{path}/out{n}" for n in (1, 2)]
    asked = [f"{path}/q{n}" for n in (1, 2, 3)]

    def run_all() -> None:
        with streams.settings(spark, HDFS):
            for at, checkpoint in enumerate(asked):
                reader = spark.readStream.schema(Feed.SCHEMA).option("maxFilesPerTrigger", 1)
                rows = (
                    feed.stream(spark) if at == 0 else reader.parquet(f"diskless://{hops[at - 1]}")
                )
                if at == len(hops):
                    streams.run(totals(rows), f"diskless://{checkpoint}", Said())
                    continue
                writer = rows.coalesce(1).writeStream.format("parquet").trigger(availableNow=True)
                query = writer.option("checkpointLocation", f"diskless://{checkpoint}").start(
                    f"diskless://{hops[at]}"
                )
                assert query.awaitTermination(streams.QUERY_S_MAX)
                assert query.exception() is None
        end(spark, client, path)

    feed.arrive(4)
    run_all()
    found = queries.trace(client, asked[0], 2)
    ours = {one.path: one for one in found.touched}
    assert set(ours) == set(asked)
    assert [ours[one].back_to for one in asked] == [1, 1, 1]
    assert ours[asked[1]].because == asked[0]
    assert ours[asked[0]].sinks == (hops[0],)
    assert len(ours[asked[0]].files) == 2
    with spark_cli(client) as command:
        assert command(found.command) == 0
    assert [queries.show(client, one).query.last_batch for one in asked] == [1, 1, 1]
    run_all()
    assert state_of(spark, asked[2], "hdfs") == expected(spark, feed)


@contextmanager
def spark_cli(client: Client) -> Iterator[Callable[[str], int]]:
    """Runs a printed command against the test's cluster."""
    name = client._caller._descriptor.name

    def run_line(line: str) -> int:
        return cli_run([*line.split()[1:], "--cluster", name])

    yield run_line


@pytest.mark.parametrize("how", ["changelog"])
def test_a_query_goes_on_with_other_partitions(
    spark: Any, client: Client, feed: Feed, path: str, how: str
) -> None:
    said = Said()
    feed.arrive(3)
    run(spark, client, feed, path, said, FORMATS[how])
    with streams.settings(spark, FORMATS[how]):
        done = queries.repartition(spark, client, path, 3)
    assert (done.before, done.after) == (2, 3)
    assert queries.show(client, path).query.partitions == 3
    assert queries.show(client, f"{path}/.snapshot/{done.snapshot}").query.partitions == 2
    eventually(lambda: not client.leases(path))
    feed.arrive(2)
    run(spark, client, feed, path, said, FORMATS[how])
    assert said.latest == expected(spark, feed)


def test_a_repartitioning_that_spark_gives_up_leaves_everything_as_it_was(
    spark: Any, client: Client, feed: Feed, path: str
) -> None:
    said = Said()
    feed.arrive(2)
    run(spark, client, feed, path, said, FORMATS["hdfs"])
    with pytest.raises(CannotReturn, match="HDFS-backed"):
        queries.repartition(spark, client, path, 3)
    rocks = f"{path}-rocks"
    run(spark, client, feed, rocks, said, FORMATS["changelog"])
    client.delete(f"{rocks}/state/0/1/2.changelog")  # Spark needs it, and finds out late
    files = streams.files_under(client, rocks)
    with pytest.raises(Exception, match=r"[Ss]tate"):
        queries.repartition(spark, client, rocks, 3)
    assert streams.files_under(client, rocks) == files
    assert not list(client.snapshots(rocks))


def test_a_repartitioning_by_a_spark_of_another_cluster_is_refused(
    spark: Any, client: Client, feed: Feed, path: str, start: StartCluster, connect: Connect
) -> None:
    """Else what was checked and kept would be one checkpoint, and what Spark changes another."""
    feed.arrive(1)
    run(spark, client, feed, path, Said(), FORMATS["changelog"])
    elsewhere = connect(start(agents=3, data_shards=2, parity_shards=1))
    files = {at: client.read(at) for at in streams.files_under(client, path)}
    elsewhere.write_many(files)
    with pytest.raises(SparkUnusable, match="not the cluster"):
        queries.repartition(spark, elsewhere, path, 3)
    assert not list(elsewhere.snapshots(path))
    assert {at: client.read(at) for at in streams.files_under(client, path)} == files
