"""`diskless du`."""

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes


@verb(
    "du",
    examples=("diskless du", "diskless du --shared /checkpoints/q1", "diskless du --json /"),
    statuses=(exits.NOT_FOUND, *exits.ASKING),
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-b", "--bytes", "exact", is_flag=True, help="Sizes in bytes.")
@click.option(
    "--shared", is_flag=True, help="Also count apart what only this path holds, and what is shared."
)
def command(context: Context, paths: tuple[str, ...], exact: bool, shared: bool) -> None:
    """Count files and bytes under paths, as written; `status` says what storing them takes.

    With --shared, *own* are the bytes that would be free without the path, and *shared* those
    that a snapshot or a clone names too. It looks at every file that is not shared.
    """

    def sized(count: int) -> str:
        return str(count) if exact else format_bytes(count)

    targets = context.targets(paths or ("/",))
    client = context.connect(*targets)
    counts = []
    for target in targets:
        summed = client.summary(target.path)
        found = {
            "path": target.path,
            "files": summed.files,
            "directories": summed.directories,
            "bytes": summed.bytes,
        }
        line = f"{sized(summed.bytes):>12}  {summed.files:>8} files  "
        if shared:
            own = client.own_bytes(target.path)
            found |= {"own_bytes": own, "shared_bytes": max(summed.bytes - own, 0)}
            line += f"{sized(own):>12} own  {sized(found['shared_bytes']):>12} shared  "
        context.say(line + target.path)
        counts.append(found)
    context.result(counts)
