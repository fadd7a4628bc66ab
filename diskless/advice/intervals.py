"""How much of its time a query has for its rows, by the interval of its checkpoints. Pure.

A query checkpoints every T seconds, which takes c of them. It fails as a Poisson process with
rate r, in work, checkpoints and restarts alike. A failure costs what was done since the last
checkpoint, and a restart of R seconds, which begins anew if it fails itself. An interval is
passed after

    e^(r R) (e^(r T) - 1) / r

seconds on average and has T - c seconds of work in it, so the utilisation, the part of all time
that is left for work that counts, is

    U(T) = r (T - c) / (e^(r R) (e^(r T) - 1))

which is the one of S. Jayasekara, A. Harwood and S. Karunasekera, "A utilization model for
optimization of checkpoint intervals in distributed stream processing systems" (Future Generation
Computer Systems, 2020, doi:10.1016/j.future.2020.04.019), for a topology without delays between its
operators: Spark commits a batch as a whole. As they found, the best interval depends on c and r
alone:

    T* = (1 + c r + W(-e^(-1 - c r))) / r

with W the main branch of Lambert's function. For c much smaller than 1/r that is Young's first
order, T* = c + sqrt(2 c / r) (J. W. Young, Communications of the ACM, 1974,
doi:10.1145/361147.361115), which J. T. Daly refined (Future Generation Computer Systems, 2006,
doi:10.1016/j.future.2004.11.016).
"""

import math
from dataclasses import dataclass

from diskless.errors import BadSettings

STEPS_MAX = 200
"""Of a search for a root; 60 are enough for a double."""
_SMALL = 1e-3
"""Below it x - 1 + e^-x is a series: the terms would cancel each other out."""
_EXPONENT_MAX = 700.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an interval is chosen for."""

    checkpoint_s: float
    """What a checkpoint takes, whatever lies between two of them."""
    restart_s: float
    """From a failure until rows are worked on again."""
    failures_per_s: float

    def validate(self) -> "Costs":
        """Raises BadSettings for what is no time or no rate."""
        for what, value, least in (
            ("checkpoint", self.checkpoint_s, 0.0),
            ("failure rate", self.failures_per_s, 0.0),
        ):
            if not (math.isfinite(value) and value > least):
                raise BadSettings(f"the {what} must be more than nothing")
        if not (math.isfinite(self.restart_s) and self.restart_s >= 0):
            raise BadSettings("the restart cannot take less than no time")
        return self


def utilisation(costs: Costs, interval_s: float) -> float:
    """The part of all time that is left for work that counts, with checkpoints at that distance."""
    rate = costs.failures_per_s
    if interval_s <= costs.checkpoint_s:
        return 0.0
    if rate * (costs.restart_s + interval_s) > _EXPONENT_MAX:
        return 0.0
    passed_s = math.exp(rate * costs.restart_s) * math.expm1(rate * interval_s) / rate
    return (interval_s - costs.checkpoint_s) / passed_s


def best_interval_s(costs: Costs) -> float:
    """Where the utilisation is highest. Raises BadSettings."""
    costs.validate()
    share = costs.checkpoint_s * costs.failures_per_s
    # U' = 0 means x - 1 + e^-x = c r with x = r T: convex, so that Newton's steps from the right
    # come down to the root and never pass it. Young's with c added lies to its right, and so does
    # 1 + c r, which is closer where failures are more frequent than checkpoints can be.
    x = min(share + math.sqrt(2 * share) + share * share, 1 + share)
    for _ in range(STEPS_MAX):
        step = (_above(x) - share) / -math.expm1(-x)
        x -= step
        if abs(step) <= 1e-12 * x:
            break
    return x / costs.failures_per_s


def _above(x: float) -> float:
    """x - 1 + e^-x."""
    if x < _SMALL:
        return x * x / 2 * (1 - x / 3 * (1 - x / 4))
    return x + math.expm1(-x)


def young_s(costs: Costs) -> float:
    """Young's first order of the same."""
    return costs.checkpoint_s + math.sqrt(2 * costs.checkpoint_s / costs.failures_per_s)


def shortest_within_s(costs: Costs, tolerance: float) -> float:
    """The shortest interval whose utilisation is less than the best one by at most that much.

    Around its best the curve is flat: a much shorter interval, and so much earlier results, often
    cost next to nothing. Raises BadSettings."""
    best_s = best_interval_s(costs)
    wanted = utilisation(costs, best_s) - tolerance
    low_s, high_s = costs.checkpoint_s, best_s
    for _ in range(STEPS_MAX):
        middle_s = (low_s + high_s) / 2
        if utilisation(costs, middle_s) >= wanted:
            high_s = middle_s
        else:
            low_s = middle_s
        if high_s - low_s <= 1e-9 * high_s:
            break
    return high_s
