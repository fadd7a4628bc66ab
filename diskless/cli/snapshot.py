"""`diskless snapshot`: create, ls, rm, rename, diff."""

import click
import msgspec

from diskless.cli import exits
from diskless.cli.listing import as_time
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes


@click.group("snapshot", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Keep directories as they are, at no cost in bytes.

    A snapshot is one step, whatever the directory's size, and is read below
    PATH/.snapshot/NAME by everything that reads files. What it shares with the directory is
    stored once; a directory with snapshots can be neither deleted nor renamed.
    """


@verb(
    "create",
    examples=(
        "diskless snapshot create /checkpoints/q1",
        "diskless snapshot create /checkpoints/q1 before-upgrade",
        "diskless snapshot create --cut /checkpoints/q1 /checkpoints/q2 nightly",
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
@click.argument("arguments", nargs=-1, required=True, metavar="PATH [NAME]")
@click.option("--cut", is_flag=True, help="Several directories at one moment: PATH PATH... NAME.")
def create(context: Context, arguments: tuple[str, ...], cut: bool) -> None:
    """Keep the directory PATH as it is now, under NAME or a name with the time in it."""
    if cut:
        if len(arguments) < 2:
            raise click.UsageError("--cut needs directories and then a name: PATH PATH... NAME")
        chosen, name = arguments[:-1], arguments[-1]
    else:
        if len(arguments) > 2:
            raise click.UsageError("one PATH and one NAME; several directories need --cut")
        chosen, name = arguments[:1], arguments[1] if len(arguments) == 2 else ""
    targets = context.targets(chosen)
    client = context.connect(*targets)
    paths = [target.path for target in targets]
    made = client.snapshot_cut(paths, name) if cut else client.snapshot(paths[0], name)
    for path in paths:
        context.say(f"{path.rstrip('/')}/.snapshot/{made}")
    context.result({"paths": paths, "name": made, "cut": cut})


@verb(
    "ls",
    examples=("diskless snapshot ls", "diskless snapshot ls /checkpoints/q1"),
    statuses=(exits.NOT_FOUND, *exits.ASKING),
)
@click.argument("path", required=False)
def list_(context: Context, path: str | None) -> None:
    """List the snapshots of a directory, or all; the oldest first.

    A line has the time, the number of the log's command, files and bytes as written, the
    cut that it belongs to, if any, and where to read it.
    """
    if path is None:
        found = context.connect().snapshots()
    else:
        target = context.target(path)
        client = context.connect(target)
        client.stat(f"{target.path.rstrip('/')}/.snapshot")
        found = client.snapshots(target.path)
    if context.json:
        context.results(msgspec.to_builtins(one) for one in found)
        return
    for one in found:
        cut = f"  cut {one.cut}" if one.cut else ""
        context.say(
            f"{as_time(one.time_ms)}  {one.op:>10}  {one.files:>8} files  "
            f"{format_bytes(one.bytes):>10}  {one.path.rstrip('/')}/.snapshot/{one.name}{cut}"
        )


@verb(
    "rm",
    examples=("diskless snapshot rm /checkpoints/q1 before-upgrade",),
    statuses=(exits.NOT_FOUND, *exits.ASKING),
)
@click.argument("path")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(context: Context, path: str, names: tuple[str, ...]) -> None:
    """Delete snapshots of a directory, all of them or none."""
    target = context.target(path)
    context.connect(target).delete_snapshots(target.path, *names)
    context.result({"path": target.path, "deleted": list(names)})


@verb(
    "rename",
    examples=("diskless snapshot rename /checkpoints/q1 s20260101-030000.000 new-year",),
    statuses=(exits.NOT_FOUND, exits.EXISTS, *exits.ASKING),
)
@click.argument("path")
@click.argument("old")
@click.argument("new")
def rename(context: Context, path: str, old: str, new: str) -> None:
    """Give a snapshot of a directory another name."""
    target = context.target(path)
    context.connect(target).rename_snapshot(target.path, old, new)
    context.result({"path": target.path, "old": old, "new": new})


@verb(
    "diff",
    examples=(
        "diskless snapshot diff /checkpoints/q1 before-upgrade",
        "diskless snapshot diff /checkpoints/q1 monday tuesday",
    ),
    statuses=(exits.NOT_FOUND, *exits.ASKING),
)
@click.argument("path")
@click.argument("a")
@click.argument("b", required=False, default="")
def diff(context: Context, path: str, a: str, b: str) -> None:
    """Show what differs in snapshot B, or in the directory now, from snapshot A.

    A line has + for what is new, - for what is gone, M for a file that was replaced, then
    its size and its path in the directory. A directory that came or went is one line.
    """
    target = context.target(path)
    changes = context.connect(target).diff(target.path, a, b)
    if context.json:
        context.results(msgspec.to_builtins(change) for change in changes)
        return
    for change in changes:
        size = format_bytes(change.bytes_before if change.kind == "-" else change.bytes_after)
        context.say(f"{change.kind} {size:>10}  {change.path}{'/' if change.directory else ''}")


for made in (create, list_, remove, rename, diff):
    command.add_command(made)
