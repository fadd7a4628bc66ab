"""Snapshots, clones and rollbacks of what Spark writes: checkpoints of queries, and tables."""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f

from diskless.client import Client
from tests.spark import streams
from tests.spark.streams import Feed, Numbers, Rows, Said, files_under, rows_of, totals
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("end_all")

HDFS: dict[str, object] = {}
ROCKSDB: dict[str, object] = {streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: True}
PROVIDERS = [pytest.param(HDFS, id="hdfs"), pytest.param(ROCKSDB, id="rocksdb")]
FORGETFUL = {
    streams.MAINTENANCE: "200ms",
    streams.DELTAS_PER_SNAPSHOT: 2,
    streams.BATCHES_RETAINED: 2,
}
"""A query deletes its old batches while a test looks on."""


@pytest.fixture
def uri(path: str) -> str:
    return f"diskless://{path}"


def give_id(client: Client, checkpoint: str) -> None:
    """Spark runs one query of an id at a time, and a clone begins with the id of its original."""
    identity = json.dumps({"id": str(uuid4())}).encode()
    client.write(f"{checkpoint}/metadata", identity, overwrite=True)


def batches_in(client: Client, checkpoint: str) -> list[int]:
    """The batches that a checkpoint says are complete."""
    names = [Path(entry.path).name for entry in client.list(f"{checkpoint}/commits")]
    return sorted(int(name) for name in names)


def state_in(spark: SparkSession, uri: str) -> Rows:
    """The state of `totals` as of a checkpoint's last batch."""
    table = spark.read.format("statestore").load(uri)
    return rows_of(table.select("key.key", "value.*"))


def without_odd_from_minute(rows: DataFrame, minute: int) -> DataFrame:
    """What a query does that was changed when so many files of a feed had been read."""
    changed = f.lit(Feed.START) + f.expr(f"INTERVAL {minute} MINUTES")
    return rows.where((f.col("time") < changed) | (f.col("value") % 2 == 0))


# Checkpoints.


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_clone_of_a_checkpoint_is_a_query_of_its_own(
    spark: SparkSession,
    client: Client,
    feed: Feed,
    path: str,
    uri: str,
    provider: dict[str, object],
) -> None:
    """Both run at once and do different things with what arrives."""
    original, clone = Said(), Said()
    with streams.settings(spark, provider):
        feed.arrive(3)
        streams.run(totals(feed.stream(spark)), uri, original)
        client.clone(path, f"{path}-clone")
        give_id(client, f"{path}-clone")
        clone.batches.update(original.batches)
        feed.arrive(2)
        other = totals(without_odd_from_minute(feed.stream(spark), 3))
        with (
            streams.running(totals(feed.stream(spark)), uri, original) as first,
            streams.running(other, f"{uri}-clone", clone) as second,
        ):
            first.processAllAvailable()
            second.processAllAvailable()
            assert first.isActive
    assert sorted(original.batches) == sorted(clone.batches) == list(range(5))
    assert original.latest == rows_of(totals(feed.batch(spark)))
    assert clone.latest == rows_of(totals(without_odd_from_minute(feed.batch(spark), 3)))
    assert original.latest != clone.latest


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_snapshot_of_a_running_query_has_the_state_of_its_batch(
    spark: SparkSession, client: Client, path: str, uri: str, provider: dict[str, object]
) -> None:
    """The query goes on and deletes what the snapshot still has, and a clone begins from."""
    numbers, clone, kept = Numbers(rows=60, keys=7), Said(), f"{path}/.snapshot/then"
    stream = totals(numbers.stream(spark))
    with (
        streams.settings(spark, provider | FORGETFUL),
        streams.running(stream, uri, Said()) as query,
    ):
        streams.await_batch(query, 2)
        client.snapshot(path, "then")
        files = files_under(client, kept)
        batch = batches_in(client, kept)[-1]
        then = rows_of(totals(numbers.batch(spark, batch + 1)))
        assert state_in(spark, f"diskless://{kept}") == then
        eventually(lambda: not client.exists(f"{path}/commits/{batch}"), streams.QUERY_S_MAX)
        assert state_in(spark, f"diskless://{kept}") == then
        (operator,) = spark.read.format("state-metadata").load(f"diskless://{kept}").collect()
        assert operator.operatorName == "stateStoreSave"
    assert state_in(spark, uri) != then
    assert files_under(client, kept) == files
    client.clone(kept, f"{path}-clone")
    with streams.running(stream, f"{uri}-clone", clone) as query:
        streams.await_more(query, 1)
    assert min(clone.batches) == batch + 1
    assert clone.latest == rows_of(totals(numbers.batch(spark, max(clone.batches) + 1)))


class Keyed(Said):
    """A sink keyed by batch: what is done again replaces what was there."""

    def note(self, batch: int, rows: Rows) -> None:
        self.batches[batch] = rows


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_query_that_was_rolled_back_does_the_later_batches_again(
    spark: SparkSession,
    client: Client,
    feed: Feed,
    path: str,
    uri: str,
    provider: dict[str, object],
) -> None:
    """As after a change to the query that was wrong. Undone, it goes on from where it was."""
    sink = Keyed()

    def right(rows: DataFrame) -> DataFrame:
        return totals(rows)

    def wrong(rows: DataFrame) -> DataFrame:
        return totals(without_odd_from_minute(rows, 2))

    with streams.settings(spark, provider):
        feed.arrive(2)
        streams.run(right(feed.stream(spark)), uri, sink)
        client.snapshot(path, "good")
        feed.arrive(3)
        streams.run(wrong(feed.stream(spark)), uri, sink)
        wrongly = sink.latest
        assert wrongly == rows_of(wrong(feed.batch(spark)))

        before = client.rollback(path, "good")
        assert batches_in(client, path) == [0, 1]
        again = Keyed()
        streams.run(right(feed.stream(spark)), uri, again)
        assert sorted(again.batches) == [2, 3, 4]
        sink.batches |= again.batches
        assert sink.latest == state_in(spark, uri) == rows_of(right(feed.batch(spark)))

        client.rollback(path, before)
        assert state_in(spark, uri) == wrongly
        feed.arrive(1)
        undone = Keyed()
        streams.run(wrong(feed.stream(spark)), uri, undone)
        assert sorted(undone.batches) == [5]
        assert state_in(spark, uri) == rows_of(wrong(feed.batch(spark)))


@pytest.mark.parametrize(
    "manager",
    [
        pytest.param(HDFS, id="ours"),
        pytest.param({streams.FILE_MANAGER: streams.BY_FILE_CONTEXT}, id="by-FileContext"),
    ],
)
def test_a_snapshot_is_no_place_for_a_checkpoint(
    spark: SparkSession,
    client: Client,
    feed: Feed,
    path: str,
    uri: str,
    manager: dict[str, object],
) -> None:
    kept, stream = f"{path}/.snapshot/then", totals(feed.stream(spark))
    feed.arrive(1)
    with streams.settings(spark, manager):
        streams.run(stream, uri, Said())
        client.snapshot(path, "then")
        files = files_under(client, kept)
        feed.arrive(1)
        for place in (kept, f"{kept}/new"):
            refusal = rf"SnapshotAccessControlException: {place}: .* can only be read"
            with pytest.raises(Py4JJavaError, match=refusal):
                streams.start(stream, f"diskless://{place}", Said())
    assert files_under(client, kept) == files


# Tables.


def test_a_table_that_is_overwritten_keeps_its_rows_in_a_snapshot_above_it(
    spark: SparkSession, client: Client, path: str, uri: str
) -> None:
    spark.range(10).write.parquet(f"{uri}/t")
    client.snapshot(path, "old")
    spark.range(100, 103).write.mode("overwrite").parquet(f"{uri}/t")
    assert rows_of(spark.read.parquet(f"{uri}/.snapshot/old/t")) == [(n,) for n in range(10)]
    assert rows_of(spark.read.parquet(f"{uri}/t")) == [(n,) for n in range(100, 103)]


def test_a_table_with_snapshots_of_its_own_is_changed_but_not_replaced(
    spark: SparkSession, client: Client, path: str, uri: str
) -> None:
    """Spark overwrites a whole table by deleting its directory first, which is refused as HDFS
    does; single partitions are overwritten inside of it."""
    rows = [(n, n % 2) for n in range(10)]
    table = spark.createDataFrame(rows, "n INT, part INT")
    table.write.partitionBy("part").parquet(uri)
    client.snapshot(path, "old")
    with pytest.raises(Py4JJavaError, match=rf"HasSnapshots: .*{path}/\.snapshot/old"):
        table.write.mode("overwrite").parquet(uri)
    assert rows_of(spark.read.parquet(uri)) == rows

    change = spark.createDataFrame([(100, 1)], "n INT, part INT").write.partitionBy("part")
    change.option("partitionOverwriteMode", "dynamic").mode("overwrite").parquet(uri)
    change.mode("append").parquet(uri)
    changed = [(n, part) for n, part in rows if part == 0] + [(100, 1), (100, 1)]
    assert rows_of(spark.read.parquet(uri)) == sorted(changed)
    assert rows_of(spark.read.parquet(f"{uri}/.snapshot/old")) == rows


def test_no_listing_of_spark_takes_snapshots_for_data(
    spark: SparkSession, client: Client, path: str, uri: str
) -> None:
    table = spark.createDataFrame([(n, n % 2) for n in range(10)], "n INT, part INT")
    table.write.partitionBy("part").parquet(uri)
    parts = {name for name in files_under(client, path) if name.endswith(".parquet")}
    for directory in (path, f"{path}/part=0"):
        client.snapshot(directory, "then")

    def files(reader: DataFrameReader, place: str) -> set[str]:
        return {urlsplit(unquote(name)).path for name in reader.load(place).inputFiles()}

    assert spark.read.parquet(uri).columns == ["n", "part"]
    assert files(spark.read.format("parquet"), uri) == parts
    assert files(spark.read.format("parquet"), f"{uri}/*") == parts
    every = spark.read.format("binaryFile").option("recursiveFileLookup", True)
    assert files(every.option("pathGlobFilter", "*.parquet"), uri) == parts
