"""The drain loses nothing that it announced: some schedules; `python -m tests.tier.drained` has
as many as one likes."""

import logging
from typing import Any

import pytest

from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.drainer import Drainer
from diskless.namespace import commands as c
from tests.tier.drained import Cluster, Violation, schedule
from tests.tier.loop import run


@pytest.mark.parametrize("seed", range(12))
def test_everything_dies_and_a_prefix_comes_back(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    print(f"seed {seed}: python -m tests.tier.drained --seed {seed}")
    assert run(schedule(seed))["restored"] == 3


class HorizonFirst(Drainer):
    """Announces a manifest before it is there."""

    async def _append(self, draft: Any, moment: Any, known: Any) -> None:
        tier = self._state.tier
        await self._do(
            c.Horizon(
                tier.epoch, tier.number + 1, moment.change, moment.op, moment.time_ms,
                moment.last_file,
            )
        )  # fmt: skip
        await super()._append(draft, moment, known)


class NeverHeld(Backlog):
    """Acknowledges what is not durable."""

    async def reach(self, change: int, timeout_s: float) -> None:
        return


@pytest.mark.parametrize(("part", "mutant"), [("drainer_type", HorizonFirst),
                                              ("backlog_type", NeverHeld)])  # fmt: skip
def test_a_broken_drain_is_noticed(
    part: str, mutant: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(Cluster, part, mutant)
    with pytest.raises(Violation):
        run_all(20)


def run_all(schedules: int) -> None:
    for seed in range(schedules):
        run(schedule(seed))
