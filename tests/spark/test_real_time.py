"""Real-Time Mode on `diskless://`: records flow without batches, which only checkpoint.

The source is Spark's own for its tests of this mode; the sink has each row as it comes. Batches
are as short here as Spark can be told, so that there are many boundaries.
"""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from diskless.launch.local import LocalCluster
from tests.conftest import Connect, StartCluster
from tests.spark import streams
from tests.spark.streams import files_under
from tests.support import STRIPED, eventually, leader

pytestmark = pytest.mark.usefixtures("end_all")

REAL_TIME = "spark.sql.streaming.realTimeMode"
SETTINGS = {
    f"{REAL_TIME}.minBatchDuration": "200",
    "spark.sql.shuffle.partitions": "1",  # all tasks of a batch run at once, on two cores
    streams.TIMEOUT: "6s",
}
BATCH = "500 milliseconds"
KEYS = 7
RECORDS = 60

Totals = dict[int, tuple[int, int]]


class Records:
    """0, 1, 2 … as a test lets them come. They outlive a query, and so do their offsets."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        strings = jvm.org.apache.spark.sql.Encoders.STRING()
        self._source = sources.LowLatencyMemoryStream.apply(spark._jsparkSession, 1, strings)
        self._sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self.count = 0

    def arrive(self, count: int = RECORDS) -> None:
        numbers = range(self.count, self.count + count)
        self._source.addData(self._sequence([str(number) for number in numbers]))
        self.count += count

    def frame(self) -> DataFrame:
        return DataFrame(self._source.toDF(), self._spark)

    def stream(self) -> DataFrame:
        value = f.col("value").cast("int")
        return self.frame().select((value % KEYS).alias("key"), value.alias("value"))

    def totals(self) -> Totals:
        by_key = {key: range(key, self.count, KEYS) for key in range(KEYS)}
        return {key: (len(values), sum(values)) for key, values in by_key.items()}


class Sink:
    """What has come out, of all runs."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._jvm: Any = spark._jvm
        self._name = name

    def start(self, frame: DataFrame, checkpoint: str, batch: str = BATCH) -> StreamingQuery:
        writer = frame.writeStream.outputMode("update").trigger(realTime=batch)
        writer._jwrite.foreach(self._jvm.io.diskless.spark.Arrivals(self._name))
        return writer.option("checkpointLocation", checkpoint).start()

    def lines(self) -> list[tuple[int, ...]]:
        """Each row, and before it when it came."""
        told = self._jvm.io.diskless.spark.Arrivals.told(self._name)
        return [tuple(map(int, line.split(","))) for line in told.splitlines()]

    def rows(self) -> list[tuple[int, ...]]:
        return [line[1:] for line in self.lines()]

    def latest(self) -> Totals:
        return {key: (count, total) for key, count, total in self.rows()}


def await_flow(query: StreamingQuery, records: Records, came: Any) -> None:
    """Returns when all records that there are have come out; fails as soon as the query does."""

    def all_came() -> bool:
        assert query.isActive, query.exception()
        return bool(came())

    records.arrive()
    eventually(all_came, streams.QUERY_S_MAX)


def lose_k(cluster: LocalCluster) -> None:
    first = leader(cluster).slot
    cluster.kill(first, (first + 1) % 5)


@pytest.mark.slow
def test_records_go_on_through_losses_and_a_restart(
    spark: SparkSession, start: StartCluster, path: str
) -> None:
    cluster, records = start(tuning=STRIPED), Records(spark)
    sink, checkpoint = Sink(spark, path), f"{cluster.uri}stateless"

    def came() -> bool:
        return {value for _, value in sink.rows()} == set(range(records.count))

    with streams.settings(spark, SETTINGS):
        query = sink.start(records.stream(), checkpoint)
        await_flow(query, records, came)
        streams.await_more(query, 2)
        lose_k(cluster)
        await_flow(query, records, came)
        streams.await_more(query, 2)
        query.stop()
        done = len(sink.rows())
        query = sink.start(records.stream(), checkpoint)
        await_flow(query, records, came)
        streams.await_more(query, 1)
        query.stop()
    assert len(sink.rows()) - done < records.count, "it went on where it was, and not from 0"


def test_state_is_counted_once_through_losses_and_a_restart(
    spark: SparkSession, start: StartCluster, connect: Connect, path: str
) -> None:
    cluster, records = start(tuning=STRIPED), Records(spark)
    sink, checkpoint = Sink(spark, path), f"{cluster.uri}stateful"
    totals = streams.totals(records.stream())

    def came() -> bool:
        return sink.latest() == records.totals()

    with streams.settings(spark, SETTINGS):
        query = sink.start(totals, checkpoint)
        await_flow(query, records, came)
        streams.await_more(query, 2)
        lose_k(cluster)
        await_flow(query, records, came)
        streams.await_more(query, 2)
        query.stop()
        streams.end_all(spark)  # the state comes from the checkpoint, with two agents gone
        query = sink.start(totals, checkpoint)
        await_flow(query, records, came)
        streams.await_more(query, 1)
        query.stop()
    state = [name for name in files_under(connect(cluster), "/stateful/state") if "/0/0/" in name]
    changes = [name.rpartition("/")[2] for name in state if name.endswith(".changelog")]
    assert changes, state
    assert all("_" in name for name in changes), "format 2: a name that no other try has"
