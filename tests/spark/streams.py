"""What the tests of Spark share: input that arrives, queries, and what they said.

Every input can be read as a stream and, all of it, as a batch, whose answer is the one to
compare with. `OtherJvm` is a Spark in another process; this module is also its program.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psutil
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import diskless.spark
from diskless.client import Client
from diskless.launch import signals
from tests.support import eventually

QUERY_S_MAX = 180.0
"""A query that takes longer for what a test asks of it hangs."""
STARTS_MAX = 3

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
MAINTENANCE = "spark.sql.streaming.stateStore.maintenanceInterval"
DELTAS_PER_SNAPSHOT = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
BATCHES_RETAINED = "spark.sql.streaming.minBatchesToRetain"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
TIMEOUT = "fs.diskless.timeout"

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BY_FILE_CONTEXT = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)

Rows = list[tuple[Any, ...]]
Sink = Callable[[DataFrame, int], None]


OF_TWO_WRITERS = (
    "CheckpointInUse",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
)
"""What a query says that is not alone with its checkpoint: the lease keeps it out, or, if the other
was just before it with the very same batch, one of Spark's two checks of its log."""


def rows_of(frame: DataFrame) -> Rows:
    """All rows, in an order of their own."""
    return sorted(tuple(row) for row in frame.collect())


def files_under(client: Client, path: str) -> dict[str, int]:
    """The paths of all files under a directory, and their sizes."""
    found: dict[str, int] = {}
    for entry in client.list(path):
        found |= files_under(client, entry.path) if entry.directory else {entry.path: entry.size}
    return found


# Input.


class Feed:
    """Rows of (time, key, value) in CSV files: a stream reads one a batch, a batch all."""

    SCHEMA = "time TIMESTAMP, key INT, value INT"
    START = datetime(2026, 1, 1, tzinfo=UTC)
    KEYS = 40
    ROWS = 100

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._files = 0

    def arrive(self, files: int) -> None:
        """More files, each a minute later than the one before, seen whole or not at all."""
        for _ in range(files):
            rng = random.Random(self._files)
            begin = self.START + timedelta(minutes=self._files)
            lines = (
                f"{begin + timedelta(seconds=rng.randrange(60)):%Y-%m-%d %H:%M:%S},"
                f"{rng.randrange(self.KEYS)},{rng.randrange(1000)}\n"
                for _ in range(self.ROWS)
            )
            hidden = self._directory / f".{self._files:04}.csv"
            hidden.write_text("".join(lines))
            hidden.rename(self._directory / hidden.name.lstrip("."))
            self._files += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self.SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.csv(str(self._directory))

    def batch(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(self.SCHEMA).csv(str(self._directory))


@dataclass(frozen=True)
class Numbers:
    """0, 1, 2 … without an end, so many a batch, keyed by their remainder."""

    rows: int
    keys: int

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows)
        return self._keyed(reader.option("numPartitions", 2).load())

    def batch(self, spark: SparkSession, batches: int) -> DataFrame:
        """What the first so many batches of the stream hold."""
        return self._keyed(spark.range(batches * self.rows).withColumnRenamed("id", "value"))

    def _keyed(self, numbers: DataFrame) -> DataFrame:
        return numbers.select((f.col("value") % self.keys).alias("key"), "value")


def totals(rows: DataFrame) -> DataFrame:
    """The query of most tests: it needs state, and what is lost or doubled shows."""
    return rows.groupBy("key").agg(f.count("*").alias("count"), f.sum("value").alias("sum"))


# Queries.


class Said:
    """A sink: the rows of every batch. A batch that is done again must say the same again."""

    def __init__(self) -> None:
        self.batches: dict[int, Rows] = {}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.note(batch, rows_of(rows))

    def note(self, batch: int, rows: Rows) -> None:
        assert self.batches.setdefault(batch, rows) == rows, f"batch {batch} changed its mind"

    @property
    def rows(self) -> Rows:
        """Everything, for queries that append."""
        return sorted(row for rows in self.batches.values() for row in rows)

    @property
    def latest(self) -> Rows:
        """The last row of every key, for queries that update."""
        in_order = (row for _, rows in sorted(self.batches.items()) for row in rows)
        return sorted({row[0]: row for row in in_order}.values())


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, object]) -> Iterator[None]:
    """The session has these settings until the block ends."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, str(value))
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def start(
    frame: DataFrame, checkpoint: str, sink: Sink, *, mode: str = "update", **trigger: Any
) -> StreamingQuery:
    """Starts a query; by default it runs batch after batch."""
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
    writer = writer.trigger(**(trigger or {"processingTime": "0 seconds"}))
    return writer.foreachBatch(sink).start()


@contextmanager
def running(
    frame: DataFrame, checkpoint: str, sink: Sink, **options: Any
) -> Iterator[StreamingQuery]:
    """A query that runs until the block ends, and then ends well."""
    query = start(frame, checkpoint, sink, **options)
    try:
        yield query
    finally:
        query.stop()
    assert query.exception() is None


def run(frame: DataFrame, checkpoint: str, sink: Sink, *, mode: str = "update") -> None:
    """A query over all that has arrived, to its end. It is started again where Spark gave up on a
    Python process: that one has ten seconds to start, whatever else the machine does."""
    for left in reversed(range(STARTS_MAX)):
        try:
            with running(frame, checkpoint, sink, mode=mode, availableNow=True) as query:
                assert query.awaitTermination(QUERY_S_MAX), f"{query.status} after {QUERY_S_MAX} s"
            return
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or not left:
                raise


def last_batch(query: StreamingQuery) -> int:
    """The newest batch that is complete, of this start of the query; -1 before its first."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def await_batch(query: StreamingQuery, batch: int) -> None:
    """Returns when a batch is complete; fails as soon as the query does."""

    def complete() -> bool:
        if not query.isActive:
            raise AssertionError(f"the query ended: {query.exception()}")
        return last_batch(query) >= batch

    eventually(complete, QUERY_S_MAX)


def await_more(query: StreamingQuery, batches: int) -> None:
    """Returns when so many batches more are complete; a query just started does one first."""
    await_batch(query, 0)
    await_batch(query, last_batch(query) + batches)


def end_all(spark: SparkSession) -> None:
    """Stops all queries and drops what state of them is still in the JVM."""
    for query in spark.streams.active:
        query.stop()
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


# Another JVM.


class OtherJvm:
    """A Spark in a process of its own, for a `with` block. It runs `totals`, one query a name."""

    def __init__(self, cluster: str, *, master: str) -> None:
        self._arguments = [cluster, master]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.streams", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._process.poll() is None:
                self._process.communicate(timeout=QUERY_S_MAX)
        finally:
            self._process.kill()

    def start(
        self,
        name: str,
        checkpoint: str,
        *,
        feed: Path | None = None,
        numbers: Numbers | None = None,
        conf: Mapping[str, object] | None = None,
    ) -> None:
        """A feed is read to its end; of numbers there is none."""
        numbered = numbers and [numbers.rows, numbers.keys]
        self._ask("start", name, checkpoint, feed and str(feed), numbered, dict(conf or {}))

    def report(self, name: str, said: Said) -> tuple[bool, str | None]:
        """Adds to `said`; whether the query is active, and the error that ended it."""
        active, error, batches = self._ask("report", name)
        for batch, rows in batches:
            said.note(batch, [tuple(row) for row in rows])
        return active, error

    def finish(self, name: str, said: Said) -> None:
        """Waits for the good end of a query over a feed."""
        eventually(lambda: not self.report(name, said)[0], QUERY_S_MAX)
        assert self.report(name, said) == (False, None)

    def stop(self, name: str) -> None:
        self._ask("stop", name)

    def kill(self) -> None:
        """The process and its JVM, without a word to anybody."""
        own = psutil.Process(self._process.pid)
        for process in (*own.children(recursive=True), own):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Its JVM stands still, as in a long pause of its garbage collector."""
        own = psutil.Process(self._process.pid)
        pids = [one.pid for one in own.children(recursive=True) if one.name() == "java"]
        assert pids
        signals.stop(pids)
        try:
            yield
        finally:
            signals.send(pids, signal.SIGCONT)

    def _ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the other process ended; what it printed is on stderr"
        return json.loads(answer)


class _Server:
    """The far side of `OtherJvm`: each method is a question, its result the answer."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, tuple[StreamingQuery, Said]] = {}

    def start(
        self,
        name: str,
        checkpoint: str,
        feed: str | None,
        numbers: list[int] | None,
        conf: dict[str, object],
    ) -> None:
        said = Said()
        with settings(self._spark, conf):
            if numbers:
                stream, trigger = Numbers(*numbers).stream(self._spark), {}
            else:
                stream, trigger = Feed(Path(str(feed))).stream(self._spark), {"availableNow": True}
            self._queries[name] = start(totals(stream), checkpoint, said, **trigger), said

    def report(self, name: str) -> tuple[bool, str | None, list[tuple[int, Rows]]]:
        query, said = self._queries[name]
        active, error = query.isActive, query.exception()
        return active, error and str(error), list(said.batches.items())

    def stop(self, name: str) -> None:
        self._queries[name][0].stop()


def session(cluster: str, master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    return diskless.spark.configure(builder, cluster).getOrCreate()


def main(cluster: str, master: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever Spark prints is no answer.
    spark = session(cluster, master)
    server = _Server(spark)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(server, verb)(*arguments)), file=answers, flush=True)
    end_all(spark)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
