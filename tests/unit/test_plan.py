"""Sizing: the chain's arithmetic against a simulation and against small cases by hand."""

import random

import pytest

from diskless.errors import BadSettings
from diskless.plan import Assumptions, mean_time_to_loss_s, plan_code, plan_copies

GIVEN = Assumptions(memory_bytes=1 << 30, mtbf_s=30 * 86400.0, rebuild_s=60.0)


def simulated(*, agents: int, losses: int, mtbf_s: float, rebuild_s: float, seed: int) -> float:
    """The mean of many lives, each from no loss to one too many."""
    rng = random.Random(seed)
    lives, total = 4000, 0.0
    for _ in range(lives):
        lost = 0
        while lost <= losses:
            die, back = (agents - lost) / mtbf_s, (1 / rebuild_s if lost else 0.0)
            total += rng.expovariate(die + back)
            lost += 1 if rng.random() < die / (die + back) else -1
    return total / lives


@pytest.mark.parametrize(("agents", "losses"), [(3, 0), (3, 1), (6, 2), (11, 3), (12, 2)])
def test_the_mean_time_agrees_with_a_simulation(agents: int, losses: int) -> None:
    exact = mean_time_to_loss_s(agents=agents, losses=losses, mtbf_s=10.0, rebuild_s=0.8)
    found = simulated(agents=agents, losses=losses, mtbf_s=10.0, rebuild_s=0.8, seed=17)
    assert found == pytest.approx(exact, rel=0.1)


def test_small_cases_by_hand() -> None:
    assert mean_time_to_loss_s(agents=4, losses=0, mtbf_s=8.0, rebuild_s=1.0) == 2.0
    # 1/2 until the first loss; then 1/1, and for each of the 2 rebuilds it all again.
    assert mean_time_to_loss_s(agents=2, losses=1, mtbf_s=1.0, rebuild_s=0.5) == 0.5 + 1 + 2 * 0.5


def test_more_parity_faster_repair_and_fewer_agents_are_safer() -> None:
    def years(**changed: object) -> float:
        return mean_time_to_loss_s(
            **{"agents": 8, "losses": 2, "mtbf_s": 1e6, "rebuild_s": 60.0, **changed}  # type: ignore[arg-type]
        )

    assert years(losses=3) > years() > years(losses=1)
    assert years(rebuild_s=30.0) > years() > years(rebuild_s=120.0)
    assert years(agents=6) > years() > years(agents=12)


def test_a_code_costs_half_of_what_copies_do_and_survives_as_much() -> None:
    code = plan_code(GIVEN, data_shards=4, parity_shards=2)
    copies = plan_copies(GIVEN, copies=3, agents=6)
    assert (code.agents, code.losses_survived, code.room_bytes) == (6, 2, 4 << 30)
    assert (copies.losses_survived, copies.room_bytes) == (2, 2 << 30)
    assert code.memory_per_byte / copies.memory_per_byte == 0.5
    assert code.loss_per_year == copies.loss_per_year
    assert code.loss_per_year == pytest.approx(1 / code.mean_years_to_loss, rel=1e-3)


@pytest.mark.parametrize("agents", [5, 5000])
def test_agents_out_of_range_are_refused(agents: int) -> None:
    with pytest.raises(BadSettings, match="agents"):
        plan_code(GIVEN, data_shards=4, parity_shards=2, agents=agents)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(BadSettings, match="longer than nothing"):
        mean_time_to_loss_s(agents=6, losses=2, mtbf_s=seconds, rebuild_s=1.0)
    with pytest.raises(BadSettings, match="longer than nothing"):
        mean_time_to_loss_s(agents=6, losses=2, mtbf_s=1.0, rebuild_s=seconds)
