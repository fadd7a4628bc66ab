"""`diskless rm`."""

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.errors import NotFound


@verb(
    "rm",
    examples=("diskless rm /models/1", "diskless rm -r /checkpoints/old"),
    statuses=(
        exits.NOT_FOUND,
        exits.WRONG_KIND,
        exits.HAS_SNAPSHOTS,
        exits.READ_ONLY,
        *exits.ASKING,
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-r", "--recursive", is_flag=True, help="Directories with all that is in them.")
@click.option("-f", "--force", is_flag=True, help="What does not exist is no error.")
@click.option(
    "--with-snapshots", is_flag=True, help="Also the snapshots of these directories, and below."
)
def command(
    context: Context, paths: tuple[str, ...], recursive: bool, force: bool, with_snapshots: bool
) -> None:
    """Delete files and directories. A directory goes in one step, with all that is in it."""
    targets = context.targets(paths)
    client = context.connect(*targets)
    outcome = []
    for target in targets:
        deleted = client.delete(target.path, recursive=recursive, with_snapshots=with_snapshots)
        if not deleted and not force:
            raise NotFound(f"{target.path} does not exist")
        outcome.append({"path": target.path, "deleted": deleted})
    context.result(outcome)
