"""`diskless policy`: set, show, rm."""

from collections.abc import Sequence

import click
import msgspec

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest


@click.group("policy", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Say what paths ask for, and see what holds where.

    A policy is set on a path and holds for all below it, unless a path nearer by says something
    else. It belongs to the path: it need not be there yet, and renames do not carry it along.

    \b
    durability=memory   any k losses; absent after a restore of the whole cluster
    durability=async    also in the tier, a few seconds later at most
    durability=sync     acknowledged when it is in the tier
    """


@verb(
    "set",
    examples=(
        "diskless policy set /checkpoints/payments durability=sync",
        "diskless policy set /scratch durability=memory",
    ),
    statuses=(*exits.ASKING, exits.NO_ROOM),
)
@click.argument("path", metavar="PATH")
@click.argument("entries", nargs=-1, required=True, metavar="KEY=VALUE...")
def set_(context: Context, path: str, entries: Sequence[str]) -> None:
    """Set policies of a path, from now on, also while it is in use.

    `async` and `sync` mean something with a tier alone, and `sync` without one is refused. What
    is below a path that asked for `memory` comes into the tier with the next round.
    """
    chosen = [_parse(entry) for entry in entries]
    target = context.target(path)
    client = context.connect(target)
    answers = []
    for key, value in chosen:
        changed = client.policies.set(target.path, key, value)
        context.say(f"{target.path}: {key}={value}" + ("" if changed else ", as before"))
        answers.append({"path": target.path, "key": key, "value": value, "changed": changed})
    context.result(answers)


@verb(
    "show",
    examples=("diskless policy show /checkpoints/payments", "diskless policy show / --json"),
    statuses=exits.ASKING,
)
@click.argument("path", metavar="PATH")
def show(context: Context, path: str) -> None:
    """Show what holds at a path, and which path says so."""
    target = context.target(path)
    entries = context.connect(target).policies.effective(target.path)
    for entry in entries:
        context.say(f"{entry.key}={entry.value}  {_source(entry.source)}")
    context.result({"path": target.path, "policies": msgspec.to_builtins(entries)})


@verb(
    "rm",
    examples=("diskless policy rm /scratch", "diskless policy rm /scratch durability"),
    statuses=exits.ASKING,
)
@click.argument("path", metavar="PATH")
@click.argument("key", required=False, default="", metavar="[KEY]")
def remove(context: Context, path: str, key: str) -> None:
    """Take a policy off a path, or all that it has: then what is above holds again."""
    target = context.target(path)
    changed = context.connect(target).policies.remove(target.path, key)
    what = key or "policies"
    context.say(f"{target.path}: {what} removed" if changed else f"{target.path} had no {what}")
    context.result({"path": target.path, "key": key, "removed": changed})


def _parse(entry: str) -> tuple[str, str]:
    key, equals, value = entry.partition("=")
    if not equals or not key or not value:
        raise BadRequest(f"{entry!r} is no policy: write for example durability=sync")
    return key, value


def _source(source: str) -> str:
    return f"set on {source}" if source else "the cluster's default"


for made in (set_, show, remove):
    command.add_command(made)
