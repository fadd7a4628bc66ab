"""`make bench`: measures the store on a real cluster and judges it by ratios.

Exit status: 0 if every target is met, 1 if one is missed, 2 if something failed.
"""

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from diskless.bench import codec, store
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
    console.print("codec …")
    result["codec"] = codec.run()
    with plain_stream() as plain:
        console.print("small files, inlining off …")
        with _cluster(Tuning(inline_bytes_max=0, **QUICK_FREEING)) as (client, _):
            result["small"] = store.small_files(client)
        console.print("space and bulk …")
        with _cluster(Tuning(**QUICK_FREEING)) as (client, name):
            result["space"] = store.space(client)
            result["bulk"] = store.bulk(
                client, plain, lambda: ray_cluster.kill(name, [2, 4], stay_dead=True)
            )
        result["plain_unary_ms"] = plain.unary_s(500) * 1000
    Path(path).write_text(json.dumps(result, indent=2) + "\n")
    met = _show(console, result)
    console.print(f"all figures: {path}")
    sys.exit(0 if met else 1)


@contextmanager
def _cluster(tuning: Tuning) -> Iterator[tuple[Client, str]]:
    """A cluster of six agents on a Ray of its own, known to nobody else."""
    settings = ClusterSettings(name="bench", memory_bytes=MEMORY_BYTES, tuning=tuning)
    before = os.environ.get(HOME_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="diskless-bench-") as home:
        os.environ[HOME_VARIABLE] = home
        try:
            ray_cluster.up(settings)
            with connect(f"diskless://{settings.name}/") as client:
                yield client, settings.name
        finally:
            ray_cluster.down(settings.name, discard=True)
            os.environ.pop(HOME_VARIABLE)
            if before is not None:
                os.environ[HOME_VARIABLE] = before


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
