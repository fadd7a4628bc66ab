"""`diskless restart`: one agent, or all of them, one after the other."""

import click

from diskless.cli import exits
from diskless.cli.meter import Meter
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest
from diskless.model import parse_slot, slot_name


@verb(
    "restart",
    examples=("diskless restart agent-3", "diskless restart --rolling"),
    statuses=(*exits.ASKING, exits.LAUNCH_FAILED),
    through_client=False,
)
@click.argument("slots", nargs=-1, metavar="[SLOT...]")
@click.option("--rolling", is_flag=True, help="All agents, the leader last.")
def command(context: Context, slots: tuple[str, ...], rolling: bool) -> None:
    """Restart agents, each when everything survives k losses and not before.

    A restarted agent begins with an empty memory: what it held is rebuilt from the others
    before the next one is ended. Agents of one major version work together, so an upgrade
    can be installed and rolled through a cluster that keeps serving.
    """
    if rolling == bool(slots):
        raise BadRequest("name the slots to restart, or say --rolling for all")
    name, numbers = context.cluster_name(), _parse(slots)
    from diskless.operate import rolling as launch

    with Meter("restarting", enabled=not context.json) as meter:
        done = launch.restart(name, numbers or None, progress=meter.left)
    for agent in done:
        context.say(
            f"{slot_name(agent.slot)} restarted in {agent.took_s:.1f} s, "
            f"protected again after {agent.protected_s:.1f} s"
        )
    context.result(
        {
            "restarted": [
                {
                    "slot": slot_name(agent.slot),
                    "incarnation": agent.incarnation,
                    "took_s": round(agent.took_s, 3),
                    "protected_s": round(agent.protected_s, 3),
                }
                for agent in done
            ]
        }
    )


def _parse(slots: tuple[str, ...]) -> list[int]:
    try:
        return [parse_slot(slot) for slot in slots]
    except ValueError as error:
        raise BadRequest(str(error)) from error
