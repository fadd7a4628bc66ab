"""`diskless query cut`."""

import dataclasses
import shlex
from typing import TYPE_CHECKING

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb

if TYPE_CHECKING:
    from diskless.spark.queries import CutMember


@verb(
    "cut",
    examples=(
        "diskless query cut nightly /checkpoints/q1 /checkpoints/q2 /tables/out",
        "diskless query cut --back nightly --dry-run",
        "diskless query cut --back nightly",
    ),
    statuses=(
        exits.NOT_FOUND,
        exits.EXISTS,
        exits.WRONG_KIND,
        exits.NO_ROOM,
        exits.IN_USE,
        *exits.ASKING,
    ),
)
@click.argument("name")
@click.argument("chosen", nargs=-1, metavar="PATH...")
@click.option("--back", is_flag=True, help="Bring all directories of the cut NAME back to it.")
@click.option("--force", is_flag=True, help="Even if an application has the lease.")
@click.option("--dry-run", is_flag=True, help="Only say which batches these are.")
def cut(
    context: Context, name: str, chosen: tuple[str, ...], back: bool, force: bool, dry_run: bool
) -> None:
    """Keep several queries at one position of the log, under NAME; or bring them back together.

    The PATHs are checkpoints, and directories that the queries write to: what one query has read
    and another has written fits together at such a position. The queries may run meanwhile. To
    go back they must be stopped.
    """
    from diskless.spark import queries

    if back:
        if chosen:
            raise click.UsageError("--back NAME takes no PATH: the cut knows its directories")
        members, before = queries.cut_back(context.connect(), name, dry_run=dry_run, force=force)
        _say(context, members, "would go back to" if dry_run else "is back at")
        if before:
            context.say(f"to undo it: diskless query cut --back {shlex.quote(before)}")
        context.result(_result(name, members, dry_run) | {"before": before})
        return
    if not chosen:
        raise click.UsageError("a cut of which directories? NAME PATH...")
    targets = context.targets(chosen)
    client = context.connect(*targets)
    members = queries.cut(client, name, [target.path for target in targets], dry_run=dry_run)
    _say(context, members, "is at" if dry_run else "is kept at")
    context.result(_result(name, members, dry_run))


def _say(context: Context, members: "list[CutMember]", verb_: str) -> None:
    for member in members:
        at = "this position" if member.batch is None else f"batch {member.batch}"
        context.say(f"{member.path} {verb_} {at}")


def _result(name: str, members: "list[CutMember]", dry_run: bool) -> dict[str, object]:
    return {
        "name": name,
        "members": [dataclasses.asdict(member) for member in members],
        "dry_run": dry_run,
    }


VERBS = (cut,)
