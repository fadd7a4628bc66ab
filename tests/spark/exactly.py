"""Queries whose sinks commit a whole batch under its id, and see each row exactly once or do not.

A query plans a batch from all files that have arrived by then: one that is planned anew has
other rows. Its sink is a directory with a file a batch; of a batch that is there already it keeps
nothing, as sinks do that know a batch by its id. Some queries have state: then each batch is
evaluated first, seen or not. `Jvm` is a Spark in a process of its own, with several of these
queries; this module is also its program.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import diskless.spark
from diskless.client import Client
from diskless.errors import NotFound
from tests.spark import streams

ROWS = 10
"""Of a file."""
PATIENT = "300s"
"""The tier is silent for longer than clients usually wait."""
_ROCKSDB = {streams.PROVIDER: streams.ROCKSDB}
CONFS: dict[str, dict[str, object]] = {
    "stateless": {},
    "hdfs": {},
    "rocksdb": _ROCKSDB,
    "changelog": {**_ROCKSDB, streams.CHANGELOG: True},
    "format2": {**_ROCKSDB, streams.CHANGELOG: True, streams.STATE_FORMAT: 2},
    "join": {**_ROCKSDB, streams.CHANGELOG: True},
}
"""The queries that there are, and the settings of each."""


class Arrivals:
    """Numbers 0, 1, 2 … in files, seen whole or not at all."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.files = 0

    def arrive(self, files: int = 1) -> None:
        for _ in range(files):
            first = self.files * ROWS
            hidden = self.directory / f".{self.files}.csv"
            hidden.write_text("".join(f"{id_}\n" for id_ in range(first, first + ROWS)))
            hidden.rename(self.directory / f"{self.files:05}.csv")
            self.files += 1

    @property
    def ids(self) -> range:
        return range(self.files * ROWS)


class Sink:
    """What a query's sink has committed: a file a batch."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory

    def newest(self) -> int:
        return max((int(file.stem) for file in self.directory.glob("*.json")), default=-1)

    def counts(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for file in self.directory.glob("*.json"):
            found.update(json.loads(file.read_text()))
        return found

    def commit(self, batch: int, ids: list[int]) -> None:
        hidden = self.directory / f".{batch}.tmp"
        hidden.write_text(json.dumps(ids))
        hidden.rename(self.directory / f"{batch}.json")

    def has(self, batch: int) -> bool:
        return (self.directory / f"{batch}.json").exists()


def newest_plan(client: Client, checkpoint: str) -> int:
    try:
        names = [entry.path.rpartition("/")[2] for entry in client.list(f"{checkpoint}/offsets")]
    except NotFound:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


class Jvm:
    """A Spark that runs queries until it is killed, or to the end of what has arrived."""

    def __init__(
        self, cluster: str, work: Path, names: Sequence[str], *, master: str, to_the_end: bool
    ) -> None:
        self._arguments = [cluster, str(work), ",".join(names), master, str(int(to_the_end))]

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.exactly", *self._arguments],
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def check(self) -> None:
        assert self.process.poll() is None, "the other process ended; what it printed is on stderr"


# -- the far side -------------------------------------------------------------------------


def _frame(spark: SparkSession, name: str, arrivals: str) -> DataFrame:
    def stream() -> DataFrame:
        return spark.readStream.schema("id LONG").csv(arrivals)

    if name == "stateless":
        return stream()
    if name == "join":
        other = stream().withColumnRenamed("id", "other")
        return stream().join(other, f.col("id") == f.col("other")).select("id")
    return stream().dropDuplicates(["id"])


def _into(sink: Sink, *, stateless: bool) -> Callable[[DataFrame, int], None]:
    def take(rows: DataFrame, batch: int) -> None:
        if stateless and sink.has(batch):
            return
        ids = [int(row.id) for row in rows.collect()]
        if not sink.has(batch):
            sink.commit(batch, ids)

    return take


def _start(
    spark: SparkSession, name: str, cluster: str, work: Path, *, to_the_end: bool
) -> StreamingQuery:
    with streams.settings(spark, CONFS[name]):
        return streams.start(
            _frame(spark, name, str(work / "arrivals")),
            f"{cluster}c/{name}",
            _into(Sink(work / "sinks" / name), stateless=name == "stateless"),
            mode="append",
            **({"availableNow": True} if to_the_end else {"processingTime": "0 seconds"}),
        )


def main(cluster: str, work: str, names: str, master: str, to_the_end: str) -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.executor.memory", "1g")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config(f"spark.hadoop.{streams.TIMEOUT}", PATIENT)
    spark = diskless.spark.configure(builder, cluster).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    end = to_the_end == "1"
    queries = [
        _start(spark, name, cluster, Path(work), to_the_end=end) for name in names.split(",")
    ]
    for query in queries:
        query.awaitTermination()
    os._exit(0)  # Stores that look after themselves are not waited for.


if __name__ == "__main__":
    main(*sys.argv[1:])
