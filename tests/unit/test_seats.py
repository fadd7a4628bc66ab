"""Which node an agent gets: at first, as one of those that are added, and when its own is gone."""

import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec
import psutil
import pytest

from diskless.config import ClusterSettings
from diskless.launch.seats import RayNode, Rehosting, advise, assign, plan_rehosting, seated
from diskless.model import AgentInfo, AgentStatus


def hosts(*names: str) -> list[RayNode]:
    """A node on each host; a name that comes again is a second node there."""
    return [RayNode(f"{name}{number}", name, "10.0.0.1") for number, name in enumerate(names)]


def agent(slot: int, node: RayNode, *, up: bool = True) -> AgentInfo:
    return AgentInfo(
        slot=slot, incarnation=1, boot=f"b{slot}", address="", gateway="", socket="",
        host=node.host, node=node.id, pid=1, up=up,
    )  # fmt: skip


def roster(*nodes: RayNode) -> dict[int, AgentInfo]:
    return {slot: agent(slot, node) for slot, node in enumerate(nodes)}


def lose(
    agents: Mapping[int, AgentInfo],
    nodes: Sequence[RayNode],
    *dead: RayNode,
    under_way: Mapping[int, RayNode | None] | None = None,
    unfit: Collection[str] = (),
    one_host: bool = False,
) -> Rehosting:
    """The plan once those nodes are gone and all their agents are overdue."""
    gone = {slot for slot, a in agents.items() if a.node in {node.id for node in dead}}
    return plan_rehosting(
        {slot: msgspec.structs.replace(a, up=slot not in gone) for slot, a in agents.items()},
        overdue=gone,
        nodes=[node for node in nodes if node not in dead],
        under_way=under_way or {},
        unfit=unfit,
        one_host=one_host,
    )


# At first.


def test_with_as_many_hosts_as_agents_each_has_its_own() -> None:
    nodes = hosts(*"abcdef")
    assert set(assign(range(6), nodes).values()) == set(nodes)


def test_a_host_gets_a_second_agent_only_when_every_host_has_one() -> None:
    chosen = assign(range(5), hosts(*"abc"))
    assert sorted(Counter(node.host for node in chosen.values()).values()) == [1, 2, 2]
    assert len({chosen[slot].host for slot in range(3)}) == 3


def test_two_nodes_of_one_host_are_one_host() -> None:
    nodes = hosts("a", "a", "b")
    chosen = assign(range(2), nodes)
    assert {node.host for node in chosen.values()} == {nodes[0].host, nodes[2].host}
    assert set(assign(range(4), nodes).values()) == set(nodes)


def test_added_agents_go_where_there_is_none() -> None:
    nodes = hosts(*"abcd")
    chosen = assign([6, 7], nodes, taken=nodes[:2])
    assert set(chosen.values()) == set(nodes[2:])


def row(slot: int, node: RayNode, state: str = "up") -> AgentStatus:
    return AgentStatus(slot=f"agent-{slot}", state=state, node=node.id, host=node.host)


def test_one_that_ray_is_about_to_restart_keeps_its_place() -> None:
    nodes = hosts(*"abc")
    rows = [
        row(0, nodes[0]),
        row(1, nodes[1], "down"),
        AgentStatus(slot="agent-2", state="starting"),
    ]
    assert seated(rows, nodes) == {0: nodes[0], 1: nodes[1]}
    assert assign([2], nodes, taken=seated(rows, nodes).values()) == {2: nodes[2]}


def test_agents_of_another_ray_take_their_host_s_place_and_lost_ones_none() -> None:
    a, b = nodes = hosts(*"ab")
    elsewhere, lost = RayNode("old a", *a[1:]), RayNode("old b", *b[1:])
    taken = seated([row(0, elsewhere, "draining"), row(1, lost, "down")], nodes)
    assert taken == {0: elsewhere}
    assert assign([1], nodes, taken=taken.values()) == {1: b}


# When nodes are gone.


def test_a_lost_agent_begins_again_on_the_spare() -> None:
    nodes = hosts(*"abcd")
    plan = lose(roster(*nodes[:3]), nodes, nodes[1])
    assert plan == Rehosting(moves={1: nodes[3]}, homeless=[])


def test_without_a_spare_it_waits_rather_than_double_up() -> None:
    nodes = hosts(*"abc")
    assert lose(roster(*nodes), nodes, nodes[1]) == Rehosting(moves={}, homeless=[1])


def test_the_lowest_slots_which_vote_come_first_when_spares_are_few() -> None:
    nodes = hosts(*"abcdef", "spare")
    plan = lose(roster(*nodes[:6]), nodes, nodes[0], nodes[5])
    assert plan == Rehosting(moves={0: nodes[6]}, homeless=[5])


def test_a_host_that_came_back_as_a_new_node_gets_its_agent_again() -> None:
    nodes = hosts(*"abc")
    back = RayNode("new", "b", "10.0.0.1")
    plan = lose(roster(*nodes), [*nodes, back], nodes[1])
    assert plan.moves == {1: back}


def test_hosts_that_came_back_in_another_order_do_not_make_others_double_up() -> None:
    """One has the other's slot by now, and the record of that slot still names it."""
    a, b, c = hosts(*"abc")
    again = RayNode("c again", *c[1:])
    agents = roster(a, b, c)
    agents[1] = msgspec.structs.replace(agents[1], node=again.id, host=again.host)
    agents[2] = msgspec.structs.replace(agents[2], up=False)
    plan = plan_rehosting(agents, overdue={2}, nodes=[a, again], under_way={})
    assert plan == Rehosting(moves={}, homeless=[2])


def test_no_host_gets_more_agents_than_up_gave_to_some_host() -> None:
    a, b, c, d = nodes = hosts(*"abcd")
    plan = lose(roster(a, a, b, b, c, d), nodes, a)
    assert {node.host for node in plan.moves.values()} == {c.host, d.host}
    assert plan.homeless == []
    plan = lose(roster(a, a, b, b, c, c), [a, b, c], a)
    assert plan == Rehosting(moves={}, homeless=[0, 1])


def test_an_agent_whose_node_is_alive_is_left_to_ray_or_stays_dead_on_purpose() -> None:
    nodes = hosts(*"abcd")
    agents = roster(*nodes[:3])
    agents[1] = msgspec.structs.replace(agents[1], up=False)
    plan = plan_rehosting(agents, overdue={1}, nodes=nodes, under_way={})
    assert plan == Rehosting(moves={}, homeless=[])


def test_the_place_of_one_that_is_down_on_a_living_node_is_taken() -> None:
    a, b, c, d = nodes = hosts(*"abcd")
    agents = roster(a, b, c)
    agents[1] = msgspec.structs.replace(agents[1], up=False)
    assert plan_rehosting(
        agents | {2: msgspec.structs.replace(agents[2], up=False)},
        overdue={1, 2},
        nodes=[a, b, d],
        under_way={},
    ).moves == {2: d}
    assert nodes.index(b) < nodes.index(d), "b would be chosen if it counted as empty"


def test_one_that_ray_restarts_where_it_was_counts_once() -> None:
    a, b, c = hosts(*"abc")
    agents = roster(a, a, b, c)
    for slot in (2, 3):
        agents[slot] = msgspec.structs.replace(agents[slot], up=False)
    plan = plan_rehosting(agents, overdue={2, 3}, nodes=[a, b], under_way={2: b})
    assert plan == Rehosting(moves={3: b}, homeless=[])


@pytest.mark.parametrize("on_a_node", [True, False])
def test_one_that_is_under_way_is_not_started_twice_and_keeps_its_place(on_a_node: bool) -> None:
    nodes = hosts(*"abcde")
    target = nodes[3] if on_a_node else None
    plan = lose(roster(*nodes[:3]), nodes, nodes[0], nodes[1], under_way={0: target})
    assert plan.homeless == []
    assert set(plan.moves) == {1}
    assert plan.moves[1] != target


def test_an_agent_under_another_ray_takes_its_host_s_place() -> None:
    """As while a cluster changes Rays: its node is unknown here, and it is up."""
    a, _, c = nodes = hosts(*"abc")
    elsewhere = RayNode("of the old Ray", "b", "10.0.0.1")
    agents = roster(a, elsewhere, RayNode("gone", "d", "10.0.0.1"))
    agents[2] = msgspec.structs.replace(agents[2], up=False)
    plan = plan_rehosting(agents, overdue={2}, nodes=nodes, under_way={})
    assert plan.moves == {2: c}


def test_a_node_on_which_agents_do_not_start_is_passed_over() -> None:
    nodes = hosts(*"abcde")
    plan = lose(roster(*nodes[:3]), nodes, nodes[0], unfit={nodes[3].id})
    assert plan.moves == {0: nodes[4]}


def test_a_cluster_on_loopback_stays_on_its_host() -> None:
    a1, a2, b = nodes = hosts("a", "a", "b")
    agents = roster(a1, a1, a2)
    assert lose(agents, nodes, a1, one_host=True).moves == {0: a2, 1: a2}
    assert lose(agents, nodes, a1, a2, one_host=True).homeless == [0, 1, 2]
    assert set(lose(agents, nodes, a1, a2).moves.values()) == {b}


# What the operator is told.


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("aaaaaa", "losing the host loses everything"),
        ("aaabbb", "use more hosts, or a larger k"),
        ("aabbcc", "1 of the hosts may die"),
        ("abcdef", ""),
    ],
)
def test_what_the_loss_of_a_host_means_is_said(names: str, words: str) -> None:
    assert words in " ".join(advise(ClusterSettings(), list(names)))
    assert bool(words) == bool(advise(ClusterSettings(), list(names)))


def test_more_memory_than_a_host_has_is_said() -> None:
    here = f"{socket.gethostname()}/10.0.0.1"
    each = psutil.virtual_memory().total // 3
    settings = ClusterSettings(memory_bytes=each)
    hosts = [here, here, "a/1", here, "b/1", "c/1"]
    assert "smaller --memory" not in " ".join(advise(settings, hosts))
    hosts.append(here)
    assert "4 agents on this host may use" in " ".join(advise(settings, hosts))
