"""`diskless spark-conf`."""

import os
import re
import time
from pathlib import Path

import click

from diskless.cli import exits
from diskless.cli.times import Duration
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest
from diskless.spark.conf import TOKEN_NAME, Grant, may_write, properties


@verb(
    "spark-conf",
    examples=(
        "diskless spark-conf -o spark.conf && spark-submit --properties-file spark.conf job.py",
        "diskless spark-conf --path /checkpoints/q1 --token-name q1 -o q1.conf",
        "diskless spark-conf --by-descriptor >> $SPARK_HOME/conf/spark-defaults.conf",
        "diskless spark-conf --json -c prod",
    ),
    statuses=(exits.NO_CLUSTER, exits.SPARK_UNUSABLE, exits.UNAUTHORIZED),
    through_client=False,
)
@click.option(
    "--path", "paths", multiple=True, metavar="PATH",
    help="Bind Spark to this path and what is below; may be repeated. [default: /]",
)  # fmt: skip
@click.option(
    "--rights", type=click.Choice(["r", "rw"]), help="Read, or read and write. [default: rw]"
)
@click.option(
    "--expires", "lifetime_s", type=Duration(), metavar="TIME",
    help="How long it is valid, such as 30d. [default: forever]",
)  # fmt: skip
@click.option(
    "--token-name", metavar="NAME",
    help=f"Its name in the audit, and to revoke it by. [default: {TOKEN_NAME}]",
)  # fmt: skip
@click.option(
    "--by-descriptor", is_flag=True,
    help="Write a client's descriptor and name it, instead of showing the token; all hosts must"
    " have that file.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to FILE, readable by you alone, instead of standard output.",
)  # fmt: skip
def command(
    context: Context,
    paths: tuple[str, ...],
    rights: str | None,
    lifetime_s: float | None,
    token_name: str | None,
    by_descriptor: bool,
    output: Path | None,
) -> None:
    """Print the properties that make diskless:/// work in Spark, for spark-submit.

    They hold a client's token, bound to --path, unless --by-descriptor is given: keep them to
    yourself. The token is made with the key in your descriptor of the cluster; if that holds a
    token only, it is that one.
    """
    grant = None
    if paths or rights or lifetime_s or token_name:
        grant = Grant(
            paths=tuple(_path(context, path) for path in paths) or ("/",),
            writes=may_write(rights or "rw"),
            expires_s=int(time.time() + lifetime_s) if lifetime_s else 0,
            name=token_name or TOKEN_NAME,
        )
    found = properties(context.cluster, grant=grant, by_descriptor=by_descriptor)
    text = "".join(f"{key} {_escape(value)}\n" for key, value in found.items())
    if output is not None:
        _write_private(output, text)
    else:
        context.say(text.rstrip("\n"))
    context.result(found)


def _path(context: Context, text: str) -> str:
    target = context.target(text)
    if target.cluster != context.cluster:
        raise BadRequest(f"{text} is in another cluster: choose that one with -c")
    return target.path


def _escape(value: str) -> str:
    """For java.util.Properties, which reads spark-defaults.conf."""
    return re.sub(r"([\\=:#!])", r"\\\1", value) if re.search(r"[\\#!]", value) else value


def _write_private(path: Path, text: str) -> None:
    """Never readable by others, not even for a moment, and not if it was before."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
