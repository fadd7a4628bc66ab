"""What `durability=barrier` costs a stateful stream: the same query below a path that asks for it
and below one that asks for `async`, in turns, on one cluster with a tier.

On `file://`, and on the store that `DISKLESS_BENCH_TIER` names, such as an S3 server; its
credentials are in the environment, as for `diskless up`. CPU is that of all agents.
"""

import os
import secrets
import shutil
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from diskless.bench import works
from diskless.bench.clusters import Cluster, cluster, in_process, shape_settings
from diskless.bench.processes import cpu_s
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import Sizes
from diskless.bench.spark import LONG, _session, _trigger_ms, _turn, parse_setup
from diskless.bench.store import DISK_PATH
from diskless.policy import ASYNC, BARRIER, DURABILITY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIER_VARIABLE = "DISKLESS_BENCH_TIER"
SYSTEM = works.diskless(works.MAIN_SHAPE)
TRIGGERS = {ASYNC: works.ASYNC_TRIGGER, BARRIER: works.BARRIER_TRIGGER}
CPU = {ASYNC: works.ASYNC_CPU, BARRIER: works.BARRIER_CPU}


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("barrier")
    root = Path(tempfile.mkdtemp(prefix="diskless-bench-", dir=DISK_PATH))
    try:
        # One JVM for each cluster: a session knows only the first.
        record = in_process(_run_on, works.FILE_TIER, f"file://{root}/tier", sizes, record, say)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    store = os.environ.get(TIER_VARIABLE, "").rstrip("/")
    if not store:
        record.note(f"barrier on an object store: {TIER_VARIABLE} names none")
        return record
    uri = f"{store}/{secrets.token_hex(4)}"
    return in_process(_run_on, works.OBJECT_TIER, uri, sizes, record, say)


def _run_on(beside: str, uri: str, sizes: Sizes, record: Recorder, say: Say) -> Recorder:
    record.beside = beside
    settings = replace(shape_settings(works.MAIN_SHAPE), tier=uri)
    with cluster(settings) as running, _session(running.name) as spark:
        for durability in TRIGGERS:
            running.client.policies.set(f"/{durability}", DURABILITY, durability)
        parse_setup(LONG).apply(spark)
        say(f"{LONG} on {beside}, with barrier and with async in turns")
        for turn in range(sizes.spark_turns):
            order = list(TRIGGERS) if turn % 2 else list(TRIGGERS)[::-1]
            for durability in order:
                _take_turn(spark, running, durability, sizes, record, first=not turn)
    return record


def _take_turn(
    spark: "SparkSession",
    running: Cluster,
    durability: str,
    sizes: Sizes,
    record: Recorder,
    *,
    first: bool,
) -> None:
    agents = [psutil.Process(pid) for pid in running.pids().values()]
    warm = sizes.spark_warm * (2 if first else 1)
    before_s = cpu_s(agents)
    seen = _turn(spark, f"diskless:///{durability}/q", warm=warm, batches=sizes.spark_batches)
    spent_ms = 1000 * (cpu_s(agents) - before_s) / (warm + len(seen))
    trigger = statistics.median(map(_trigger_ms, seen))
    note = f"{sizes.spark_turns} × {len(seen)} batches"
    record.add(TRIGGERS[durability], SYSTEM, trigger, "ms", note=note)
    record.add(CPU[durability], SYSTEM, spent_ms, "ms CPU", note=note)
