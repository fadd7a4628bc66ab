"""`diskless log`: what happened in the namespace, once or continuously."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from diskless.cli import exits
from diskless.cli.listing import as_time
from diskless.cli.times import parse_since_ms
from diskless.cli.verb import Context, verb
from diskless.errors import DeadlineExceeded, Unavailable

if TYPE_CHECKING:
    from diskless.client import Client
    from diskless.model import Event

EVENTS = 50
EVENTS_MAX = 100_000
INTERVAL_S = 0.5
"""Between two questions, with --follow."""
FOLLOWED_MAX = 2000
"""Events that one question of --follow gets at most."""


@verb(
    "log",
    examples=(
        "diskless log",
        "diskless log --who q1 --since 2h",
        "diskless log --path /checkpoints/q1 --since '2026-01-31 17:00' --limit 1000",
        "diskless log --follow --json | jq -r .text",
    ),
    statuses=(*exits.ASKING, exits.BROKEN_PIPE),
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events, until Ctrl-C.")
@click.option(
    "-n", "--limit", "count", type=click.IntRange(0, EVENTS_MAX), default=EVENTS,
    show_default=True, metavar="N", help="How many of the latest events.",
)  # fmt: skip
@click.option("--who", default="", metavar="NAME", help="Only what this principal asked for.")
@click.option(
    "--path", default="", metavar="PATH",
    help="Only what concerns this path: at it, below it, or a directory above it.",
)  # fmt: skip
@click.option(
    "--since", default="", metavar="TIME", help="Only what is newer: 2h ago, or '2026-01-31 17:00'."
)
def command(context: Context, follow: bool, count: int, who: str, path: str, since: str) -> None:
    """Show the namespace's latest commands: puts, renames, agents that come and go.

    A line has the command's number in the log (commands that were agreed on together
    share one), its time, the principal who asked for it (- for what the cluster does on its
    own), and what happened.

    The leader answers: the last 2000 events from its memory, older ones from its own audit
    file, if the cluster keeps any. Every voter has such a file with the same events, but for
    those of times when it was away, which a line of kind gap marks; they are rotated, so the
    oldest are gone. Attempts that were refused are in the files too, each in that of the agent
    that refused it, and counted in `diskless status`.

    With --json: [{"op", "time_ms", "kind", "text", "who", "paths"}], and one such object to a
    line with --follow.
    """
    wanted: dict[str, Any] = {"who": who, "path": context.target(path).path if path else ""}
    client = context.connect(*([context.target(path)] if path else []))
    since_ms = parse_since_ms(since, now_s=time.time()) if since else 0
    events = client.events(limit=count, since_ms=since_ms, **wanted)
    if not follow:
        if context.json:
            context.results(map(msgspec.to_builtins, events))
        for event in events:
            context.say(line(event))
        return
    last = events[-1].op if events else _last_op(client)
    for event in events:
        _show(context, event)
    for event in _following(context, client, last, wanted):
        _show(context, event)


def line(event: "Event") -> str:
    # A path may contain anything, line ends among them.
    text = "".join(char if char.isprintable() else "?" for char in event.text)
    return f"{event.op:>8}  {as_time(event.time_ms)}  {event.who or '-':<12}  {text}"


def _show(context: Context, event: "Event") -> None:
    context.say(line(event))
    context.result(msgspec.to_builtins(event))


def _last_op(client: "Client") -> int:
    newest = client.events(limit=1)
    return newest[-1].op if newest else 0


def _following(
    context: Context, client: "Client", last: int, wanted: dict[str, Any]
) -> Iterator["Event"]:
    """What comes after an op, forever. A cluster that does not answer is asked again."""
    chosen = any(wanted.values())
    while True:
        time.sleep(INTERVAL_S)
        try:
            newest = _last_op(client) if chosen else 0  # so that nothing is looked through twice
            events = client.events(last, FOLLOWED_MAX, **wanted)
        except (DeadlineExceeded, Unavailable) as error:
            context.warn(f"diskless: {error}")
            continue
        if events and events[0].op > last + 1 and not chosen:
            context.warn(f"diskless: the leader does not remember {last + 1} to {events[0].op - 1}")
        yield from events
        last = max(last, newest, events[-1].op if events else 0)
