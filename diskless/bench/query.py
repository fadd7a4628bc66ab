"""A streaming query in a process, and so in a JVM, of its own: what is killed and restarted.

Run as `python -m diskless.bench.query`, told on standard input what to run (a JSON object,
`Plan`), it prints a JSON object for each committed batch, and ends after so many of them or
when its standard input does. Times are of the machine's clock, so that the process that started it
can subtract.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from diskless.workloads.progress import Progress, checkpoint_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.02
FIRST_BATCH_TIMEOUT_S = 300.0
ONE_BATCH_ONLY = "1 hour"
"""Between triggers, the first of which is at once: nothing is under way when the query stops."""
DIGEST_CHARS = 128
"""What sha2(…, 512) gives: so many characters that do not compress."""

STATE = "spark.sql.streaming.stateStore"
PROVIDERS = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint: str
    cluster: str = ""
    """Which cluster `diskless:///` is; "" runs a Spark that knows nothing of diskless."""
    provider: str = "hdfs"
    partitions: int = 8
    keys: int
    value_bytes: int = 0
    """Of each key's value in the state; 0 keeps a count."""
    rows_per_batch: int
    batches: int = 0
    """How many are committed before it ends; 0 continues until standard input ends."""
    driver_memory: str = "2g"


def session(plan: Plan) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", plan.driver_memory)
        .config("spark.sql.shuffle.partitions", plan.partitions)
        .config(f"{STATE}.providerClass", PROVIDERS[plan.provider])
        .config(f"{STATE}.rocksdb.changelogCheckpointing.enabled", "true")
    )
    if plan.cluster:
        import diskless.spark

        builder = diskless.spark.configure(builder, plan.cluster)
    return builder.getOrCreate()


def aggregate(spark: "SparkSession", plan: Plan) -> "DataFrame":
    """A count, or a value of some bytes, for each of the keys, which come round and round."""
    from pyspark.sql import functions

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", plan.rows_per_batch)
        .option("numPartitions", 2)
        .load()
    )
    key = (rows.value % plan.keys).alias("key")
    if not plan.value_bytes:
        return rows.groupBy(key).count()
    pieces = [
        functions.sha2(functions.concat_ws("-", rows.value.cast("string"), functions.lit(n)), 512)
        for n in range(-(-plan.value_bytes // DIGEST_CHARS))
    ]
    value = functions.substring(functions.concat(*pieces), 1, plan.value_bytes)
    return rows.groupBy(key).agg(functions.max(value).alias("value"))


def committed_s(progress: Progress) -> float:
    """When a batch was committed, in seconds since 1970."""
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
    return began.timestamp() + progress["durationMs"]["triggerExecution"] / 1000


def run(plan: Plan, tell: Callable[[dict[str, Any]], None]) -> None:
    spark = session(plan)
    spark.sparkContext.setLogLevel("OFF")
    tell({"session_s": time.time()})
    query = (
        aggregate(spark, plan)
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", plan.checkpoint)
        .trigger(processingTime=ONE_BATCH_ONLY if plan.batches == 1 else "0 seconds")
        .start()
    )
    last, told = -1, 0
    deadline = time.monotonic() + FIRST_BATCH_TIMEOUT_S
    while not plan.batches or told < plan.batches:
        if not query.isActive:
            query.awaitTermination()  # raises what it failed with
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                last = progress["batchId"]
                told += 1
                tell(_about(json.loads(progress.json)))
        if not told and time.monotonic() > deadline:
            raise TimeoutError(f"no batch was committed in {FIRST_BATCH_TIMEOUT_S:g} s")
        if not plan.batches and select.select([sys.stdin], [], [], POLL_S)[0]:
            break
        time.sleep(POLL_S)
    query.stop()
    spark.stop()


def _about(progress: Progress) -> dict[str, Any]:
    (operator,) = progress["stateOperators"]
    return {
        "batch": progress["batchId"],
        "committed_s": committed_s(progress),
        "trigger_ms": progress["durationMs"]["triggerExecution"],
        "checkpoint_ms": checkpoint_ms(progress),
        "state_rows": operator["numRowsTotal"],
        "state_bytes": operator["memoryUsedBytes"],
    }


def cached_share(directory: Path, *, step: int = 64 * 1024) -> float:
    """The part of a directory's files that lies in the page cache, by looking every so often."""
    looked = cached = 0
    for path in directory.rglob("*"):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            for offset in range(0, path.stat().st_size, step):
                looked += 1
                try:
                    os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
                    cached += 1
                except BlockingIOError:
                    pass
    return cached / looked if looked else 0.0


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    run(plan, lambda news: print(json.dumps(news), flush=True))


if __name__ == "__main__":
    main()
