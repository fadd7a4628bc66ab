"""`make bench`: measures the store on a real cluster and judges it by ratios.

Exit status: 0 if every target is met, 1 if one is missed, 2 if something failed.
"""

import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from diskless.bench import codec, commits, store
from diskless.bench.plain import plain_stream
from diskless.client.client import Client, connect
from diskless.client.descriptor import HOME_VARIABLE
from diskless.config import MIB, ClusterSettings, Tuning
from diskless.launch import ray_cluster

MEMORY_BYTES = 768 * MIB
QUICK_FREEING = {"free_delay_s": 1.0, "janitor_interval_s": 0.25}
"""So that what one round deleted does not crowd the next."""

TARGETS: list[tuple[str, str, float, bool]] = [
    ("codec wrapper of PyECLib alone", "codec.encode_ratio", 0.9, True),
    ("bulk write of (plain stream / 1.5)", "bulk.write_of_limit", 0.5, True),
    ("bulk read of plain stream", "bulk.read_of_plain", 0.5, True),
    ("degraded read of healthy read", "bulk.degraded_of_healthy", 0.6, True),
    ("16 writers of one, 20 KiB files", "small.concurrent_of_serial", 5.0, True),
    ("gRPC messages a 20 KiB file", "small.grpc_messages_per_file", 2.0, False),
    ("serial tiny put of a plain unary call", "commits.put_of_unary", 2.5, False),
    ("32 tiny putters of one", "commits.concurrent_of_serial", 6.0, True),
    ("stat of a serial tiny put", "commits.stat_of_put", 0.25, False),
    ("list of a serial tiny put", "commits.list_of_put", 0.25, False),
    ("worst gap of 10 leader kills, in failure timeouts", "failover.worst_timeouts", 2.0, False),
    ("acknowledged puts lost in 10 leader kills", "failover.lost", 0.0, False),
    ("stored bytes a logical byte, 64 KiB files", "space.64 KiB", 1.05 * 1.5, False),
    ("stored bytes a logical byte, 300 KiB files", "space.300 KiB", 1.05 * 1.5, False),
    ("stored bytes a logical byte, 5 MiB files", "space.5120 KiB", 1.05 * 1.5, False),
]
"""What is judged: title, where its figure is, the bound, and whether more is better."""


@click.command()
@click.option("--json", "path", default="bench-result.json", help="Where to write the figures.")
def main(path: str) -> None:
    """Measure diskless 4+2 on this machine, in a few minutes."""
    console = Console()
    result: dict[str, Any] = {"machine": _machine(), "started": time.strftime("%F %T")}
    parts = {"codec": codec.run, "small": _small, "bulk and space": _bulk, "commits": _commits}
    for title, part in parts.items():
        console.print(f"{title} …")
        result |= {title: part()} if part is codec.run else _in_process(part)
    Path(path).write_text(json.dumps(result, indent=2) + "\n")
    met = _show(console, result)
    console.print(f"all figures: {path}")
    sys.exit(0 if met else 1)


def _in_process(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs a part in a process of its own: Ray remembers the token of its first cluster."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(part).result()


def _small() -> dict[str, Any]:
    with _cluster(Tuning(inline_bytes_max=0, **QUICK_FREEING)) as (client, _):
        return {"small": store.small_files(client)}


def _bulk() -> dict[str, Any]:
    with plain_stream() as plain, _cluster(Tuning(**QUICK_FREEING)) as (client, name):

        def kill_two() -> None:
            ray_cluster.kill(name, [2, 4], stay_dead=True)

        return {"space": store.space(client), "bulk": store.bulk(client, plain, kill_two)}


def _commits() -> dict[str, Any]:
    with plain_stream() as plain, _cluster(Tuning(**QUICK_FREEING)) as (client, name):
        return {
            "commits": commits.latency(client, plain),
            "failover": commits.failover(client, lambda slot: ray_cluster.kill(name, [slot])),
        }


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


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "load": os.getloadavg()[0],
    }


def _show(console: Console, result: dict[str, Any]) -> bool:
    table = Table(title="diskless 4+2, ratios within one run")
    for heading in ("what", "measured", "bound", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    met = True
    for title, where, bound, more_is_better in TARGETS:
        part, _, key = where.partition(".")
        value = result[part][key]
        good = value >= bound if more_is_better else value <= bound
        met &= good
        sign = "≥" if more_is_better else "≤"
        table.add_row(title, f"{value:.2f}", f"{sign} {bound:.3g}", "✓" if good else "missed")
    console.print(table)
    return met


if __name__ == "__main__":
    main()
