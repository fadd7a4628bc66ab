"""`diskless du`."""

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes


@verb(
    "du",
    examples=("diskless du", "diskless du /checkpoints /models", "diskless du --json /"),
    statuses=(exits.NOT_FOUND, *exits.ASKING),
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-b", "--bytes", "exact", is_flag=True, help="Sizes in bytes.")
def command(context: Context, paths: tuple[str, ...], exact: bool) -> None:
    """Count files and bytes under paths, as written; `status` says what storing them takes."""
    targets = context.targets(paths or ("/",))
    client = context.connect(*targets)
    counts = []
    for target in targets:
        summed = client.summary(target.path)
        size = str(summed.bytes) if exact else format_bytes(summed.bytes)
        context.say(f"{size:>12}  {summed.files:>8} files  {target.path}")
        counts.append(
            {
                "path": target.path,
                "files": summed.files,
                "directories": summed.directories,
                "bytes": summed.bytes,
            }
        )
    context.result(counts)
