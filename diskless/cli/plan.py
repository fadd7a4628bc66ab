"""`diskless plan`: what m and k cost, and what they are good for."""

import dataclasses
import math

import click

from diskless.advice.choose import TOLERANCE, round_up
from diskless.advice.intervals import Costs, best_interval_s, shortest_within_s, utilisation
from diskless.cli.listing import console
from diskless.cli.times import Duration, format_time
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes, parse_bytes
from diskless.errors import BadRequest
from diskless.plan import YEAR_S, Assumptions, Plan, plan_code, plan_copies

CODES = ((2, 1), (4, 2), (8, 3))
COPIES = 3


@verb(
    "plan",
    examples=(
        "diskless plan",
        "diskless plan -m 4 -k 2 --agents 8 --mtbf 30d --rebuild 60s",
        "diskless plan -m 8 -k 3 --memory 8GiB --json",
    ),
    statuses=(),
    through_client=False,
)
@click.option("-m", "data_shards", type=int, help="Data shards of a stripe.")
@click.option("-k", "parity_shards", type=int, help="Parity shards: losses survived.")
@click.option("--agents", type=int, help="How many run.  [default: as many as are needed]")
@click.option("--memory", default="512MiB", show_default=True, help="Of each agent.")
@click.option(
    "--mtbf",
    type=Duration(),
    default="30d",
    show_default=True,
    metavar="TIME",
    help="Mean time between failures of one agent, its restarts included.",
)
@click.option(
    "--rebuild", type=Duration(), default="60s", show_default=True, metavar="TIME",
    help="From a loss until the margin is back; `status` and `chaos run` show yours.",
)  # fmt: skip
@click.option(
    "--checkpoint", type=Duration(), default="50ms", show_default=True, metavar="TIME",
    help="What a query's checkpoint costs it; `advise` shows yours.",
)  # fmt: skip
@click.option(
    "--restart", type=Duration(), default="30s", show_default=True, metavar="TIME",
    help="From a failure of a query until it goes on; `advise` shows yours.",
)  # fmt: skip
def command(
    context: Context,
    data_shards: int | None,
    parity_shards: int | None,
    agents: int | None,
    memory: str,
    mtbf: float,
    rebuild: float,
    checkpoint: float,
    restart: float,
) -> None:
    """Show what m and k cost, and how likely they are to lose something.

    Three copies are shown beside it; without -m and -k, some usual choices. Agents are taken to
    die independently of each other, and any k+1 losses before the first is rebuilt to lose
    something: the true figure is smaller. A rack that dies as a whole is not in it.

    The last line is for a query whose driver dies as often as an agent: how often it should
    checkpoint, by the model that `diskless advise` uses with what it finds measured.

    With --json: {"plans": [...], "interval": {...}}.
    """
    if (data_shards is None) != (parity_shards is None):
        raise BadRequest("give both -m and -k, or neither for a comparison")
    given = Assumptions(memory_bytes=parse_bytes(memory), mtbf_s=mtbf, rebuild_s=rebuild)
    if data_shards is None or parity_shards is None:
        codes = CODES
    else:
        codes = ((data_shards, parity_shards),)
    plans = [
        *(plan_code(given, data_shards=m, parity_shards=k, agents=agents) for m, k in codes),
        plan_copies(given, copies=COPIES, agents=agents),
    ]
    if not context.json:
        _show(plans)
    context.say(
        f"with {memory} an agent, each of which dies every {format_time(mtbf)}; the margin is back "
        f"after {format_time(rebuild)}"
    )
    found = _interval(Costs(checkpoint_s=checkpoint, restart_s=restart, failures_per_s=1 / mtbf))
    context.say(
        f"a query that dies as often, checkpoints of {format_time(checkpoint)}, restarts of "
        f"{format_time(restart)}: best every {format_time(found['best_s'])}, which leaves "
        f"{100 * found['utilisation_best']:.2f} % for its rows; every "
        f"{format_time(found['chosen_s'])} is within a point of that"
    )
    context.result({"plans": [dataclasses.asdict(plan) for plan in plans], "interval": found})


def _interval(costs: Costs) -> dict[str, float]:
    """Raises BadSettings."""
    best_s = best_interval_s(costs)
    chosen_s = round_up(shortest_within_s(costs, TOLERANCE))
    return {
        "best_s": best_s,
        "utilisation_best": utilisation(costs, best_s),
        "chosen_s": chosen_s,
        "utilisation_chosen": utilisation(costs, chosen_s),
    }


def _show(plans: list[Plan]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="", pad_edge=False)
    for column in ("", "agents", "survives", "memory", "holds", "loses something"):
        table.add_column(column, justify="left" if column in ("", "loses something") else "right")
    for plan in plans:
        table.add_row(
            plan.name,
            str(plan.agents),
            f"{plan.losses_survived} lost",
            f"{plan.memory_per_byte:.3g} x",
            format_bytes(plan.room_bytes),
            describe_risk(plan),
        )
    console().print(table)


def describe_risk(plan: Plan) -> str:
    """A probability that people can compare: 1 in so many years."""
    if plan.mean_years_to_loss < 1:
        return f"about every {format_time(plan.mean_years_to_loss * YEAR_S)}"
    digits = math.floor(math.log10(plan.mean_years_to_loss))
    years = f"{plan.mean_years_to_loss:,.0f}" if digits < 6 else f"10^{digits}"
    return f"once in {years} years ({plan.loss_per_year:.1g} a year)"
