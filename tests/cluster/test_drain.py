"""Draining an agent: everything moves off it, whoever leads, and it can be taken away."""

from dataclasses import replace
from itertools import combinations

import pytest

from diskless.cli.drain import wait
from diskless.cli.meter import Meter
from diskless.config import KIB, MIB
from diskless.errors import BadRequest, TooFewAgents, TooFewShards
from diskless.launch.local import LocalCluster
from diskless.model import Place, Stripe
from tests.conftest import Connect, StartCluster
from tests.support import (
    STRIPED,
    ShardAt,
    content,
    eventually,
    kill,
    leader,
    on_loop,
    repair_once,
    shards_stored,
    stripes_of,
)

TUNING = replace(STRIPED, stripe_bytes=64 * KIB, orphan_delay_s=600.0)
"""No review of shards helps: what is moved away must be dropped by whoever moved it."""
FILES = {f"/{size}": content(size) for size in (1, 64 * KIB, MIB + 1, 3 * MIB)}


def slots_used(cluster: LocalCluster) -> set[int]:
    return {place.slot for path in FILES for s in stripes_of(cluster, path) for place in s.places}


def places_of(cluster: LocalCluster, path: str) -> list[Place]:
    return [place for stripe in stripes_of(cluster, path) for place in stripe.places]


def shard_at(cluster: LocalCluster, stripe: Stripe, index: int) -> ShardAt:
    return on_loop(cluster, lambda: ShardAt(cluster, stripe, index))


def shards_on(cluster: LocalCluster, slot: int) -> int:
    return on_loop(cluster, lambda: len(cluster.nodes[slot].storage.shards))


@pytest.mark.parametrize("agents", [6, 8], ids=["no spares", "spares"])
def test_a_drained_agent_can_be_lost_for_nothing(
    start: StartCluster, connect: Connect, agents: int
) -> None:
    """Without spares stripes become narrower; undone, they become as wide as before."""
    cluster = start(agents=agents, tuning=TUNING)
    client = connect(cluster)
    for path, data in FILES.items():
        client.write(path, data)
    assert 5 in slots_used(cluster)
    assert client.drain(5)
    assert not client.drain(5)
    eventually(lambda: 5 not in slots_used(cluster))
    eventually(lambda: shards_on(cluster, 5) == 0)
    status = client.status()
    assert (status.agents[5].state, status.agents[5].shards_placed) == ("draining", 0)
    assert status.margin == 2
    client.write("/new", content(MIB))
    assert shards_on(cluster, 5) == 0
    kill(cluster, 5)
    assert client.status().margin == 2
    for path, data in FILES.items():
        assert client.read(path) == data
    cluster.revive(5)
    assert client.status().agents[5].state == "draining"
    client.drain(5, undo=True)
    width = {4}
    eventually(lambda: {s.data_shards for p in FILES for s in stripes_of(cluster, p)} == width)
    total = sum(len(s.places) for p in (*FILES, "/new") for s in set(stripes_of(cluster, p)))
    eventually(lambda: shards_stored(cluster) <= total)


def test_a_drain_goes_on_under_the_next_leader(start: StartCluster, connect: Connect) -> None:
    cluster = start(agents=8, tuning=replace(TUNING, repair_interval_s=3600.0))
    client = connect(cluster)
    for path, data in FILES.items():
        client.write(path, data)
    client.drain(7)
    old = leader(cluster).slot
    cluster.kill(old)
    cluster.revive(old)
    assert leader(cluster).slot != old

    def drained() -> bool:
        repair_once(cluster)
        return 7 not in slots_used(cluster)

    eventually(drained)
    for path, data in FILES.items():
        assert client.read(path) == data


def test_no_more_agents_are_drained_than_writes_can_do_without(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=TUNING)
    client = connect(cluster)
    for slot in (3, 4, 5):
        client.drain(slot)
    for slot in (0, 1, 2):
        with pytest.raises(TooFewAgents, match="2 agents would be left"):
            client.drain(slot)
    client.write("/a", content(MIB))
    assert {place.slot for s in stripes_of(cluster, "/a") for place in s.places} == {0, 1, 2}
    with pytest.raises(BadRequest, match="agent-77 has never joined"):
        client.drain(77)


def test_a_drain_waits_for_what_is_lost_to_be_rebuilt(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=8, tuning=TUNING)
    client = connect(cluster)
    for path, data in FILES.items():
        client.write(path, data)
    client.drain(6)
    kill(cluster, 5, 7)
    cluster.revive(5, 7)
    eventually(lambda: 6 not in slots_used(cluster))
    eventually(lambda: client.status().margin == 2)
    for lost in combinations((5, 6, 7), 2):
        kill(cluster, *lost)
        for path, data in FILES.items():
            assert client.read(path) == data
        cluster.revive(*lost)
        eventually(lambda: client.status().margin == 2)


def test_a_flipped_bit_that_nobody_has_noticed_is_not_moved_with_its_shard(
    start: StartCluster, connect: Connect
) -> None:
    """A shard that is moved gets new checksums: nobody could notice it afterwards."""
    cluster = start(agents=7, tuning=replace(TUNING, scrub_bytes_per_s=1))
    client = connect(cluster)
    client.write("/a", content(64 * KIB))
    for index in range(6):
        (stripe,) = stripes_of(cluster, "/a")
        shard = shard_at(cluster, stripe, index)
        shard.flip(8 * (len(shard.data) // 2))
        slot = stripe.places[index].slot
        client.drain(slot)
        eventually(lambda slot=slot: slot not in {p.slot for p in places_of(cluster, "/a")})
        assert shard_at(cluster, *stripes_of(cluster, "/a"), index).data == shard.data
        client.drain(slot, undo=True)
    assert client.read("/a") == content(64 * KIB)


def test_waiting_for_a_drain_ends_when_what_is_left_is_lost(
    start: StartCluster, connect: Connect
) -> None:
    """Nobody can move a shard of a stripe that has too few: waiting for it never ended."""
    cluster = start(agents=9, tuning=TUNING)
    client = connect(cluster)
    for path, data in FILES.items():
        client.write(path, data)
    kill(cluster, 6, 7, 8)
    cluster.revive(6, 7, 8)
    eventually(lambda: client.status().repair.lost > 0)
    (holder, *_) = {
        place.slot
        for entry in leader(cluster).replica.state.ledger.entries.values()
        if {6, 7, 8} <= {place.slot for place in entry.stripe.places}
        for place in entry.stripe.places
    } - {6, 7, 8}
    client.drain(holder)
    with pytest.raises(TooFewShards, match=r"shards stay .* lost: .*delete"):
        wait(client, holder, Meter("", enabled=False), stalled_s=2.5)
    client.drain(holder, undo=True)
