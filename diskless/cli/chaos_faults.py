"""`diskless chaos list`, and a verb for each fault: planted now, on a live cluster."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest
from diskless.model import parse_slot, slot_name

if TYPE_CHECKING:
    from diskless.chaos.faults import Chaos, Done
    from diskless.chaos.schedule import Step

ASKING = exits.ASKING
BREAKING = (*exits.ASKING, exits.LAUNCH_FAILED, exits.OVER_BUDGET)

slots_argument = click.argument("slots", nargs=-1, required=True, metavar="SLOT...")
max_down_option = click.option(
    "--max-down",
    type=click.IntRange(min=0),
    metavar="N",
    help="Refuse to make more agents down than this.  [default: k]",
)


@verb("list", examples=("diskless chaos list", "diskless chaos list --json"), statuses=ASKING)
def list_(context: Context) -> None:
    """Show which faults are planted, and who counts as down."""
    with open_chaos(context) as chaos:
        down, active = chaos.down(), chaos.active
        k = chaos.settings.parity_shards
    for fault in active:
        detail = f", {fault.delay_ms} ms" if fault.delay_ms else ""
        detail += f", {fault.share:.0%} of the memory" if fault.share else ""
        context.say(f"{fault.kind}: {named(fault.slots)}{detail}")
    for slot, why in sorted(down.why.items()):
        context.say(f"down: {slot_name(slot)} ({why})")
    context.say(f"{len(active)} faults planted; {down.spent} of {k} losses spent")
    context.result(
        {
            "faults": [
                {
                    "kind": fault.kind,
                    "slots": [slot_name(slot) for slot in fault.slots],
                    "delay_ms": fault.delay_ms,
                    "share": fault.share,
                }
                for fault in active
            ],
            "down": {slot_name(slot): why for slot, why in sorted(down.why.items())},
            "spent": down.spent,
            "k": k,
        }
    )


@verb(
    "kill",
    examples=("diskless chaos kill 2", "diskless chaos kill agent-2 agent-5 --stay-dead"),
    statuses=BREAKING,
)
@slots_argument
@click.option("--stay-dead", is_flag=True, help="Ray shall not restart them.")
@max_down_option
def kill(context: Context, slots: tuple[str, ...], stay_dead: bool, max_down: int | None) -> None:
    """SIGKILL the processes of agents, all at once.

    Ray starts them again in a second or two, with empty memories, unless --stay-dead.
    """
    victims = parse(slots)
    with open_chaos(context) as chaos:
        pids = chaos.pids(victims)
        plant(chaos, step("kill", victims), max_down, stay_dead=stay_dead)
    future = "stays dead" if stay_dead else "Ray restarts it"
    for slot in victims:
        context.say(f"killed {slot_name(slot)} (pid {pids[slot]}); {future}")
    context.result(
        {
            "killed": [{"slot": slot_name(slot), "pid": pids[slot]} for slot in victims],
            "stay_dead": stay_dead,
        }
    )


@verb(
    "revive",
    examples=("diskless chaos revive 2 5",),
    statuses=(*ASKING, exits.LAUNCH_FAILED),
    through_client=False,
)
@slots_argument
def revive(context: Context, slots: tuple[str, ...]) -> None:
    """Start dead agents again, and wait until they serve.

    They come back with empty memories. Agents that run are left as they are.
    """
    name, numbers = context.cluster_name(), parse(slots)
    from diskless.operate import ray_cluster

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


@verb(
    "pause",
    examples=("diskless chaos pause 3", "diskless chaos pause 0 1 && diskless status"),
    statuses=BREAKING,
)
@slots_argument
@max_down_option
def pause(context: Context, slots: tuple[str, ...], max_down: int | None) -> None:
    """Freeze agents (SIGSTOP) until `resume` or `heal`.

    They keep their memories and their connections, and answer nothing: it returns when the
    last of their threads stands still.
    """
    victims = parse(slots)
    with open_chaos(context) as chaos:
        done = plant(chaos, step("pause", victims), max_down)
    assert done.fault is not None
    for slot, pid in done.fault.pids.items():
        context.say(f"froze {slot_name(slot)} (pid {pid})")
    context.result({"paused": {slot_name(slot): pid for slot, pid in done.fault.pids.items()}})


@verb("resume", examples=("diskless chaos resume 3",), statuses=(*ASKING, exits.LAUNCH_FAILED))
@slots_argument
def resume(context: Context, slots: tuple[str, ...]) -> None:
    """Resume frozen agents."""
    with open_chaos(context) as chaos:
        chaos.check_slots(parse(slots))
        resumed = chaos.resume(parse(slots))
    context.say(f"resumed {named(resumed)}" if resumed else "none of them was frozen")
    context.result({"resumed": [slot_name(slot) for slot in resumed]})


@verb(
    "partition",
    examples=("diskless chaos partition 4", "diskless chaos partition 0 1 && diskless chaos heal"),
    statuses=BREAKING,
)
@slots_argument
@max_down_option
def partition(context: Context, slots: tuple[str, ...], max_down: int | None) -> None:
    """Cut the link between these agents and all others, in both directions.

    Those named still reach each other, and clients reach everybody. What is sent across is
    lost in silence, as on a broken network.
    """
    victims = parse(slots)
    with open_chaos(context) as chaos:
        done = plant(chaos, step("partition", victims), max_down)
    context.say(f"cut off {named(victims)}; `diskless chaos heal` reconnects")
    _tell_untold(context, done)
    context.result({"cut": [slot_name(slot) for slot in victims], "untold": _names(done.untold)})


@verb(
    "corrupt",
    examples=("diskless chaos corrupt 1", "diskless chaos corrupt 1 4 --shards 50 --seed 7"),
    statuses=BREAKING,
)
@slots_argument
@click.option("--shards", type=click.IntRange(min=1), default=10, show_default=True,
              help="In how many shards of each agent.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses shards and bytes.")
@max_down_option
def corrupt(
    context: Context, slots: tuple[str, ...], shards: int, seed: int, max_down: int | None
) -> None:
    """Flip a byte in shards that agents hold.

    The agents are not told; a reader of the shard finds out by its checksum. `heal` flips
    back what was not rebuilt by then.
    """
    victims = parse(slots)
    with open_chaos(context) as chaos:
        done = plant(chaos, step("corrupt", victims, shards=shards, seed=seed), max_down)
    for slot, count in done.flipped.items():
        context.say(f"flipped a byte in {count} shards of {slot_name(slot)}")
    context.result({"flipped": {slot_name(slot): count for slot, count in done.flipped.items()}})


@verb("slow", examples=("diskless chaos slow 2 --delay 300",), statuses=BREAKING)
@slots_argument
@click.option("--delay", "delay_ms", type=click.IntRange(min=1), default=200, show_default=True,
              metavar="MS", help="How much later messages to and from them leave.")  # fmt: skip
@max_down_option
def slow(context: Context, slots: tuple[str, ...], delay_ms: int, max_down: int | None) -> None:
    """Delay all messages between these agents and the others, until `heal`."""
    victims = parse(slots)
    with open_chaos(context) as chaos:
        done = plant(chaos, step("slow", victims, delay_ms=delay_ms), max_down)
    context.say(f"messages of {named(victims)} take {delay_ms} ms longer")
    _tell_untold(context, done)
    context.result({"slowed": _names(victims), "delay_ms": delay_ms, "untold": _names(done.untold)})


@verb("fill", examples=("diskless chaos fill 2 --percent 95",), statuses=BREAKING)
@slots_argument
@click.option("--percent", type=click.IntRange(1, 100), default=90, show_default=True,
              help="Of the agent's --memory.")  # fmt: skip
def fill(context: Context, slots: tuple[str, ...], percent: int) -> None:
    """Take a part of agents' memory away, until `heal`.

    It counts as used; no byte of it is really allocated. Nobody is down for that, so there
    is no --max-down.
    """
    victims = parse(slots)
    with open_chaos(context) as chaos:
        done = plant(chaos, step("fill", victims, share=percent / 100), None)
    context.say(f"{percent} % of the memory of {named(victims)} is taken")
    _tell_untold(context, done)
    context.result({"filled": _names(victims), "percent": percent, "untold": _names(done.untold)})


@verb(
    "heal",
    examples=("diskless chaos heal", "diskless chaos heal --json"),
    statuses=(*ASKING, exits.LAUNCH_FAILED),
)
def heal(context: Context) -> None:
    """Take back every fault: resume, reconnect, empty, flip back.

    Killed agents are for Ray to restart, or for `revive` if they stay dead.
    """
    with open_chaos(context) as chaos:
        done = chaos.heal()
    context.say(
        f"healed: {len(done.resumed)} agents resumed, {done.mended} shards flipped back, "
        "no link is cut or slow, no memory taken"
    )
    _tell_untold(context, done)
    context.result(
        {
            "resumed": _names(done.resumed),
            "mended": done.mended,
            "untold": _names(done.untold),
        }
    )


@verb(
    "kill-host",
    examples=("diskless chaos kill-host node-3", "diskless chaos kill-host 10.0.0.3 --max-down 3"),
    statuses=BREAKING,
)
@click.argument("host", metavar="HOST")
@max_down_option
def kill_host(context: Context, host: str, max_down: int | None) -> None:
    """SIGKILL all agents of a host and its raylet.

    HOST is a name or an address as `status` shows it. `ray start` on that host, then
    `diskless chaos revive`, brings it back. A cluster on one host is spared.
    """
    with open_chaos(context) as chaos:
        slots = chaos.kill_host(host, max_down=_limit(chaos, max_down))
    context.say(f"killed host {host}: {named(slots)} and its raylet")
    context.result({"host": host, "killed": _names(slots)})


VERBS = (list_, kill, revive, pause, resume, partition, heal, corrupt, slow, fill, kill_host)


# Shared with `chaos run`.


@contextmanager
def open_chaos(context: Context) -> "Iterator[Chaos]":
    """A cluster to break. Raises NoCluster, Unavailable, DeadlineExceeded."""
    name = context.cluster_name()
    from diskless.chaos.faults import Chaos
    from diskless.client import descriptor
    from diskless.operate.ray_cluster import signals_to

    known = descriptor.load(name)
    with signals_to(name) as processes:
        yield Chaos(known, context.connect(), processes)


def step(kind: str, victims: Sequence[int], **details: Any) -> "Step":
    from diskless.chaos.schedule import Step

    return Step(at_s=0.0, kind=kind, victims=tuple(victims), **details)


def plant(
    chaos: "Chaos", fault: "Step", max_down: int | None, *, stay_dead: bool = False
) -> "Done":
    return chaos.plant(fault, max_down=_limit(chaos, max_down), stay_dead=stay_dead)


def _limit(chaos: "Chaos", max_down: int | None) -> int:
    return chaos.settings.parity_shards if max_down is None else max_down


def parse(slots: Sequence[str]) -> list[int]:
    try:
        return [parse_slot(slot) for slot in slots]
    except ValueError as error:
        raise BadRequest(str(error)) from error


def named(slots: Sequence[int]) -> str:
    return ", ".join(_names(slots))


def _names(slots: Sequence[int]) -> list[str]:
    return [slot_name(slot) for slot in slots]


def _tell_untold(context: Context, done: "Done") -> None:
    if done.untold:
        context.warn(f"note: {named(done.untold)} could not be reached")
