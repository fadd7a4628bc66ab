"""What growth costs: more files in the namespace, more agents, more state in a query."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from msgspec.structs import replace

from diskless.bench import queries, works
from diskless.bench.clusters import (
    MEMORY_BYTES,
    QUICK_FREEING,
    Cluster,
    cluster,
    in_process,
    shape_settings,
)
from diskless.bench.processes import Cost, cost_of
from diskless.bench.recorder import Recorder, Say
from diskless.bench.recovery import build, copy_in, restart_plan
from diskless.bench.sizes import Sizes
from diskless.bench.stores import wait_for_room
from diskless.bench.turns import longest_turns
from diskless.client.client import Client
from diskless.config import MIB

SYSTEM = works.diskless(works.MAIN_SHAPE)
FILES_PER_COMMAND = 500
FILES_PER_DIRECTORY = 1000
TINY = b"t" * 100
FILE_BYTES = 2048
"""More than a tiny file takes of a voter's memory, so that a million have room."""
SMALL_BATCHES = 6
"""The first is not counted: it loads the state."""
IDLE_S = 2.0
DISK_PATH = "/var/tmp"


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("growth")
    if sizes.turn_stripes:
        say(f"{sizes.turn_stripes} stripes and {sizes.turn_files} files, made up")
        _turns(sizes, record)
    if sizes.growth_files:
        memory_bytes = MEMORY_BYTES + max(sizes.growth_files) * FILE_BYTES
        settings = shape_settings(works.MAIN_SHAPE, memory_bytes=memory_bytes, **QUICK_FREEING)
        with cluster(settings) as running:
            _files(running, sizes, record, say)
    for agents in sizes.growth_agents:
        say(f"{agents} agents")
        with cluster(shape_settings(works.MAIN_SHAPE, agents=agents, **QUICK_FREEING)) as running:
            _agents(running, sizes, record)
    if sizes.growth_state_mb:
        with cluster(shape_settings(works.MAIN_SHAPE, memory_bytes=2048 * MIB)) as running:
            for megabytes in sizes.growth_state_mb:
                say(f"{megabytes:g} MB of state")
                _state(running, megabytes, record)
    return record


# Turns.


def _turns(sizes: Sizes, record: Recorder) -> None:
    turns = in_process(_longest_turns, sizes.turn_stripes, sizes.turn_files)
    for work, longest_ms in turns.items():
        record.add(work, SYSTEM, longest_ms, "ms", size=sizes.turn_stripes)


def _longest_turns(stripes: int, files: int) -> dict[str, float]:
    return longest_turns(stripes=stripes, files=files)


# Files.


def _files(running: Cluster, sizes: Sizes, record: Recorder, say: Say) -> None:
    store = running.client
    store.write_many({f"/ten/{n}": TINY for n in range(10)})
    pids = list(running.pids().values())
    _latencies(store, pids, 0, sizes, Recorder("unused"))  # warms up
    before: tuple[int, int] | None = None
    for files in sorted(sizes.growth_files):
        say(f"{files} files")
        _fill(store, f"/many-{files}", files - store.status().files)
        now = store.status().files, _resident_bytes(running)
        if before is not None:  # The first files also fill heaps, caches and logs for good.
            grown = (now[1] - before[1]) / (now[0] - before[0])
            record.add(works.GROWN_MEMORY, SYSTEM, grown, "bytes, all agents", size=files)
        before = now
        for _ in range(sizes.repetitions):
            _latencies(store, pids, files, sizes, record)
            record.add(works.TURNS_LOOP, SYSTEM, store.status().loop_lag.max_ms, "ms", size=files)


def _fill(store: Client, folder: str, count: int) -> None:
    """So many files more, in directories of a thousand, many in one command."""
    for first in range(0, count, FILES_PER_COMMAND):
        numbers = range(first, min(first + FILES_PER_COMMAND, count))
        store.write_many({f"{folder}/{n // FILES_PER_DIRECTORY}/{n}": TINY for n in numbers})


def _latencies(
    store: Client, pids: Sequence[int], files: int, sizes: Sizes, record: Recorder
) -> None:
    count = sizes.tiny_puts
    for work, one in (
        (works.GROWN_COMMIT, lambda n: store.write(f"/timed/{n}", TINY)),
        (works.GROWN_STAT, lambda n: store.stat(f"/timed/{n}")),
        (works.GROWN_LIST, lambda _: list(store.list("/ten"))),
    ):
        took_s, cpu_ms = cost_of(lambda one=one: _mean_s(count, one), pids)  # type: ignore[misc]
        record.add(work, SYSTEM, 1000 * took_s / count, "ms", size=files)
        if work == works.GROWN_COMMIT:
            record.add(works.GROWN_COMMIT_CPU, SYSTEM, cpu_ms / count, "ms", size=files)
    store.delete("/timed", recursive=True)


def _mean_s(count: int, one: Callable[[int], object]) -> float:
    began = time.perf_counter()
    for n in range(count):
        one(n)
    return (time.perf_counter() - began) / count


def _resident_bytes(running: Cluster) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in running.pids().values())


# Agents.


def _agents(running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """What a commit and a file take; of the CPU without what all take when nothing works."""
    store, agents = running.client, running.settings.agents
    data = os.urandom(sizes.bulk_mib * MIB)
    record.add(works.AGENTS_IDLE, SYSTEM, psutil.cpu_percent(IDLE_S), "%", size=agents)
    pids = list(running.pids().values())
    idle = cost_of(lambda: time.sleep(IDLE_S), pids)

    def works_of(work: Callable[[], object]) -> Cost:
        took_s, cpu_ms = cost_of(work, pids)
        return Cost(took_s, cpu_ms - idle.cpu_ms / idle.took_s * took_s)

    for turn in range(-1, sizes.repetitions):  # the first one only warms up
        put = works_of(lambda: _mean_s(sizes.tiny_puts, lambda n: store.write(f"/tiny/{n}", TINY)))
        write = works_of(lambda: store.write("/large", data))
        store.delete("/tiny", recursive=True)
        store.delete("/large")
        wait_for_room(store)
        if turn < 0:
            continue
        for work, value, unit in (
            (works.AGENTS_COMMIT, 1000 * put.took_s / sizes.tiny_puts, "ms"),
            (works.AGENTS_COMMIT_CPU, put.cpu_ms / sizes.tiny_puts, "ms"),
            (works.AGENTS_WRITE, sizes.bulk_mib / write.took_s, "MiB/s"),
            (works.AGENTS_WRITE_CPU, write.cpu_ms / sizes.bulk_mib, "ms/MiB"),
        ):
            record.add(work, SYSTEM, value, unit, size=agents)


# State.


def _state(running: Cluster, megabytes: float, record: Recorder) -> None:
    """Small batches on a state of that size: RocksDB with a changelog, on disk and on diskless."""
    directory = Path(tempfile.mkdtemp(prefix="diskless-bench-", dir=DISK_PATH))
    path = f"/state-{megabytes:g}"
    try:
        base = restart_plan(directory, "rocksdb", megabytes)
        build(base)
        copy_in(running.client, directory, path)
        plans = {
            works.DISK: replace(base, batches=SMALL_BATCHES),
            SYSTEM: replace(
                base, batches=SMALL_BATCHES, checkpoint=f"diskless://{path}", cluster=running.name
            ),
        }
        for system, plan in plans.items():
            _, *seen = queries.batches(plan)
            for work, key in (
                (works.STATE_CHECKPOINT, "checkpoint_ms"),
                (works.STATE_TRIGGER, "trigger_ms"),
            ):
                value = statistics.median(news[key] for news in seen)
                record.add(work, system, value, "ms", size=megabytes)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        running.client.delete(path, recursive=True)
