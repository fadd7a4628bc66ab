"""`diskless log`: what happened in the namespace, once or as it goes on."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from diskless.cli import exits
from diskless.cli.listing import as_time
from diskless.cli.verb import Context, verb
from diskless.errors import DeadlineExceeded, Unavailable

if TYPE_CHECKING:
    from diskless.client import Client
    from diskless.model import Event

EVENTS = 50
INTERVAL_S = 0.5
"""Between two questions, with --follow."""
EVENTS_MAX = 2000
"""More than this a leader does not remember."""


@verb(
    "log",
    examples=(
        "diskless log",
        "diskless log -n 500 | grep agent-2",
        "diskless log --follow --json | jq -r .text",
    ),
    statuses=(*exits.ASKING, exits.BROKEN_PIPE),
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(0, EVENTS_MAX),
    default=EVENTS,
    show_default=True,
    metavar="N",
    help="How many of the latest events.",
)
def command(context: Context, follow: bool, count: int) -> None:
    """Show the namespace's latest commands: puts, renames, agents that come and go.

    A line has the command's number in the log (commands that were agreed on together
    share one), its time, and what happened. The leader tells what it remembers: at most
    the last 2000 events, and none from before it joined, if it got its state as a
    snapshot from another voter. With --json: [{"op", "time_ms", "kind", "text"}], and one
    such object to a line with --follow.
    """
    client = context.connect()
    events = client.events(limit=count)
    if not follow:
        if context.json:
            context.results(map(msgspec.to_builtins, events))
        for event in events:
            context.say(line(event))
        return
    last = events[-1].op if events else _last_op(client)
    for event in events:
        _show(context, event)
    for event in _following(context, client, last):
        _show(context, event)


def line(event: "Event") -> str:
    # A path may contain anything, line ends among them.
    text = "".join(char if char.isprintable() else "?" for char in event.text)
    return f"{event.op:>8}  {as_time(event.time_ms)}  {text}"


def _show(context: Context, event: "Event") -> None:
    context.say(line(event))
    context.result(msgspec.to_builtins(event))


def _last_op(client: "Client") -> int:
    newest = client.events(limit=1)
    return newest[-1].op if newest else 0


def _following(context: Context, client: "Client", last: int) -> Iterator["Event"]:
    """What comes after an op, for ever. A cluster that does not answer is asked again."""
    while True:
        time.sleep(INTERVAL_S)
        try:
            events = client.events(last, EVENTS_MAX)
        except (DeadlineExceeded, Unavailable) as error:
            context.warn(f"diskless: {error}")
            continue
        if events and events[0].op > last + 1:
            context.warn(f"diskless: the leader does not remember {last + 1} to {events[0].op - 1}")
        yield from events
        last = events[-1].op if events else last
