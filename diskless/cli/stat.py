"""`diskless stat`."""

import click
from msgspec import to_builtins

from diskless.cli import exits
from diskless.cli.care import parity_words
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

    The checksum is XXH64 of a file's content; the id differs for every content ever put. Of
    files it is also shown how many losses they survive: fewer where a path asks for less.
    """
    targets = context.targets(paths)
    client = context.connect(*targets)
    found = [client.stat(target.path) for target in targets]
    cares = [None if one.directory else client.policies.look(one.path).file for one in found]
    for status, care in zip(found, cares, strict=True):
        context.say(f"{status.path}: {'directory' if status.directory else 'file'}")
        if not status.directory:
            context.say(f"  size      {status.size}")
            context.say(f"  checksum  {status.checksum}")
            context.say(f"  id        {status.id}")
        if care is not None:
            context.say(f"  protected {parity_words(care)}")
            context.say(f"  priority  {care.priority}")
        context.say(f"  modified  {as_time(status.mtime_ms)}")
    context.result(
        [
            as_object(status) | ({} if care is None else to_builtins(care))
            for status, care in zip(found, cares, strict=True)
        ]
    )
