"""The model of intervals: against a simulation, against cases by hand, and its directions."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.advice.intervals import (
    Costs,
    best_interval_s,
    shortest_within_s,
    utilisation,
    young_s,
)
from diskless.advice.rates import (
    assumed_rate,
    counted_rate,
    gamma_below,
    gamma_quantile,
    given_rate,
    mean_of,
)
from diskless.errors import BadSettings

POINTS = 0.05
"""By which a prediction may be wrong."""


def costs(checkpoint_s: float, restart_s: float, mean_s: float) -> Costs:
    return Costs(checkpoint_s=checkpoint_s, restart_s=restart_s, failures_per_s=1 / mean_s)


def simulated(given: Costs, interval_s: float, *, seed: int, failures: int = 3000) -> float:
    """A query that lives through so many failures, one after the other: what of its time was left
    for work that was checkpointed."""
    rng = random.Random(seed)
    total_s = counted_s = 0.0
    restarting = False
    for _ in range(failures):
        left_s = rng.expovariate(given.failures_per_s)
        total_s += left_s
        if restarting:
            if left_s < given.restart_s:
                continue  # It failed again before it was there.
            left_s -= given.restart_s
        counted_s += left_s // interval_s * (interval_s - given.checkpoint_s)
        restarting = True
    return counted_s / total_s


@pytest.mark.parametrize(
    ("checkpoint_s", "restart_s", "mean_s", "interval_s"),
    [(0.05, 10, 60, 1), (0.05, 10, 60, 30), (0.5, 30, 600, 5), (0.5, 30, 600, 300),
     (2, 60, 7200, 20), (2, 60, 7200, 3600), (0.2, 5, 20, 0.5), (0.2, 5, 20, 40)],
)  # fmt: skip
def test_a_predicted_utilisation_is_within_five_points_of_a_simulated_one(
    checkpoint_s: float, restart_s: float, mean_s: float, interval_s: float
) -> None:
    given = costs(checkpoint_s, restart_s, mean_s)
    found = simulated(given, interval_s, seed=22)
    assert abs(utilisation(given, interval_s) - found) < POINTS


@pytest.mark.parametrize(("checkpoint_s", "mean_s"), [(0.05, 60), (0.5, 600), (2, 100)])
def test_no_interval_of_a_simulation_beats_the_best_one_by_much(
    checkpoint_s: float, mean_s: float
) -> None:
    given = costs(checkpoint_s, 5, mean_s)
    best_s = best_interval_s(given)
    at_best = simulated(given, best_s, seed=3, failures=20_000)
    for factor in (0.1, 0.3, 3, 10):
        other = simulated(given, factor * best_s, seed=3, failures=20_000)
        assert other < at_best + 0.01
    assert simulated(given, 10 * best_s, seed=3) < at_best - 0.05


def test_cases_by_hand() -> None:
    # e^0 (e^ln2 - 1) / r: an interval as long as it takes half of them to fail is passed in 1/r.
    given = Costs(checkpoint_s=0.1, restart_s=0.0, failures_per_s=math.log(2))
    assert utilisation(given, 1.0) == pytest.approx(0.9 * math.log(2))
    assert utilisation(given, 0.1) == utilisation(given, 0.05) == 0.0
    # 86.4 ms, a failure a day: Young's square root is 122.188 s.
    daily = costs(0.0864, 30, 86400)
    assert young_s(daily) == pytest.approx(122.1880 + 0.0864, abs=1e-3)
    assert best_interval_s(daily) == pytest.approx(young_s(daily), rel=1e-3)
    assert utilisation(daily, best_interval_s(daily)) == pytest.approx(
        math.exp(-30 / 86400) * (1 - math.sqrt(2 * 1e-6)), abs=1e-5
    )
    # x - 1 + e^-x = 1 at x = 1.84141: a checkpoint as long as the mean life.
    assert best_interval_s(costs(10, 0, 10)) == pytest.approx(18.4141, rel=1e-5)


seconds = st.floats(0.001, 1000)
lives = st.floats(1, 1e9)


@pytest.mark.parametrize("checkpoint_s", [1e-3, 1.0, 1e6, 1e13])
@pytest.mark.parametrize("failures_per_s", [1e-30, 1e-12, 1.0, 1e3, 1e12])
def test_no_cost_and_no_rate_is_too_small_or_too_large(
    checkpoint_s: float, failures_per_s: float
) -> None:
    odd = Costs(checkpoint_s=checkpoint_s, restart_s=0.0, failures_per_s=failures_per_s)
    best_s = best_interval_s(odd)
    assert checkpoint_s <= shortest_within_s(odd, 0.01) <= best_s < math.inf


@given(checkpoint_s=seconds, mean_s=lives, more=st.floats(1.01, 100))
def test_more_failures_want_a_shorter_interval_and_a_costlier_checkpoint_a_longer_one(
    checkpoint_s: float, mean_s: float, more: float
) -> None:
    best_s = best_interval_s(costs(checkpoint_s, 1, mean_s))
    assert best_interval_s(costs(checkpoint_s, 1, mean_s / more)) < best_s
    assert best_interval_s(costs(checkpoint_s * more, 1, mean_s)) > best_s
    assert best_interval_s(costs(checkpoint_s, 99, mean_s)) == best_s, "restarts do not matter"


@given(checkpoint_s=seconds, restart_s=st.floats(0, 1000), mean_s=lives, off=st.floats(0.01, 0.99))
def test_no_other_interval_is_better_than_the_best(
    checkpoint_s: float, restart_s: float, mean_s: float, off: float
) -> None:
    given = costs(checkpoint_s, restart_s, mean_s)
    best_s = best_interval_s(given)
    best = utilisation(given, best_s)
    assert best_s > checkpoint_s
    assert utilisation(given, best_s * off) <= best * (1 + 1e-9)
    assert utilisation(given, best_s / off) <= best * (1 + 1e-9)
    short_s = shortest_within_s(given, 0.01)
    assert checkpoint_s <= short_s <= best_s
    assert utilisation(given, short_s) >= best - 0.01 - 1e-9
    if best > 0.02:
        assert utilisation(given, 0.98 * short_s) < best - 0.01


@given(checkpoint_s=seconds, restart_s=st.floats(0, 1000), mean_s=lives, interval_s=seconds)
def test_what_costs_more_leaves_less(
    checkpoint_s: float, restart_s: float, mean_s: float, interval_s: float
) -> None:
    at = utilisation(costs(checkpoint_s, restart_s, mean_s), interval_s)
    assert 0 <= at < 1
    for worse in (
        costs(2 * checkpoint_s, restart_s, mean_s),
        costs(checkpoint_s, restart_s + 1, mean_s),
        costs(checkpoint_s, restart_s, mean_s / 2),
    ):
        assert utilisation(worse, interval_s) <= at


@pytest.mark.parametrize(
    "wrong",
    [costs(0, 1, 1), costs(-1, 1, 1), costs(1, -1, 1), costs(1, 1, -1), costs(1, math.inf, 1),
     costs(math.nan, 1, 1), costs(1, 1, math.inf)],
)  # fmt: skip
def test_what_is_no_time_is_refused(wrong: Costs) -> None:
    with pytest.raises(BadSettings):
        best_interval_s(wrong)


@pytest.mark.parametrize(
    ("shape", "probability", "expected"),
    # chi-square tables: half of the quantile of 2 x shape degrees of freedom.
    [(0.5, 0.95, 3.841 / 2), (1, 0.5, math.log(2)), (2.5, 0.025, 0.831 / 2), (5, 0.975, 20.483 / 2),
     (15, 0.05, 18.493 / 2), (50, 0.5, 99.334 / 2)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(
    shape: float, probability: float, expected: float
) -> None:
    assert gamma_quantile(shape, probability) == pytest.approx(expected, rel=1e-3)
    assert gamma_below(shape, gamma_quantile(shape, probability)) == pytest.approx(probability)


def test_the_bounds_of_a_counted_rate_hold_the_true_one_19_times_of_20() -> None:
    """On average over rates: failures come in whole numbers, so for one rate it is more."""
    counted = [counted_rate(seen, 1.0, "") for seen in range(60)]
    assert all(one.low_per_s < one.per_s < one.high_per_s for one in counted)
    held = [
        sum(
            math.exp(-rate) * rate**seen / math.factorial(seen)
            for seen, one in enumerate(counted)
            if one.low_per_s <= rate <= one.high_per_s
        )
        for rate in (quarter / 4 for quarter in range(2, 81))
    ]
    assert 0.94 < sum(held) / len(held) < 0.96
    assert min(held) > 0.85


@given(seen=st.integers(0, 200), over_s=st.floats(1, 1e7))
def test_longer_looks_are_surer_and_more_failures_are_more(seen: int, over_s: float) -> None:
    found = counted_rate(seen, over_s, "")
    longer = counted_rate(2 * seen, 2 * over_s, "")
    more = counted_rate(seen + 1, over_s, "")
    assert more.per_s > found.per_s
    assert more.low_per_s > found.low_per_s
    if seen:
        assert longer.high_per_s - longer.low_per_s < found.high_per_s - found.low_per_s


def test_what_was_never_seen_is_assumed_and_bounded_by_how_long_one_looked() -> None:
    short = assumed_rate(86400, 600, "")
    assert short.per_s == 1 / 86400
    assert (short.low_per_s, short.high_per_s) == (0.0, pytest.approx(3 / 600, rel=0.01))
    long = assumed_rate(86400, 10 * 86400, "")
    assert long.per_s == 1 / (20 * 86400), "ten days without one say more than the assumption"
    assert assumed_rate(86400, 0, "").high_per_s == math.inf
    told = given_rate(50, "")
    assert told.low_per_s == told.per_s == told.high_per_s == 1 / 50


def test_the_mean_of_one_sample_is_itself() -> None:
    assert (mean_of([3.0], "").low, mean_of([3.0], "").high) == (3.0, 3.0)
    found = mean_of([1.0, 3.0] * 50, "")
    assert (found.value, found.samples) == (2.0, 100)
    assert 1.7 < found.low < 2.0 < found.high < 2.3
