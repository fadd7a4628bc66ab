"""`make bench`: measures the store on a real cluster and judges it by ratios.

Exit status: 0 if every target is met, 1 if one is missed, 2 if something failed.
"""

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from diskless.bench import codec, parts

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
    ("checkpoint of file://, HDFS-backed, 8 partitions", "hdfs-8.checkpoint_of_disk", 0.25, False),
    ("whole trigger of file://, same", "hdfs-8.trigger_of_disk", 0.85, False),
    ("checkpoint of file://, RocksDB changelog, 8", "rocksdb-8.checkpoint_of_disk", 0.25, False),
    ("checkpoint of file://, HDFS-backed, 50", "hdfs-50.checkpoint_of_disk", 0.5, False),
    ("commands a committed file in Spark", "hdfs-8.commands_per_file", 1.0, False),
    ("rebuild of bulk write, under commits", "repair.rate_of_write", 0.5, True),
    ("median commit during repair of healthy", "repair.commit_of_healthy", 3.0, False),
    ("stored bytes a logical byte, 64 KiB files", "space.64 KiB", 1.05 * 1.5, False),
    ("stored bytes a logical byte, 300 KiB files", "space.300 KiB", 1.05 * 1.5, False),
    ("stored bytes a logical byte, 5 MiB files", "space.5120 KiB", 1.05 * 1.5, False),
]
"""What is judged: title, where its figure is, the bound, and whether more is better."""

PARTS = {
    "codec": codec.run,
    "small": parts.small,
    "bulk": parts.bulk,
    "commits": parts.commit,
    "repair": parts.repairing,
    "spark": parts.spark,
}


@click.command()
@click.option("--json", "path", default="bench-result.json", help="Where to write the figures.")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Only these parts.")
def main(path: str, only: tuple[str, ...]) -> None:
    """Measure diskless 4+2 on this machine, in a quarter of an hour."""
    console = Console()
    result: dict[str, Any] = {"machine": _machine(), "started": time.strftime("%F %T")}
    for title in only or PARTS:
        part = PARTS[title]
        console.print(f"{title} …")
        result |= {title: part()} if part is codec.run else parts.in_process(part)
    Path(path).write_text(json.dumps(result, indent=2) + "\n")
    met = _show(console, result)
    console.print(f"all figures: {path}")
    sys.exit(0 if met else 1)


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
        if part not in result:
            continue  # It was not asked for.
        value = result[part][key]
        good = value >= bound if more_is_better else value <= bound
        met &= good
        sign = "≥" if more_is_better else "≤"
        table.add_row(title, f"{value:.2f}", f"{sign} {bound:.3g}", "✓" if good else "missed")
    console.print(table)
    return met


if __name__ == "__main__":
    main()
