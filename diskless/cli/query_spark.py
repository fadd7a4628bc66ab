"""`diskless query diff` and `repartition`: the verbs that start a Spark of their own."""

import dataclasses
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from diskless.cli import exits
from diskless.cli.verb import Context, Target, verb
from diskless.errors import CannotReturn, DisklessError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SIGNS = {"added": "+", "removed": "-", "changed": "~"}
STATUSES = (exits.NOT_FOUND, exits.UNREADABLE, exits.SPARK_UNUSABLE, exits.NO_RETURN)


@verb(
    "diff",
    examples=(
        "diskless query diff /checkpoints/q1 --from 11 --to 12",
        "diskless query diff /checkpoints/q1 --from 12 --to 11 --as corrections --json",
        "diskless query diff /checkpoints/q1/.snapshot/before-batch-11 --from 11 --to 12",
    ),
    statuses=(*STATUSES, *exits.ASKING),
)
@click.argument("path")
@click.option("--from", "first", type=click.IntRange(min=0), required=True, metavar="N",
              help="The state after this batch.")  # fmt: skip
@click.option("--to", "last", type=click.IntRange(min=0), required=True, metavar="M",
              help="The state after this one.")  # fmt: skip
@click.option("--as", "form", type=click.Choice(["changes", "corrections"]), default="changes",
              show_default=True, help="Rows that differ, or records with a sign.")  # fmt: skip
@click.option("--operator", type=click.IntRange(min=0), default=0, show_default=True,
              help="Which stateful operator.")  # fmt: skip
@click.option("--join-side", type=click.Choice(["left", "right"]), default=None,
              help="For a join of two streams.")  # fmt: skip
@click.option("--variable", default="", help="A state variable of transformWithState.")
def diff(
    context: Context,
    path: str,
    first: int,
    last: int,
    form: str,
    operator: int,
    join_side: str | None,
    variable: str,
) -> None:
    """Show the rows of a query's state that differ between batch N and batch M.

    A line has + for a row that was added, - for one that was removed, ~ for one that was changed,
    with its key, its old and its new value. As corrections, old values have the sign -1 and new
    ones +1: added downstream they turn one state into the other, without a replay.
    """
    from diskless.checkpoint.rollback_rules import why_not
    from diskless.spark import changes, corrections
    from diskless.spark.queries.access import take_picture

    target = context.target(path)
    picture = take_picture(context.connect(target), target.path)
    for batch in (first, last):
        if reason := why_not(picture, batch, only_reads=True):
            raise CannotReturn(f"{target.path}: no state after batch {batch}: {reason}")
    with _spark(context, target) as spark:
        found = changes(
            spark, target.path, first, last, operator=operator, join_side=join_side or "",
            variable=variable,
        )  # fmt: skip
        shown = corrections(found) if form == "corrections" else found
        if context.json:
            context.results(_objects(shown))
            return
        for row in _rows(shown):
            context.say(_line(row, form))


def _rows(frame: "DataFrame") -> "Iterator[Row]":
    return frame.toLocalIterator()


def _objects(frame: "DataFrame") -> Iterator[Any]:
    return (_plain(row) for row in _rows(frame))


def _plain(value: Any) -> Any:
    """As JSON has it: rows are objects, and what it does not know is text."""
    if hasattr(value, "asDict"):
        return {name: _plain(one) for name, one in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def _line(row: "Row", form: str) -> str:
    key = _text(row["key"])
    if form == "corrections":
        return f"{row['sign']:+d}  {key}  {_text(row['value'])}"
    old, new = (None if row[name] is None else _text(row[name]) for name in ("old", "new"))
    values = f"{old} -> {new}" if old is not None and new is not None else old or new
    return f"{SIGNS[row['change']]}  {key}  {values}"


def _text(row: "Row") -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in row.asDict().items())


@verb(
    "repartition",
    examples=(
        "diskless query repartition /checkpoints/q1 -n 50 --dry-run",
        "diskless query repartition /checkpoints/q1 -n 50",
    ),
    statuses=(*STATUSES, exits.NO_ROOM, exits.IN_USE, *exits.ASKING),
)
@click.argument("path")
@click.option("-n", "--partitions", type=click.IntRange(min=1), required=True,
              help="How many partitions the state is to have.")  # fmt: skip
@click.option("--force", is_flag=True, help="Even if an application has the lease.")
@click.option("--dry-run", is_flag=True, help="Check everything, and change nothing.")
def repartition(context: Context, path: str, partitions: int, force: bool, dry_run: bool) -> None:
    """Give the state of a stopped query another number of partitions, by Spark's own means.

    Needs Spark 4.2 or newer, and state in RocksDB. Spark makes a batch of its own for it. What
    was there is kept as a snapshot, and is restored if Spark fails half way.
    """
    from diskless.spark import queries
    from diskless.spark.queries.repartition import check

    target = context.target(path)
    client = context.connect(target)
    check(client, target.path, partitions, force=force)
    if dry_run:
        context.say(f"{target.path} can have {partitions} partitions")
        context.result({"path": target.path, "after": partitions, "dry_run": True})
        return
    with _spark(context, target) as spark:
        done = queries.repartition(spark, client, target.path, partitions, force=force)
    counts = f"{done.after} partitions, not {done.before}"
    context.say(f"{done.path} has {counts}, from batch {done.batch} on")
    context.say(f"to undo it: diskless rollback {shlex.quote(done.path)} {done.snapshot}")
    context.result({**dataclasses.asdict(done), "dry_run": False})


@contextmanager
def _spark(context: Context, target: Target) -> "Iterator[SparkSession]":
    """A Spark on this machine, for one verb. What it says becomes one line."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from diskless.spark import configure

    builder = (
        SparkSession.builder.master("local[*]")
        .appName("diskless query")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
    )
    spark = configure(builder, target.cluster or None, token=context.token() or None).getOrCreate()
    try:
        yield spark
    except PySparkException as error:
        raise DisklessError(f"Spark: {str(error).partition(chr(10))[0]}") from error
    finally:
        spark.stop()


VERBS = (diff, repartition)
