"""`diskless chaos kill` and `diskless chaos revive`."""

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest
from diskless.model import parse_slot, slot_name

STATUSES = (*exits.ASKING, exits.LAUNCH_FAILED)


@click.group("chaos", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Kill agents for real, and bring them back.

    A slot is written agent-2 or 2.
    """


@verb(
    "kill",
    examples=("diskless chaos kill 2", "diskless chaos kill agent-2 agent-5 --stay-dead"),
    statuses=STATUSES,
    through_client=False,
)
@click.argument("slots", nargs=-1, required=True, metavar="SLOT...")
@click.option("--stay-dead", is_flag=True, help="Ray shall not restart them.")
def kill(context: Context, slots: tuple[str, ...], stay_dead: bool) -> None:
    """SIGKILL the processes of agents, all at once.

    Ray starts them again in a second or two, with empty memories, unless --stay-dead.
    """
    name, numbers = context.cluster_name(), _parse(slots)
    from diskless.launch import ray_cluster

    victims = ray_cluster.kill(name, numbers, stay_dead=stay_dead)
    future = "stays dead" if stay_dead else "Ray restarts it"
    for victim in victims:
        context.say(f"killed {slot_name(victim.slot)} (pid {victim.pid}); {future}")
    context.result(
        {
            "killed": [
                {"slot": slot_name(v.slot), "pid": v.pid, "node": v.node.id} for v in victims
            ],
            "stay_dead": stay_dead,
        }
    )


@verb(
    "revive",
    examples=("diskless chaos revive 2 5",),
    statuses=STATUSES,
    through_client=False,
)
@click.argument("slots", nargs=-1, required=True, metavar="SLOT...")
def revive(context: Context, slots: tuple[str, ...]) -> None:
    """Start dead agents again, and wait until they serve.

    They come back with empty memories. Agents that run are left as they are.
    """
    name, numbers = context.cluster_name(), _parse(slots)
    from diskless.launch import ray_cluster

    states = ray_cluster.revive(name, numbers)
    for state in states:
        context.say(f"{slot_name(state.slot)} serves (pid {state.pid})")
    context.result(
        {
            "revived": [
                {"slot": slot_name(s.slot), "pid": s.pid, "address": s.address} for s in states
            ]
        }
    )


def _parse(slots: tuple[str, ...]) -> list[int]:
    try:
        return [parse_slot(slot) for slot in slots]
    except ValueError as error:
        raise BadRequest(str(error)) from error


command.add_command(kill)
command.add_command(revive)
