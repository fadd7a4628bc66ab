"""Spark's own offline repartitioning of a query's state, behind the guards of a rollback."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diskless.checkpoint import names
from diskless.checkpoint.picture import Picture
from diskless.client import Client
from diskless.errors import CannotReturn, CheckpointInUse, SparkUnusable
from diskless.spark.queries.access import take_picture
from diskless.spark.queries.rollback import check_free, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MIN = (4, 2)


@dataclass(frozen=True)
class Repartitioned:
    path: str
    before: int
    after: int
    batch: int
    """The one that holds the new partitions; Spark made it for that."""
    snapshot: str
    """Which keeps what was there; empty if nothing was done."""


def check(client: Client, path: str, partitions: int, *, force: bool = False) -> Picture:
    """Raises why a query's state cannot be repartitioned: SparkUnusable for a Spark that is too
    old, CannotReturn for a state that Spark does not do it for, CheckpointInUse."""
    from pyspark import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) < SPARK_MIN:
        wanted = ".".join(map(str, SPARK_MIN))
        raise SparkUnusable(f"repartitioning needs Spark {wanted} or newer: here is {version}")
    if not force:
        check_free(client, [path])
    picture = take_picture(client, path)
    if picture.last_batch is None or not picture.versions:
        raise CannotReturn(f"{path} has no state to repartition")
    if any(one.startswith(names.HDFS) for one in picture.providers):
        raise CannotReturn(
            f"{path} keeps its state with the HDFS-backed provider: Spark repartitions only that "
            "of RocksDB (spark.sql.streaming.stateStore.providerClass), which a query keeps for "
            "its life"
        )
    if _partitions(picture) == partitions:
        raise CannotReturn(f"{path} has {partitions} partitions already")
    return picture


def repartition(
    spark: "SparkSession", client: Client, path: str, partitions: int, *, force: bool = False
) -> Repartitioned:
    """Gives a query's state so many partitions, which takes a batch of its own. What was there is
    kept as a snapshot, and comes back if Spark gives up half way, unless another application writes
    there by then. Raises what `check` does,
    SparkUnusable if the session's `diskless:///` is another cluster than the client's, and what
    Spark says."""
    picture = check(client, path, partitions, force=force)
    assert picture.last_batch is not None
    kept = keep(client, [path], f"before-{partitions}-partitions")
    try:
        _check_same(spark, path, f"diskless://{path}/.snapshot/{kept}")
    except BaseException:
        client.delete_snapshots(path, kept)
        raise
    try:
        spark._streamingCheckpointManager.repartition(f"diskless://{path}", partitions)
    except BaseException as error:
        _bring_back(client, path, kept, own=spark.sparkContext.applicationId, why=error)
        raise
    return Repartitioned(path, _partitions(picture), partitions, picture.last_batch + 1, kept)


def _bring_back(client: Client, path: str, kept: str, *, own: str, why: BaseException) -> None:
    """Undoes what Spark has left half done, unless another application than this Spark, whose id is
    `own`, writes there by now: perhaps that is why it failed. Raises CheckpointInUse then."""
    writers = [lease.application for lease in client.leases(path)]
    others = [writer for writer in writers if not writer.startswith(f"{own} ")]
    if others:
        raise CheckpointInUse(
            f"{path} was not repartitioned, and nothing was undone, because {others[0]} writes "
            f"there: what was there before is its snapshot {kept}"
        ) from why
    again = client.rollback(path, kept, guarded=not writers)
    client.delete_snapshots(path, *filter(None, (again, kept)))


def _check_same(spark: "SparkSession", path: str, uri: str) -> None:
    """Raises SparkUnusable unless Spark finds what the client has just made."""
    from py4j.protocol import Py4JJavaError

    assert spark._jvm is not None
    at = spark._jvm.org.apache.hadoop.fs.Path(uri)
    why = ""
    try:
        if at.getFileSystem(spark._jsc.hadoopConfiguration()).exists(at):
            return
    except Py4JJavaError as error:
        why = f" ({error.java_exception})"
    raise SparkUnusable(
        f"diskless:/// of this Spark is not the cluster that {path} was checked in{why}: configure "
        "the session for that one (diskless.spark.configure)"
    )


def _partitions(picture: Picture) -> int:
    assert picture.last_batch is not None
    plan = picture.plan(picture.last_batch)
    return plan.partitions or max(store.partition for store in picture.versions) + 1
