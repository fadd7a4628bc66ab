"""`diskless mv`."""

import click

from diskless.cli import exits
from diskless.cli.transfer import is_directory
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest


@verb(
    "mv",
    examples=("diskless mv /models/new /models/1", "diskless mv /a /b /archive/"),
    statuses=(exits.NOT_FOUND, exits.EXISTS, exits.WRONG_KIND, *exits.ASKING),
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@click.option("-f", "--force", is_flag=True, help="Replace a file that is there.")
def command(context: Context, sources: tuple[str, ...], target: str, force: bool) -> None:
    """Move or rename files and directories, each in one atomic step.

    Into TARGET if it is a directory, else to that name.
    """
    origins, goal = context.targets(sources), context.target(target)
    client = context.connect(*origins, goal)
    into = goal.means_directory or is_directory(client, goal.path)
    if len(origins) > 1 and not into:
        raise BadRequest(f"{goal.path} is not a directory, and several files cannot have one name")
    moved = []
    for origin in origins:
        to = goal.child(origin.name) if into else goal.path
        client.rename(origin.path, to, overwrite=force)
        moved.append({"source": origin.path, "target": to})
    context.result(moved)
