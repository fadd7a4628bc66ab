"""What to set: properties of Spark, of the tier and of the cluster, each with its reason. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diskless.advice.choose import MTBF_S, REAL_TIME_S_MIN, IntervalAdvice, round_up
from diskless.advice.rates import Rate, assumed_rate, counted_rate
from diskless.advice.records import Failures
from diskless.config import format_bytes
from diskless.errors import BadSettings
from diskless.plan import Assumptions, Plan, plan_code

DELTAS = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
RETAINED = "spark.sql.streaming.minBatchesToRetain"
MAINTENANCE = "spark.sql.streaming.stateStore.maintenanceInterval"
DELTAS_RANGE = (2, 50)
RETAINED_MAX = 100
"""Spark's default: more is what snapshots of the checkpoint are for."""
RETAINED_SHARE = 0.1
"""Of the memory for data, that what one query retains should take."""
MAINTENANCE_RANGE_S = (10.0, 60.0)
"""Its upper end is Spark's default."""
LAG_RANGE_S = (1.0, 86400.0)
LAG_SLACK = 2.0
"""Times what the tier is behind anyway: commits are slowed down long before the bound."""
LOSS_PER_YEAR_MAX = 1e-4
"""The probability of losing something that a code is chosen for."""
FAILURES_MIN = 3
"""Of agents: fewer are no reason for another code."""
REBUILD_S = 60.0
"""Assumed where no repair was seen, as `diskless plan` does."""
PARITY_MAX = 4
MEMORY_WORTH = 1.25
"""Times as much memory as another code needs, before that is worth a new cluster."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    name: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class StateFiles:
    """The state of a query, as its files tell."""

    whole_bytes: int
    """Of the newest file of each store that holds a whole version; 0 if there is none yet."""
    changed_bytes: float
    """That a batch adds, on average, without such files."""
    batches: int
    """That this is the average of."""


@dataclass(frozen=True, kw_only=True)
class TierCosts:
    lag_s: float
    lag_max_s: float
    rounds: int
    requests: int
    bytes_put: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    data_shards: int
    parity_shards: int
    agents: int
    agents_per_host: int
    """On the fullest host; 0 if there is one host only."""
    memory_bytes: int
    """Of each agent."""
    tier: TierCosts | None = None

    @property
    def room_bytes(self) -> int:
        shards = self.data_shards + self.parity_shards
        return self.agents * self.memory_bytes * self.data_shards // shards


def spark_time(seconds: float) -> str:
    """As Spark reads it."""
    if seconds >= 1 and math.isclose(seconds, round(seconds)):
        return "1 second" if round(seconds) == 1 else f"{round(seconds)} seconds"
    return f"{max(round(1000 * seconds), 1)} milliseconds"


def trigger_settings(found: IntervalAdvice) -> list[Setting]:
    real_time_s = max(round_up(found.best_s), REAL_TIME_S_MIN)
    keeps = "as it is; " if found.keeps else ""
    return [
        Setting(
            name=".trigger(processingTime=…)",
            value=spark_time(found.chosen_s),
            why=f"{keeps}{found.limit or 'the shortest interval within a point of the best'}",
        ),
        Setting(
            name=".trigger(realTime=…)",
            value=spark_time(math.ceil(real_time_s)),
            why="in Real-Time Mode rows do not wait for a batch to end, so it is the best interval",
        ),
    ]


def state_settings(
    found: IntervalAdvice, state: StateFiles | None, cluster: Cluster
) -> list[Setting]:
    """For a query that keeps state as deltas between whole versions; nothing for others."""
    if state is None or not state.changed_bytes:
        return []
    retained = retained_batches(state, cluster)
    deltas = deltas_per_snapshot(found, state, retained=retained)
    upkeep_s = deltas * found.chosen_s / 2
    low_s, high_s = MAINTENANCE_RANGE_S
    upkeep_s = min(max(upkeep_s, low_s), high_s)
    changed, whole = format_bytes(round(state.changed_bytes)), format_bytes(state.whole_bytes)
    held = format_bytes(round(retained * state.changed_bytes))
    return [
        Setting(
            name=DELTAS,
            value=str(deltas),
            why=f"a batch changes {changed} of {whole}: a restart reads no more in deltas than "
            "in the snapshot before them",
        ),
        Setting(name=RETAINED, value=str(retained), why=f"{held} of {changed} each"),
        Setting(
            name=MAINTENANCE,
            value=f"{round(upkeep_s)}s",
            why="twice in the time of so many deltas: snapshots are made by it",
        ),
    ]


def deltas_per_snapshot(found: IntervalAdvice, state: StateFiles, *, retained: int) -> int:
    """Young's once more: a snapshot costs its bytes, and saves a restart those of the deltas before
    it. Where failures are rare that would let a restart read for ever, so it is bounded by the
    deltas that weigh as much as the snapshot."""
    low, high = DELTAS_RANGE
    high = min(high, max(retained // 2, low))
    if not state.whole_bytes:
        return min(max(10, low), high)
    even = state.whole_bytes / state.changed_bytes
    per_batch = found.failures.per_s * found.chosen_s
    return min(max(round(min(math.sqrt(2 * even / per_batch), even)), low), high)


def retained_batches(state: StateFiles, cluster: Cluster) -> int:
    """As many as Spark keeps by itself, unless that is a large part of memory."""
    fits = int(RETAINED_SHARE * cluster.room_bytes / state.changed_bytes)
    return min(max(fits, 2 * DELTAS_RANGE[0]), RETAINED_MAX)


def tier_settings(interval_s: float, tier: TierCosts | None) -> list[Setting]:
    if tier is None:
        return []
    low_s, high_s = LAG_RANGE_S
    bound_s = math.ceil(min(max(interval_s, LAG_SLACK * tier.lag_s, low_s), high_s))
    return [
        Setting(
            name="diskless up --lag-max",
            value=f"{bound_s}s",
            why="after the loss of everything whole batches run again, so less than an interval "
            f"gains nothing; now {tier.lag_max_s:g}s",
        )
    ]


def agent_rate(failures: Failures | None) -> Rate | None:
    """How often one agent fails; None if nothing is known."""
    if failures is None or not failures.agents_s:
        return None
    if not failures.agents:
        return assumed_rate(MTBF_S, failures.agents_s, "assumed: none went, in the log")
    return counted_rate(failures.agents, failures.agents_s, "agents that went, in the log")


def code_setting(cluster: Cluster, failures: Failures | None) -> Setting:
    """m and k for as many agents as there are: the least memory that is safe enough, at the upper
    bound of how often agents fail, and never fewer losses survived than now. Another code needs
    another cluster, so little evidence is no reason for one."""
    now = f"{cluster.data_shards}+{cluster.parity_shards}"
    rate = agent_rate(failures)
    if not cluster.memory_bytes:
        why = "as it is: no agent has reported its memory yet"
        return Setting(name="diskless up -m -k", value=now, why=why)
    if failures is None or rate is None or failures.agents < FAILURES_MIN:
        seen = failures.agents if failures is not None else 0
        return Setting(
            name="diskless up -m -k", value=now,
            why=f"as it is: {seen} failures of agents are too few for another choice",
        )  # fmt: skip
    rebuild_s = max(failures.rebuilds_s, default=REBUILD_S)
    given = Assumptions(
        memory_bytes=cluster.memory_bytes, mtbf_s=1 / rate.high_per_s, rebuild_s=rebuild_s
    )
    own = plan_code(
        given, data_shards=cluster.data_shards, parity_shards=cluster.parity_shards,
        agents=cluster.agents,
    )  # fmt: skip
    best = _best_plan(_plans(given, cluster), own)
    risk = f"{best.loss_per_year:.1g} a year to lose something"
    if best.name == now:
        return Setting(name="diskless up -m -k", value=now, why=f"as it is: {risk}")
    less = "less memory" if best.memory_per_byte < own.memory_per_byte else "safer"
    return Setting(
        name="diskless up -m -k", value=best.name,
        why=f"{less}: {risk} and {best.memory_per_byte:.2f} x in memory, not "
        f"{own.loss_per_year:.1g} and {own.memory_per_byte:.2f} x; needs a new cluster",
    )  # fmt: skip


def _plans(given: Assumptions, cluster: Cluster) -> list[Plan]:
    """What can be had on these agents, and survives a host where that can be."""
    found = []
    least = min(max(cluster.agents_per_host, 1), PARITY_MAX)
    for parity in range(cluster.parity_shards, max(cluster.parity_shards, PARITY_MAX) + 1):
        for data in range(1, cluster.agents - parity + 1):
            try:
                plan = plan_code(
                    given, data_shards=data, parity_shards=parity, agents=cluster.agents
                )
            except BadSettings:
                continue
            found.append((parity >= least, plan))
    survive = [plan for survives, plan in found if survives]
    return survive or [plan for _, plan in found]


def _best_plan(plans: Sequence[Plan], own: Plan) -> Plan:
    """The cheapest that is safe enough, else the safest; the own one before one that is as good."""
    safe = [plan for plan in plans if plan.loss_per_year <= LOSS_PER_YEAR_MAX]
    if not safe:
        return max([own, *plans], key=lambda plan: plan.mean_years_to_loss)
    best = min(safe, key=lambda plan: (plan.memory_per_byte, plan.loss_per_year))
    stays = own in safe and own.memory_per_byte <= MEMORY_WORTH * best.memory_per_byte
    return own if stays else best
