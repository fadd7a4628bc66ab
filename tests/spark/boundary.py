"""What records wait for at the boundaries of Real-Time Mode, on `diskless://` and on `file://`.

`python -m tests.spark.boundary [DURATION_S] [BATCHES] [ROUNDS]` counts by key, with eight
partitions of state, in turns for both places, and prints how late rows come: all of them, the worst
at each boundary, and what Spark says that its steps took.
"""

import sys
import tempfile
import threading
import time
from statistics import median, quantiles
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import diskless
import diskless.spark
from diskless.bench.store import DISK_PATH
from diskless.spark.jar import build, jar
from tests.spark.conftest import CASES
from tests.spark.streams import await_batch
from tests.spark.test_real_time import REAL_TIME, Records, Sink

PARTITIONS = 8
PAUSE_S = 0.005
STEPS = ("latestOffset", "queryPlanning", "walCommit", "commitOffsets")


class Timed(Records):
    """Each says when it came."""

    def feed(self, ended: threading.Event) -> None:
        while not ended.wait(PAUSE_S):
            self._source.addData(self._sequence([f"{self.count},{time.time_ns() // 10**6}"]))
            self.count += 1

    def counted(self) -> Any:
        parts = f.split("value", ",")
        key = (parts[0].cast("int") % 100).alias("key")
        rows = self.frame().select(key, parts[1].cast("long").alias("came"))
        return rows.groupBy("key").agg(f.count("*").alias("count"), f.max("came").alias("came"))


def measure(
    spark: SparkSession, place: str, duration_s: int, batches: int
) -> dict[str, list[float]]:
    records, sink = Timed(spark), Sink(spark, place)
    ended = threading.Event()
    feeding = threading.Thread(target=records.feed, args=(ended,))
    query = sink.start(records.counted(), place, batch=f"{duration_s} seconds")
    feeding.start()
    try:
        await_batch(query, 0)
        warm = len(sink.lines())
        await_batch(query, batches)
    finally:
        ended.set()
        feeding.join()
        query.stop()
    late = [line[0] - line[-1] for line in sink.lines()[warm:]]
    return {"late": late, "boundary": worst(late, batches), **steps(query)}


def worst(late: list[int], boundaries: int) -> list[float]:
    """Of rows one after the other: how late the latest was around each boundary."""
    size = len(late) // boundaries
    return [float(max(late[n * size : (n + 1) * size])) for n in range(boundaries)]


def steps(query: StreamingQuery) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for progress in list(query.recentProgress)[1:]:
        for name in STEPS:
            if name in progress["durationMs"]:
                found.setdefault(name, []).append(float(progress["durationMs"][name]))
        (operator,) = progress["stateOperators"]
        found.setdefault("state commit, all partitions", []).append(operator["commitTimeMs"])
    return found


def main(duration_s: int = 5, batches: int = 4, rounds: int = 2) -> None:
    cases = build("diskless-spark-tests", sorted(CASES.glob("*.scala")), classpath=[jar()])
    with diskless.local_cluster() as cluster, tempfile.TemporaryDirectory(dir=DISK_PATH) as disk:
        builder = (
            SparkSession.builder.master(f"local[{PARTITIONS + 2}]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", PARTITIONS)
            .config("spark.jars", str(cases))
        )
        spark = diskless.spark.configure(builder, cluster.uri).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        if duration_s < 5:
            spark.conf.set(f"{REAL_TIME}.minBatchDuration", str(1000 * duration_s))
        found: dict[str, dict[str, list[float]]] = {"diskless": {}, "file": {}}
        places = {"diskless": "diskless:///", "file": f"file://{disk}/"}
        for turn in range(-1, rounds):  # the first one only warms up
            for name in places if turn % 2 else reversed(places):
                told = measure(
                    spark, f"{places[name]}{turn}", duration_s, batches if turn >= 0 else 1
                )
                for what, values in told.items() if turn >= 0 else ():
                    found[name].setdefault(what, []).extend(values)
        for name, told in found.items():
            late = quantiles(told.pop("late"), n=1000)
            print(
                f"{name}: late p50 {late[499]:.0f}, p99 {late[989]:.0f}, p99.9 {late[998]:.0f} ms"
            )
            for what, values in told.items():
                each = " ".join(f"{value:.0f}" for value in values)
                print(f"    {what}: median {median(values):.0f} ms of {each}")
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
