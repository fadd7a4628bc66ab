"""`diskless drain`: moves everything off an agent, so that it can be taken away."""

import time
from typing import TYPE_CHECKING, Any

import click

from diskless.cli import exits
from diskless.cli.meter import Meter
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest, CapacityExceeded
from diskless.model import parse_slot, slot_name

if TYPE_CHECKING:
    from diskless.client import Client

POLL_S = 0.2


@verb(
    "drain",
    examples=("diskless drain agent-3", "diskless drain 3 --no-wait", "diskless drain 3 --undo"),
    statuses=(*exits.ASKING, *exits.WRITING),
)
@click.argument("slot", metavar="SLOT")
@click.option("--undo", is_flag=True, help="Let the agent take shards again.")
@click.option(
    "--no-wait", is_flag=True, help="Return at once; `diskless status` shows how far it is."
)
def command(context: Context, slot: str, undo: bool, no_wait: bool) -> None:
    """Move everything off an agent before maintenance.

    The agent gets no new shards, in any of its lives, until --undo. What it holds is moved
    to others; with none to spare, stripes are made narrower. It goes on although this
    command is interrupted. An agent that votes goes on voting: while it is away the
    namespace survives one loss less.
    """
    number = _parse(slot)
    client = context.connect()
    changed = client.drain(number, undo=undo)
    if undo:
        context.say(f"{slot_name(number)} takes shards again")
    elif not no_wait:
        _wait(client, number, Meter(f"draining {slot_name(number)}", enabled=not context.json))
        context.say(f"{slot_name(number)} is drained: nothing is lost with it")
    else:
        context.say(f"{slot_name(number)} drains")
    context.result(
        {
            "slot": slot_name(number),
            "draining": not undo,
            "changed": changed,
            "shards_left": _agent(client.status(), number)["shards_placed"],
        }
    )


def _wait(client: "Client", number: int, meter: Meter) -> None:
    """Until no stripe names the agent. Raises CapacityExceeded when the others are full."""
    with meter:
        while True:
            status = client.status()
            left = _agent(status, number).get("shards_placed", 0)
            meter.left(left)
            if not left:
                return
            repair = status["repair"]
            if repair["unprotectable"] and not repair["stripes_left"]:
                raise CapacityExceeded(
                    f"{left} shards stay on {slot_name(number)}: the other agents have no room; "
                    "delete files, or add agents"
                )
            time.sleep(POLL_S)


def _agent(status: dict[str, Any], number: int) -> dict[str, Any]:
    agent: dict[str, Any] = status["agents"][number]
    return agent


def _parse(slot: str) -> int:
    try:
        return parse_slot(slot)
    except ValueError as error:
        raise BadRequest(str(error)) from error
