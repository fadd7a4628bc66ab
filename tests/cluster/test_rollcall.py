"""The margin is a statement about what is there: shards that are gone without anybody having
noticed are found by the leader, counted, and made again."""

from dataclasses import replace
from itertools import combinations

import pytest

from diskless.config import KIB, MIB
from diskless.errors import TooFewShards
from diskless.launch.local import LocalCluster
from diskless.model import Stripe
from diskless.node import Node
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    content,
    eventually,
    is_whole,
    kill,
    leader,
    of_leader,
    on_loop,
    stripes_of,
)

K = 2
SMALL = replace(STRIPED, stripe_bytes=64 * KIB)
QUIET = replace(CALM, stripe_bytes=64 * KIB)
DATA = content(2 * MIB)


def forget(cluster: LocalCluster, stripes: list[Stripe], *slots: int) -> list[int]:
    """Agents lose their shards of these stripes, all at once, and do not know it; how many each."""
    ids = [stripe.id for stripe in stripes]
    return on_loop(
        cluster, lambda: [cluster.nodes[slot].storage.shards.drop(ids) for slot in slots]
    )


def is_complete(cluster: LocalCluster) -> bool:
    """Whether all shards are where the namespace says."""

    def look(node: Node) -> bool:
        return all(
            cluster.nodes[place.slot].storage.shards.has(id_, index)
            for id_, entry in node.replica.state.ledger.entries.items()
            for index, place in enumerate(entry.stripe.places)
        )

    return of_leader(cluster, look)


@pytest.mark.parametrize("lost", list(combinations(range(6), K)), ids=str)
def test_what_k_agents_have_silently_lost_is_found_and_made_again(
    start: StartCluster, connect: Connect, lost: tuple[int, ...]
) -> None:
    cluster = start(tuning=SMALL)
    client = connect(cluster)
    client.write("/a", DATA)
    stripes = stripes_of(cluster, "/a")
    assert all(forget(cluster, stripes[1::2], *lost))
    eventually(lambda: is_complete(cluster) and is_whole(client, 6))
    others = [slot for slot in range(6) if slot not in lost][:K]
    kill(cluster, *others)
    assert client.read("/a") == DATA


def test_what_more_than_k_have_silently_lost_is_told_and_reads_of_it_fail_loudly(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=SMALL)
    client = connect(cluster)
    client.write("/a", DATA)
    client.write("/b", DATA)
    forget(cluster, stripes_of(cluster, "/a"), *range(K + 1))
    eventually(lambda: client.status().stripes.lost == len(stripes_of(cluster, "/a")))
    assert client.status().margin < 0
    with pytest.raises(TooFewShards):
        client.read("/a")
    assert client.read("/b") == DATA


def test_a_shard_that_nobody_asks_for_costs_margin_as_soon_as_the_roll_is_called(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=QUIET)
    client = connect(cluster)
    client.write("/a", DATA)
    forget(cluster, stripes_of(cluster, "/a")[:1], 5)
    assert client.status().margin == K, "nobody can know yet"
    cluster.run(leader(cluster).leading.rollcall.call_next())
    eventually(lambda: client.status().margin == K - 1)
    assert client.status().damaged_shards == 1


def test_the_roll_is_called_at_once_where_fewer_shards_are_than_are_named(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=QUIET)
    client = connect(cluster)
    client.write("/a", DATA)
    node = leader(cluster)
    rollcall, health = node.leading.rollcall, node.replica.state.health
    assert on_loop(cluster, rollcall.short) == [], "what was just written may not be heard of yet"

    def heard() -> bool:
        pulses = node.leading.monitor.pulses
        return all(pulses[slot].shards == health.shards_placed[slot] for slot in range(6))

    eventually(lambda: on_loop(cluster, heard))
    assert on_loop(cluster, rollcall.short) == []
    forget(cluster, stripes_of(cluster, "/a"), 3)
    eventually(lambda: on_loop(cluster, rollcall.short) == [3])
    assert on_loop(cluster, rollcall.short) == [], "once, for a while"


def test_shards_that_are_there_or_belong_to_another_life_are_not_missed(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=QUIET)
    client = connect(cluster)
    client.write("/a", DATA)
    client.write("/gone", DATA)
    client.delete("/gone")
    kill(cluster, 4)
    cluster.revive(4)
    eventually(lambda: client.status().agents[4].state == "up")
    rollcall = leader(cluster).leading.rollcall
    for _ in range(3):
        cluster.run(rollcall.call_next())
    assert on_loop(cluster, rollcall.short) == []
    assert not any(
        on_loop(cluster, lambda node=node: node.storage.shards.damaged(limit=1))
        for node in cluster.nodes.values()
    )
