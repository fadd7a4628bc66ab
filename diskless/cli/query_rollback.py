"""`diskless query rollback` and `clone`."""

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes

if TYPE_CHECKING:
    from diskless.spark.queries import Part, Returned

STATUSES = (
    exits.NOT_FOUND,
    exits.UNREADABLE,
    exits.NO_ROOM,
    exits.IN_USE,
    exits.NO_RETURN,
    *exits.ASKING,
)


@verb(
    "rollback",
    examples=(
        "diskless query rollback /checkpoints/q1 --batch 12 --dry-run",
        "diskless query rollback /checkpoints/q1 --batch 12",
        "diskless query rollback /checkpoints/q1 --batch 12 --sink /tables/out",
        "diskless query rollback /checkpoints/q1 --batch 12 --with /checkpoints/q2=7",
    ),
    statuses=STATUSES,
)
@click.argument("path")
@click.option("--batch", type=click.IntRange(min=0), required=True, metavar="N",
              help="The last batch that is to have happened.")  # fmt: skip
@click.option("--with", "others", multiple=True, metavar="PATH=N",
              help="Another checkpoint that goes back in the same step.")  # fmt: skip
@click.option("--sink", "sinks", multiple=True, metavar="DIR[=N]",
              help="The directory of a file sink that goes back too, to batch N.")  # fmt: skip
@click.option("--force", is_flag=True, help="Even if an application has the lease.")
@click.option("--dry-run", is_flag=True, help="Check everything, and only say what would go.")
def rollback(
    context: Context,
    path: str,
    batch: int,
    others: tuple[str, ...],
    sinks: tuple[str, ...],
    force: bool,
    dry_run: bool,
) -> None:
    """Bring the checkpoint PATH back to what it was after batch N: Spark continues with N+1.

    One step, all or nothing. What was there is kept as a snapshot, so it can be undone. It is
    refused if N was never committed, if its state is no longer complete, or if a query writes
    there. Stop the query first, and start it again afterwards.
    """
    from diskless.spark import queries

    target = context.target(path)
    more = [_numbered(context, text, None) for text in others]
    aside = [_numbered(context, text, batch) for text in sinks]
    client = context.connect(target, *(one for one, _ in (*more, *aside)))
    done = queries.rollback(
        client,
        {target.path: batch, **{one.path: number for one, number in more}},
        sinks={one.path: number for one, number in aside},
        dry_run=dry_run,
        force=force,
    )
    for part in done.parts:
        context.say(_line(part, dry_run=dry_run))
    for line in done.words:
        context.say(line)
    if done.snapshot:
        context.say(f"to undo it: {_undo(done, target.path)}")
    context.result({**dataclasses.asdict(done), "dry_run": dry_run})


def _numbered(context: Context, text: str, default: int | None) -> tuple[Any, int]:
    path, equals, number = text.rpartition("=")
    if not equals:
        path, number = text, "" if default is None else str(default)
    if not number.isdecimal():
        raise click.UsageError(f"{text!r} does not say which batch: PATH=N")
    return context.target(path), int(number)


def _line(part: "Part", *, dry_run: bool) -> str:
    would = "would go back" if dry_run else "is back"
    what = "sink " if part.sink else ""
    count = "1 file" if len(part.gone) == 1 else f"{len(part.gone)} files"
    return (
        f"{what}{part.path} {would} to batch {part.batch}: {count}, "
        f"{format_bytes(part.gone_bytes)}, newer than that"
    )


def _undo(done: "Returned", path: str) -> str:
    if done.cut:
        return shlex.join(("diskless", "rollback", "--cut", done.snapshot))
    return shlex.join(("diskless", "rollback", path, done.snapshot))


@verb(
    "clone",
    examples=(
        "diskless query clone /checkpoints/q1 /checkpoints/q1-canary",
        "diskless query clone /checkpoints/q1 /checkpoints/q1-canary --batch 12",
    ),
    statuses=(exits.EXISTS, exits.READ_ONLY, *STATUSES),
)
@click.argument("path")
@click.argument("target")
@click.option("--batch", type=click.IntRange(min=0), metavar="N",
              help="Begin as after this batch.  [default: the last committed]")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check everything, and change nothing.")
def clone(context: Context, path: str, target: str, batch: int | None, dry_run: bool) -> None:
    """Make TARGET a checkpoint of its own, as PATH was after a batch, at no cost in bytes.

    A canary that runs beside the original, from the same state. The original may keep running: it
    is not touched. The clone has a query id of its own. Give it a sink of its own too.
    """
    from diskless.spark import queries

    source, to = context.target(path), context.target(target)
    made = queries.clone(
        context.connect(source, to), source.path, to.path, batch=batch, dry_run=dry_run
    )
    would = "would be" if dry_run else "is"
    context.say(f"{to.path} {would} {source.path} as after batch {made.batch}, {made.files} files")
    if not dry_run:
        context.say(f"its query id is {made.query_id}; it continues with batch {made.batch + 1}")
    context.result({**dataclasses.asdict(made), "dry_run": dry_run})


VERBS = (rollback, clone)
