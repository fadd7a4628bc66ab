"""`diskless status`: the leader's report as a table, once or again and again."""

import time
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from diskless.cli import exits
from diskless.cli.care import care_lines
from diskless.cli.listing import console
from diskless.cli.tier_lines import tier_lines
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes
from diskless.ends import NO_DEADLINE_S
from diskless.errors import DisklessError
from diskless.model import (
    BalanceStatus,
    ClusterStatus,
    CopyStatus,
    RepairStatus,
    VoterStatus,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

INTERVAL_S = 1.0


@verb(
    "status",
    examples=("diskless status", "diskless status --watch", "diskless status --json | jq .margin"),
    statuses=exits.ASKING,
)
@click.option("--watch", is_flag=True, help="Refresh it until Ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks, with --watch.",
)
def command(context: Context, watch: bool, interval_s: float) -> None:
    """Show agents, voters, margin, stripes and sizes.

    The margin is how many more losses everything that is stored survives, and the
    namespace too, but for paths that ask for less (`diskless policy`), which have a line each.
    A voter's lag is how many rounds of the log it lacks. If too many voters are lost, the error
    says which.
    """
    client = context.connect()
    if watch and context.json:
        while True:
            context.result(to_builtins(client.status()))
            time.sleep(interval_s)
    elif watch:
        _watch(client, interval_s)
    elif context.json:
        context.result(to_builtins(client.status()))
    else:
        console().print(render(client.status()))


def _watch(client: Any, interval_s: float) -> None:
    """A cluster that cannot be asked for a while is shown as such, and asked again."""
    from rich.live import Live

    with Live(render(client.status()), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            try:
                picture: RenderableType = render(client.status())
            except DisklessError as error:
                picture = f"{error.reason}: {error}"
            live.update(picture, refresh=True)


def render(status: ClusterStatus) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(line) for line in summary_lines(status)), Text(""), _table(status))


def summary_lines(status: ClusterStatus) -> list[str]:
    stripes, logical = status.stripes, status.bytes_logical
    stored = f"{format_bytes(status.bytes_stored)} stored"
    if logical:
        stored += f" ({status.bytes_stored / logical:.2f}x)"
    lines = [
        f"{status.name}  {status.data_shards}+{status.parity_shards}  "
        f"{_margin(status)}  leader {status.leader}  id {status.cluster_id}",
        f"files: {status.files}, {format_bytes(logical)} logical, {stored}",
        f"stripes: {stripes.total}, {stripes.healthy} healthy, "
        f"{stripes.degraded} degraded, {stripes.lost} lost",
    ]
    lines += snapshot_lines(status)
    lines += copy_lines(status.copies)
    lines += care_lines(status)
    lines += tier_lines(status.tier)
    lines += repair_lines(status.repair)
    lines += balance_lines(status.balance)
    lines += upkeep_lines(status)
    lines += namespace_lines(status)
    lines += ending_lines(status)
    draining = [agent.slot for agent in status.agents if agent.state == "draining"]
    if draining:
        lines.append(f"draining: {', '.join(draining)}")
    slow = [agent.slot for agent in status.agents if agent.state == "slow"]
    if slow:
        lines.append(f"slow: {', '.join(slow)}: asked last, and new stripes go elsewhere")
    unsteady = [agent.slot for agent in status.agents if agent.unsteady]
    if unsteady:
        lines.append(
            f"unsteady: {', '.join(unsteady)}: went down or slow several times in ten minutes; "
            "new shards go elsewhere while others have room"
        )
    down = [agent.slot for agent in status.agents if agent.state in ("down", "starting")]
    if down:
        lines.append(f"not up: {', '.join(down)}")
    return lines + refusal_lines(status) + unhosted_lines(status.unhosted)


def ending_lines(status: ClusterStatus) -> list[str]:
    """Agents whose ends are announced, what they have left, and what would be lost with them."""
    lines = []
    for agent in status.agents:
        if agent.ends_in_s is None:
            continue
        when = f"ends in {agent.ends_in_s:.0f} s"
        if agent.ends_in_s < 0:
            when = f"should have ended {-agent.ends_in_s:.0f} s ago"
        elif agent.ends_in_s > NO_DEADLINE_S / 2:
            when = "ends soon"
        left = "nothing is left there"
        if agent.shards_placed:
            left = f"{format_bytes(agent.bytes_placed)} left"
        lines.append(f"ending: {agent.slot} {when}, {left} ({agent.ends_by})")
    if status.repair.at_stake:
        lines.append(
            f"ending: {status.repair.at_stake} stripes WOULD BE LOST with the agents that are "
            "announced to end: add agents, or keep those (`diskless drain SLOT --undo`)"
        )
    return lines


def refusal_lines(status: ClusterStatus) -> list[str]:
    """Who was not let in, and what is not in the audit; nothing if all is well."""
    lines = []
    if status.refused:
        counts = sorted(status.refused.items(), key=lambda item: (-item[1], item[0]))
        said = ", ".join(f"{count} {reason}" for reason, count in counts)
        lines.append(f"refused: {said}, since the agents started")
    if status.audit_dropped:
        lines.append(
            f"audit: {status.audit_dropped} lines could not be written: "
            "look at the agents' logs, and at their disks"
        )
    return lines


def snapshot_lines(status: ClusterStatus) -> list[str]:
    """How many snapshots there are, and what would be free without them."""
    if not status.snapshots:
        return []
    alone = status.bytes_only_snapshots
    held = "" if alone is None else f", {format_bytes(alone)} held by them alone"
    return [f"snapshots: {status.snapshots}{held}"]


def copy_lines(copies: CopyStatus) -> list[str]:
    """How often reads found what lies elsewhere copied where they were made."""
    wanted = copies.bytes_hit + copies.bytes_missed
    if not copies.bytes_max or not wanted:
        return []
    line = (
        f"copies: {format_bytes(copies.bytes)} of {format_bytes(copies.bytes_max)}, "
        f"{copies.hits} hits, {copies.misses} misses: {100 * copies.bytes_hit / wanted:.1f}% of "
        "the bytes that lie elsewhere were near"
    )
    damaged = f"; {copies.corrupt} were damaged, and read from shards" if copies.corrupt else ""
    return [line + damaged]


def unhosted_lines(unhosted: dict[str, str]) -> list[str]:
    """What becomes of agents whose hosts are gone, one line for each answer."""
    by_answer: dict[str, list[str]] = {}
    for slot, why in unhosted.items():
        by_answer.setdefault(why, []).append(slot)
    return [f"unhosted: {', '.join(slots)}: {why}" for why, slots in by_answer.items()]


def repair_lines(repair: RepairStatus) -> list[str]:
    """What is being done about lost shards, and what cannot be; nothing if all is well."""
    lines = []
    if repair.stripes_left:
        eta = f", about {repair.eta_s:g} s" if repair.eta_s is not None else ""
        lines.append(
            f"repair: {repair.state}, {repair.stripes_left} stripes and "
            f"{format_bytes(repair.bytes_left)} left, "
            f"{format_bytes(repair.bytes_per_s)}/s{eta}"
        )
        if repair.slower is not None:
            lines.append(
                f"repair: takes {repair.share:.0%} of the time while clients are at work, whose "
                f"commands take {repair.slower:.1f} times as long as without it"
            )
    elif repair.waiting:
        lines.append(f"repair: {repair.waiting} stripes wait for agents that may come back")
    if repair.unprotectable:
        lines.append(
            f"repair: {repair.unprotectable} stripes cannot be protected: no agent has room"
        )
    if repair.lost:
        files = f", with bytes of {repair.lost_files} files" if repair.lost_files else ""
        lines.append(
            f"repair: {repair.lost} stripes are lost{files}: too few of their shards are left"
        )
    return lines


def balance_lines(balance: BalanceStatus) -> list[str]:
    """What moves to agents with more room; nothing if all are about equally full."""
    shares = (
        f"fullest agent {balance.fullest_share:.0%}, mean {balance.mean_share:.0%}, "
        f"emptiest {balance.emptiest_share:.0%}"
    )
    match balance.state:
        case "moving":
            eta = f", about {balance.eta_s:g} s" if balance.eta_s is not None else ""
            rate = f"{format_bytes(balance.bytes_per_s)}/s"
            return [f"balance: {format_bytes(balance.bytes_left)} left, {rate}{eta} ({shares})"]
        case "waiting" if balance.bytes_left:
            left = format_bytes(balance.bytes_left)
            return [
                f"balance: {left} wait until all agents are there and repair is done ({shares})"
            ]
        case "settled":
            return [f"balance: as even as hosts and m+k allow ({shares})"]
    return []


def upkeep_lines(status: ClusterStatus) -> list[str]:
    """How fast damage is looked for, and how often old snapshots are."""
    upkeep = status.upkeep
    if not upkeep.pace_why:
        return []
    scrub = f"{format_bytes(upkeep.scrub_bytes_per_s)}/s"
    lines = [
        f"upkeep: agents scrub {scrub} each, the roll of shards is called at "
        f"{upkeep.roll_stripes_per_s:g} stripes/s: {upkeep.pace_why}"
    ]
    if status.snapshots:
        lines.append(f"upkeep: snapshots are thinned every {upkeep.thin_s:g} s: {upkeep.thin_why}")
    return lines


def namespace_lines(status: ClusterStatus) -> list[str]:
    log = status.log
    return [
        f"namespace: view {status.view}, op {log.commit}, "
        f"{status.commits_per_s:g} commits/s, "
        f"log {log.entries} entries, {format_bytes(log.bytes)}",
        f"voters: {', '.join(map(_voter, status.voters))}",
        _lag_line(status),
    ]


def _lag_line(status: ClusterStatus) -> str:
    """How long something waited for its turn lately: on the leader, and at the worst."""
    lag, worst = status.loop_lag, max(status.agents, key=lambda agent: agent.loop_lag.max_ms)
    return (
        f"loop lag: leader {lag.p50_ms:g} ms, p99 {lag.p99_ms:g} ms, max {lag.max_ms:g} ms; "
        f"worst {worst.slot} {worst.loop_lag.max_ms:g} ms"
    )


def _voter(voter: VoterStatus) -> str:
    lag = f" ({voter.lag} behind)" if voter.lag else ""
    return f"{voter.slot} {voter.role}{lag}"


def _margin(status: ClusterStatus) -> str:
    """In agents; also in hosts where agents are on several."""
    if status.margin < 0:
        lost = status.repair.lost
        return f"margin none: {'data is lost' if lost else 'some data cannot be read now'}"
    hosts = {agent.host for agent in status.agents} - {""}
    more = f" ({status.margin_hosts} in hosts)" if len(hosts) > 1 else ""
    return f"margin {status.margin}{more}"


def _table(status: ClusterStatus) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("agent", "state", "life", "pid", "address", "shards", "used", "of", "host"):
        right = column in ("life", "pid", "shards", "used", "of")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for agent in status.agents:
        color = {"up": "green", "down": "red"}.get(agent.state, "yellow")
        table.add_row(
            agent.slot,
            f"[{color}]{agent.state}[/]",
            str(agent.incarnation or ""),
            str(agent.pid or ""),
            agent.address,
            str(agent.shards),
            format_bytes(agent.bytes_used),
            format_bytes(agent.bytes_max),
            agent.host,
        )
    return table
