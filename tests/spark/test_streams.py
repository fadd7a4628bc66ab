"""Streaming queries with their checkpoint on `diskless://` say what a batch job says."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from diskless.client import Client
from diskless.launch.local import LocalCluster
from tests.conftest import Connect, StartCluster
from tests.spark import streams
from tests.spark.streams import Feed, Numbers, OtherJvm, Said, files_under, rows_of, totals
from tests.support import BRISK, bytes_used, eventually

HDFS: dict[str, object] = {}
pytestmark = pytest.mark.usefixtures("end_all")

ROCKSDB = {streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: False}
CHANGELOG = {streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: True}
SECOND_FORMAT = CHANGELOG | {streams.STATE_FORMAT: 2}
"""State format 2 gives every file of the state one with its checksum; only RocksDB has it."""
PARTITIONS = 2
OFTEN = {streams.MAINTENANCE: "200ms", streams.DELTAS_PER_SNAPSHOT: 2}
"""Snapshots are made and old versions deleted while a test looks on."""


@pytest.fixture(autouse=True)
def python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions in Python run where their libraries are installed."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)


@pytest.fixture
def checkpoint(path: str) -> str:
    return f"diskless://{path}"


@pytest.fixture(scope="module")
def other_jvm(cluster: LocalCluster) -> Iterator[OtherJvm]:
    """A driver that leaves all work to two executors: three JVMs that share nothing with ours."""
    with OtherJvm(cluster.uri, master="local-cluster[2,1,1024]") as other:
        yield other


def suffixes_of_state(client: Client, path: str) -> set[str]:
    """`.delta`, `.zip` …, as the state of the first partition has them."""
    names = [Path(name).name for name in files_under(client, f"{path}/state/0/0")]
    return {name[name.index(".") :] for name in names if "." in name}


@pytest.mark.parametrize(
    ("provider", "suffixes"),
    [
        pytest.param(HDFS, {".delta", ".snapshot"}, id="hdfs"),
        pytest.param(ROCKSDB, {".zip", ".sst"}, id="rocksdb"),
        pytest.param(CHANGELOG, {".changelog", ".zip", ".sst"}, id="rocksdb-changelog"),
        pytest.param(
            SECOND_FORMAT,
            {".changelog", ".changelog.crc", ".zip", ".zip.crc", ".sst"},
            id="rocksdb-format-2",
        ),
        pytest.param(
            SECOND_FORMAT | {"spark.sql.streaming.checkpoint.fileChecksum.enabled": False},
            {".changelog", ".zip", ".sst"},
            id="rocksdb-format-2-without-sums",
        ),
    ],
)
def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession,
    client: Client,
    feed: Feed,
    path: str,
    checkpoint: str,
    provider: dict[str, object],
    suffixes: set[str],
) -> None:
    said = Said()
    with streams.settings(spark, provider | OFTEN):
        for files in (4, 3):
            feed.arrive(files)
            with streams.running(totals(feed.stream(spark)), checkpoint, said) as query:
                query.processAllAvailable()
                eventually(lambda: suffixes_of_state(client, path) == suffixes)
            assert said.latest == rows_of(totals(feed.batch(spark)))
    assert sorted(said.batches) == list(range(7))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(HDFS, id="hdfs"),
        pytest.param(SECOND_FORMAT, id="rocksdb-format-2", marks=pytest.mark.slow),
        pytest.param({streams.FILE_MANAGER: streams.BY_FILE_CONTEXT}, id="by-FileContext"),
    ],
)
def test_a_query_goes_on_in_another_jvm_and_on_its_executors(
    spark: SparkSession,
    feed: Feed,
    tmp_path: Path,
    checkpoint: str,
    other_jvm: OtherJvm,
    settings: dict[str, object],
) -> None:
    """There and back. Our own manager uses the FileSystem, one of Spark's the FileContext."""
    said = Said()
    for here in (True, False, True):
        feed.arrive(2)
        if here:
            with streams.settings(spark, settings):
                streams.run(totals(feed.stream(spark)), checkpoint, said)
        else:
            other_jvm.start("resumed", checkpoint, feed=tmp_path / "feed", conf=settings)
            other_jvm.finish("resumed", said)
        assert said.latest == rows_of(totals(feed.batch(spark)))
    assert sorted(said.batches) == list(range(6))


def join(rows: DataFrame) -> DataFrame:
    """Odd values and the even ones of the same key up to five minutes later."""
    left = rows.where("value % 2 = 1").withWatermark("time", "10 minutes").alias("l")
    right = rows.where("value % 2 = 0").withWatermark("time", "10 minutes").alias("r")
    near = "l.key = r.key AND r.time BETWEEN l.time AND l.time + INTERVAL 5 MINUTES"
    return left.join(right, f.expr(near)).select("l.key", "l.value", "l.time", "r.value", "r.time")


def distinct(rows: DataFrame) -> DataFrame:
    return rows.select("key", (f.col("value") % 5).alias("rest")).dropDuplicates()


class RunningTotals(StatefulProcessor):
    """The count and sum of each key so far, with every batch that has rows of it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "count LONG, sum LONG")

    def handleInputRows(
        self, key: Any, rows: Iterator[pandas.DataFrame], timerValues: Any
    ) -> Iterator[pandas.DataFrame]:
        count, total = self._total.get() or (0, 0)
        for frame in rows:
            count, total = count + len(frame), total + int(frame["value"].sum())
        self._total.update((count, total))
        yield pandas.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})

    def close(self) -> None:
        pass


def transform(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(
        statefulProcessor=RunningTotals(),
        outputStructType="key INT, count LONG, sum LONG",
        outputMode="Update",
        timeMode="None",
    )


def accumulate(
    key: Any, rows: Iterator[pandas.DataFrame], state: Any
) -> Iterator[pandas.DataFrame]:
    count, total = state.get if state.exists else (0, 0)
    for frame in rows:
        count, total = count + len(frame), total + int(frame["value"].sum())
    state.update((count, total))
    yield pandas.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})


def apply(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").applyInPandasWithState(
        accumulate,
        outputStructType="key INT, count LONG, sum LONG",
        stateStructType="count LONG, sum LONG",
        outputMode="Update",
        timeoutConf="NoTimeout",
    )


@pytest.mark.parametrize("query", [join, distinct])
def test_a_query_that_appends_says_everything_once(
    spark: SparkSession, feed: Feed, checkpoint: str, query: Any
) -> None:
    said = Said()
    for _ in range(2):
        feed.arrive(2)
        streams.run(query(feed.stream(spark)), checkpoint, said, mode="append")
        expected = rows_of(query(feed.batch(spark)))
        assert len(expected) > Feed.KEYS
        assert said.rows == expected


@pytest.mark.parametrize("query", [transform, pytest.param(apply, marks=pytest.mark.slow)])
def test_state_of_python_functions_goes_on(
    spark: SparkSession, feed: Feed, checkpoint: str, query: Any
) -> None:
    said = Said()
    with streams.settings(spark, CHANGELOG):
        for _ in range(2):
            feed.arrive(2)
            streams.run(query(feed.stream(spark)), checkpoint, said)
            assert said.latest == rows_of(totals(feed.batch(spark)))


@pytest.mark.parametrize(
    "provider", [pytest.param(HDFS, id="hdfs"), pytest.param(CHANGELOG, id="rocksdb-changelog")]
)
def test_the_state_of_a_query_can_be_read_as_a_table(
    spark: SparkSession, feed: Feed, checkpoint: str, provider: dict[str, object]
) -> None:
    feed.arrive(1)
    with streams.settings(spark, provider):
        streams.run(totals(feed.stream(spark)), checkpoint, Said())
        after_first = rows_of(totals(feed.batch(spark)))
        feed.arrive(2)
        streams.run(totals(feed.stream(spark)), checkpoint, Said())

    def state(**options: Any) -> list[tuple[Any, ...]]:
        table = spark.read.format("statestore").options(**options).load(checkpoint)
        return rows_of(table.select("key.key", "value.*"))

    assert state() == rows_of(totals(feed.batch(spark)))
    assert state(batchId=0) == after_first
    (operator,) = spark.read.format("state-metadata").load(checkpoint).collect()
    assert (operator.operatorName, operator.numPartitions) == ("stateStoreSave", PARTITIONS)


def test_two_queries_race_for_one_checkpoint_and_one_of_them_fails(
    spark: SparkSession, checkpoint: str, other_jvm: OtherJvm
) -> None:
    """Whoever has the lease goes on; the other hears so, or finds the other's log."""
    numbers, said = Numbers(rows=60, keys=7), Said()
    here = streams.start(totals(numbers.stream(spark)), checkpoint, said)
    streams.await_batch(here, 1)
    other_jvm.start("rival", checkpoint, numbers=numbers)
    eventually(
        lambda: not (here.isActive and other_jvm.report("rival", said)[0]), streams.QUERY_S_MAX
    )

    survived_here = here.isActive
    error = other_jvm.report("rival", said)[1] if survived_here else str(here.exception())
    assert any(words in str(error) for words in streams.OF_TWO_WRITERS), error

    batches = len(said.batches)

    def goes_on() -> bool:
        active, _ = other_jvm.report("rival", said)
        assert here.isActive if survived_here else active
        return len(said.batches) >= batches + 3

    eventually(goes_on, streams.QUERY_S_MAX)
    here.stop()
    other_jvm.stop("rival")
    other_jvm.report("rival", said)
    assert sorted(said.batches) == list(range(len(said.batches)))
    assert said.latest == rows_of(totals(numbers.batch(spark, len(said.batches))))


def test_stopping_a_query_at_any_moment_is_clean_and_disturbs_no_other(
    spark: SparkSession, checkpoint: str
) -> None:
    numbers, said, other_said = Numbers(rows=60, keys=7), Said(), Said()
    stream = totals(numbers.stream(spark))
    with streams.running(stream, f"{checkpoint}/goes-on", other_said) as other:
        for n in range(6):
            writer = stream.writeStream.outputMode("update").format("noop")
            query = writer.option("checkpointLocation", f"{checkpoint}/stopped").start()
            eventually(lambda query=query: query.status["isTriggerActive"])
            streams.await_batch(other, streams.last_batch(other) + n % 2)
            query.stop()
            assert query.exception() is None
        streams.await_more(other, 2)
    with streams.running(stream, f"{checkpoint}/stopped", said) as query:
        streams.await_more(query, 2)
    assert other_said.latest == rows_of(totals(numbers.batch(spark, len(other_said.batches))))
    assert said.latest == rows_of(totals(numbers.batch(spark, max(said.batches) + 1)))


@pytest.mark.parametrize(
    ("provider", "suffix"),
    [
        pytest.param(HDFS, "delta", id="hdfs"),
        pytest.param(ROCKSDB, "zip", id="rocksdb", marks=pytest.mark.slow),
    ],
)
def test_old_batches_are_deleted_and_their_memory_comes_back(
    spark: SparkSession,
    start: StartCluster,
    connect: Connect,
    provider: dict[str, object],
    suffix: str,
) -> None:
    """What there is after 30 batches is what there was after 10, the agents hold no more than
    that needs, and in the end nothing."""
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    stream = totals(Numbers(rows=2000, keys=2000).stream(spark))

    def bytes_logical() -> int:
        return client.status().bytes_logical

    with (
        streams.settings(spark, provider | OFTEN | {streams.BATCHES_RETAINED: 2}),
        streams.running(stream, f"{cluster.uri}retained", Said()) as query,
    ):
        streams.await_batch(query, 10)
        early = bytes_logical()
        streams.await_batch(query, 30)
        eventually(lambda: bytes_logical() < 2 * early)
        eventually(lambda: bytes_used(cluster) < 4 * early)  # in stripes, of which some are dead
        eventually(lambda: not client.exists(f"/retained/state/0/0/20.{suffix}"))
        assert not client.exists("/retained/offsets/20")
    client.delete("/retained", recursive=True)
    eventually(lambda: (bytes_logical(), bytes_used(cluster)) == (0, 0))


def commands(client: Client, path: str, *, after: int) -> Counter[tuple[str, str]]:
    """What clients had done under a path: the kind of command, and the path's rest."""
    words = [event.text.split() for event in client.events(after=after)]
    return Counter((w[0], w[1].removeprefix(path)) for w in words if w[1].startswith(path))


@pytest.mark.parametrize(
    ("provider", "suffix"),
    [
        pytest.param(HDFS, "delta", id="hdfs"),
        pytest.param(CHANGELOG, "changelog", id="rocksdb-changelog"),
    ],
)
def test_a_batch_is_one_command_for_each_of_its_files(
    spark: SparkSession,
    client: Client,
    path: str,
    checkpoint: str,
    provider: dict[str, object],
    suffix: str,
) -> None:
    stream = totals(Numbers(rows=60, keys=7).stream(spark))
    with (
        streams.settings(spark, provider),
        streams.running(stream, checkpoint, Said()) as query,
    ):
        streams.await_batch(query, 1)
        op, first = client.status().log.op, streams.last_batch(query) + 2
        streams.await_batch(query, first + 4)
        done = commands(client, path, after=op)

    def puts(batches: range) -> set[tuple[str, str]]:
        states = [f"/state/0/{partition}/{{}}.{suffix}" for partition in range(PARTITIONS)]
        return {
            ("put", name)
            for batch in batches
            for name in (
                f"/offsets/{batch}",
                f"/commits/{batch}",
                *(state.format(batch + 1) for state in states),
            )
        }

    assert set(done.values()) == {1}
    assert puts(range(first, first + 4)) <= done.keys() <= puts(range(first + 100))
