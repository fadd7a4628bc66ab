"""What `up` makes of a cluster that is there already: pure decisions."""

from typing import Any

import pytest

from diskless.client import descriptor
from diskless.client.descriptor import Descriptor
from diskless.config import MIB, ClusterSettings
from diskless.errors import ClusterExists
from diskless.launch.record import RayRecord
from diskless.model import AgentStatus, ClusterStatus
from diskless.operate.running import never_joined, refuse_other, settings_for


def known(*, requested: str = "", **settings: Any) -> Descriptor:
    return Descriptor(
        cluster="c1",
        name="default",
        key="s",
        settings=ClusterSettings(**settings).to_dict(),
        ray=RayRecord(requested=requested).to_dict(),
    )


@pytest.mark.parametrize("agents", [6, 7, 8])
def test_the_same_or_more_agents_are_taken(agents: int) -> None:
    refuse_other(known(), ClusterSettings(agents=agents), "")


def test_fewer_agents_are_refused_with_a_hint_at_drain() -> None:
    with pytest.raises(ClusterExists, match=r"has 8 agents, .* shrink to 7: `diskless drain"):
        refuse_other(known(agents=8), ClusterSettings(agents=7), "")


@pytest.mark.parametrize(
    "other",
    [{"data_shards": 3}, {"parity_shards": 1}, {"memory_bytes": 64 * MIB}],
    ids=lambda other: next(iter(other)),
)
def test_nothing_else_can_be_changed(other: dict[str, int]) -> None:
    with pytest.raises(ClusterExists, match=next(iter(other))):
        refuse_other(known(), ClusterSettings(agents=8, **other), "")


def test_a_setting_that_an_earlier_version_did_not_have_is_no_other_setting() -> None:
    old = known()
    del old.settings["tuning"]["scrub_bytes_per_s"]
    refuse_other(old, ClusterSettings(agents=8), "")


def test_another_ray_is_refused_and_none_means_the_same() -> None:
    refuse_other(known(requested="auto"), ClusterSettings(), "")
    refuse_other(known(requested="auto"), ClusterSettings(), "auto")
    with pytest.raises(ClusterExists, match="ray_address auto, not 10"):
        refuse_other(known(requested="auto"), ClusterSettings(), "10.0.0.1:6379")


def test_slots_that_never_lived_are_missing_and_dead_ones_are_not() -> None:
    states = ["up", "down", "slow", "starting"]
    agents = [AgentStatus(slot=f"agent-{n}", state=state) for n, state in enumerate(states)]
    status = ClusterStatus(parity_shards=2, margin=2, margin_hosts=0, agents=agents)
    assert never_joined(status, 4) == [3]
    assert never_joined(status, 6) == [3, 4, 5]


def test_what_is_not_given_is_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    assert settings_for("default", {"agents": 7}, reset=False) == ClusterSettings(agents=7)
    descriptor.save(known(agents=3, data_shards=1, parity_shards=1))
    grown = settings_for("default", {"agents": 4}, reset=False)
    assert grown == ClusterSettings(agents=4, data_shards=1, parity_shards=1)
    assert settings_for("default", {}, reset=True) == ClusterSettings()
