"""`diskless stat`."""

import click

from diskless.cli import exits
from diskless.cli.listing import as_object, as_time
from diskless.cli.verb import Context, verb


@verb(
    "stat",
    examples=("diskless stat /models/1", "diskless stat --json /a /b"),
    statuses=(exits.NOT_FOUND, *exits.ASKING),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def command(context: Context, paths: tuple[str, ...]) -> None:
    """Show what is known of files and directories.

    The checksum is XXH64 of a file's content; the id differs for every content ever put.
    """
    targets = context.targets(paths)
    client = context.connect(*targets)
    found = [client.stat(target.path) for target in targets]
    for status in found:
        context.say(f"{status.path}: {'directory' if status.directory else 'file'}")
        if not status.directory:
            context.say(f"  size      {status.size}")
            context.say(f"  checksum  {status.checksum}")
            context.say(f"  id        {status.id}")
        context.say(f"  modified  {as_time(status.mtime_ms)}")
    context.result([as_object(status) for status in found])
