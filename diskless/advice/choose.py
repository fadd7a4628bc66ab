"""From what was measured to what to set: the interval of a query, and all that follows from it.

Every choice is a rule with named limits and says why; what is not known is assumed, and said to be.
Pure.
"""

import math
from dataclasses import dataclass, replace

from diskless.advice import intervals
from diskless.advice.intervals import Costs, utilisation
from diskless.advice.rates import (
    Mean,
    Rate,
    assumed_rate,
    counted_rate,
    given_mean,
    given_rate,
    mean_of,
)
from diskless.advice.records import Batches, Failures

BATCHES_MIN = 10
"""Fewer say nothing."""
TOLERANCE = 0.01
"""Of utilisation, that an earlier result is worth: one point."""
MTBF_S = 30 * 86400.0
"""Assumed of a query where nothing ever failed; as `diskless plan` does of an agent."""
RESTART_S = 30.0
"""Assumed where no start was seen."""
COST_S_MIN = 0.001
"""Spark tells milliseconds: a batch that cost none cost less than one."""
REAL_TIME_S_MIN = 5.0
"""The least that Spark takes for a batch of Real-Time Mode, unless it is told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What somebody knows better, or wants."""

    mtbf_s: float | None = None
    """Between two failures of the query."""
    restart_s: float | None = None
    latency_s: float | None = None
    """How late a row's result may be, when nothing fails."""


@dataclass(frozen=True, kw_only=True)
class IntervalAdvice:
    checkpoint: Mean
    """What a batch costs with no row in it, in seconds."""
    written_s: float
    """Of that, what is written."""
    restart: Mean
    failures: Rate
    now_s: float
    best_s: float
    best_low_s: float
    best_high_s: float
    """The best interval, were failures as frequent, or as rare, as their bounds."""
    young_s: float
    chosen_s: float
    """The one to set: as good as the best but for `TOLERANCE`, and as short as that allows."""
    utilisation_now: float
    utilisation_best: float
    utilisation_chosen: float
    needed: float
    """The part of all time that its rows take now."""
    limit: str = ""
    """What the chosen one is bounded by, beside utilisation; empty if by nothing."""

    @property
    def gain(self) -> float:
        """Of utilisation, by the chosen one."""
        return self.utilisation_chosen - self.utilisation_now

    @property
    def keeps(self) -> bool:
        """Whether there is nothing to change."""
        return self.chosen_s == self.now_s

    @property
    def costs(self) -> Costs:
        return Costs(
            checkpoint_s=self.checkpoint.value,
            restart_s=self.restart.value,
            failures_per_s=self.failures.per_s,
        )


def too_little(path: str, batches: Batches) -> str:
    """Why nothing can be said of a query; "" if something can."""
    if not batches.noted:
        return (
            f"no batch of {path} is known: set the listener (`diskless spark-conf` and "
            "diskless.spark.configure do), and let the query run"
        )
    if batches.noted < BATCHES_MIN or not batches.interval_s:
        return (
            f"too few batches of {path} are known: {batches.noted}, of {BATCHES_MIN} that are "
            "needed beside the first of each run; let the query run"
        )
    return ""


def advise_interval(
    batches: Batches, failures: Failures | None, wishes: Wishes = Wishes()
) -> IntervalAdvice:
    """For a query of which enough is known (`too_little`). Raises BadSettings for wishes that are
    no times."""
    cost = mean_of(batches.costs_s, f"{batches.noted} batches")
    if cost.value < COST_S_MIN:
        cost = replace(cost, value=COST_S_MIN, high=max(cost.high, COST_S_MIN))
    rate = failure_rate(batches, failures, wishes)
    restart = restart_time(batches, wishes)
    costs = Costs(
        checkpoint_s=cost.value, restart_s=restart.value, failures_per_s=rate.per_s
    ).validate()
    needed = max(_mean(batches.triggers_s) - cost.value, 0.0) / batches.interval_s
    chosen_s, limit = _choose(costs, batches.interval_s, needed, wishes)
    best_s = intervals.best_interval_s(costs)
    return IntervalAdvice(
        checkpoint=cost,
        written_s=_mean(batches.checkpoints_s),
        restart=restart,
        failures=rate,
        now_s=batches.interval_s,
        best_s=best_s,
        best_low_s=_best_at(costs, rate.high_per_s),
        best_high_s=_best_at(costs, rate.low_per_s),
        young_s=intervals.young_s(costs),
        chosen_s=chosen_s,
        utilisation_now=utilisation(costs, batches.interval_s),
        utilisation_best=utilisation(costs, best_s),
        utilisation_chosen=utilisation(costs, chosen_s),
        needed=needed,
        limit=limit,
    )


def failure_rate(batches: Batches, failures: Failures | None, wishes: Wishes) -> Rate:
    """Of the query itself where it was seen to fail; else of what its driver lives on."""
    if wishes.mtbf_s is not None:
        return given_rate(wishes.mtbf_s, "as --mtbf says")
    running_s = max(batches.running_s, 1.0)
    if seen := len(batches.restarts_s):
        return counted_rate(seen, running_s, "restarts of the query")
    if failures is not None and failures.hosts and failures.hosts_s:
        return counted_rate(
            failures.hosts, failures.hosts_s, "the query never failed; failures of a host"
        )
    if failures is not None and failures.agents and failures.agents_s:
        return counted_rate(
            failures.agents, failures.agents_s, "the query never failed; failures of an agent"
        )
    return assumed_rate(MTBF_S, running_s, "assumed: neither the query nor an agent ever failed")


def restart_time(batches: Batches, wishes: Wishes) -> Mean:
    if wishes.restart_s is not None:
        return given_mean(wishes.restart_s, "as --restart says")
    if batches.restarts_s:
        return mean_of(batches.restarts_s, f"{len(batches.restarts_s)} restarts")
    if batches.starts_s:
        return mean_of(
            batches.starts_s, "how long its start took: until somebody notices is not in it"
        )
    return given_mean(RESTART_S, "assumed: no start was seen")


def _choose(costs: Costs, now_s: float, needed: float, wishes: Wishes) -> tuple[float, str]:
    """What is as good as the best, and as short as may be; what it is now, if that is."""
    chosen_s, limit = round_up(intervals.shortest_within_s(costs, TOLERANCE)), ""
    best = utilisation(costs, intervals.best_interval_s(costs))
    if utilisation(costs, now_s) >= best - TOLERANCE:
        chosen_s = now_s
    if wishes.latency_s is not None:
        # A row waits for its batch to begin, and then for all of it.
        longest_s = (wishes.latency_s - costs.checkpoint_s) / (1 + needed)
        if longest_s <= costs.checkpoint_s:
            longest_s, limit = 2 * costs.checkpoint_s, "a checkpoint takes longer than --latency"
        if chosen_s > longest_s:
            chosen_s, limit = longest_s, limit or "as --latency asks for"
    return chosen_s, limit


def _best_at(costs: Costs, failures_per_s: float) -> float:
    """Infinite for no failures at all, and as often as possible for nothing but failures."""
    if failures_per_s <= 0:
        return math.inf
    if math.isinf(failures_per_s):
        return costs.checkpoint_s
    return intervals.best_interval_s(replace(costs, failures_per_s=failures_per_s))


def round_up(seconds: float) -> float:
    """To two digits, and no less than a millisecond."""
    if seconds <= 0.001:
        return 0.001
    unit: float = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.ceil(seconds / unit - 1e-9) * unit, 6)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
