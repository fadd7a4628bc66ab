"""What a checkpoint costs a stateful Spark stream: on disk, on tmpfs, and on diskless.

The same query for all three in one session, in turns, each resuming its own checkpoint:
so warming up, and whatever else the machine does, is shared fairly.
"""

import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diskless.client.client import Client
from diskless.model import Event
from diskless.namespace.events import EVENTS_MAX
from diskless.workloads.progress import Progress, checkpoint_ms, follow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS_PER_BATCH = 20_000
KEYS = 200_000
TURNS = 3
WARM_BATCHES = 4
"""Of each turn; the first turn of all gets as many again."""
BATCHES = 12
"""Measured in each turn."""
TURN_TIMEOUT_S = 300.0
DISK = "/var/tmp"
TMPFS = "/dev/shm"

_STATE = "spark.sql.streaming.stateStore"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


class Setup(NamedTuple):
    provider: str
    partitions: int

    def apply(self, spark: "SparkSession") -> None:
        spark.conf.set(f"{_STATE}.providerClass", self.provider)
        spark.conf.set(f"{_STATE}.rocksdb.changelogCheckpointing.enabled", "true")
        spark.conf.set("spark.sql.shuffle.partitions", self.partitions)


SETUPS = {
    "hdfs-8": Setup(_HDFS, 8),
    "rocksdb-8": Setup(_ROCKSDB, 8),
    "hdfs-50": Setup(_HDFS, 50),
}


def checkpoints(client: Client, cluster: str) -> dict[str, Any]:
    """For each set-up the medians of each system, and diskless as a part of the disk."""
    with _session(cluster) as spark, _directories() as (disk, tmpfs):
        places = {"disk": f"file://{disk}", "tmpfs": f"file://{tmpfs}", "diskless": "diskless://"}
        result: dict[str, Any] = {}
        for title, setup in SETUPS.items():
            setup.apply(spark)
            result |= _compare(spark, client, title, places)
        return result


def _compare(
    spark: "SparkSession", client: Client, title: str, places: dict[str, str]
) -> dict[str, Any]:
    seen: dict[str, list[Progress]] = {name: [] for name in places}
    events: list[Event] = []
    for turn in range(TURNS):
        for name, place in places.items():
            before = client.status()["log"]["op"]
            seen[name] += _turn(spark, f"{place}/bench/{title}", turn)
            if name == "diskless":
                events += client.events(before, EVENTS_MAX)
    figures = {
        name: {
            "checkpoint_ms": statistics.median(map(checkpoint_ms, batches)),
            "trigger_ms": statistics.median(_trigger_ms(batch) for batch in batches),
            "batches": len(batches),
        }
        for name, batches in seen.items()
    }
    return {
        title: figures
        | {
            "checkpoint_of_disk": _ratio(figures, "checkpoint_ms"),
            "trigger_of_disk": _ratio(figures, "trigger_ms"),
            "commands": dict(Counter(event.kind for event in events)),
            "commands_per_file": _commands_per_file(events),
        }
    }


def _turn(spark: "SparkSession", checkpoint: str, turn: int) -> list[Progress]:
    """Goes on from the checkpoint, and gives the progress of the batches after warming up."""
    warm = WARM_BATCHES * (1 if turn else 2)
    batches: list[Progress] = []
    query = _start(spark, checkpoint)
    follow(query, more=warm + BATCHES, timeout_s=TURN_TIMEOUT_S, each=batches.append)
    return batches[warm:]


def _start(spark: "SparkSession", checkpoint: str) -> "StreamingQuery":
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_BATCH)
        .option("numPartitions", 2)
        .load()
    )
    return (
        rows.groupBy((rows.value % KEYS).alias("key"))
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", checkpoint)
        .start()
    )


def _commands_per_file(events: list[Event]) -> float:
    """Puts and renames for each file that appeared; deleting it later is not counted."""
    files = {event.text.split()[1] for event in events if event.kind == "put"}
    return sum(event.kind in ("put", "rename") for event in events) / len(files)


def _trigger_ms(progress: Progress) -> float:
    return float(progress["durationMs"]["triggerExecution"])


def _ratio(figures: dict[str, dict[str, float]], key: str) -> float:
    return figures["diskless"][key] / figures["disk"][key]


@contextmanager
def _session(cluster: str) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    import diskless.spark

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
    )
    spark = diskless.spark.configure(builder, cluster).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
        time.sleep(1)  # the JVM's last words belong before the table


@contextmanager
def _directories() -> Iterator[tuple[Path, Path]]:
    made = [Path(tempfile.mkdtemp(prefix="diskless-bench-", dir=at)) for at in (DISK, TMPFS)]
    try:
        yield made[0], made[1]
    finally:
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)
