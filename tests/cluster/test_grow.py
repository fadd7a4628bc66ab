"""Agents that are added to a cluster that runs: what they are used for."""

from dataclasses import replace
from itertools import combinations

import pytest

from diskless.cli.status import summary_lines
from diskless.config import MIB
from diskless.errors import BadRequest, TooFewShards
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    content,
    eventually,
    kill,
    leader,
    on_loop,
    stripes_of,
)

WIDE = {"agents": 6, "data_shards": 4, "parity_shards": 2, "memory": "64MiB"}


def test_status_and_clients_of_before_know_the_new_slots(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**WIDE, tuning=STRIPED)
    client = connect(cluster)
    client.write("/before", content(MIB))
    cluster.grow(8)
    agents = client.status().agents
    assert [(a.slot, a.state) for a in agents] == [(f"agent-{n}", "up") for n in range(8)]
    assert len(client.status().voters) == 5
    eventually(lambda: client.read("/before") and len(client.agents()) == 8)


def test_new_stripes_use_the_new_agents(start: StartCluster, connect: Connect) -> None:
    cluster = start(**WIDE, tuning=CALM)
    cluster.grow(8)
    client = connect(cluster)
    client.write("/a", content(8 * MIB))
    used = {place.slot for stripe in stripes_of(cluster, "/a") for place in stripe.places}
    assert used == set(range(8))


def test_stripes_that_had_to_be_narrow_get_their_width_from_new_agents(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**WIDE, tuning=STRIPED)
    client = connect(cluster)
    kill(cluster, 4, 5)
    data = content(3 * MIB)
    client.write("/a", data)
    assert {stripe.data_shards for stripe in stripes_of(cluster, "/a")} == {2}
    cluster.grow(8)
    eventually(lambda: {stripe.data_shards for stripe in stripes_of(cluster, "/a")} == {4})
    assert client.read("/a") == data


def test_what_a_dead_agent_held_goes_to_the_new_ones(start: StartCluster, connect: Connect) -> None:
    """Then any two more may die, which without them would have been too many."""
    cluster = start(**WIDE, tuning=STRIPED)
    client = connect(cluster)
    data = content(3 * MIB)
    client.write("/a", data)
    cluster.grow(8)
    kill(cluster, 3, 5)
    eventually(lambda: client.status().stripes.healthy == client.status().stripes.total)
    stripes = stripes_of(cluster, "/a")
    assert {stripe.data_shards for stripe in stripes} == {4}
    assert {p.slot for s in stripes for p in s.places} == {0, 1, 2, 4, 6, 7}


@pytest.mark.parametrize("victims", [*combinations((5, 6, 7), 2), (5, 6, 7)], ids=str)
def test_a_grown_cluster_survives_k_losses_and_fails_loudly_beyond(
    start: StartCluster, connect: Connect, victims: tuple[int, ...]
) -> None:
    """None of these votes: with three of them gone there still is a namespace to ask."""
    cluster = start(**WIDE, tuning=CALM)
    cluster.grow(8)
    client = connect(cluster)
    data = content(8 * MIB)
    client.write("/a", data)
    kill(cluster, *victims)
    if len(victims) == 2:
        assert client.read("/a") == data
    else:
        with pytest.raises(TooFewShards, match="gone: agent-5, agent-6, agent-7"):
            client.read("/a")


def test_a_new_agent_drains_and_dies_like_any_other(start: StartCluster, connect: Connect) -> None:
    cluster = start(**WIDE, tuning=STRIPED)
    cluster.grow(8)
    client = connect(cluster)
    client.write("/a", content(8 * MIB))
    client.drain(7)
    eventually(lambda: client.status().agents[7].shards_placed == 0)
    kill(cluster, 7)
    assert client.status().margin == 2
    cluster.revive(7)
    assert client.status().agents[7].incarnation == 2
    with pytest.raises(BadRequest, match="agent-8 has never joined"):
        client.drain(8)


def test_an_agent_that_comes_and_goes_gets_no_new_shards_while_others_have_room(
    start: StartCluster, connect: Connect
) -> None:
    """Of eight agents six are needed; with six, stripes are as wide as ever."""
    cluster = start(**WIDE, tuning=replace(STRIPED, repair_interval_s=3600.0))
    client = connect(cluster)
    for _ in range(3):
        assert not any(agent.unsteady for agent in client.status().agents)
        kill(cluster, 5)
        cluster.revive(5)
    assert [a.slot for a in client.status().agents if a.unsteady] == ["agent-5"]
    assert any("unsteady: agent-5" in line for line in summary_lines(client.status()))

    def used(path: str) -> set[int]:
        client.write(path, content(4 * MIB))
        return {place.slot for stripe in stripes_of(cluster, path) for place in stripe.places}

    def all_know() -> bool:
        nodes = [*cluster.nodes.values()]
        return on_loop(cluster, lambda: all(node.roster.unsteady == {5} for node in nodes))

    eventually(all_know)
    assert used("/six") == set(range(6))
    cluster.grow(8)
    eventually(all_know)
    assert used("/eight") == set(range(8)) - {5}
    kill(cluster, 6, 7)
    assert 5 in used("/again")


def test_the_next_leader_knows_who_comes_and_goes(start: StartCluster, connect: Connect) -> None:
    cluster = start(**WIDE, tuning=STRIPED)
    client = connect(cluster)
    for _ in range(3):
        kill(cluster, 5)
        cluster.revive(5)
    first = leader(cluster).slot
    kill(cluster, first)
    eventually(lambda: leader(cluster).slot != first)
    assert [a.slot for a in client.status().agents if a.unsteady] == ["agent-5"]


def test_leaders_that_were_away_while_it_grew_know_the_new_slots(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**WIDE, tuning=replace(STRIPED, repair_delay_s=60.0))
    client = connect(cluster)
    kill(cluster, 1)
    cluster.grow(8)
    cluster.revive(1)
    kill(cluster, 0)
    eventually(lambda: leader(cluster).slot != 0)
    if leader(cluster).slot != 1:  # the next in turn is 1, unless it was slow to recover
        kill(cluster, leader(cluster).slot)
    agents = client.status().agents
    assert [a.slot for a in agents] == [f"agent-{n}" for n in range(8)]
    assert {agents[slot].state for slot in (6, 7)} == {"up"}
    rosters = on_loop(
        cluster, lambda: [sorted(node.roster.agents) for node in cluster.nodes.values()]
    )
    assert rosters == [list(range(8))] * len(cluster.nodes)
