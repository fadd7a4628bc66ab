"""`diskless drain`: moves everything off an agent, so that it can be taken away."""

import time
from typing import TYPE_CHECKING

import click

from diskless.cli import exits
from diskless.cli.meter import Meter
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest, CapacityExceeded, DeadlineExceeded, TooFewShards
from diskless.model import RepairStatus, parse_slot, slot_name

if TYPE_CHECKING:
    from diskless.client import Client

POLL_S = 0.2
STALLED_S = 10.0
"""How long nothing may have moved before it is asked why: longer than repair takes to look."""
PATIENCE_S = 600.0


@verb(
    "drain",
    examples=("diskless drain agent-3", "diskless drain 3 --no-wait", "diskless drain 3 --undo"),
    statuses=(*exits.ASKING, *exits.WRITING, exits.UNREADABLE),
)
@click.argument("slot", metavar="SLOT")
@click.option(
    "--undo",
    is_flag=True,
    help="Let the agent take shards again, also if its host has announced its end.",
)
@click.option(
    "--no-wait", is_flag=True, help="Return at once; `diskless status` shows how far it is."
)
def command(context: Context, slot: str, undo: bool, no_wait: bool) -> None:
    """Move everything off an agent before maintenance.

    The agent gets no new shards, in any of its lives, until --undo. What it holds is moved
    to others; with none to spare, stripes are made narrower. It continues even if this
    command is interrupted. An agent that votes keeps voting: while it is away the
    namespace survives one loss less. Agents whose hosts announce their end, by SIGTERM or
    because Ray drains their nodes, are emptied without this command.
    """
    number = _parse(slot)
    client = context.connect()
    changed = client.drain(number, undo=undo)
    if undo:
        context.say(f"{slot_name(number)} takes shards again")
    elif not no_wait:
        wait(client, number, Meter(f"draining {slot_name(number)}", enabled=not context.json))
        context.say(f"{slot_name(number)} is drained: nothing is lost with it")
    else:
        context.say(f"{slot_name(number)} drains")
    context.result(
        {
            "slot": slot_name(number),
            "draining": not undo,
            "changed": changed,
            "shards_left": client.status().agents[number].shards_placed,
        }
    )


def wait(client: "Client", number: int, meter: Meter, *, stalled_s: float = STALLED_S) -> None:
    """Until no stripe names the agent.

    When nothing has moved for `stalled_s` and nothing can: raises CapacityExceeded if the
    others are full, TooFewShards if what is left has been lost. DeadlineExceeded when
    nothing has moved for PATIENCE_S, whatever the reason.
    """
    least: int | None = None
    moved_s = time.monotonic()
    with meter:
        while True:
            status = client.status()
            left = status.agents[number].shards_placed
            meter.left(left)
            if not left:
                return
            if least is None or left < least:
                least, moved_s = left, time.monotonic()
            still_s = time.monotonic() - moved_s
            if still_s > stalled_s and not status.repair.stripes_left:
                _give_up(status.repair, left, number)
            if still_s > PATIENCE_S:
                raise DeadlineExceeded(
                    f"nothing has left {slot_name(number)} for {PATIENCE_S:g} s, {left} shards "
                    "are left: see `diskless status`; the drain continues without this command"
                )
            time.sleep(POLL_S)


def _give_up(repair: RepairStatus, left: int, number: int) -> None:
    """Raises if repair has looked and has nothing left to try."""
    if repair.unprotectable:
        raise CapacityExceeded(
            f"{left} shards stay on {slot_name(number)}: the other agents have no room; "
            "delete files, or add agents"
        )
    if repair.lost and not repair.waiting:
        raise TooFewShards(
            f"{left} shards stay on {slot_name(number)}: their stripes are lost: too few of "
            "their other shards are left to be read; delete the files that lie in them"
        )


def _parse(slot: str) -> int:
    try:
        return parse_slot(slot)
    except ValueError as error:
        raise BadRequest(str(error)) from error
