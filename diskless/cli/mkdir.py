"""`diskless mkdir`."""

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb


@verb(
    "mkdir",
    examples=("diskless mkdir /checkpoints/orders",),
    statuses=(exits.WRONG_KIND, *exits.ASKING),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def command(context: Context, paths: tuple[str, ...]) -> None:
    """Make directories, with their parents. One that exists is no error."""
    targets = context.targets(paths)
    client = context.connect(*targets)
    context.result(
        [{"path": target.path, "created": client.mkdirs(target.path)} for target in targets]
    )
