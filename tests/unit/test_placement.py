"""Shards go to different agents, on as many hosts as there are, in fair shares."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diskless.errors import TooFewAgents
from diskless.model import AgentInfo
from diskless.placement import place, prompt, steady, stripe_width

turns = st.integers(0, 10**6)
clusters = st.lists(st.integers(0, 5), max_size=12)
"""For each agent the number of its host."""


def agents_on(hosts: list[int]) -> list[AgentInfo]:
    return [
        AgentInfo(slot, 1, "b", "a", "g", "s", f"host-{host}", "n", 1)
        for slot, host in enumerate(hosts)
    ]


def hosts_of(hosts: list[int], slots: list[int]) -> list[int]:
    return [hosts[slot] for slot in slots]


# Who


@given(st.lists(st.booleans(), max_size=8), st.integers(1, 8))
def test_slow_agents_are_left_out_unless_the_others_are_too_few(
    slow: list[bool], enough: int
) -> None:
    agents = [replace(agent, slow=slow[agent.slot]) for agent in agents_on([0] * len(slow))]
    chosen = prompt(agents, enough=enough)
    quick = [agent for agent in agents if not agent.slow]
    assert list(chosen) == (quick if len(quick) >= enough else agents)


@given(clusters, st.sets(st.integers(0, 12)), st.integers(1, 8))
def test_unsteady_agents_are_left_out_unless_a_stripe_would_suffer(
    hosts: list[int], unsteady: set[int], enough: int
) -> None:
    """It is as wide and on as many hosts as it would be with them."""
    agents = agents_on(hosts)
    chosen = steady(agents, unsteady=unsteady, enough=enough)
    others = [agent for agent in agents if agent.slot not in unsteady]
    assert list(chosen) in (agents, others)
    for of in (place(agents, count=enough, turn=0), place(chosen, count=enough, turn=0)):
        assert len(of) == min(enough, len(agents))
    spread = len(set(hosts_of(hosts, place(agents, count=enough, turn=0))))
    assert len(set(hosts_of(hosts, place(chosen, count=enough, turn=0)))) == spread
    enough_others = len(set(hosts_of(hosts, [agent.slot for agent in others]))) >= enough
    assert list(chosen) == others or not enough_others


# Where


@given(clusters, st.integers(0, 14), turns, st.sets(st.integers(0, 5)))
def test_slots_are_distinct_and_as_many_as_asked_for_or_as_there_are(
    hosts: list[int], count: int, turn: int, avoided: set[int]
) -> None:
    avoid = {f"host-{host}" for host in avoided}
    slots = place(agents_on(hosts), count=count, turn=turn, avoid=avoid)
    assert len(set(slots)) == len(slots) == min(count, len(hosts))
    assert set(slots) <= set(range(len(hosts)))


@given(clusters, st.integers(1, 14), turns)
def test_shards_are_spread_over_as_many_hosts_as_possible_and_evenly(
    hosts: list[int], count: int, turn: int
) -> None:
    chosen = Counter(hosts_of(hosts, place(agents_on(hosts), count=count, turn=turn)))
    room = Counter(hosts)
    assert len(chosen) == min(count, len(room))
    most = max(chosen.values(), default=0)
    for host in room:
        # A host has fewer shards than another only if it has no agent left, or by one.
        assert chosen[host] >= min(room[host], most - 1)


@given(st.integers(1, 12), st.integers(1, 12), turns)
def test_losing_a_host_costs_no_more_shards_than_an_even_spread_must(
    hosts: int, count: int, turn: int
) -> None:
    cluster = list(range(hosts)) * 3
    chosen = Counter(hosts_of(cluster, place(agents_on(cluster), count=count, turn=turn)))
    assert max(chosen.values()) == -(-min(count, len(cluster)) // hosts)


@given(clusters.filter(bool), st.integers(1, 12), turns, st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_the_agents(
    hosts: list[int], count: int, turn: int, random: object
) -> None:
    agents = agents_on(hosts)
    expected = place(agents, count=count, turn=turn)
    random.shuffle(agents)  # type: ignore[attr-defined]
    assert place(agents, count=count, turn=turn) == expected


def test_nobody_is_chosen_from_nobody() -> None:
    assert place([], count=3, turn=7) == []


# Avoiding hosts


@given(clusters, st.integers(1, 12), turns, st.sets(st.integers(0, 5)))
def test_a_host_to_avoid_is_used_only_when_every_other_host_gives_an_agent(
    hosts: list[int], count: int, turn: int, avoided: set[int]
) -> None:
    avoid = {f"host-{host}" for host in avoided}
    chosen = hosts_of(hosts, place(agents_on(hosts), count=count, turn=turn, avoid=avoid))
    if avoided & set(chosen):
        assert set(hosts) - avoided <= set(chosen)


def test_a_substitute_comes_from_a_new_host_and_else_from_any() -> None:
    agents = agents_on([0, 0, 1, 1, 2])
    assert place(agents[1:4:2], count=1, turn=0, avoid={"host-0"}) == [3]
    assert place(agents[4:], count=1, turn=0, avoid={"host-0"}) == [4]
    assert place(agents[1:2], count=1, turn=0, avoid={"host-0"}) == [1]


# Fairness


def shares(hosts: list[int], *, count: int, turns: range) -> list[int]:
    agents = agents_on(hosts)
    counts = Counter(slot for turn in turns for slot in place(agents, count=count, turn=turn))
    return [counts[slot] for slot in range(len(hosts))]


@given(st.integers(1, 6), st.integers(1, 4), st.data(), turns)
def test_agents_of_equal_hosts_get_equal_shares_over_a_round(
    hosts: int, each: int, data: st.DataObject, start: int
) -> None:
    """Also when the numbers of hosts and of agents on a host have a common factor."""
    cluster = list(range(hosts)) * each
    count = data.draw(st.integers(1, len(cluster)))
    first = start * len(cluster)
    found = shares(cluster, count=count, turns=range(first, first + len(cluster)))
    assert set(found) == {count}


@given(st.integers(1, 6), st.integers(1, 4), st.data(), st.integers(1, 60))
def test_at_any_moment_shares_differ_by_no_more_than_the_shards_of_one_stripe(
    hosts: int, each: int, data: st.DataObject, length: int
) -> None:
    cluster = list(range(hosts)) * each
    count = data.draw(st.integers(1, len(cluster)))
    found = shares(cluster, count=count, turns=range(length))
    assert max(found) - min(found) <= count


@given(st.integers(1, 9), st.data(), turns)
def test_every_agent_takes_every_role_equally_often_so_that_reads_are_shared_too(
    agents: int, data: st.DataObject, start: int
) -> None:
    """Data shards are read and parity shards are not."""
    count = data.draw(st.integers(1, agents))
    for cluster in [list(range(agents)), [0] * agents]:
        rows = [place(agents_on(cluster), count=count, turn=start + n) for n in range(agents)]
        for role in zip(*rows, strict=True):
            assert sorted(role) == list(range(agents))


# How wide


@given(st.integers(1, 24), st.integers(1, 8), st.integers(0, 40))
def test_a_stripe_has_all_its_parity_or_is_refused(m: int, k: int, alive: int) -> None:
    if alive < k + 1:
        with pytest.raises(TooFewAgents, match=f"{alive} agents are alive"):
            stripe_width(data_shards=m, parity_shards=k, alive=alive)
        return
    width = stripe_width(data_shards=m, parity_shards=k, alive=alive)
    assert 1 <= width <= m
    assert width + k <= alive
    assert width == m or width + k == alive, "narrower only as far as it must be"


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_k_losses_leave_room_for_a_protected_write_and_too_many_do_not(m: int, k: int) -> None:
    agents = agents_on(list(range(max(m + k, 2 * k + 1))))
    for lost in range(len(agents) + 1):
        for gone in combinations(agents, lost):
            left = [agent for agent in agents if agent not in gone]
            if len(left) < k + 1:
                with pytest.raises(TooFewAgents, match=f"needs {k + 1}"):
                    stripe_width(data_shards=m, parity_shards=k, alive=len(left))
                continue
            width = stripe_width(data_shards=m, parity_shards=k, alive=len(left))
            slots = place(left, count=width + k, turn=lost)
            assert len(set(slots)) == width + k
            assert lost > k or width >= min(m, k + 1, len(agents) - 2 * k)


@given(clusters, st.integers(0, 12), turns, st.lists(st.integers(0, 5), max_size=4))
def test_fewer_slots_are_the_first_of_more(
    hosts: list[int], count: int, turn: int, avoid: list[int]
) -> None:
    """Where each host gives one at most, the others are not even put in order."""
    agents, held = agents_on(hosts), [f"host-{host}" for host in avoid]
    most = place(agents, count=len(agents) + 1, turn=turn, avoid=held)
    assert place(agents, count=count, turn=turn, avoid=held) == most[:count]
