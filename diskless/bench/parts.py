"""The parts of the benchmark that need a cluster, each in a process of its own."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from diskless.bench import commits, repair, store
from diskless.bench.plain import plain_stream
from diskless.bench.spark import checkpoints
from diskless.client.client import Client, connect
from diskless.client.descriptor import HOME_VARIABLE
from diskless.config import MIB, ClusterSettings, Tuning
from diskless.launch import ray_cluster

MEMORY_BYTES = 768 * MIB
REPAIR_BYTES = 1024 * MIB
QUICK_FREEING = {"free_delay_s": 1.0, "janitor_interval_s": 0.25}
"""So that what one round deleted does not crowd the next."""


def in_process(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs a part in a process of its own: Ray remembers the token of its first cluster."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(part).result()


def small() -> dict[str, Any]:
    with _cluster(Tuning(inline_bytes_max=0, **QUICK_FREEING)) as (client, _):
        return {"small": store.small_files(client)}


def bulk() -> dict[str, Any]:
    with plain_stream() as plain, _cluster(Tuning(**QUICK_FREEING)) as (client, name):

        def kill_two() -> None:
            ray_cluster.kill(name, [2, 4], stay_dead=True)

        return {"space": store.space(client), "bulk": store.bulk(client, plain, kill_two)}


def commit() -> dict[str, Any]:
    with plain_stream() as plain, _cluster(Tuning(**QUICK_FREEING)) as (client, name):
        return {
            "commits": commits.latency(client, plain),
            "failover": commits.failover(client, lambda slot: ray_cluster.kill(name, [slot])),
        }


def spark() -> dict[str, Any]:
    """In Spark's own time: nothing is freed more quickly than it would be for a user."""
    with _cluster(Tuning()) as (client, name):
        return checkpoints(client, name)


def repairing() -> dict[str, Any]:
    with _cluster(Tuning(**QUICK_FREEING)) as (client, name):

        def lose_two() -> None:
            ray_cluster.kill(name, [2, 4])

        return {"repair": repair.rebuild(client, lose_two, size=REPAIR_BYTES)}


@contextmanager
def _cluster(tuning: Tuning) -> Iterator[tuple[Client, str]]:
    """A cluster of six agents on a Ray of its own, known to nobody else."""
    settings = ClusterSettings(name="bench", memory_bytes=MEMORY_BYTES, tuning=tuning)
    with tempfile.TemporaryDirectory(prefix="diskless-bench-") as home:
        os.environ[HOME_VARIABLE] = home
        ray_cluster.up(settings)
        try:
            with connect(f"diskless://{settings.name}/") as client:
                yield client, settings.name
        finally:
            ray_cluster.down(settings.name, discard=True)
