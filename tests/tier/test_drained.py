"""The drain loses nothing that it announced: some schedules; `python -m tests.tier.drained` has
as many as one likes."""

import logging

import pytest

from tests.tier.drained import schedule
from tests.tier.loop import run


@pytest.mark.parametrize("seed", range(12))
def test_everything_dies_and_a_prefix_comes_back(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    print(f"seed {seed}: python -m tests.tier.drained --seed {seed}")
    assert run(schedule(seed))["restored"] == 3
