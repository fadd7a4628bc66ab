"""Thousands of schedules of the replicated namespace, and the mutants they must catch.

A failure names its seed; `python -m tests.sim --seed N` replays exactly that schedule.
"""

import re

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.plan import STORIES
from tests.sim.schedule import run_schedule

BATCH = 225
SOAK_BATCH = 2500


def run_batch(first: int, count: int, story: str | None = None) -> None:
    print(f"seeds {first} … {first + count - 1} story {story}")
    for seed in range(first, first + count):
        outcome = run_schedule(seed, story=story)
        again = f"python -m tests.sim --seed {seed}" + (f" --story '{story}'" if story else "")
        assert outcome.violation is None, f"{outcome.violation}\nreplay: {again}"


@pytest.mark.parametrize(
    "batch", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 12))]
)
def test_no_schedule_breaks_a_promise(batch: int) -> None:
    run_batch(batch * BATCH, BATCH)


@pytest.mark.parametrize("story", STORIES)
def test_no_story_breaks_a_promise(story: str) -> None:
    run_batch(0, BATCH // 3, story)


@pytest.mark.soak
@pytest.mark.parametrize("batch", range(20))
def test_no_schedule_of_a_long_run_breaks_a_promise(batch: int) -> None:
    run_batch(1_000_000 + batch * SOAK_BATCH, SOAK_BATCH)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_catches(name: str) -> None:
    mutant = MUTANTS[name]
    print(f"seeds {mutant.seeds} story {mutant.story}")
    for count, seed in enumerate(mutant.seeds, 1):
        outcome = run_schedule(seed, name, story=mutant.story)
        if outcome.violation is not None and re.search(mutant.says, outcome.violation):
            print(f"seed {seed}, after {count} schedules: {outcome.violation}")
            return
    pytest.fail(f"{name} went unnoticed in {len(mutant.seeds)} schedules")


def test_a_seed_is_a_schedule() -> None:
    """The same seed gives the same events, to the last one."""
    for seed in (3, 14, 159):
        assert run_schedule(seed, trace=True) == run_schedule(seed, trace=True)
