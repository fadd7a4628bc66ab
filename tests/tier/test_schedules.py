"""Thousands of schedules in which everything dies at a random point, and the mutants they catch.

A failure names its seed; `python -m tests.tier --seed N` replays exactly that schedule.
"""

import re

import pytest

from tests.tier.mutants import MUTANTS
from tests.tier.schedule import run_schedule

BATCH = 250


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "batch", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 12))]
)
def test_no_schedule_breaks_a_promise(batch: int) -> None:
    first = batch * BATCH
    print(f"seeds {first} … {first + BATCH - 1}")
    deleted = take_overs = 0
    for seed in range(first, first + BATCH):
        outcome = run_schedule(seed)
        again = f"python -m tests.tier --seed {seed}"
        assert outcome.violation is None, f"{outcome.violation}\nreplay: {again}"
        deleted += outcome.deleted
        take_overs += outcome.take_overs
    assert deleted > BATCH, "the collector had nothing to do"
    assert take_overs > BATCH // 2, "nobody took over"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_schedules_catch(name: str) -> None:
    mutant = MUTANTS[name]
    print(f"seeds {mutant.seeds}")
    for seed in mutant.seeds:
        outcome = run_schedule(seed, name)
        if outcome.violation is not None and re.search(mutant.says, outcome.violation):
            print(f"seed {seed}: {outcome.violation}")
            return
    pytest.fail(f"{name} went unnoticed in {len(mutant.seeds)} schedules")


def test_a_seed_is_a_schedule() -> None:
    for seed in (3, 14, 15):
        assert run_schedule(seed).record == run_schedule(seed).record
