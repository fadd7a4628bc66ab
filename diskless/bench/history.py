"""What the past costs: snapshots, clones and rollbacks of large and small directories."""

import os
import time
from collections.abc import Callable

import psutil
from msgspec.structs import replace

from diskless.bench import queries, works
from diskless.bench.clusters import QUICK_FREEING, Cluster, cluster, shape_settings
from diskless.bench.processes import cpu_s
from diskless.bench.query import Plan
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import Sizes
from diskless.client.client import Client
from diskless.config import MIB

SYSTEM = works.diskless(works.MAIN_SHAPE)
FEW_FILES = 10
FILES_PER_DIRECTORY = 1000
FILES_PER_COMMAND = 100
TINY = b"t" * 100
READ_BYTES = 20 * 1024
OPERATIONS = 20
"""Of each verb in one repetition."""
BESIDE_S = 4.0
"""How long commits run with, and without, a snapshot every second."""
QUERY = Plan(checkpoint="", keys=20_000, rows_per_batch=2_000)
CHECKPOINT = "/history/checkpoint"
WALK_S = 3.0
"""In which the leader has looked at what snapshots hold."""


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("history")
    settings = shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)
    with cluster(settings) as running:
        store = running.client
        say(f"{sizes.history_files} files, {sizes.history_mib} MiB")
        _fill(store, "/few", FEW_FILES, FEW_FILES * MIB)
        _fill(store, "/many", sizes.history_files, sizes.history_mib * MIB)
        store.write("/read/file", os.urandom(READ_BYTES))
        store.snapshot("/read", "s")
        for _, into in record.turns(sizes.repetitions):
            _verbs(store, sizes, into)
            _reads(store, sizes, into)
            _commits(running, into)
        if sizes.history_batches:
            say(f"{sizes.history_batches} snapshots of a running query's checkpoint")
            _query(running, sizes, record)
    return record


def _fill(store: Client, folder: str, files: int, size: int) -> None:
    data = os.urandom(size // files)
    for first in range(0, files, FILES_PER_COMMAND):
        numbers = range(first, min(first + FILES_PER_COMMAND, files))
        store.write_many({f"{folder}/{n // FILES_PER_DIRECTORY}/{n}": data for n in numbers})


# Verbs.


def _verbs(store: Client, sizes: Sizes, record: Recorder) -> None:
    record.add(
        works.HISTORY_COMMIT, SYSTEM, _mean_ms(lambda n: store.write(f"/tiny/{n}", TINY)), "ms"
    )
    store.delete("/tiny", recursive=True)
    before = store.status().bytes_stored
    for folder, files in (("/few", FEW_FILES), ("/many", sizes.history_files)):
        for work, one in _works(store, folder):
            record.add(work, SYSTEM, _mean_ms(one), "ms", size=files)
        record.add(
            works.HISTORY_BYTES, SYSTEM, store.status().bytes_stored - before, "bytes", size=files
        )
        names = [one.name for one in store.snapshots(folder)]
        store.delete_snapshots(folder, *names)
        store.delete("/clones", recursive=True)


def _works(store: Client, folder: str) -> list[tuple[str, Callable[[int], object]]]:
    store.mkdirs("/clones")
    return [
        (works.HISTORY_SNAPSHOT, lambda n: store.snapshot(folder, f"s{n}")),
        (works.HISTORY_CLONE, lambda n: store.clone(folder, f"/clones/{n}")),
        (works.HISTORY_ROLLBACK, lambda n: store.rollback(folder, f"s{n}")),
    ]


def _mean_ms(one: Callable[[int], object]) -> float:
    began = time.perf_counter()
    for n in range(OPERATIONS):
        one(n)
    return 1000 * (time.perf_counter() - began) / OPERATIONS


# Reads.


def _reads(store: Client, sizes: Sizes, record: Recorder) -> None:
    """By turns, so that both see the same of whatever else the machine does."""
    spent = dict.fromkeys((works.HISTORY_READ, works.HISTORY_READ_PAST), 0.0)
    for _ in range(sizes.tiny_puts):
        for work, path in zip(spent, ("/read/file", "/read/.snapshot/s/file"), strict=True):
            began = time.perf_counter()
            store.read(path)
            spent[work] += time.perf_counter() - began
    for work, seconds in spent.items():
        record.add(work, SYSTEM, 1000 * seconds / sizes.tiny_puts, "ms")


# Commits beside snapshots.


def _commits(running: Cluster, record: Recorder) -> None:
    """CPU of all agents and this process for each commit, into one directory."""
    for work, with_snapshots in (
        (works.HISTORY_CPU, False),
        (works.HISTORY_CPU_BESIDE, True),
    ):
        record.add(work, SYSTEM, 1000 * _cpu_s_of_commit(running, with_snapshots), "ms CPU")
        running.client.delete("/beside", recursive=True, with_snapshots=True)


def _cpu_s_of_commit(running: Cluster, with_snapshots: bool) -> float:
    store = running.client
    store.mkdirs("/beside")
    processes = [psutil.Process(), *map(psutil.Process, running.pids().values())]
    began_s, before_s, commits, snapshots = time.monotonic(), cpu_s(processes), 0, 0
    while (elapsed_s := time.monotonic() - began_s) < BESIDE_S:
        if with_snapshots and snapshots <= elapsed_s:
            store.snapshot("/beside", f"s{snapshots}")
            snapshots += 1
        store.write(f"/beside/{commits % FILES_PER_DIRECTORY}", TINY, overwrite=True)
        commits += 1
    return (cpu_s(processes) - before_s) / commits


# A query.


def _query(running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """A snapshot after each of a stream's batches: what they hold that nothing else does."""
    store, count = running.client, sizes.history_batches
    before = store.status().bytes_namespace
    plan = replace(
        QUERY, checkpoint=f"diskless://{CHECKPOINT}", cluster=running.name, batches=count
    )
    for _ in queries.batches(plan):
        store.snapshot(CHECKPOINT)
    time.sleep(WALK_S)
    status = store.status()
    for work, value in (
        (works.HISTORY_HELD, status.bytes_only_snapshots or 0),
        (works.HISTORY_SHOWN, store.summary(CHECKPOINT).bytes),
        (works.HISTORY_WEIGHT, status.bytes_namespace - before),
    ):
        record.add(work, SYSTEM, value, "bytes", size=count)
