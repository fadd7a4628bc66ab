"""`diskless advise`: how often queries should checkpoint, and what to set for it."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from diskless.advice.choose import IntervalAdvice, Wishes, advise_interval, too_little
from diskless.advice.rates import Mean, Rate
from diskless.advice.settings import (
    Setting,
    agent_rate,
    code_setting,
    state_settings,
    tier_settings,
    trigger_settings,
)
from diskless.cli import exits
from diskless.cli.times import Duration, format_time
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes
from diskless.errors import CannotReturn

if TYPE_CHECKING:
    from diskless.spark.queries.measure import MeasuredCluster, MeasuredQuery

MODEL = (
    "U(T) = r (T - c) / (e^(r R) (e^(r T) - 1)), Jayasekara et al. 2020: the part of all time that "
    "is left for rows, with a batch every T, of which c is not for rows, r failures a second, and "
    "restarts of R; best at T = (1 + c r + W(-e^(-1 - c r))) / r, about c + sqrt(2 c / r) (Young)"
)
NO_QUERY = "no checkpoint of a query is in this cluster"


@verb(
    "advise",
    examples=(
        "diskless advise",
        "diskless advise /checkpoints/q1",
        "diskless advise /checkpoints/q1 --latency 10s --mtbf 7d",
        "diskless advise --json | jq '.queries[].settings'",
    ),
    statuses=(exits.NOT_FOUND, exits.UNREADABLE, exits.NO_RETURN, *exits.ASKING),
)
@click.argument("path", required=False, default="")
@click.option(
    "--latency", type=Duration(), metavar="TIME",
    help="How late the result of a row may be while nothing fails: bounds the interval.",
)  # fmt: skip
@click.option(
    "--mtbf", type=Duration(), metavar="TIME",
    help="Between two failures of the query, if you know better than what was seen.",
)  # fmt: skip
@click.option(
    "--restart", type=Duration(), metavar="TIME",
    help="From a failure of the query until it goes on, likewise.",
)  # fmt: skip
@click.option(
    "--since", "since_s", type=Duration(), default="30d", show_default=True, metavar="TIME",
    help="How far to look back for failures of agents.",
)  # fmt: skip
def command(
    context: Context,
    path: str,
    latency: float | None,
    mtbf: float | None,
    restart: float | None,
    since_s: float,
) -> None:
    """Say how often queries should checkpoint, what that gains, and what to set for it.

    For each query at and below PATH, or of the whole cluster: what an interval leaves for its
    rows, now and at best; which interval to take, the shortest one that is within a point of the
    best; and what follows from it for Spark's snapshots of state, for the tier and for m and k.

    Everything is computed from what was measured: costs and restarts of batches as Spark's
    listener noted them, the state's files, agents that failed as the log tells, the tier. Each
    input has its samples, and in brackets how sure it is: 95 % of what it may be. Restarts that
    somebody wanted count as failures, unless the query was away for more than an hour.

    With --json: {"model", "queries": [{"path", "problem", "interval", "state", "settings"}],
    "cluster"}.
    """
    from diskless.spark.queries import measure

    target = context.target(path or "/")
    client = context.connect(target)
    found = measure.measure_queries(client, target.path)
    if path and not found:
        raise CannotReturn(f"there is no checkpoint of a query at or below {target.path}")
    cluster = measure.measure_cluster(client, since_s=since_s)
    wishes = Wishes(mtbf_s=mtbf, restart_s=restart, latency_s=latency)
    advised = [_advise(one, cluster, wishes) for one in found]
    agents = agent_rate(cluster.failures)
    code = code_setting(cluster.cluster, cluster.failures)
    for one in advised:
        _say_query(context, one)
    if not found:
        context.say(NO_QUERY)
    _say_cluster(context, cluster, agents, code)
    context.say(f"model: {MODEL}")
    told = {
        "model": MODEL,
        "queries": [one.as_object() for one in advised],
        "cluster": asdict(cluster)
        | {"agents": agents and asdict(agents), "settings": [asdict(code)]},
    }
    context.result(_finite(told))


@dataclass(frozen=True)
class Advised:
    query: "MeasuredQuery"
    problem: str
    """Why nothing is advised; "" if something is."""
    interval: IntervalAdvice | None
    settings: tuple[Setting, ...]

    def as_object(self) -> dict[str, Any]:
        found = self.interval
        return {
            "path": self.query.path,
            "problem": self.problem,
            "interval": found and asdict(found) | {"gain": found.gain},
            "state": self.query.state and asdict(self.query.state),
            "settings": [asdict(setting) for setting in self.settings],
        }


def _advise(query: "MeasuredQuery", cluster: "MeasuredCluster", wishes: Wishes) -> Advised:
    if problem := too_little(query.path, query.batches):
        return Advised(query, problem, None, ())
    found = advise_interval(query.batches, cluster.failures, wishes)
    settings = (
        *trigger_settings(found),
        *state_settings(found, query.state, cluster.cluster),
        *tier_settings(found.chosen_s, cluster.cluster.tier),
    )
    return Advised(query, "", found, settings)


def _say_query(context: Context, one: Advised) -> None:
    found = one.interval
    if found is None:
        context.say(one.problem)
        return
    context.say(one.query.path)
    context.say(
        f"  now         every {format_time(found.now_s)}: {_percent(found.utilisation_now)} are "
        f"left for rows, which take {_percent(found.needed)}"
    )
    context.say(
        f"  best        every {format_time(found.best_s)}: {_percent(found.utilisation_best)} "
        f"[{_span(found.best_low_s, found.best_high_s)}]; by Young {format_time(found.young_s)}"
    )
    context.say(f"  advice      {_advice(found)}")
    serial = ", as if partitions came one after the other" if one.query.batches.serial else ""
    context.say(
        f"  checkpoint  {_mean(found.checkpoint)}; {format_time(found.written_s)} of it are "
        f"written{serial}"
    )
    context.say(f"  restart     {_mean(found.restart)}")
    context.say(f"  failures    {_rate(found.failures)}")
    if state := one.query.state:
        context.say(
            f"  state       {format_bytes(state.whole_bytes)} in its newest snapshots; a batch "
            f"changes {format_bytes(round(state.changed_bytes))} ({state.batches} batches)"
        )
    for setting in one.settings:
        context.say(f"  set         {_setting(setting)}")


def _advice(found: IntervalAdvice) -> str:
    limit = f", {found.limit}" if found.limit else ""
    behind = ""
    if found.utilisation_chosen < found.needed:
        behind = f"; that is less than the {_percent(found.needed)} that rows take: it falls behind"
    if found.keeps:
        return f"keep it: the best interval is worth less than a point more{limit}{behind}"
    return (
        f"every {format_time(found.chosen_s)}: {_percent(found.utilisation_chosen)}, "
        f"{100 * found.gain:+.2f} points{limit}{behind}"
    )


def _say_cluster(
    context: Context, measured: "MeasuredCluster", agents: Rate | None, code: Setting
) -> None:
    cluster = measured.cluster
    context.say(f"cluster {cluster.data_shards}+{cluster.parity_shards}, {cluster.agents} agents")
    if agents is None:
        context.say("  failures    nothing of agents can be seen in the log with this token")
    else:
        context.say(f"  failures    {_rate(agents)}")
    if measured.failures is not None and measured.failures.hosts_s:
        hosts, hosts_s = measured.failures.hosts, measured.failures.hosts_s
        context.say(f"  hosts       {hosts} failed in {format_time(hosts_s)} of all together")
    if tier := cluster.tier:
        context.say(
            f"  tier        {tier.lag_s:g} s behind; {tier.rounds} rounds of this leader, "
            f"{tier.requests} requests, {format_bytes(tier.bytes_put)}"
        )
    context.say(f"  set         {_setting(code)}")


def _setting(setting: Setting) -> str:
    return f"{setting.name} {setting.value}  # {setting.why}"


def _mean(found: Mean) -> str:
    bounds = f"[{_span(found.low, found.high)}] " if found.samples > 1 else ""
    return f"{format_time(found.value)} {bounds}({found.source})"


def _rate(found: Rate) -> str:
    seen = f"{found.seen} in {format_time(found.over_s)}; " if found.over_s else ""
    sure = ""
    if found.low_per_s != found.high_per_s:
        longest = 1 / found.low_per_s if found.low_per_s else math.inf
        sure = f" [{_span(1 / found.high_per_s, longest)}]"
    return f"one in {format_time(found.mean_s)}{sure} ({seen}{found.source})"


def _span(low_s: float, high_s: float) -> str:
    high = "ever" if math.isinf(high_s) else format_time(high_s)
    return f"{format_time(low_s)} to {high}"


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"


def _finite(value: Any) -> Any:
    """JSON has no word for what is without end."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
