"""`make demo`: a Spark stream whose checkpoint outlives the agents that hold it.

Six agents on a Ray of its own, a streaming word count with its checkpoint on `diskless:///`,
two agents killed on the way (the leader is one), and the stream's counts compared with a
batch job's. Then all agents are killed, and Ray with them: a new cluster begins with what the
durable tier has, and the stream continues to the right answer.

It touches no cluster of the user's and ends everything it started, also when it fails or is
interrupted. Exits with 1 if a single count differs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskless.client import Client, connect, descriptor
from diskless.client.descriptor import HOME_VARIABLE
from diskless.config import MIB, ClusterSettings, format_bytes
from diskless.errors import DisklessError, LaunchFailed
from diskless.model import parse_slot, slot_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = ClusterSettings(name="demo", agents=6, data_shards=4, parity_shards=2,
                           memory_bytes=256 * MIB)  # fmt: skip
CHECKPOINT = "diskless:///checkpoints/words"
BATCHES = 12
MORE_BATCHES = 6
"""After everything was lost."""
KILL_AFTER = 5
"""The batch after which two agents die."""
STREAM_TIMEOUT_S = 180.0
PLAN = """\
This takes about a minute on two idle cores: agents 8 s, Spark 6 s, 12 batches 12 s with two agents
killed, everything killed, a cold start 7 s, Spark 6 s, 6 more batches 7 s. The first time the file
system for Spark is compiled before, in some 10 s.
"""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with _throw_away_home() as home:
            return _demo(home)
    except KeyboardInterrupt:
        print("\ninterrupted; everything has been stopped")
        return 130
    except DisklessError as error:
        print(f"demo: {error.reason}: {error}", file=sys.stderr)
        return error.exit_code


def _demo(home: Path) -> int:
    from diskless.operate import ray_cluster
    from diskless.spark.jar import jar, planned

    print(PLAN, flush=True)
    _, compiled = planned()
    if not compiled.exists():  # It fails at once if Java is missing.
        with _step("compile the file system for Spark, once") as note:
            jar(report=lambda line: None)
            note(f"kept in {compiled.parent}")
    tier = f"file://{home / 'tier'}"
    _start(tier)  # If it fails, it has cleaned up.
    try:
        with connect(SETTINGS.name) as client, _spark(home) as spark:
            equal = _count_words(client, spark, BATCHES, kill_after=KILL_AFTER)
        _lose_everything()
        _start_cold(tier)
        with connect(SETTINGS.name) as client, _spark(home) as spark:
            equal = _count_words(client, spark, MORE_BATCHES) and equal
    finally:
        with _step("stop everything") as note:
            ray_cluster.down(SETTINGS.name, discard=True)
            note("no process, socket or file is left")
    if not equal:
        print("\nWRONG: the stream's counts differ from the batch answer")
        return 1
    print(
        "\nTwo of six agents were killed, the leader among them, and the stream never noticed.\n"
        "Then everything was killed, and it continued from its tier."
    )
    return 0


def _start(tier: str) -> None:
    from diskless.operate import ray_cluster

    with _step("start six agents, 4+2") as note:
        started = ray_cluster.up(replace(SETTINGS, tier=tier))
        note(f"{started.agents_up} serve, and a tier in a directory")
    for line in started.advice:
        print(f"    {line}")


@contextmanager
def _spark(home: Path) -> Iterator["SparkSession"]:
    from diskless.workloads.session import end_application, quiet_session

    with _step("start Spark") as note:
        spark = quiet_session(SETTINGS.name, home / "spark.log")
        note(f"{spark.version}, checkpoint at {CHECKPOINT}")
    try:
        yield spark
    except Exception:
        print((home / "spark.log").read_text(), file=sys.stderr)
        raise
    finally:
        end_application(spark)


def _lose_everything() -> None:
    """As a power cut would: nobody is asked, and nothing is brought anywhere before."""
    from diskless.launch import sessions
    from diskless.launch.record import record_of

    count = sessions.kill(record_of(descriptor.load(SETTINGS.name)).holder)
    print(f"    SIGKILL to all {SETTINGS.agents} agents and to Ray, {count} processes at once")


def _start_cold(tier: str) -> None:
    """In a process of its own, as an operator would: this one has been connected to that Ray."""
    command = (sys.executable, "-m", "diskless.cli", "--cluster", SETTINGS.name, "up")
    with _step("start cold from the tier") as note:
        done = subprocess.run(
            [*command, "--restore", tier, "--json"], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise LaunchFailed(done.stderr.strip())
        (found,) = json.loads(done.stdout)["restored"]["checkpoints"]
        note(f"{found['path']} is there up to batch {found['batch']}")


def _count_words(
    client: Client, spark: "SparkSession", batches: int, *, kill_after: int = -1
) -> bool:
    """Whether the stream and the batch job count the same."""
    from diskless.workloads.progress import checkpoint_ms, follow
    from diskless.workloads.wordcount import WordCount

    work = WordCount()
    print("    batch    rows    whole trigger    its checkpoint    margin")

    def show(progress: dict[str, Any]) -> None:
        print(
            f"    {progress['batchId']:5}  {progress['numInputRows']:6}  "
            f"{progress['durationMs']['triggerExecution']:10} ms  "
            f"{checkpoint_ms(progress):12.0f} ms  {client.status().margin:8}",
            flush=True,
        )
        if progress["batchId"] == kill_after:
            _kill_two(client)

    query = work.start(spark, CHECKPOINT)
    last = follow(query, more=batches, timeout_s=STREAM_TIMEOUT_S, each=show)
    with _step("compare with a batch job") as note:
        counted = work.counted(spark)
        equal = work.equals_answer(spark, counted, last)
        verdict = "all counts equal" if equal else "DIFFERENT"
        note(f"{sum(counted.values())} words, {len(counted)} different ones: {verdict}")
    stored = client.status()
    print(
        f"    the checkpoint holds {format_bytes(stored.bytes_logical)}, "
        f"as {format_bytes(stored.bytes_stored)} in the agents' memory"
    )
    return equal


def _kill_two(client: Client) -> None:
    from diskless.operate import ray_cluster

    leader = parse_slot(client.status().leader)
    victims = ray_cluster.kill(SETTINGS.name, [leader, SETTINGS.agents - 1])
    named = " and ".join(f"{slot_name(victim.slot)} (pid {victim.pid})" for victim in victims)
    print(f"    SIGKILL to the leader and another agent: {named}")


@contextmanager
def _step(what: str) -> Iterator[Callable[[str], None]]:
    """One line: what is done, then how it went and how long it took."""
    print(f"  {what:<42}", end="", flush=True)
    notes: list[str] = []
    began_s = time.monotonic()
    try:
        yield notes.append
    except BaseException:
        print("failed")
        raise
    print(f"{time.monotonic() - began_s:6.1f} s  {'; '.join(notes)}", flush=True)


@contextmanager
def _throw_away_home() -> Iterator[Path]:
    home = tempfile.mkdtemp(prefix="diskless-demo-")
    os.environ[HOME_VARIABLE] = home
    try:
        yield Path(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
