"""`diskless rollback`."""

import shlex

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb


@verb(
    "rollback",
    examples=(
        "diskless rollback /checkpoints/q1 before-upgrade",
        "diskless rollback --cut nightly",
        "diskless rollback --force /checkpoints/q1 before-upgrade",
    ),
    statuses=(exits.NOT_FOUND, exits.WRONG_KIND, exits.NO_ROOM, exits.IN_USE, *exits.ASKING),
)
@click.argument("path", required=False)
@click.argument("name", required=False)
@click.option("--cut", metavar="NAME", help="All directories of a cut, instead of one.")
@click.option("--force", is_flag=True, help="Even if a query writes there.")
def command(
    context: Context, path: str | None, name: str | None, cut: str | None, force: bool
) -> None:
    """Bring the directory PATH back to its snapshot NAME, in one step.

    What is there now becomes a snapshot itself, so that it can be undone: its name is printed.
    Stop the queries that write there first: they do not expect it, and it is refused while
    one does, or has just done so.
    """
    if cut is not None:
        if path is not None:
            raise click.UsageError("--cut NAME takes no PATH: the cut knows its directories")
        before = context.connect().rollback_cut(cut, guarded=not force)
        undo, what = ["--cut", before], {"cut": cut}
    else:
        if path is None or name is None:
            raise click.UsageError("which directory and snapshot? PATH NAME, or --cut NAME")
        target = context.target(path)
        before = context.connect(target).rollback(target.path, name, guarded=not force)
        undo, what = [target.path, before], {"path": target.path, "name": name}
    if before:
        context.say(f"rolled back; to undo it: diskless rollback {shlex.join(undo)}")
    else:
        context.say("rolled back; nothing was there before")
    context.result({**what, "before": before})
