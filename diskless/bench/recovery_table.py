"""Measures the recovery of a word count on hosts of this machine (`cluster/hosts.py`).

One executor has all partitions. *Local*: its process dies, and only its own host has a Spark
worker. *Remote*: its host dies, and another host has one. The driver is on the head.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diskless
from diskless.bench.recorder import Say
from diskless.bench.recovery_job import WORD_CHARS, WORDS_PER_ROW
from diskless.bench.recovery_rows import (
    DISKLESS,
    FILES,
    LOCAL,
    REMOTE,
    Recovery,
    Row,
    key,
)
from diskless.errors import LaunchFailed

ROOT = Path(diskless.__file__).parents[1]
PROGRAM = ROOT / "cluster" / "hosts.py"
JOB = Path(__file__).with_name("recovery_job.py")
NAME = "recovery"
HOSTS = 4
HEAD, HOME, SPARE = 1, 2, 3
"""Where the driver is, where the executor is at first, and where it goes when that host dies."""
PARTITIONS = 4
MB = 1_000_000
WORDS_SAME = 2
"""How often a word is in the input, on average."""
BATCHES_BEFORE = 3
BATCH_TIMEOUT_S = 300.0
BUILD_TIMEOUT_S = 1800.0
HEAL_TIMEOUT_S = 180.0
POLL_S = 0.05
WORKER, EXECUTOR = "deploy.worker.Worker", "CoarseGrainedExecutorBackend"
MEMORY_FACTOR = 6
"""Memory of each agent, in sizes of the input: state is coded, kept in several versions, and
copied near its readers."""
MEMORY_MB_MIN = 256
SPARK = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "3s",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "1g",
    "spark.cores.max": "1",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.ui.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


class Site:
    """The hosts, by way of the program that makes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def do(self, *arguments: str) -> str:
        """Raises LaunchFailed."""
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
            raise LaunchFailed(f"hosts.py {arguments[0]}: {said[-1]}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        asked = ("-m", "diskless.cli", "--cluster", NAME, "status", "--json")
        found: dict[str, Any] = json.loads(self.do("exec", str(HEAD), "--", sys.executable, *asked))
        return found

    def wait_whole(self) -> None:
        """Until all agents are up and everything is protected."""
        end_s = time.monotonic() + HEAL_TIMEOUT_S
        while True:
            status = self.status()
            if status["margin"] >= status["parity_shards"] and all(
                agent["state"] == "up" for agent in status["agents"]
            ):
                return
            if time.monotonic() > end_s:
                raise LaunchFailed(f"not whole after {HEAL_TIMEOUT_S:g} s: {status['repair']}")
            time.sleep(1.0)

    def near(self) -> tuple[int, int]:
        """Bytes of other agents' shards that reads found copied where they were made, and not."""
        copies = self.status()["copies"]
        return copies["bytes_hit"], copies["bytes_missed"]


@contextmanager
def site(sizes_mb: Sequence[float], rate: str) -> Iterator[Site]:
    """Hosts with links of that rate, for as long as the block. Raises LaunchFailed."""
    if not PROGRAM.exists():
        raise LaunchFailed(f"{PROGRAM} is missing: this needs a checkout of the repository")
    memory_mb = max(MEMORY_MB_MIN, int(MEMORY_FACTOR * max(sizes_mb)))
    with tempfile.TemporaryDirectory(prefix="diskless-recovery-", dir="/var/tmp") as directory:
        made = Site(Path(directory))
        made.do(
            *("up", "--hosts", str(HOSTS), "-m", "2", "-k", "1", "--name", NAME),
            *("--memory", f"{memory_mb}MiB", "--cache", "40%", "--dir", directory),
        )
        try:
            made.do("shape", rate)
            for number in range(1, HOSTS + 1):
                if number != HOME:
                    made.do("end", str(number), WORKER)
            yield made
        finally:
            made.do("down")


def measure(made: Site, size_mb: float, say: Say) -> Row:
    """Both faults with both places. The hosts are as before afterwards."""
    recoveries: dict[str, Recovery] = {}
    built: dict[str, Any] = {}
    for place in (DISKLESS, FILES):
        say(f"{size_mb:g} MB, checkpoint by {place}")
        files = made.directory / f"files-{size_mb:g}"
        path = f"/words-{size_mb:g}"
        checkpoint = f"diskless://{path}" if place == DISKLESS else f"file://{files}"
        with _stream(made, checkpoint, size_mb) as stream:
            built = stream.built()
            recoveries[key(place, LOCAL)] = _after(made, stream, place, "end", str(HOME), EXECUTOR)
            made.do("back", str(SPARE))
            recoveries[key(place, REMOTE)] = _after(made, stream, place, "kill", str(HOME))
            stream.finish()
        shutil.rmtree(files, ignore_errors=True)
        made.do("back", str(HOME))
        made.do("end", str(SPARE), WORKER)
        made.wait_whole()
    return Row(
        input_mb=size_mb,
        state_rows=built["state_rows"],
        state_mb=built["state_file_bytes"] / MB,
        recoveries=recoveries,
    )


def _after(made: Site, stream: "_Stream", place: str, *fault: str) -> Recovery:
    """From the fault to the first batch of an executor that was not there before."""
    stream.advance(BATCHES_BEFORE - 1)
    known = set(stream.until(lambda news: True)["executors"])
    hit, missed = made.near()
    began_s = float(made.do(*fault).rpartition(" at ")[2])  # as hosts.py says
    batch = stream.until(lambda news: not known.issuperset(news["executors"]))
    share = None
    if place == DISKLESS and fault[0] == "end":  # else counts of an agent are gone with it
        hit_after, missed_after = made.near()
        wanted = hit_after - hit + missed_after - missed
        share = (hit_after - hit) / wanted if wanted else None
    return Recovery(whole_s=batch["told_s"] - began_s, near_share=share)


class _Stream:
    """The job, and what it says."""

    def __init__(self, process: "subprocess.Popen[bytes]", base: Path) -> None:
        self._process = process
        self._base = base
        self._read = 0

    def built(self) -> dict[str, Any]:
        return self.until(lambda news: news.get("built", False), BUILD_TIMEOUT_S)

    def advance(self, count: int) -> None:
        for _ in range(count):
            self.until(lambda news: True)

    def until(self, wanted: Any, timeout_s: float = BATCH_TIMEOUT_S) -> dict[str, Any]:
        """The next news that is wanted. Raises LaunchFailed."""
        end_s = time.monotonic() + timeout_s
        while True:
            lines = self._lines()
            while self._read < len(lines):
                self._read += 1
                news: dict[str, Any] = json.loads(lines[self._read - 1])
                if wanted(news):
                    return news
            if self._process.poll() is not None:
                raise LaunchFailed(f"the job ended: {self._last_words()}")
            if time.monotonic() > end_s:
                raise LaunchFailed(f"no batch in {timeout_s:g} s: {self._last_words()}")
            time.sleep(POLL_S)

    def finish(self) -> None:
        self._base.with_suffix(".stop").touch()
        self._process.wait(BATCH_TIMEOUT_S)

    def _lines(self) -> list[str]:
        """Whole ones."""
        text = self._base.with_suffix(".out").read_text().rpartition("\n")[0]
        return [line for line in text.splitlines() if line.startswith("{")]

    def _last_words(self) -> str:
        return self._base.with_suffix(".err").read_text()[-1000:]


@contextmanager
def _stream(made: Site, checkpoint: str, size_mb: float) -> Iterator[_Stream]:
    import pyspark

    words = max(int(size_mb * MB / (WORD_CHARS + 1)), WORDS_PER_ROW)
    base = made.directory / f"stream-{time.monotonic_ns()}"
    head = f"10.77.0.{HEAD}"
    command = [
        *("exec", str(HEAD), "--", "env"),
        *(f"SPARK_LOCAL_IP={head}", f"PYSPARK_PYTHON={sys.executable}", f"PYTHONPATH={ROOT}"),
        str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"),
        *("--properties-file", str(made.directory / f"dsk-{HEAD}" / "spark-defaults.conf")),
        *(word for pair in SPARK.items() for word in ("--conf", "=".join(pair))),
        *("--conf", f"spark.driver.host={head}"),
        *(str(JOB), checkpoint, str(words // WORDS_PER_ROW), str(words // WORDS_SAME)),
        str(base.with_suffix(".stop")),
    ]
    out, errors = base.with_suffix(".out"), base.with_suffix(".err")
    with out.open("wb") as said, errors.open("wb") as complained:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    try:
        yield _Stream(process, base)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(BATCH_TIMEOUT_S)
