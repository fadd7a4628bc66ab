"""What a checkpoint costs a stateful Spark stream: on disk, on tmpfs, and on diskless.

The same query for all three in one session, in turns, each resuming its own checkpoint:
so warming up, and whatever else the machine does, is shared fairly. A shape of diskless has
its turns in a session of its own, beside its own disk and tmpfs.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diskless.bench import works
from diskless.bench.clusters import cluster, in_process, shape_settings
from diskless.bench.query import PROVIDERS, STATE, Plan, aggregate, session
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import Sizes
from diskless.bench.store import DISK_PATH, TMPFS_PATH
from diskless.client.client import Client
from diskless.config import KIB, parse_bytes
from diskless.model import Event
from diskless.namespace.events import EVENTS_MAX
from diskless.workloads.progress import Progress, checkpoint_ms, follow
from diskless.workloads.session import stderr_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

TURN_TIMEOUT_S = 600.0
QUERY = Plan(checkpoint="", keys=200_000, rows_per_batch=20_000)
COMMIT = bytes(range(256)) * 4
MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
LAST_WORDS_S = 1.0
LONG = "hdfs-8"
"""The set-up that the bounds are about."""


class Setup(NamedTuple):
    provider: str
    partitions: int

    def apply(self, spark: "SparkSession") -> None:
        spark.conf.set(f"{STATE}.providerClass", PROVIDERS[self.provider])
        spark.conf.set("spark.sql.shuffle.partitions", self.partitions)


def parse_setup(text: str) -> Setup:
    """`hdfs-8` or `rocksdb-50`. Raises ValueError."""
    provider, _, partitions = text.partition("-")
    if provider not in PROVIDERS:
        raise ValueError(f"{text!r}: the state provider is one of {', '.join(PROVIDERS)}")
    return Setup(provider, int(partitions))


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("spark")
    for shape in sizes.spark_systems:
        record.beside = shape
        # One JVM for each cluster: a session knows only the first.
        record = in_process(_run_beside, shape, sizes, record, say)
    return record


def _run_beside(shape: str, sizes: Sizes, record: Recorder, say: Say) -> Recorder:
    """In Spark's own time: nothing is freed more quickly than it would be for a user."""
    with (
        cluster(shape_settings(shape)) as running,
        _directories() as (disk, tmpfs),
        _session(running.name) as spark,  # It ends first: queries write there until it does.
    ):
        places = {
            works.DISK: f"file://{disk}",
            works.TMPFS: f"file://{tmpfs}",
            works.diskless(shape): "diskless://",
        }
        say(f"beside {shape}: commits through Spark")
        _commits(spark, places, sizes, record)
        main = shape == works.MAIN_SHAPE
        for setup in sizes.spark_setups if main else sizes.spark_other_setups:
            say(f"beside {shape}: {setup}")
            parse_setup(setup).apply(spark)
            _compare(spark, running.client, setup, places, sizes, record)
    return record


# One file.


def _commits(spark: "SparkSession", places: dict[str, str], sizes: Sizes, record: Recorder) -> None:
    """One checkpoint file after the other, as Spark writes its logs; Python's calls count too."""
    managers = {name: _Commits(spark, f"{place}/commits") for name, place in places.items()}
    for turn in range(-1, sizes.spark_turns):  # the first one only warms up
        for name, manager in managers.items():
            took_s = manager.commit_s(turn, sizes.spark_commits)
            if turn >= 0:
                record.add(works.SPARK_COMMIT, name, 1000 * took_s, "ms")


class _Commits:
    """Spark's own manager of checkpoint files for a place."""

    def __init__(self, spark: "SparkSession", place: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._place = place
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        factory = jvm
        for name in MANAGER.split("."):
            factory = getattr(factory, name)
        self._manager = factory.create(self._path(place), conf)
        self._manager.mkdirs(self._path(place))

    def commit_s(self, turn: int, count: int) -> float:
        began = time.perf_counter()
        for n in range(count):
            stream = self._manager.createAtomic(self._path(f"{self._place}/{turn}-{n}"), False)
            stream.write(bytearray(COMMIT))
            stream.close()
        return (time.perf_counter() - began) / count


# A stream.


def _compare(
    spark: "SparkSession",
    client: Client,
    setup: str,
    places: dict[str, str],
    sizes: Sizes,
    record: Recorder,
) -> None:
    events: list[Event] = []
    for turn in range(sizes.spark_turns):
        for name, place in places.items():
            before = client.status().log.op
            batches = sizes.spark_batches if setup == LONG else sizes.spark_more_batches
            warm = sizes.spark_warm * (1 if turn else 2)
            seen = _turn(spark, f"{place}/bench/{setup}", warm=warm, batches=batches)
            checkpoint = statistics.median(map(checkpoint_ms, seen))
            trigger = statistics.median(_trigger_ms(batch) for batch in seen)
            note = f"{sizes.spark_turns} × {len(seen)} batches"
            record.add(works.checkpoint(setup), name, checkpoint, "ms", note=note)
            record.add(works.trigger(setup), name, trigger, "ms", note=note)
            if place.startswith("diskless:"):
                events += client.events(before, EVENTS_MAX)
    name = next(name for name, place in places.items() if place.startswith("diskless:"))
    for work, value, unit in counted(events, setup):
        record.add(work, name, value, unit)


def _turn(
    spark: "SparkSession", checkpoint: str, *, warm: int, batches: int, plan: Plan = QUERY
) -> list[Progress]:
    """Goes on from the checkpoint, and gives the progress of the batches after warming up."""
    seen: list[Progress] = []
    query = _start(spark, checkpoint, plan)
    follow(query, more=warm + batches, timeout_s=TURN_TIMEOUT_S, each=seen.append)
    return seen[warm:]


def _start(spark: "SparkSession", checkpoint: str, plan: Plan = QUERY) -> "StreamingQuery":
    return (
        aggregate(spark, plan)
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", checkpoint)
        .start()
    )


def counted(events: list[Event], setup: str) -> Iterator[tuple[str, float, str]]:
    """As the agents saw it: puts and renames, but not the deletion of old files."""
    puts = [event.text.split() for event in events if event.kind == "put"]
    commands = len(puts) + sum(event.kind == "rename" for event in events)
    files = {path for _, path, *_ in puts}
    batches = sum(path.rpartition("/")[0].endswith("/commits") for path in files)
    size = sum(parse_bytes(" ".join(words[-2:])) for words in puts)
    yield works.SPARK_FILE_COMMANDS, commands / len(files), "commands"
    yield works.batch_commands(setup), commands / batches, "commands"
    yield works.batch_bytes(setup), size / batches / KIB, "KiB"


def _trigger_ms(progress: Progress) -> float:
    return float(progress["durationMs"]["triggerExecution"])


@contextmanager
def _session(name: str) -> Iterator["SparkSession"]:
    with tempfile.NamedTemporaryFile() as chatter, stderr_to(Path(chatter.name)):
        spark = session(Plan(checkpoint="", cluster=name, keys=1, rows_per_batch=1))
    spark.sparkContext.setLogLevel("OFF")  # it calls a stopped query an error
    try:
        yield spark
    finally:
        spark.stop()
        time.sleep(LAST_WORDS_S)  # the JVM's last words belong before the table


@contextmanager
def _directories() -> Iterator[tuple[Path, Path]]:
    parents = (DISK_PATH, TMPFS_PATH)
    made = [Path(tempfile.mkdtemp(prefix="diskless-bench-", dir=at)) for at in parents]
    try:
        yield made[0], made[1]
    finally:
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)
