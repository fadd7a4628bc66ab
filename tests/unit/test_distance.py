"""How far apart rounds of the drain are: it follows what waits and what rounds cost, in limits."""

from hypothesis import given
from hypothesis import strategies as st

from diskless.agent.leading.distance import (
    CHANGES_WORTH,
    COST,
    FAR_S,
    LAG_SHARE,
    NEAR_S,
    choose_distance,
)

LAG_S = 5.0


def seconds(waiting: int, took_s: float = 0.01, lag_max_s: float = LAG_S) -> float:
    return choose_distance(took_s=took_s, waiting=waiting, lag_max_s=lag_max_s).seconds


def test_few_changes_wait_longer_than_many() -> None:
    assert seconds(0) == seconds(CHANGES_WORTH - 1) == FAR_S
    assert seconds(CHANGES_WORTH) == seconds(10**6) == NEAR_S


def test_rounds_that_take_long_are_farther_apart() -> None:
    assert seconds(1, took_s=0.2) == seconds(999, took_s=0.2) == COST * 0.2
    found = choose_distance(took_s=0.2, waiting=1, lag_max_s=LAG_S)
    assert "a fourth of the time" in found.why


def test_the_bound_of_the_lag_comes_first_and_is_the_reason_then() -> None:
    assert seconds(1, lag_max_s=1.0) == LAG_SHARE
    assert "lag" in choose_distance(took_s=0.01, waiting=1, lag_max_s=1.0).why
    assert seconds(1, took_s=3.0) == 6.0, "and no more can be asked of slow rounds than that"


@given(
    took_s=st.floats(0, 100), more_s=st.floats(0, 100), waiting=st.integers(0, 10**6),
    more=st.integers(0, 10**6), lag_max_s=st.floats(0.1, 86400),
)  # fmt: skip
def test_it_never_grows_with_what_waits_nor_shrinks_with_what_a_round_costs(
    took_s: float, more_s: float, waiting: int, more: int, lag_max_s: float
) -> None:
    found = choose_distance(took_s=took_s, waiting=waiting, lag_max_s=lag_max_s)
    assert seconds(waiting + more, took_s, lag_max_s) <= found.seconds
    assert seconds(waiting, took_s + more_s, lag_max_s) >= found.seconds
    assert 0 < found.seconds <= max(FAR_S, COST * took_s)
    assert found.seconds <= max(LAG_SHARE * lag_max_s, 2 * took_s)
    assert found.why
