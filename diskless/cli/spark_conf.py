"""`diskless spark-conf`."""

import os
import re
from pathlib import Path

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.spark.conf import properties


@verb(
    "spark-conf",
    examples=(
        "diskless spark-conf -o spark.conf && spark-submit --properties-file spark.conf job.py",
        "diskless spark-conf --by-descriptor >> $SPARK_HOME/conf/spark-defaults.conf",
        "diskless spark-conf --json -c prod",
    ),
    statuses=(exits.NO_CLUSTER, exits.SPARK_UNUSABLE),
    through_client=False,
)
@click.option(
    "--by-descriptor", is_flag=True,
    help="Name the descriptor's file instead of showing the secret; all hosts must have it.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to FILE, readable by you alone, instead of standard output.",
)  # fmt: skip
def command(context: Context, by_descriptor: bool, output: Path | None) -> None:
    """Print the properties that make diskless:/// work in Spark, for spark-submit.

    They hold the cluster's secret, unless --by-descriptor is given: keep them to yourself.
    """
    found = properties(context.cluster, by_descriptor=by_descriptor)
    text = "".join(f"{key} {_escape(value)}\n" for key, value in found.items())
    if output is not None:
        _write_private(output, text)
    else:
        context.say(text.rstrip("\n"))
    context.result(found)


def _escape(value: str) -> str:
    """For java.util.Properties, which reads spark-defaults.conf."""
    return re.sub(r"([\\=:#!])", r"\\\1", value) if re.search(r"[\\#!]", value) else value


def _write_private(path: Path, text: str) -> None:
    """Never readable by others, not even for a moment, and not if it was before."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
