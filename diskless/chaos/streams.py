"""Spark streams as traffic: their checkpoints are in the cluster that is broken.

A query that fails is started again from its checkpoint, as a supervisor would; what it says
then is counted. In the end the stream must continue, and what it gave must be what a batch job
gives: no row lost, none counted twice.
"""

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from diskless.chaos.verdict import Findings
from diskless.chaos.workload import News
from diskless.client import connect
from diskless.errors import BY_REASON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.2
RESTART_PAUSE_S = 1.0
PARTITIONS = 2
LAST_BATCHES = 2
"""Batches that every query must commit after the cluster has healed."""
GO_ON_TIMEOUT_S = 90.0


class Program(Protocol):
    """One of diskless.workloads."""

    def start(self, spark: "SparkSession", root: str) -> "list[StreamingQuery]":
        """Its queries, with everything they keep under `root`."""

    def problems(self, spark: "SparkSession", root: str, last: Sequence[int]) -> list[str]:
        """How the results differ from the batch answer, given each query's last batch."""


class _WordCount:
    """Word count as a Program: its result is a table in memory."""

    def __init__(self) -> None:
        from diskless.workloads.wordcount import WordCount

        self._work = WordCount(rows_per_batch=2_000)

    def start(self, spark: "SparkSession", root: str) -> "list[StreamingQuery]":
        return [self._work.start(spark, f"{root}/checkpoint")]

    def problems(self, spark: "SparkSession", root: str, last: Sequence[int]) -> list[str]:
        counted = self._work.counted(spark)
        if self._work.equals_answer(spark, counted, last[0]):
            return []
        total = sum(counted.values())
        return [f"word count: {total} words after batch {last[0]} differ from the batch answer"]


def program(name: str) -> Program:
    """Raises ImportError without pyspark; the CLI has asked for a jar before that."""
    if name == "wordcount":
        return _WordCount()
    from diskless.workloads.nexmark import Nexmark

    return Nexmark()


class Stream:
    """Implements workload.Workload."""

    unit = "rows"

    def __init__(self, cluster: str, work: Program, *, root: str) -> None:
        self._cluster = cluster
        self._work = work
        self._path = root
        self._root = f"diskless://{cluster}{root}"
        self._dir = Path(tempfile.mkdtemp(prefix="diskless-chaos-spark-"))
        self._spark: Any = None
        self._queries: list[StreamingQuery] = []
        self._last: list[int] = []
        self._fresh: list[dict[str, Any]] = []
        self._batches = 0
        self._rows = 0
        self._failures: Counter[str] = Counter()
        self._messages: list[str] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="streams", daemon=True)
        self._stuck = ""

    def prepare(self) -> None:
        """Starts Spark, and sees the first batch of each query through: that takes longest."""
        from diskless.spark.jar import jar

        jar()
        from diskless.workloads.session import quiet_session

        self._spark = quiet_session(self._cluster, self._dir / "spark.log", partitions=PARTITIONS)
        self._queries = self._work.start(self._spark, self._root)
        self._last = [-1] * len(self._queries)
        self._thread.start()
        self._stuck = self._await_batches(1)
        if self._stuck:
            raise RuntimeError(f"the stream did not begin: {self._stuck}")

    def start(self) -> None:
        self.news()

    def news(self) -> News:
        from diskless.workloads.progress import checkpoint_ms

        with self._lock:
            fresh, self._fresh = self._fresh, []
        return News(
            done=sum(progress["numInputRows"] for progress in fresh),
            commits_ms=[checkpoint_ms(progress) for progress in fresh],
        )

    def stop(self) -> None:
        """Every query must commit again before it is stopped."""
        self._stuck = self._await_batches(LAST_BATCHES)
        self._ended.set()
        self._thread.join()
        for query in self._queries:
            query.stop()
        self._look()

    def finish(self) -> Findings:
        wrong = [] if self._stuck else self._work.problems(self._spark, self._root, self._last)
        return Findings(
            operations=self._rows,
            acknowledged=self._rows,
            refusals=dict(self._failures),
            wrong=wrong,
            unreadable=[self._stuck] if self._stuck else [],
            notes=[
                f"{self._batches} batches were committed; queries were started again "
                f"{sum(self._failures.values())} times",
                *self._messages[:3],
            ],
        )

    def clean_up(self, *, keep: bool) -> None:
        self._ended.set()
        if self._spark is not None:
            self._spark.stop()
        shutil.rmtree(self._dir, ignore_errors=True)
        if not keep:
            with connect(self._cluster) as client:
                client.delete(self._path, recursive=True)

    # The supervisor.

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            self._look()
            failed = [query for query in self._queries if not query.isActive]
            if failed and not self._ended.is_set():
                self._start_again(failed)

    def _look(self) -> None:
        with self._lock:
            for number, query in enumerate(self._queries):
                for progress in query.recentProgress:
                    if progress["batchId"] > self._last[number] and progress["numInputRows"]:
                        self._last[number] = progress["batchId"]
                        self._fresh.append(progress)
                        self._batches += 1
                        self._rows += progress["numInputRows"]

    def _start_again(self, failed: "Sequence[StreamingQuery]") -> None:
        """All queries: a program knows only how to start them together."""
        for query in failed:
            self._note(str(query.exception()))
        for query in self._queries:
            query.stop()
        self._look()
        self._ended.wait(RESTART_PAUSE_S)
        try:
            self._queries = self._work.start(self._spark, self._root)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises, it is tried again
            self._note(str(error))

    def _note(self, message: str) -> None:
        """Counts a failure by the diskless error that it names."""
        named = [reason for reason in BY_REASON if reason in message]
        self._failures[named[0] if named else "QueryFailed"] += 1
        self._messages.append(" ".join(message.split())[:300])

    def _await_batches(self, more: int) -> str:
        """ "" once every query has committed so many more batches; else what hinders it."""
        goal = [last + more for last in self._last]
        end_s = time.monotonic() + GO_ON_TIMEOUT_S
        while any(last < wanted for last, wanted in zip(self._last, goal, strict=True)):
            if time.monotonic() > end_s:
                why = self._messages[-1] if self._messages else "no batch was committed"
                return f"the stream does not continue after {GO_ON_TIMEOUT_S:g} s: {why}"
            time.sleep(POLL_S)
        return ""
