"""Announced ends, purely: what is heard, taken back, gets no shards, and comes first."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import cast

import pytest
from msgspec.structs import replace as altered

from diskless import ends
from diskless.agent.ports import Ward
from diskless.cli.status import ending_lines
from diskless.ends import GRACE_S, NO_DEADLINE_S, Notice
from diskless.errors import Unavailable
from diskless.launch import ray_link, spread
from diskless.launch.announcer import Announcer, notices_of
from diskless.model import AgentInfo, AgentStatus, ClusterStatus, RepairStatus
from diskless.namespace import commands as c
from diskless.placement import staying
from diskless.repair import Cluster, Single, choose_targets, triage
from tests.unit.test_namespace_world import World, agent_up
from tests.unit.test_repair import (
    TOTAL,
    K,
    M,
    agent,
    cluster_of,
    dead,
    plan_repair,
    stripe_on,
    with_agent,
)


def announced(cluster: Cluster, *slots: int) -> Cluster:
    for slot in slots:
        cluster = with_agent(cluster, slot, ends_ms=30_000, notice="SIGTERM 1")
    return cluster


# What the namespace hears


def test_an_announcement_is_heard_once_and_stays_taken_back() -> None:
    world = World()
    world.elapsed_ms = 1000
    version = world.state.roster_version
    assert world.do(c.AgentEnds(1, 1, "Ray 5", 30_000)).changed
    assert not world.do(c.AgentEnds(1, 1, "Ray 5", 30_000)).changed
    assert (world.state.agents[1].ends_ms, world.state.roster_version) == (31_000, version + 1)
    assert not world.do(c.AgentEnds(1, 1, "Ray 4", 0)).changed, "of another announcement"
    assert world.do(c.AgentEnds(1, 1, "Ray 5", 0)).changed
    assert not world.do(c.AgentEnds(1, 1, "Ray 5", 30_000)).changed, "it was wrong"
    assert not world.state.agents[1].leaves
    assert world.do(c.AgentEnds(1, 1, "Ray 6", 5000)).changed, "this is another one"
    assert not world.do(c.AgentEnds(1, 2, "Ray 7", 5000)).changed, "of a life that never was"
    assert not world.do(c.AgentEnds(88, 1, "Ray 7", 5000)).changed


def test_the_end_of_draining_takes_an_announcement_back() -> None:
    world = World()
    world.do(c.AgentEnds(1, 1, "SIGTERM 1", 30_000))
    assert world.do(c.Drain(1, True)).changed
    assert world.state.agents[1].ends_ms, "the host may go all the same"
    assert world.do(c.Drain(1, False)).changed
    assert not world.state.agents[1].leaves
    world.do(c.AgentEnds(1, 1, "SIGTERM 2", 30_000))
    assert world.do(c.Drain(1, False)).changed, "though it did not drain"


def test_what_is_said_of_a_host_holds_for_the_next_life_there_and_nowhere_else() -> None:
    world = World()
    world.do(c.AgentEnds(1, 1, "SIGTERM 1", 30_000))
    before = world.state.agents[1]
    world.do(agent_up(1, "second", host=before.host))
    assert world.state.agents[1].incarnation == 2
    assert world.state.agents[1].leaves, "its host is still about to end"
    world.do(agent_up(1, "third", host="elsewhere"))
    assert (world.state.agents[1].ends_ms, world.state.agents[1].notice) == (0, "")


# The rules


def ending_at(slot: int, ends_ms: int, **changes: object) -> AgentInfo:
    return altered(agent(slot), ends_ms=ends_ms, notice="SIGTERM 1", **changes)


def test_an_agent_that_is_still_there_long_after_its_end_is_trusted_again() -> None:
    late_ms = int(1000 * GRACE_S)
    agents = {1: ending_at(1, 5000), 2: agent(2), 3: ending_at(3, 5000, up=False)}
    assert ends.unfounded(agents, elapsed_ms=5000 + late_ms) == []
    assert ends.unfounded(agents, elapsed_ms=5001 + late_ms) == [agents[1]]
    assert ends.ending(agents) == {1, 3}


def test_what_is_news_of_a_node_is_heard_and_what_is_known_or_over_is_not() -> None:
    one, two = altered(agent(1), node="a"), altered(agent(2), node="a", notice="Ray 5")
    down, other = altered(agent(3), node="a", up=False), altered(agent(4), node="b")
    agents = (one, two, down, other)
    notice = Notice(name="Ray 5", left_s=20.0)
    assert ends.unheard(agents, {"a": notice, "z": notice}) == [(one, notice)]
    late, over = (Notice(name="Ray 6", left_s=s - GRACE_S) for s in (0.5, -0.5))
    assert ends.unheard(agents, {"a": late}) == [(one, late), (two, late)]
    assert ends.unheard(agents, {"a": over}) == [], "a node that did not go when it was to"


def test_there_is_a_hurry_when_what_is_left_takes_more_than_half_of_the_time() -> None:
    def hurries(bytes_left: int, bytes_per_s: float, *agents: AgentInfo) -> bool:
        return ends.hurries(agents, elapsed_ms=0, bytes_left=bytes_left, bytes_per_s=bytes_per_s)

    soon, later = ending_at(1, 10_000), ending_at(2, 60_000)
    assert not hurries(500, 100, soon, later)
    assert hurries(501, 100, later, soon)
    assert hurries(1, 0, later), "nobody knows yet how fast it goes"
    assert not hurries(0, 0, soon)
    assert not hurries(1000, 1, agent(1), altered(soon, up=False))


def test_ray_says_when_a_node_ends_or_that_it_does_not_know() -> None:
    found = notices_of({"a": 90_000, "b": 0}, wall_ms=60_000)
    assert found["a"] == Notice(name="Ray 90000", left_s=30.0)
    assert found["b"] == Notice(name="Ray 0", left_s=NO_DEADLINE_S)


def test_new_stripes_go_round_agents_that_end_unless_too_few_are_left() -> None:
    agents = [*(agent(slot) for slot in range(3)), ending_at(3, 1), ending_at(4, 1)]
    assert staying(agents, enough=3) == agents[:3]
    assert staying(agents, enough=4) == agents


class Listener:
    """A leader's ward, as far as an announcer asks it."""

    def __init__(self) -> None:
        self.leads = True
        self.heard: list[Mapping[str, Notice]] = []

    def leads_majority(self) -> bool:
        return self.leads

    async def announce(self, notices: Mapping[str, Notice]) -> None:
        self.heard.append(notices)


def test_a_leader_hears_what_ray_drains_and_nothing_while_ray_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_link, "address_of", lambda _: "ray:1")
    monkeypatch.setattr(ray_link, "check_listening", lambda _: None)
    drained: dict[str, int] = {}
    monkeypatch.setattr(spread, "draining_nodes", lambda: drained)
    listener = Listener()
    announcer = Announcer(cast(Ward, listener))
    asyncio.run(announcer.look())
    assert listener.heard == [], "nothing is drained"
    drained["a"] = 0
    asyncio.run(announcer.look())
    assert [{*notices} for notices in listener.heard] == [{"a"}]

    def silent(_: str) -> None:
        raise Unavailable("no Ray answers")

    monkeypatch.setattr(ray_link, "check_listening", silent)
    asyncio.run(announcer.look())
    monkeypatch.setattr(ray_link, "check_listening", lambda _: None)
    listener.leads = False
    asyncio.run(announcer.look())
    assert len(listener.heard) == 1


# The plan


def test_shards_leave_an_agent_that_ends_and_none_go_there() -> None:
    for gone in combinations(range(TOTAL), K):
        cluster = announced(cluster_of(TOTAL + K), *gone)
        targets = choose_targets(stripe_on(*range(TOTAL)), cluster)
        assert targets.keys() == {*gone}
        assert {*targets.values()} == {TOTAL, TOTAL + 1}
    cluster = announced(dead(cluster_of(TOTAL + 2), 0), TOTAL)
    assert choose_targets(stripe_on(*range(TOTAL)), cluster) == {0: TOTAL + 1}


def test_of_equal_priority_what_would_be_worst_off_after_the_ends_comes_first() -> None:
    cluster = announced(cluster_of(12), 0, 1, 2)
    one, two, three = (
        stripe_on(*range(first, first + TOTAL), id_=f"0.1.{first}") for first in (2, 1, 0)
    )
    drained = stripe_on(5, 6, 7, 8, 9, 10, id_="0.1.9")
    cluster = with_agent(cluster, 5, draining=True)
    plan = plan_repair([drained, one, three, two], cluster)
    assert list(plan.rebuild) == [three.id, two.id, one.id, drained.id]
    assert plan.at_stake == 1, "the one that more than k of its agents leave"


def test_the_most_important_path_goes_first_however_many_of_its_agents_end() -> None:
    cluster = announced(cluster_of(12), 0, 1, 2)
    plan = plan_repair([], cluster)
    plan.add(Single(stripe_on(0, 1, 2, 3, 4, 5, id_="0.1.1"), 1, priority=1))
    plan.add(Single(stripe_on(2, 3, 4, 5, 6, 7, id_="0.1.2"), 2, priority=9))
    assert list(plan.rebuild) == ["0.1.2", "0.1.1"]


@pytest.mark.parametrize("ending", range(TOTAL + 1))
def test_what_would_be_lost_is_told_and_what_cannot_be_moved_is_made_narrower(ending: int) -> None:
    cluster = announced(cluster_of(), *range(ending))
    plan = plan_repair([stripe_on(*range(TOTAL))], cluster)
    assert plan.at_stake == (ending > K)
    assert plan.reshape.stripes == (0 < ending <= M - 1), "k + 1 agents are enough for a write"
    assert plan.stuck.stripes == (ending >= M)
    assert not plan.lost, "nothing is lost that can be read"


def test_a_damaged_stripe_is_at_stake_once() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = replace(announced(cluster_of(12), 0, 1), damaged={(stripe.id, 5)})
    plan = plan_repair([], cluster)
    plan.add(Single(altered(stripe, id=""), 1))
    assert plan.at_stake == 0
    plan.add_damaged(stripe, 1)
    assert plan.at_stake == 1
    found = triage(stripe, cluster)
    assert found is not None
    assert found[1] == -1


# What is said


def status_of(*agents: AgentStatus, at_stake: int = 0) -> ClusterStatus:
    return ClusterStatus(
        name="c", cluster_id="i", data_shards=M, parity_shards=K, leader="agent-0", margin=K,
        margin_hosts=0, agents=list(agents), repair=RepairStatus(at_stake=at_stake),
    )  # fmt: skip


def test_status_says_when_agents_end_and_what_is_left_there() -> None:
    def ending(slot: int, left_s: float, shards: int) -> AgentStatus:
        return AgentStatus(
            slot=f"agent-{slot}", state="ending", ends_in_s=left_s, ends_by="Ray",
            shards_placed=shards, bytes_placed=1024 * shards,
        )  # fmt: skip

    up = AgentStatus(slot="agent-0", state="up")
    agents = (up, ending(1, 12.4, 2), ending(2, -3.0, 0), ending(3, NO_DEADLINE_S - 1, 0))
    assert ending_lines(status_of(*agents)) == [
        "ending: agent-1 ends in 12 s, 2.0 KiB left (Ray)",
        "ending: agent-2 should have ended 3 s ago, nothing is left there (Ray)",
        "ending: agent-3 ends soon, nothing is left there (Ray)",
    ]
    assert ending_lines(status_of(up)) == []
    (*_, loud) = ending_lines(status_of(ending(1, 5, 1), at_stake=7))
    assert "7 stripes WOULD BE LOST" in loud
