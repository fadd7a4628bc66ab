"""`diskless policy`: set, show, rm."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from diskless.cli import exits
from diskless.cli.care import care_line, quota_line
from diskless.cli.tier_lines import not_covered
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest
from diskless.policy import BARRIER, COVERED_BY_BARRIER, DURABILITY, NOT_COVERED_BY_BARRIER


@click.group("policy", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Set what paths ask for, and show what holds where.

    A policy is set on a path and holds for all below it, unless a path further down says something
    else. It belongs to the path: it need not be there yet, and renames do not carry it along.

    \b
    durability=memory   any k losses; absent after a restore of the whole cluster
    durability=async    also in the tier, a few seconds later at most
    durability=barrier  a query's state and commits are acknowledged when the batch's plan,
                        below offsets/, is in the tier: exactly-once after the loss of everything
    durability=sync     acknowledged when it is in the tier
    parity=0..k         how many losses new files survive: less than k for what may be lost
    priority=0..9       the highest is repaired, and brought back after a restore, first (5)
    quota=10GiB         how much all below may hold, with clones and snapshots; else refused
    keep-in-memory=N    of a checkpoint, what its newest N batches need stays in memory, and the
                        rest is in the tier alone as soon as it is there
    pin=yes             never evicted, and brought back if it was
    history="every 1m keep 1h; every 1h keep 7d"
                        snapshots of queries' checkpoints as batches are committed
    history-in=tier     what only those snapshots show is in the tier alone (memory)
    """


@verb(
    "set",
    examples=(
        "diskless policy set /checkpoints/payments durability=barrier priority=9",
        "diskless policy set /ledger durability=sync",
        "diskless policy set /scratch durability=memory parity=0 quota=10GiB",
        "diskless policy set /checkpoints keep-in-memory=2",
        "diskless policy set /checkpoints/payments pin=yes",
        "diskless policy set /checkpoints history='every 1m keep 1h; every 1d keep 7d'",
        "diskless policy set /checkpoints history-in=tier",
    ),
    statuses=(*exits.ASKING, exits.NO_ROOM),
)
@click.argument("path", metavar="PATH")
@click.argument("entries", nargs=-1, required=True, metavar="KEY=VALUE...")
def set_(context: Context, path: str, entries: Sequence[str]) -> None:
    """Set policies of a path, from now on, also while it is in use.

    `async`, `barrier` and `sync` need a tier to have an effect, and the latter two are refused
    without one. What is below a path that asked for `memory` comes into the tier with the next
    round. Each directory with `offsets/` in it, at or below a path that asks for `barrier`, is a
    checkpoint of its own.

    parity and priority hold for what is written from then on, and for files that are moved there:
    one that has less parity than its new path asks for is rewritten soon. More than the
    cluster's k is refused. A quota counts what `du` shows, and every snapshot in full; a path that
    holds more already only may not grow.
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
    """Show what holds at a path, and which path says so; of quotas, how much of them is used."""
    target = context.target(path)
    found = context.connect(target).policies.look(target.path)
    for entry in found.entries:
        context.say(f"{entry.key}={entry.value}  {_source(entry.source)}")
    for quota in found.quotas:
        context.say(quota_line(quota.path, used=quota.bytes_used, most=quota.bytes_max))
    if found.file is not None:
        context.say(f"this file: {care_line(found.file)}")
    answer: dict[str, Any] = {
        "path": target.path,
        "policies": msgspec.to_builtins(found.entries),
        "quotas": msgspec.to_builtins(found.quotas),
        "file": msgspec.to_builtins(found.file),
    }
    if any((entry.key, entry.value) == (DURABILITY, BARRIER) for entry in found.entries):
        context.say(f"  exactly-once for {COVERED_BY_BARRIER}")
        context.say(f"  {not_covered()}")
        answer["barrier"] = {
            "covers": COVERED_BY_BARRIER,
            "not_covered": list(NOT_COVERED_BY_BARRIER),
        }
    context.result(answer)


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
        raise BadRequest(f"{entry!r} is no policy: write for example durability=barrier")
    return key, value


def _source(source: str) -> str:
    return f"set on {source}" if source else "the cluster's default"


for made in (set_, show, remove):
    command.add_command(made)
