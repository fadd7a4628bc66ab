"""Batch jobs on `diskless://`: tables, file sinks, and checkpoints of RDDs and DataFrames."""

import asyncio
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from diskless.client import Client
from diskless.config import MIB
from tests.conftest import Connect, StartCluster
from tests.spark import streams
from tests.spark.streams import Feed, Rows, files_under, rows_of
from tests.support import BRISK, bytes_used, eventually

AWKWARD = ["plain", "a b", "a/b", "a=b", "50%", "a%2Fb", "ü€😀", "[x]{y}*?", "q'\"\\", "x:y", "#&+"]
"""Values of a partition, which become names of directories."""


@pytest.fixture
def uri(path: str) -> str:
    return f"diskless://{path}"


# Tables.


def test_a_table_that_was_written_is_read_back(
    spark: SparkSession, client: Client, path: str, uri: str
) -> None:
    """In files of more than a mebibyte, which take the way of bulk."""
    random = f.unhex(f.sha2(f.col("id").cast("string"), 256)).alias("random")
    rows = spark.range(0, 100_000, 1, 2).select("id", random)
    rows.write.parquet(uri)

    def digest(table: DataFrame) -> Rows:
        hashes = f.xxhash64("id", "random").cast("decimal(38)")
        return rows_of(table.agg(f.count("*"), f.sum(hashes)))

    assert digest(spark.read.parquet(uri)) == digest(rows)
    files = files_under(client, path)
    parts = [size for name, size in files.items() if name.endswith(".parquet")]
    assert len(parts) == 2
    assert min(parts) > MIB
    assert f"{path}/_SUCCESS" in files
    assert not [entry.path for entry in client.list(path) if entry.directory], "left over"


def test_a_table_grows_by_appending_and_is_replaced_by_overwriting(
    spark: SparkSession, uri: str
) -> None:
    spark.range(10).write.parquet(uri)
    with pytest.raises(PySparkException, match="PATH_ALREADY_EXISTS"):
        spark.range(10, 20).write.parquet(uri)
    spark.range(10, 20).write.mode("append").parquet(uri)
    assert rows_of(spark.read.parquet(uri)) == [(n,) for n in range(20)]
    spark.range(3).write.mode("overwrite").parquet(uri)
    assert rows_of(spark.read.parquet(uri)) == [(n,) for n in range(3)]


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_partitions_may_have_any_name(
    spark: SparkSession, client: Client, path: str, uri: str, form: str
) -> None:
    rows = [(n, name) for n, name in enumerate(AWKWARD)]
    table = spark.createDataFrame(rows, "n INT, name STRING")
    table.write.partitionBy("name").format(form).save(uri)
    reader = spark.read.schema("n INT, name STRING").format(form)
    assert rows_of(reader.load(uri)) == rows
    assert rows_of(reader.load(uri).where(f.col("name") == "a/b")) == [(2, "a/b")]
    assert len([entry for entry in client.list(path) if entry.directory]) == len(AWKWARD)


def test_only_the_partitions_at_hand_are_overwritten_if_asked_for(
    spark: SparkSession, uri: str
) -> None:
    table = spark.createDataFrame([(n, n % 3) for n in range(9)], "n INT, part INT")
    table.write.partitionBy("part").parquet(uri)
    change = spark.createDataFrame([(100, 1)], "n INT, part INT")
    dynamic = change.write.option("partitionOverwriteMode", "dynamic").mode("overwrite")
    dynamic.partitionBy("part").parquet(uri)
    kept = [(n, n % 3) for n in range(9) if n % 3 != 1]
    assert rows_of(spark.read.parquet(uri)) == sorted([*kept, (100, 1)])


ROWS = 300_000


def breaking(spark: SparkSession) -> DataFrame:
    """Two tasks: one has long committed its few rows when the other fails at its last one."""
    last = f.raise_error(f.lit("broken")).cast("long")
    rows = spark.range(0, 2 * ROWS, 1, 2).where(f.col("id") > ROWS - 10)
    kept = f.when(f.col("id") < 2 * ROWS - 1, f.col("id")).otherwise(last)
    return rows.select(kept.alias("id"), f.unhex(f.sha2(kept.cast("string"), 256)).alias("random"))


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, client: Client, path: str, uri: str
) -> None:
    with pytest.raises(PySparkException, match="broken"):
        breaking(spark).write.parquet(uri)
    assert files_under(client, path) == {}

    good = breaking(spark).limit(5)
    good.write.mode("append").parquet(uri)
    with pytest.raises(PySparkException, match="broken"):
        breaking(spark).write.mode("append").parquet(uri)
    assert rows_of(spark.read.parquet(uri)) == rows_of(good)


def test_what_a_job_that_failed_has_uploaded_is_forgotten(
    spark: SparkSession, start: StartCluster, connect: Connect
) -> None:
    """Megabytes of a file whose stream was given up before its end."""
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    most_bytes = 0
    begun, done = threading.Event(), threading.Event()

    async def watch() -> None:
        """Where the agents run: there nothing goes on while nobody looks."""
        nonlocal most_bytes
        begun.set()
        while not done.is_set():
            used = sum(node.storage.shards.bytes_used for node in cluster.nodes.values())
            most_bytes = max(most_bytes, used)
            await asyncio.sleep(0.01)

    watching = asyncio.run_coroutine_threadsafe(watch(), cluster._loop)
    assert begun.wait(60)
    try:
        with pytest.raises(PySparkException, match="broken"):
            breaking(spark).write.option("parquet.block.size", 4 * MIB).parquet(f"{cluster.uri}t")
    finally:
        done.set()
        watching.result()
    assert most_bytes > 2 * MIB
    eventually(lambda: bytes_used(cluster) == 0)
    assert client.status().files == 0


def test_a_file_sink_has_every_row_once_even_if_a_batch_is_done_again(
    spark: SparkSession, client: Client, path: str, uri: str, tmp_path: Path
) -> None:
    """As after a crash between the sink's commit and the query's own."""
    feed = Feed(tmp_path / "feed")

    def run() -> None:
        stream = feed.stream(spark).writeStream.format("parquet").trigger(availableNow=True)
        query = stream.option("checkpointLocation", f"{uri}/checkpoint").start(f"{uri}/table")
        assert query.awaitTermination(streams.QUERY_S_MAX)
        assert query.exception() is None

    for batches in (2, 4):
        feed.arrive(2)
        run()
        assert rows_of(spark.read.parquet(f"{uri}/table")) == rows_of(feed.batch(spark))
        files = files_under(client, f"{path}/table")
        assert client.delete(f"{path}/checkpoint/commits/{batches - 1}")
        run()
        assert client.exists(f"{path}/checkpoint/commits/{batches - 1}")
        assert rows_of(spark.read.parquet(f"{uri}/table")) == rows_of(feed.batch(spark))
        assert files_under(client, f"{path}/table").keys() >= files.keys()
    assert {f"{path}/table/_spark_metadata/{batch}" for batch in range(4)} <= files.keys()


# Checkpoints of RDDs and DataFrames.


def test_a_checkpointed_rdd_is_read_and_not_computed_again(
    spark: SparkSession, client: Client, path: str, uri: str
) -> None:
    context = spark.sparkContext
    context.setCheckpointDir(uri)
    computed = context.accumulator(0)

    def double(number: int) -> int:
        computed.add(1)
        return 2 * number

    numbers = context.parallelize(range(1000), 3).map(double)
    numbers.checkpoint()
    assert numbers.sum() == 999_000
    assert numbers.isCheckpointed()
    written = str(numbers.getCheckpointFile())
    directory = urlsplit(written).path
    assert directory.startswith(path)
    before = computed.value
    assert sorted(numbers.collect()) == list(range(0, 2000, 2))
    assert computed.value == before

    parts = files_under(client, directory)
    assert {Path(part).name for part in parts} >= {f"part-0000{n}" for n in range(3)}
    for part in parts:
        client.delete(part)
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        numbers.collect()
    assert client.summary(path).files == 0


def test_a_checkpointed_dataframe_is_read_and_not_computed_again(
    spark: SparkSession, client: Client, path: str, uri: str
) -> None:
    spark.sparkContext.setCheckpointDir(uri)
    rows = spark.range(1000).select("id", f.rand().alias("random")).checkpoint()
    assert client.summary(path).bytes > 8 * 1000
    assert rows_of(rows) == rows_of(rows)
    for part in files_under(client, path):
        client.delete(part)
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        rows.collect()


def test_local_checkpoints_stay_with_the_executors(
    spark: SparkSession, client: Client, uri: str
) -> None:
    spark.sparkContext.setCheckpointDir(uri)
    before = client.status().log.op
    rows = spark.range(1000).localCheckpoint()
    numbers = spark.sparkContext.parallelize(range(10), 2)
    numbers.localCheckpoint()
    assert (rows.count(), numbers.sum()) == (1000, 45)
    written = [event for event in client.events(after=before) if event.kind == "put"]
    assert written == []


# Several clusters.


def test_one_application_uses_two_clusters(
    spark: SparkSession, client: Client, start: StartCluster, connect: Connect, path: str, uri: str
) -> None:
    """`diskless:///` is the one that it was configured for; another is named in the URI, and
    known by its descriptor."""
    other = start(agents=3, data_shards=2, parity_shards=1)
    there = f"diskless://{other.settings.name}{path}"
    spark.range(20).write.parquet(uri)
    query = (
        spark.readStream.schema("id long")
        .parquet(uri)
        .writeStream.format("parquet")
        .trigger(availableNow=True)
        .option("checkpointLocation", f"{there}/checkpoint")
        .start(f"{there}/table")
    )
    query.awaitTermination()
    assert rows_of(spark.read.parquet(f"{there}/table")) == [(n,) for n in range(20)]
    files = files_under(connect(other), path)
    assert any(name.startswith(f"{path}/checkpoint/commits/") for name in files)
    assert not [name for name in files_under(client, path) if "checkpoint" in name]
