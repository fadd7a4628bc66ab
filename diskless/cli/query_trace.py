"""`diskless query trace`."""

import dataclasses
from typing import TYPE_CHECKING

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb

if TYPE_CHECKING:
    from diskless.spark.queries import Touched


@verb(
    "trace",
    examples=(
        "diskless query trace /checkpoints/q1 --batch 12",
        "diskless query trace /checkpoints/q1 --batch 12 --sink /tables/out=/checkpoints/q1",
    ),
    statuses=(exits.NOT_FOUND, exits.UNREADABLE, exits.NO_RETURN, *exits.ASKING),
)
@click.argument("path")
@click.option("--batch", type=click.IntRange(min=0), required=True, metavar="N",
              help="The bad batch.")  # fmt: skip
@click.option("--sink", "sinks", multiple=True, metavar="DIR=PATH",
              help="That the query PATH writes to DIR, where times do not show it.")  # fmt: skip
def trace(context: Context, path: str, batch: int, sinks: tuple[str, ...]) -> None:
    """Show what a bad batch has touched: files, the queries that read them, and so on.

    For each query it says which batch is its first bad one and to which it must go back, and then
    prints the command that brings all of them back in one step. It goes by the logs of file
    sinks and file sources in this cluster; what these do not say is listed as unknown.
    """
    from diskless.spark import queries

    target = context.target(path)
    told = {}
    for text in sinks:
        sink, equals, query = text.partition("=")
        if not equals:
            raise click.UsageError(f"{text!r} does not say whose sink it is: DIR=PATH")
        told[context.target(sink).path] = context.target(query).path
    found = queries.trace(context.connect(target), target.path, batch, sinks=told)
    for one in found.touched:
        context.say(_line(one))
        for file in one.files:
            context.say(f"    wrote {file}")
    for line in found.unknown:
        context.say(f"not known: {line}")
    if found.command:
        context.say(f"to bring all of it back: {found.command}")
    else:
        context.say("no one step brings all of it back")
    context.result(dataclasses.asdict(found))


def _line(one: "Touched") -> str:
    read = f", which read what {one.because} wrote," if one.because else ""
    line = f"{one.path}{read} is bad from batch {one.batch} on"
    if one.why_not:
        return f"{line}: it cannot go back: {one.why_not}"
    return f"{line}: back to batch {one.back_to}"


VERBS = (trace,)
