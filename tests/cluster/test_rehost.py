"""A slot that begins again elsewhere while its old life still runs, cut off from the others.

That is what a host looks like that was not dead but unreachable: Ray gives it up, its slot
is re-hosted, and then the network is back.
"""

import pytest

from diskless.agent.ports import Beat
from diskless.config import MIB
from diskless.errors import NoQuorum, NotLeader
from diskless.launch.local import LocalCluster
from diskless.model import Place
from diskless.namespace import queries as q
from diskless.node import Node
from tests.conftest import Connect, StartCluster
from tests.support import (
    STRIPED,
    content,
    eventually,
    leader,
    of_leader,
    on_loop,
    wait_until_down,
)

FIRST, LATER = content(3 * MIB, "first"), content(3 * MIB, "later")


def cut_off(cluster: LocalCluster, slot: int) -> Node:
    """An agent that is alive and reaches nobody, nor anybody it."""
    old = cluster.nodes.pop(slot)
    others = dict(cluster.nodes)

    def cut() -> None:
        old.faults.cut_off(others)
        for node in others.values():
            node.faults.cut_off([slot])

    on_loop(cluster, cut)
    wait_until_down(cluster, slot)
    return old


def heal_all(cluster: LocalCluster) -> None:
    """All but one that was cut off, which goes on reaching nobody."""
    for node in cluster.nodes.values():
        on_loop(cluster, node.faults.heal)


def reconnect(cluster: LocalCluster, old: Node) -> None:
    def heal() -> None:
        for node in [old, *cluster.nodes.values()]:
            node.faults.heal()

    on_loop(cluster, heal)


@pytest.mark.parametrize(
    "slot",
    [pytest.param(0, id="leader"), pytest.param(3, id="voter"), pytest.param(5, id="no voter")],
)
def test_an_old_life_that_returns_changes_nothing(
    start: StartCluster, connect: Connect, slot: int
) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    client.write("/a", FIRST)
    old = cut_off(cluster, slot)
    heal_all(cluster)  # the new life is reached by all
    cluster.revive(slot)
    new = cluster.nodes[slot]
    client.write("/a", LATER, overwrite=True)
    reconnect(cluster, old)
    try:
        for number in range(5):
            client.write(f"/after-{number}", LATER)
        eventually(lambda: client.status().margin == 2)
        agent = client.status().agents[slot]
        assert (agent.incarnation, agent.address) == (2, new.address)
        eventually(lambda: on_loop(cluster, lambda: believed(cluster, slot)) == {new.address})
        assert of_leader(cluster, places).isdisjoint({Place(slot, 1)})
        if slot < 5:  # it hears of its successor as soon as it says something
            eventually(lambda: on_loop(cluster, lambda: not old.replica.recovered))
            assert not old.replica.leads
        assert client.read("/a") == LATER
        assert all(client.read(f"/after-{number}") == LATER for number in range(5))
    finally:
        cluster.run(old.stop())


def test_a_leader_takes_no_news_from_one_that_it_has_replaced(start: StartCluster) -> None:
    """It beats all others and not itself: only its voter knows which view it is."""
    cluster = start()
    old = cut_off(cluster, 0)
    try:
        new = leader(cluster)
        heal_all(cluster)
        cluster.revive(0)
        where = cluster.nodes[0].address
        eventually(lambda: on_loop(cluster, lambda: new.roster.address_of(0)) == where)
        stale = Beat(
            leader=0,
            roster_version=old.replica.state.roster_version,
            roster=tuple(old.replica.state.agents.values()),
            inline_room=True,
            view=old.replica.view,
        )
        on_loop(cluster, lambda: new.member.pulse(stale))
        assert on_loop(cluster, lambda: new.roster.address_of(0)) == where
        assert on_loop(cluster, lambda: new.roster.leader) == new.slot
    finally:
        cluster.run(old.stop())


def test_a_leader_that_is_cut_off_leads_on_and_knows_that_it_may_decide_nothing(
    start: StartCluster,
) -> None:
    """Else it would give up agents that the majority hears."""
    cluster = start()
    eventually(lambda: on_loop(cluster, lambda: cluster.nodes[0].replica.leads_majority))
    assert not on_loop(cluster, lambda: cluster.nodes[1].replica.leads_majority)
    old = cut_off(cluster, 0)
    try:
        eventually(lambda: on_loop(cluster, lambda: not old.replica.leads_majority))
        assert old.replica.leads, "nobody can tell it otherwise"
        new = leader(cluster)
        eventually(lambda: on_loop(cluster, lambda: new.replica.leads_majority))
    finally:
        cluster.run(old.stop())


def test_a_leader_that_is_cut_off_does_not_say_that_a_file_is_not_there(
    start: StartCluster, connect: Connect
) -> None:
    """What others have acknowledged meanwhile it cannot know."""
    cluster = start()
    old = cut_off(cluster, 0)
    try:
        eventually(lambda: on_loop(cluster, lambda: not old.replica.leads_majority))
        connect(cluster).write("/new", b"1")
        assert old.replica.leads, "nobody can tell it otherwise"
        for query in (q.Stat("/new"), q.Open("/new"), q.Locate(("0.1.1",)), q.Page("/new", "", 1)):
            with pytest.raises((NotLeader, NoQuorum)):
                on_loop(cluster, lambda query=query: old.replica.answer(query))
    finally:
        cluster.run(old.stop())


def believed(cluster: LocalCluster, slot: int) -> set[str | None]:
    """Where the others think that a slot is."""
    return {
        where
        for other, node in cluster.nodes.items()
        if other != slot
        for where in (node.roster.address_of(slot), node.roster.agents[slot].address)
    }


def places(node: Node) -> set[Place]:
    """Where shards of files are; stripes that are freed are not repaired any more."""
    state = node.replica.state
    return {
        place
        for id_, entry in state.ledger.entries.items()
        if id_ not in state.ledger.freed_ms
        for place in entry.stripe.places
    }
