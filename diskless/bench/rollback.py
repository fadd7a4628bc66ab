"""What it costs to bring a query back to a batch, to start it again there, and what its lease
costs a commit."""

import json
import os
import time

import psutil

from diskless.bench import works
from diskless.bench.clusters import QUICK_FREEING, Cluster, cluster, shape_settings
from diskless.bench.processes import cpu_s
from diskless.bench.query import Plan
from diskless.bench.recorder import Recorder, Say
from diskless.bench.recovery import MB, RESTART_ROWS, VALUE_BYTES, build, restart_s
from diskless.bench.sizes import Sizes
from diskless.client.client import Client, connect
from diskless.config import MIB
from diskless.spark import queries

SYSTEM = works.diskless(works.MAIN_SHAPE)
CHECKPOINT, LEASED = "/rollback/checkpoint", "/rollback/leased"
RESTARTED = "/rollback/restarted"
PARTITIONS = 8
WHOLE_EVERY = 10
"""Batches between two whole versions of the state."""
TRIED = 10
"""Batches to go back to, from the first to the last but one."""
TURNS = 4
"""Stretches of commits with a lease and without, by turns within one measurement."""


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("rollback")
    with cluster(shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)) as running:
        store = running.client
        store._caller.application = ""  # whoever prepares is no query
        say(f"a checkpoint of {sizes.rollback_batches} batches, {sizes.rollback_mib} MiB")
        fill(store, sizes.rollback_batches, sizes.rollback_mib * MIB)
        for _, into in record.turns(sizes.repetitions):
            _roll_back(store, sizes.rollback_batches, into)
            _commits(running, sizes, into)
        store.delete(CHECKPOINT, recursive=True, with_snapshots=True)
        if sizes.rollback_state_mb:
            say(f"a query with {sizes.rollback_state_mb} MB of state, restarted after rollbacks")
            _restarts(running, sizes, record)
    return record


def fill(store: Client, batches: int, size: int) -> None:
    """A checkpoint as Spark leaves it, of a state that is kept in files of changes."""
    changes = os.urandom(size // (batches * PARTITIONS))
    store.write(f"{CHECKPOINT}/metadata", json.dumps({"id": "bench"}).encode())
    head = json.dumps({"conf": {"spark.sql.shuffle.partitions": str(PARTITIONS)}})
    for batch in range(batches):
        store.write(f"{CHECKPOINT}/offsets/{batch}", f"v1\n{head}\n{batch}".encode())
        state = f"{CHECKPOINT}/state/0"
        version = batch + 1
        names = [f"{state}/{p}/{version}.delta" for p in range(PARTITIONS)]
        store.write_many(dict.fromkeys(names, changes))
        if not version % WHOLE_EVERY:
            whole = [f"{state}/{p}/{version}.snapshot" for p in range(PARTITIONS)]
            store.write_many(dict.fromkeys(whole, b"whole"))
        store.write(f"{CHECKPOINT}/commits/{batch}", b"v1\n{}")


def _roll_back(store: Client, batches: int, record: Recorder) -> None:
    before = store.status().bytes_stored
    grown = 0
    spent, tried = [], sorted({n * (batches - 2) // (TRIED - 1) for n in range(TRIED)})
    for batch in tried:
        began = time.perf_counter()
        done = queries.rollback(store, {CHECKPOINT: batch})
        spent.append(time.perf_counter() - began)
        grown = max(grown, store.status().bytes_stored - before)
        again = store.rollback(CHECKPOINT, done.snapshot)
        store.delete_snapshots(CHECKPOINT, again, done.snapshot)
    record.add(works.ROLLBACK_S, SYSTEM, max(spent), "s")
    record.add(works.ROLLBACK_BYTES, SYSTEM, grown, "bytes")


def _restarts(running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """Each restart does a batch, in a new JVM; before every second one that batch is undone, so
    that both begin with as much state, in as many files."""
    plan = Plan(
        checkpoint=f"diskless://{RESTARTED}",
        cluster=running.name,
        provider="rocksdb",
        keys=sizes.rollback_state_mb * MB // VALUE_BYTES,
        value_bytes=VALUE_BYTES,
        rows_per_batch=RESTART_ROWS,
        batches=1,
    )
    build(plan)
    restart_s(plan)
    for turn in range(sizes.restarts):
        both = (works.ROLLBACK_PLAIN_RESTART, works.ROLLBACK_RESTART)
        for work in sorted(both, reverse=turn % 2 == 1):
            last = queries.show(running.client, RESTARTED).query.last_batch
            if work == works.ROLLBACK_RESTART:
                queries.rollback(running.client, {RESTARTED: last - 1}, force=True)
            whole_s, _ = restart_s(plan)
            record.add(work, SYSTEM, whole_s, "s")
    running.client.delete(RESTARTED, recursive=True, with_snapshots=True)


def _commits(running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """CPU of all agents and this process for each commit of a checkpoint, by turns."""
    spent = dict.fromkeys((works.ROLLBACK_LEASED, works.ROLLBACK_UNLEASED), 0.0)
    commits = max(sizes.rollback_commits // TURNS, 1)
    processes = [psutil.Process(), *map(psutil.Process, running.pids().values())]
    for turn in range(TURNS):
        for work in sorted(spent, reverse=turn % 2 == 1):  # whoever comes first pays for warmth
            with connect(running.name) as store:
                store._caller.application = "bench" if work == works.ROLLBACK_LEASED else ""
                store.write(f"{LEASED}/metadata", b"{}", overwrite=True)
                before_s = cpu_s(processes)
                for n in range(commits):
                    store.write(f"{LEASED}/offsets/{turn * commits + n}", b"x" * 100)
                spent[work] += cpu_s(processes) - before_s
            running.client.delete(f"{LEASED}/offsets", recursive=True)
    for work, seconds in spent.items():
        record.add(work, SYSTEM, 1000 * seconds / (commits * TURNS), "ms CPU")
