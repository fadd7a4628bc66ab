"""`diskless logs`: what agents wrote to their logs, once or continuously."""

import heapq
import logging
import time
from collections.abc import Iterable, Mapping, Sequence

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.config import ClusterSettings
from diskless.errors import BadRequest, DisklessError, NotFound
from diskless.model import parse_slot, slot_name

LINES = 50
LINES_MAX = 100_000
INTERVAL_S = 0.5
"""Between two looks, with --follow."""
LEVELS = ("debug", "info", "warning", "error")


@verb(
    "logs",
    examples=(
        "diskless logs",
        "diskless logs agent-3 --follow",
        "diskless logs 0 1 --level warning -n 1000",
        "DISKLESS_LOG_FORMAT=json diskless up && diskless logs --json | jq .message",
    ),
    statuses=(*exits.ASKING, exits.NOT_FOUND, exits.BROKEN_PIPE),
    through_client=False,
)
@click.argument("slots", nargs=-1, metavar="[SLOT...]")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, until Ctrl-C.")
@click.option(
    "-n", "--lines", "count", type=click.IntRange(0, LINES_MAX), default=LINES,
    show_default=True, metavar="N", help="How many of the latest records.",
)  # fmt: skip
@click.option(
    "--level", type=click.Choice(LEVELS), default="debug", help="Only from this level on."
)
def command(context: Context, slots: tuple[str, ...], follow: bool, count: int, level: str) -> None:
    """Show the logs of agents, of all or of some, in the order of their times.

    They are found wherever Ray put them: on this host also those of agents that are dead, in
    all their lives, and when the cluster is dead; on other hosts those of agents that run.
    A record is one line, but for errors of ours, which bring a traceback.

    How much agents write is chosen when they are started: DISKLESS_LOG=debug, info, warning or
    error, and DISKLESS_LOG_FORMAT=json for an object on each line, both in the environment of
    `diskless up` (of Ray, where it is yours).

    With --json: one object to a line, {"agent", "time", "level", "text"}.
    """
    from diskless.client import descriptor
    from diskless.operate.log_reader import Reader

    known = descriptor.load(context.cluster_name())
    wanted = _parse(slots, ClusterSettings.from_dict(known.settings).agents)
    reader = Reader(known.name, known.cluster, wanted)
    found = reader.read()
    if not found:
        raise NotFound("there is no log here: the cluster was started otherwise, or Ray's are gone")
    newest = _chosen(found, level)[-count:] if count else []
    _show(context, newest)
    while follow:
        time.sleep(INTERVAL_S)
        try:
            _show(context, _chosen(reader.read(), level))
        except DisklessError as error:
            context.warn(f"diskless: {error}")


def _parse(slots: Sequence[str], agents: int) -> list[int]:
    try:
        found = [parse_slot(slot) for slot in slots] or list(range(agents))
    except ValueError as error:
        raise BadRequest(str(error)) from error
    for slot in found:
        if slot >= agents:
            raise BadRequest(f"there is no {slot_name(slot)}: the cluster has {agents} agents")
    return found


def _chosen(found: Mapping[int, Iterable[str]], level: str) -> list[tuple[str, str, str, str]]:
    """Records as (time, agent, level, text), by time."""
    from diskless.launch.logs import records

    levels = logging.getLevelNamesMapping()
    least = levels[level.upper()]
    streams = (
        [
            (record.time, slot_name(slot), record.level, record.text)
            for record in records(lines)
            if levels.get(record.level, logging.INFO) >= least
        ]
        for slot, lines in found.items()
    )
    return list(heapq.merge(*streams))


def _show(context: Context, chosen: Iterable[tuple[str, str, str, str]]) -> None:
    for when, agent, level, text in chosen:
        context.say(f"{agent}  {text}")
        context.result({"agent": agent, "time": when, "level": level.lower(), "text": text})
