"""A small Spark in this process for a workload, whose chatter goes to a file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

import diskless.spark
from diskless.spark.jar import BRIEF_JVM

PARTITIONS = 4
JVM_ENDS_S = 30.0


def quiet_session(cluster: str, log: Path, *, partitions: int = PARTITIONS) -> SparkSession:
    """A local Spark whose `diskless:///` is the cluster. Raises SparkUnusable, NoCluster."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", " ".join(BRIEF_JVM))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", partitions)
        .config("spark.sql.session.timeZone", "UTC")
    )
    with stderr_to(log):
        return diskless.spark.configure(builder, cluster).getOrCreate()


def end_application(spark: SparkSession) -> None:
    """Stops Spark with its JVM: the next session is another application, which knows nothing of
    what this one did."""
    spark.stop()
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # The JVM ends with it.
    process.wait(JVM_ENDS_S)


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """What is started in the block says its warnings to a file, for as long as it lives."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
