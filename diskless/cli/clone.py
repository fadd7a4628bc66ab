"""`diskless clone`."""

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb


@verb(
    "clone",
    examples=(
        "diskless clone /checkpoints/q1 /checkpoints/canary",
        "diskless clone /checkpoints/q1/.snapshot/before-upgrade /checkpoints/q1-again",
    ),
    statuses=(
        exits.NOT_FOUND,
        exits.EXISTS,
        exits.WRONG_KIND,
        exits.NO_ROOM,
        exits.READ_ONLY,
        *exits.ASKING,
    ),
)
@click.argument("source")
@click.argument("target")
def command(context: Context, source: str, target: str) -> None:
    """Copy a file or a directory to TARGET in one step, at no cost in bytes.

    No byte is copied, whatever its size: both share what neither has changed. SOURCE may be
    a snapshot. TARGET must not exist; the directory above it must.
    """
    origin, goal = context.target(source), context.target(target)
    context.connect(origin, goal).clone(origin.path, goal.path)
    context.result({"source": origin.path, "target": goal.path})
