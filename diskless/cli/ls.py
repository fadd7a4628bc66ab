"""`diskless ls`."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from diskless.cli import exits
from diskless.cli.listing import as_object, long_line, short_line
from diskless.cli.verb import Context, verb

if TYPE_CHECKING:
    from diskless.client import Client
    from diskless.protocol.messages import Status


@verb(
    "ls",
    examples=("diskless ls", "diskless ls -l /checkpoints", "diskless ls -R diskless://night/"),
    statuses=(exits.NOT_FOUND, *exits.ASKING),
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-l", "--long", "is_long", is_flag=True, help="With size and time.")
@click.option("-R", "--recursive", is_flag=True, help="With everything below.")
def command(context: Context, paths: tuple[str, ...], is_long: bool, recursive: bool) -> None:
    """List files and directories, one to a line; directories end with a slash."""
    targets = context.targets(paths or ("/",))
    client = context.connect(*targets)
    entries = walk(client, [target.path for target in targets], recursive=recursive)
    if context.json:
        context.results(map(as_object, entries))
        return
    line = long_line if is_long else short_line
    for entry in entries:
        context.say(line(entry))


def walk(client: "Client", paths: Iterable[str], *, recursive: bool) -> Iterator["Status"]:
    """The entries of directories, by name, each before what is in it."""
    for path in paths:
        for entry in client.list(path):
            yield entry
            if recursive and entry.directory:
                yield from walk(client, [entry.path], recursive=True)
