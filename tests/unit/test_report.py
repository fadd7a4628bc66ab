"""What `status` says in a cluster's first moments."""

from types import SimpleNamespace
from typing import Any

import pytest

from diskless.agent.leading.report import Reporter
from diskless.config import ClusterSettings


@pytest.mark.parametrize(("joined", "slots"), [([], 6), ([0], 6), ([0, 7], 8)])
def test_slots_are_those_of_the_settings_and_those_that_joined(
    joined: list[int], slots: int
) -> None:
    state: Any = SimpleNamespace(agents=dict.fromkeys(joined))
    reporter = Reporter(
        settings=ClusterSettings(), cluster_id="c", slot=0, pulses={},
        replica=SimpleNamespace(state=state), repairer=None,  # type: ignore[arg-type]
        keeper=None,  # type: ignore[arg-type]
        homeless=dict,
        drain=None,  # type: ignore[arg-type]
        upkeep=None,  # type: ignore[arg-type]
        historian=None,  # type: ignore[arg-type]
    )  # fmt: skip
    assert reporter._slots() == slots
