"""Planning a repair: what counts as lost, what comes first, and where shards go."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from diskless.model import AgentInfo, Place, Stripe
from diskless.namespace.roster import LAPSES_PER_SLOT_MAX, Roster
from diskless.placement import place
from diskless.repair import (
    Cluster,
    RepairPlan,
    Single,
    choose_targets,
    diagnose,
    overdue,
    spread_out,
    unsteady,
)
from tests.unit.test_namespace_world import agent_up

M, K = 4, 2
TOTAL = M + K


def agent(slot: int, *, life: int = 1, host: str | None = None) -> AgentInfo:
    return AgentInfo(slot, life, "b", "a", "g", "s", host or f"host-{slot}", "n", 1)


def cluster_of(agents: int = TOTAL, m: int = M, k: int = K) -> Cluster:
    return Cluster(
        agents={slot: agent(slot) for slot in range(agents)}, data_shards=m, parity_shards=k
    )


def with_agent(cluster: Cluster, slot: int, **changes: object) -> Cluster:
    changed = altered(cluster.agents[slot], **changes)
    return replace(cluster, agents={**cluster.agents, slot: changed})


def dead(cluster: Cluster, *slots: int) -> Cluster:
    """Down beyond the delay."""
    for slot in slots:
        cluster = with_agent(cluster, slot, up=False, down_ms=1)
    return replace(cluster, gone={*cluster.gone, *slots})


def restarted(cluster: Cluster, *slots: int) -> Cluster:
    for slot in slots:
        cluster = with_agent(cluster, slot, incarnation=2)
    return cluster


def stripe_on(*slots: int, id_: str = "0.1.1", m: int | None = None) -> Stripe:
    m = len(slots) - K if m is None else m
    return Stripe(id_, m, len(slots) - m, 1000, tuple(Place(slot, 1) for slot in slots))


def plan_repair(stripes: Iterable[Stripe], cluster: Cluster) -> RepairPlan:
    """The plan for `stripes`, in the order in which they were defined, each judged by itself.
    The leader plans by groups of stripes (`namespace/survey.py`)."""
    plan = RepairPlan(cluster)
    for number, stripe in enumerate(stripes):
        plan.add(Single(stripe, number))
    return plan


def erasures(total: int) -> Iterator[tuple[int, ...]]:
    return (lost for count in range(total + 1) for lost in combinations(range(total), count))


# Every erasure set


@pytest.mark.parametrize(("m", "k"), [(4, 2), (2, 1), (1, 2), (3, 3)])
@pytest.mark.parametrize("spares", [0, 1, 3])
def test_every_erasure_set_is_rebuilt_or_known_to_be_lost(m: int, k: int, spares: int) -> None:
    """The dead come back empty, or they do not: then only spares can take their shards."""
    total = m + k
    stripe = stripe_on(*range(total), m=m)
    for lost, back in product(erasures(total), (True, False)):
        cluster = cluster_of(total + spares, m, k)
        cluster = restarted(cluster, *lost) if back else dead(cluster, *lost)
        plan = plan_repair([stripe], cluster)
        if not lost:
            assert plan.is_empty
            assert list(plan.lost) == list(plan.waiting) == list(plan.stuck) == []
        elif len(lost) > k:
            assert (list(plan.lost), plan.is_empty) == ([stripe.id], True)
        elif back or spares:
            assert list(plan.rebuild) == [stripe.id]
            targets = choose_targets(stripe, cluster)
            assert set(targets) <= set(lost)
            assert len(targets) == min(len(lost), len(lost) if back else spares)
            check_targets(stripe, cluster, targets)
        else:
            left = total - len(lost)
            assert list(plan.reshape) == ([stripe.id] if left - k >= 1 else [])
            assert list(plan.stuck) == ([] if left - k >= 1 else [stripe.id])


def check_targets(stripe: Stripe, cluster: Cluster, targets: dict[int, int]) -> None:
    """After the move every shard is on its own agent, and the moved ones on takers."""
    takers = {taker.slot for taker in cluster.takers}
    assert set(targets.values()) <= takers
    slots = [targets.get(index, place.slot) for index, place in enumerate(stripe.places)]
    shards = diagnose(stripe, cluster)
    kept = [slots[i] for i in {*shards.sound, *shards.away, *targets}]
    assert len(set(kept)) == len(kept)


def check_spread(stripe: Stripe, cluster: Cluster, targets: dict[int, int]) -> None:
    """No host is left with two more shards than one that could take one of them; nothing is
    moved in vain, and nothing twice."""
    slots = [targets.get(index, place.slot) for index, place in enumerate(stripe.places)]
    shards_on = Counter(cluster.agents[slot].host for slot in slots)
    fullest = max(shards_on.values())
    for taker in cluster.prompt_takers:
        if taker.slot not in slots:
            assert fullest - shards_on[taker.host] < 2
    for index, slot in targets.items():
        left = cluster.agents[stripe.places[index].slot].host
        assert left != cluster.agents[slot].host
    lives = [Place(slot, cluster.agents[slot].incarnation) for slot in slots]
    moved = altered(stripe, places=tuple(lives))
    assert choose_targets(moved, cluster) == {}


fates = st.lists(
    st.sampled_from(["up", "up", "restarted", "away", "gone", "draining", "ending", "slow"]),
    min_size=1,
    max_size=10,
)


@given(fates, st.data(), st.integers(0, 10**6))
def test_whatever_became_of_the_agents_a_plan_is_sound(
    fate: list[str], data: st.DataObject, turn: int
) -> None:
    hosts = data.draw(st.lists(st.integers(0, 3), min_size=len(fate), max_size=len(fate)))
    cluster = Cluster(
        agents={slot: agent(slot, host=f"host-{hosts[slot]}") for slot in range(len(fate))},
        data_shards=M,
        parity_shards=K,
        unfit=frozenset(data.draw(st.sets(st.integers(0, len(fate) - 1)))),
    )
    for slot, what in enumerate(fate):
        match what:
            case "restarted":
                cluster = restarted(cluster, slot)
            case "away":
                cluster = with_agent(cluster, slot, up=False, down_ms=1)
            case "gone":
                cluster = dead(cluster, slot)
            case "draining":
                cluster = with_agent(cluster, slot, draining=True)
            case "ending":
                cluster = with_agent(cluster, slot, ends_ms=1)
            case "slow":
                cluster = with_agent(cluster, slot, slow=True)
    slots = data.draw(st.permutations(range(len(fate))))[: data.draw(st.integers(1, len(fate)))]
    m = data.draw(st.integers(1, len(slots)))
    stripe = stripe_on(*slots, m=m)
    bad = data.draw(st.sets(st.integers(0, len(slots) - 1)))
    cluster = replace(cluster, damaged=frozenset((stripe.id, index) for index in bad))
    shards = diagnose(stripe, cluster)
    every = shards.sound + shards.leaving + shards.away + shards.missing
    assert sorted(every) == list(range(len(slots)))
    for index in shards.readable:
        holder = cluster.agents[slots[index]]
        assert holder.up
        assert holder.incarnation == 1
        assert index not in bad
    targets = choose_targets(stripe, cluster, turn=turn)
    if len(shards.sound) == len(slots):
        check_spread(stripe, cluster, targets)
    else:
        assert set(targets) <= {*shards.missing, *shards.leaving}
    check_targets(stripe, cluster, targets)
    plan = plan_repair([stripe], cluster)
    named = [*plan.rebuild, *plan.reshape, *plan.lost, *plan.waiting, *plan.stuck]
    assert named in ([], [stripe.id])
    if not named:
        assert shards.sound == tuple(range(len(slots)))
    assert list(plan.lost) == ([stripe.id] if len(shards.readable + shards.away) < m else [])
    if plan.rebuild or plan.reshape:
        assert len(shards.readable) >= m


@given(st.integers(0, 5), st.integers(0, 10**6))
def test_a_repaired_stripe_has_nothing_left_to_do(spares: int, turn: int) -> None:
    stripe = stripe_on(*range(TOTAL))
    for lost in combinations(range(TOTAL), K):
        cluster = restarted(cluster_of(TOTAL + spares), *lost)
        targets = choose_targets(stripe, cluster, turn=turn)
        places = [
            Place(targets[i], cluster.agents[targets[i]].incarnation) if i in targets else place
            for i, place in enumerate(stripe.places)
        ]
        after = altered(stripe, places=tuple(places), version=1)
        plan = plan_repair([after], cluster)
        assert plan.is_empty
        assert list(plan.lost) == list(plan.waiting) == list(plan.stuck) == []


# Down is not lost


def test_an_agent_that_is_down_keeps_its_shards_until_it_is_given_up() -> None:
    stripe = stripe_on(*range(TOTAL))
    away = with_agent(cluster_of(8), 3, up=False, down_ms=1000)
    assert list(plan_repair([stripe], away).waiting) == [stripe.id]
    assert not choose_targets(stripe, away)
    for elapsed_ms, given_up in [(1000, set()), (10_999, set()), (11_000, {3})]:
        assert overdue(away.agents, elapsed_ms=elapsed_ms, delay_s=10.0) == given_up
    assert list(plan_repair([stripe], replace(away, gone={3})).rebuild) == [stripe.id]


def test_an_agent_that_is_up_is_never_overdue() -> None:
    assert not overdue({0: agent(0)}, elapsed_ms=10**9, delay_s=1.0)


def test_with_too_few_left_it_waits_for_those_that_may_return() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = restarted(cluster_of(), 0, 1)
    away = with_agent(cluster, 2, up=False, down_ms=1)
    assert list(plan_repair([stripe], away).waiting) == [stripe.id]
    assert list(plan_repair([stripe], dead(cluster, 2)).lost) == [stripe.id]


def test_a_stripe_without_targets_waits_for_an_agent_that_may_return() -> None:
    """Rather than be encoded anew, for nothing, a moment before it is back."""
    stripe = stripe_on(*range(TOTAL))
    cluster = with_agent(cluster_of(TOTAL + 1), TOTAL, up=False, down_ms=1)
    cluster = dead(cluster, 2)
    assert list(plan_repair([stripe], cluster).waiting) == [stripe.id]
    assert list(plan_repair([stripe], dead(cluster, TOTAL)).reshape) == [stripe.id]


# Agents that come and go


def test_an_agent_is_unsteady_after_three_lapses_in_ten_minutes_and_until_they_are_past() -> None:
    lapses = {0: [1000], 1: [1000, 2000, 500_000], 2: [500_000, 500_000, 500_000], 3: []}
    for elapsed_ms, found in [
        (500_000, {1, 2}), (600_999, {1, 2}), (601_000, {2}), (1_099_999, {2}), (1_100_000, set()),
    ]:  # fmt: skip
        assert unsteady(lapses, elapsed_ms=elapsed_ms) == found


def test_lapses_are_downs_new_lives_and_slow_spells_each_once() -> None:
    roster = Roster()
    roster.up(agent_up(0, "a"), elapsed_ms=10)
    roster.up(agent_up(0, "a"), elapsed_ms=20)
    assert not roster.lapses
    roster.down(0, 1, elapsed_ms=30)
    roster.down(0, 1, elapsed_ms=31)
    roster.up(agent_up(0, "a"), elapsed_ms=40)  # the same life is back
    assert [*roster.lapses[0]] == [30]
    roster.up(agent_up(0, "b"), elapsed_ms=50)  # another, and nobody saw the first one end
    roster.slow(0, 2, True, elapsed_ms=60)
    roster.slow(0, 2, True, elapsed_ms=61)
    roster.slow(0, 2, False, elapsed_ms=70)
    assert [*roster.lapses[0]] == [30, 50, 60]
    roster.down(0, 2, elapsed_ms=80)
    roster.up(agent_up(0, "c"), elapsed_ms=90)
    assert [*roster.lapses[0]] == [30, 50, 60, 80]
    for n in range(100):
        roster.slow(0, 3, n % 2 == 0, elapsed_ms=100 + n)
    assert len(roster.lapses[0]) == LAPSES_PER_SLOT_MAX


def test_unsteady_agents_get_shards_only_if_no_other_can_take_them() -> None:
    """Also the one that has returned without its own: it may be gone again soon."""
    stripe = stripe_on(*range(TOTAL))
    cluster = replace(restarted(cluster_of(8), 2), unsteady={2, 6})
    assert choose_targets(stripe, cluster) == {2: 7}
    assert choose_targets(stripe, with_agent(cluster, 7, draining=True)) == {2: 2}
    assert choose_targets(stripe, with_agent(cluster, 7, slow=True)) == {2: 2}
    alone = replace(dead(cluster_of(7), 2), unsteady={6})
    assert choose_targets(stripe, alone) == {2: 6}
    slow = with_agent(replace(dead(cluster_of(7), 2), unsteady={6}), 6, slow=True)
    assert choose_targets(stripe, slow) == {2: 6}


# Order


def test_the_smallest_margin_comes_first_then_the_newest() -> None:
    cluster = restarted(cluster_of(12), 0, 1)
    stripes = [
        stripe_on(0, 2, 3, 4, 5, 6, id_="one lost, old"),
        stripe_on(0, 1, 2, 3, 4, 5, id_="two lost, old"),
        stripe_on(2, 3, 4, 5, 6, 7, id_="well"),
        stripe_on(1, 2, 3, 4, 5, 6, id_="one lost, new"),
        stripe_on(1, 0, 7, 8, 9, 10, id_="two lost, new"),
    ]
    assert list(plan_repair(stripes, cluster).rebuild) == [
        "two lost, new", "two lost, old", "one lost, new", "one lost, old",
    ]  # fmt: skip


def test_what_only_leaves_a_draining_agent_comes_last() -> None:
    cluster = with_agent(restarted(cluster_of(10), 0), 1, draining=True)
    stripes = [
        stripe_on(0, 2, 3, 4, 5, 6, id_="lost"),
        stripe_on(1, 2, 3, 4, 5, 6, id_="leaving"),
    ]
    assert list(plan_repair(stripes, cluster).rebuild) == ["lost", "leaving"]


# Where


def test_a_rebuilt_shard_goes_to_another_failure_domain_where_there_is_one() -> None:
    agents = {slot: agent(slot, host=f"host-{slot // 2}") for slot in range(16)}
    stripe = stripe_on(0, 2, 4, 6, 8, 10)
    for turn in range(40):
        cluster = Cluster(agents=agents, data_shards=M, parity_shards=K, gone={0})
        cluster = with_agent(cluster, 0, up=False, down_ms=1)
        (slot,) = choose_targets(stripe, cluster, turn=turn).values()
        assert agents[slot].host not in {f"host-{n}" for n in (1, 2, 3, 4, 5)}


def test_shards_that_had_to_share_a_host_leave_it_when_another_is_back() -> None:
    """Three hosts with two agents each and 2+1: the first was gone for a while."""
    agents = {slot: agent(slot, host=f"host-{slot // 2}") for slot in range(6)}
    cluster = Cluster(agents=agents, data_shards=2, parity_shards=1)
    stripe = stripe_on(2, 3, 4, m=2)
    assert list(plan_repair([stripe], cluster).rebuild) == [stripe.id]
    targets = [choose_targets(stripe, cluster, turn=turn) for turn in range(6)]
    assert {slot for target in targets for slot in target.values()} == {0, 1}, "both in turn"
    assert all(len(target) == 1 and set(target) <= {0, 1} for target in targets)
    for unfit in ({0, 1}, {0, 1, 5}):
        full = replace(cluster, unfit=frozenset(unfit))
        assert plan_repair([stripe], full).is_empty, "nowhere to go to: it stays"


def test_shards_that_must_share_hosts_stay_where_they_are() -> None:
    agents = {slot: agent(slot, host=f"host-{slot % 3}") for slot in range(9)}
    cluster = Cluster(agents=agents, data_shards=M, parity_shards=K)
    assert plan_repair([stripe_on(0, 1, 2, 3, 4, 5)], cluster).is_empty
    (moved,) = choose_targets(stripe_on(0, 3, 6, 1, 4, 2), cluster)
    assert moved in (0, 1, 2)


def test_on_one_host_or_with_a_host_for_each_agent_nothing_is_spread_out() -> None:
    for host in ("here", None):
        agents = {slot: agent(slot, host=host) for slot in range(9)}
        cluster = Cluster(agents=agents, data_shards=M, parity_shards=K)
        assert plan_repair([stripe_on(0, 1, 2, 3, 4, 5)], cluster).is_empty


def test_shards_that_must_leave_an_agent_go_before_those_that_are_only_spread_out() -> None:
    agents = {slot: agent(slot, host=f"host-{slot % 6}") for slot in range(12)}
    cluster = Cluster(agents=agents, data_shards=M, parity_shards=K)
    leaving = stripe_on(0, 1, 2, 3, 4, 5, id_="leaving")
    crowded = stripe_on(1, 7, 2, 8, 3, 9, id_="crowded")
    plan = plan_repair([leaving, crowded], with_agent(cluster, 0, draining=True))
    assert list(plan.rebuild) == ["leaving", "crowded"]


def test_nothing_is_spread_out_onto_a_slow_agent() -> None:
    """It is only worth the trouble where a shard is read as quickly as before."""
    agents = {slot: agent(slot, host=f"host-{slot % 6}") for slot in range(12)}
    cluster = Cluster(agents=agents, data_shards=M, parity_shards=K)
    crowded = stripe_on(1, 7, 2, 8, 3, 9)
    free = {slot for slot in agents if slot not in (1, 7, 2, 8, 3, 9)}
    assert spread_out(crowded, cluster)
    for slow in free:
        targets = spread_out(crowded, with_agent(cluster, slow, slow=True))
        assert targets
        assert slow not in targets.values()
    for slow in free:
        cluster = with_agent(cluster, slow, slow=True)
    assert spread_out(crowded, cluster) == {}


@given(
    st.lists(st.integers(0, 3), min_size=TOTAL, max_size=12),
    st.sets(st.integers(0, TOTAL - 1), min_size=1, max_size=K),
    st.integers(0, 100),
)
def test_what_was_rebuilt_need_not_be_spread_out_after_that(
    hosts: list[int], lost: set[int], turn: int
) -> None:
    agents = {slot: agent(slot, host=f"host-{host}") for slot, host in enumerate(hosts)}
    cluster = Cluster(agents=agents, data_shards=M, parity_shards=K)
    slots = place(agents.values(), count=TOTAL, turn=turn)
    stripe = stripe_on(*slots)
    cluster = dead(cluster, *(slots[index] for index in lost))
    targets = choose_targets(stripe, cluster, turn=turn)
    left = [targets.get(index, slot) for index, slot in enumerate(slots)]
    if len(targets) == len(lost):
        assert spread_out(stripe_on(*left), cluster) == {}


def test_the_host_of_a_shard_that_may_come_back_is_avoided_too() -> None:
    """Else both would be lost with that host once it is back."""
    hosts = {6: "host-5", 7: "host-7"}
    agents = {slot: agent(slot, host=hosts.get(slot)) for slot in range(8)}
    cluster = dead(Cluster(agents=agents, data_shards=M, parity_shards=K), 0)
    cluster = with_agent(cluster, 5, up=False, down_ms=1)
    for turn in range(9):
        assert choose_targets(stripe_on(*range(TOTAL)), cluster, turn=turn) == {0: 7}


def test_rebuilt_shards_are_shared_out_among_the_spares() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = dead(cluster_of(TOTAL + 4), 0, 1)
    used = {s for turn in range(20) for s in choose_targets(stripe, cluster, turn=turn).values()}
    assert used == {6, 7, 8, 9}


def test_an_agent_that_returned_gets_back_what_it_held() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = restarted(dead(cluster_of(TOTAL + 3), 4), 1, 3)
    for turn in range(9):
        targets = choose_targets(stripe, cluster, turn=turn)
        assert (targets[1], targets[3]) == (1, 3)
        assert targets[4] >= TOTAL


def test_a_damaged_shard_is_replaced_where_it_lies() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = replace(cluster_of(TOTAL + 3), damaged={(stripe.id, 2), ("9.9.9", 1)})
    assert list(plan_repair([stripe], cluster).rebuild) == [stripe.id]
    assert choose_targets(stripe, cluster, turn=5) == {2: 2}
    draining = with_agent(cluster, 2, draining=True)
    assert choose_targets(stripe, draining)[2] >= TOTAL


def test_more_damaged_shards_than_parity_are_a_loss() -> None:
    stripe = stripe_on(*range(TOTAL))
    damaged = frozenset((stripe.id, index) for index in range(K + 1))
    assert list(plan_repair([stripe], replace(cluster_of(), damaged=damaged)).lost) == [stripe.id]


# Slow agents


def test_a_slow_agent_keeps_its_shards_and_gets_no_others() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = with_agent(cluster_of(TOTAL + 2), TOTAL, slow=True)
    assert plan_repair([stripe], with_agent(cluster, 0, slow=True)).is_empty
    for turn in range(20):
        assert choose_targets(stripe, dead(cluster, 3), turn=turn) == {3: TOTAL + 1}


def test_a_slow_agent_gets_a_shard_that_nobody_else_can_take() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = dead(with_agent(cluster_of(TOTAL + 1), TOTAL, slow=True), 3)
    assert choose_targets(stripe, cluster) == {3: TOTAL}
    assert list(plan_repair([stripe], cluster).rebuild) == [stripe.id]
    damaged = replace(with_agent(cluster_of(), 2, slow=True), damaged={(stripe.id, 2)})
    assert choose_targets(stripe, damaged) == {2: 2}


def test_shards_that_lost_two_agents_go_to_the_quick_one_first() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = dead(with_agent(cluster_of(TOTAL + 2), TOTAL, slow=True), 1, 3)
    for turn in range(20):
        assert set(choose_targets(stripe, cluster, turn=turn).values()) == {TOTAL, TOTAL + 1}
    one = replace(cluster, gone={1, 3}, unfit={TOTAL + 1})
    assert set(choose_targets(stripe, one).values()) == {TOTAL}


def test_nothing_is_widened_onto_a_slow_agent() -> None:
    narrow = stripe_on(0, 1, 2, 3, 4)
    slow = with_agent(cluster_of(), 5, slow=True)
    assert slow.width == M - 1
    assert plan_repair([narrow], slow).is_empty
    assert list(plan_repair([narrow], with_agent(slow, 5, slow=False)).reshape) == [narrow.id]


def test_slow_agents_count_if_there_are_too_few_others() -> None:
    cluster = cluster_of(K + 2, m=2)
    for slot in range(2):
        cluster = with_agent(cluster, slot, slow=True)
    assert cluster.width == 2


# Shapes


def test_narrow_stripes_are_widened_only_when_all_their_agents_are_there() -> None:
    narrow = stripe_on(0, 1, 2, 3, 4)
    assert narrow.data_shards == 3
    assert list(plan_repair([narrow], cluster_of()).reshape) == [narrow.id]
    for cluster in (dead(cluster_of(), 5), with_agent(cluster_of(), 5, draining=True)):
        assert plan_repair([narrow], cluster).is_empty


def test_a_drained_agent_without_spares_makes_stripes_narrower() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = with_agent(cluster_of(), 2, draining=True)
    assert list(plan_repair([stripe], cluster).reshape) == [stripe.id]
    assert list(plan_repair([stripe], with_agent(cluster_of(7), 2, draining=True)).rebuild) == [
        stripe.id
    ]


def test_a_stripe_is_stuck_when_every_agent_that_could_take_its_shard_is_full() -> None:
    stripe = stripe_on(*range(TOTAL))
    cluster = replace(restarted(cluster_of(), 3), unfit={3})
    assert list(plan_repair([stripe], cluster).stuck) == [stripe.id]
