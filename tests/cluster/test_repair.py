"""What dies is rebuilt: after any k losses everything survives any k losses again.

Repair runs when a test says so (CALM) where it must see each step, and by itself (QUICK)
where it must see that it happens. Stripes are small here, so that there are many.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import msgspec
import pytest

from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import TooFewShards
from diskless.launch.local import LocalCluster
from diskless.model import HeldShard, Stripe
from diskless.namespace.ledger import Verdict
from diskless.node import Node
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    Relay,
    ShardAt,
    content,
    eventually,
    hidden_shards,
    kill,
    leader,
    of_leader,
    on_loop,
    repair_once,
    shards_stored,
    stripes_of,
    wait_until_down,
)

K = 2
SMALL = replace(CALM, stripe_bytes=64 * KIB, repair_delay_s=0.2)
QUICK = replace(SMALL, repair_interval_s=0.05)
FILES = {f"/{size}": content(size) for size in (1, 100, 20 * KIB, 64 * KIB, 1_000_003, 3 * MIB)}


def load(client: Client, files: dict[str, bytes] = FILES) -> None:
    for path, data in files.items():
        client.write(path, data)


def check_reads(client: Client, files: dict[str, bytes] = FILES) -> None:
    for path, data in files.items():
        assert client.read(path) == data, path


def all_stripes(cluster: LocalCluster) -> list[Stripe]:
    replica = leader(cluster).replica
    return on_loop(cluster, lambda: [e.stripe for e in replica.state.ledger.entries.values()])


def repair(cluster: LocalCluster, client: Client, *, margin: int = K) -> None:
    """Has the leader repair until everything survives that many losses."""

    def protected() -> bool:
        repair_once(cluster)
        return bool(client.status().margin == margin)

    eventually(protected)


def shard_bytes(cluster: LocalCluster) -> int:
    """What all shards take, without the namespace that voters keep beside them."""
    nodes = cluster.nodes.values()
    return on_loop(cluster, lambda: sum(n.storage.shards.bytes_used for n in nodes))


def wait_protected(client: Client) -> None:
    eventually(lambda: client.status().margin == K)


def lose(cluster: LocalCluster, *slots: int) -> None:
    """Agents die and come back with nothing."""
    kill(cluster, *slots)
    cluster.revive(*slots)


# What can be spared


@pytest.mark.parametrize("lost", [(3, 5), (3, 4, 5)], ids=["k", "k+1"])
def test_agents_can_be_spared_if_nothing_is_lost_without_them_and_that_was_looked_at(
    start: StartCluster, connect: Connect, lost: tuple[int, ...]
) -> None:
    cluster = start(tuning=replace(SMALL, repair_delay_s=600.0))
    load(connect(cluster))

    def spared(*slots: int) -> bool:
        node = leader(cluster)
        return on_loop(cluster, lambda: node.leading.repairer.can_spare(frozenset(slots)))

    def look() -> int:
        """Without repairing anything."""
        repairer = leader(cluster).leading.repairer
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(repairer, "_rebuild", _nothing)
            patch.setattr(repairer, "_reshape", _nothing)
            cluster.run(repairer.repair())
        return repairer.progress.lost

    look()
    assert spared()
    kill(cluster, *lost)
    look()
    assert not spared(), "they may come back"
    assert not spared(*lost), "they may come back"
    overdue = frozenset(lost)  # as if the delay were over
    of_leader(cluster, lambda node: setattr(node.leading.repairer, "_overdue", lambda: overdue))
    assert of_leader(cluster, lambda node: node.leading.repairer._look().gone)
    assert not spared(*lost), "nobody has looked since"
    eventually(lambda: look() or spared(*lost))
    assert spared(*lost) == (len(lost) <= K)
    assert not spared(3)


async def _nothing(*_: object) -> bool:
    return False


# Every pair


@pytest.mark.timeout(240)
def test_any_two_losses_are_repaired_and_then_any_two_others_survived(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=SMALL)
    client = connect(cluster)
    files = {f"/{size}": content(size) for size in (1, 20 * KIB, 64 * KIB, 300_001)}
    load(client, files)
    used, shards = shard_bytes(cluster), shards_stored(cluster)
    for lost in combinations(range(6), K):
        cluster.kill(*lost)
        cluster.revive(*lost)
        assert client.status().margin == 0, f"{lost} cost nothing"
        repair(cluster, client)
        assert shards_stored(cluster) == shards
        for others in combinations(range(6), K):
            with hidden_shards(cluster, *others):
                check_reads(client, files)
        wait_protected(client)  # until no agent misses what was hidden any more
    assert shard_bytes(cluster) == used


def test_k_plus_1_losses_are_said_loudly_and_the_rest_is_repaired(
    start: StartCluster, connect: Connect
) -> None:
    """The three that die do not vote: only stripes on all of them are lost."""
    cluster = start(agents=9, tuning=SMALL)
    client = connect(cluster)
    load(client)
    victims = {6, 7, 8}
    gone = [s.id for s in all_stripes(cluster) if victims <= {place.slot for place in s.places}]
    assert 0 < len(gone) < len(all_stripes(cluster))
    lose(cluster, *victims)
    repair(cluster, client, margin=-1)
    cluster.run(leader(cluster).leading.repairer.repair())
    status = client.status()
    assert status.stripes.lost == status.repair.lost == len(gone)
    assert status.stripes.degraded == status.repair.stripes_left == 0
    readable = {path for path in FILES if not {s.id for s in stripes_of(cluster, path)} & set(gone)}
    assert 0 < len(readable) < len(FILES)
    for path, data in FILES.items():
        if path in readable:
            assert client.read(path) == data
        else:
            with pytest.raises(TooFewShards, match="required shards readable"):
                client.read(path)


# Deaths in the middle


async def stop_after_first_move(cluster: LocalCluster, slot: int) -> None:
    """Ends an agent as soon as some stripes, and not all of them, have been moved."""
    node = next(node for node in cluster.nodes.values() if node.replica.leads)
    working = asyncio.create_task(node.leading.repairer.repair())
    while not _moved(node):
        await asyncio.sleep(0)
    await cluster.nodes.pop(slot).stop()
    assert 0 < _moved(node) < len(node.replica.state.ledger.entries), "not in the middle"
    working.cancel()


def _moved(node: Node) -> int:
    return sum(entry.stripe.version > 0 for entry in node.replica.state.ledger.entries.values())


@pytest.mark.parametrize("victim", [0, 2, 4], ids=["leader", "worker", "target"])
def test_a_repair_survives_a_death_in_the_middle_of_it(
    start: StartCluster, connect: Connect, victim: int
) -> None:
    cluster = start(tuning=replace(SMALL, orphan_delay_s=0.01))
    client = connect(cluster)
    files = FILES | {"/large": content(8 * MIB)}
    load(client, files)
    shards = shards_stored(cluster)
    lose(cluster, 4)
    assert leader(cluster).slot == 0
    cluster.run(stop_after_first_move(cluster, victim))
    wait_until_down(cluster, victim)
    check_reads(client, files)
    cluster.revive(victim)
    repair(cluster, client)
    check_reads(client, files)
    for others in combinations(range(6), K):
        with hidden_shards(cluster, *others):
            check_reads(client)
    eventually(lambda: _sweep(cluster) == shards)


def _sweep(cluster: LocalCluster) -> int:
    """Reclaims what an interrupted repair has left; how many shards there are then."""
    for node in cluster.nodes.values():
        cluster.run(node.storage.sweeper.review())
    cluster.run(leader(cluster).leading.janitor.fence())
    return shards_stored(cluster)


def test_repair_begins_by_itself_and_ends_when_the_margin_is_back(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=QUICK)
    client = connect(cluster)
    load(client)
    for lost in ((1, 5), (0, 3)):
        lose(cluster, *lost)
        wait_protected(client)
        eventually(lambda: client.status().repair.state == "idle")
    check_reads(client)
    assert any(event.kind == "repair" for event in client.events())
    versions = {stripe.id: stripe.version for stripe in all_stripes(cluster)}
    for _ in range(3):
        cluster.run(leader(cluster).leading.repairer.repair())
    assert {stripe.id: stripe.version for stripe in all_stripes(cluster)} == versions


def test_writes_go_on_during_a_repair(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=QUICK)
    client = connect(cluster)
    load(client, {"/large": content(12 * MIB)})
    lose(cluster, 2, 5)
    files = {f"/during/{n}": content(30 * KIB, n) for n in range(60)}
    for path, data in files.items():
        client.write(path, data)
        client.write("/again", data, overwrite=True)
    wait_protected(client)
    check_reads(client, files)
    assert client.read("/large") == content(12 * MIB)


# Down is not lost


def _is_up(cluster: LocalCluster, slot: int) -> bool:
    return of_leader(cluster, lambda node: node.replica.state.agents[slot].up)


def give_shards(cluster: LocalCluster, client: Client, slot: int) -> None:
    """Writes until an agent has some: one that counts as slow, as on a busy machine, gets none."""

    def has_some() -> bool:
        client.write(f"/given/{secrets.token_hex(4)}", content(64 * KIB))
        return on_loop(cluster, lambda: len(cluster.nodes[slot].storage.shards)) > 0

    eventually(has_some, every_s=0.1)


def test_an_agent_that_returns_in_time_keeps_its_shards(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=7, tuning=replace(QUICK, repair_delay_s=600.0))
    client = connect(cluster)
    load(client)
    give_shards(cluster, client, 6)
    with Relay(cluster, 6) as relay:
        eventually(lambda: _is_up(cluster, 6))
        relay.cut()
        eventually(lambda: not _is_up(cluster, 6))
        eventually(lambda: client.status().repair.state == "waiting")
        assert client.status().repair.waiting > 0
        relay.mend()
        wait_protected(client)
    assert all(stripe.version == 0 for stripe in all_stripes(cluster))


@pytest.mark.parametrize("silence", ["cut off", "frozen"])
def test_an_agent_that_returns_after_its_shards_were_moved_drops_them(
    start: StartCluster, connect: Connect, silence: str
) -> None:
    """In the same life, so that nothing but the namespace tells it that they are stale."""
    tuning = replace(STRIPED, stripe_bytes=64 * KIB, failure_timeout_s=0.5, repair_delay_s=0.2)
    cluster = start(agents=7, tuning=tuning)
    client = connect(cluster)
    load(client)
    used = shard_bytes(cluster)
    with Relay(cluster, 6) as relay:
        eventually(lambda: _is_up(cluster, 6))
        assert on_loop(cluster, lambda: len(cluster.nodes[6].storage.shards)) > 0
        relay.cut() if silence == "cut off" else relay.hold()
        eventually(lambda: not _is_up(cluster, 6))
        eventually(lambda: client.status().stripes.degraded == 0)
        assert not any(p.slot == 6 for s in all_stripes(cluster) for p in s.places)
        relay.mend() if silence == "cut off" else relay.pass_on()
        eventually(lambda: _is_up(cluster, 6))
        eventually(
            lambda: shards_stored(cluster) == sum(len(s.places) for s in all_stripes(cluster))
        )
        check_reads(client)
    assert leader(cluster).replica.state.agents[6].incarnation == 1
    assert shard_bytes(cluster) == used


# Orphans


def test_a_shard_that_was_rebuilt_but_never_moved_is_reclaimed(
    start: StartCluster, connect: Connect
) -> None:
    """As when the leader died in between, and what was missing came back."""
    cluster = start(agents=7, tuning=replace(STRIPED, repair_interval_s=3600.0))
    client = connect(cluster)
    client.write("/a", content(MIB))
    (stripe,) = stripes_of(cluster, "/a")
    (spare,) = set(range(7)) - {place.slot for place in stripe.places}
    rebuilt = cluster.run(
        cluster.nodes[stripe.places[0].slot].storage.rebuilder.rebuild(stripe, {3: spare})
    )
    assert rebuilt.places[3].slot == spare
    stray = HeldShard(stripe.id, 3, stripe.version + 1)
    shards, state = cluster.nodes[spare].storage.shards, leader(cluster).replica.state
    assert on_loop(cluster, lambda: shards.unconfirmed(age_s=0, limit=9)) == [stray]
    assert state.ledger.verdict(stray, rebuilt.places[3]) is Verdict.UNCLAIMED
    eventually(lambda: shards_stored(cluster) == 6)
    assert on_loop(cluster, lambda: len(cluster.nodes[spare].storage.shards)) == 0
    assert client.read("/a") == content(MIB)


# Shapes


def widths(cluster: LocalCluster, files: dict[str, bytes] = FILES) -> set[int]:
    return {stripe.data_shards for path in files for stripe in stripes_of(cluster, path)}


def test_narrow_stripes_get_their_full_width_when_agents_are_back(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=replace(STRIPED, stripe_bytes=64 * KIB, repair_delay_s=600.0))
    client = connect(cluster)
    kill(cluster, 1, 5)
    load(client)
    assert widths(cluster) == {2}
    cluster.revive(1, 5)
    eventually(lambda: widths(cluster) == {4})
    check_reads(client)
    live = sum(len(stripe.places) for path in FILES for stripe in set(stripes_of(cluster, path)))
    eventually(lambda: not leader(cluster).replica.state.ledger.freed_ms)
    assert shards_stored(cluster) <= live


def test_without_a_spare_stripes_are_made_narrower_and_wide_again_later(
    start: StartCluster, connect: Connect
) -> None:
    """The agent that stays dead does not vote, so that only stripes count."""
    cluster = start(tuning=replace(STRIPED, stripe_bytes=64 * KIB, repair_delay_s=0.2))
    client = connect(cluster)
    load(client)
    kill(cluster, 5)
    wait_protected(client)
    assert widths(cluster) == {3}
    for others in combinations(range(5), K):
        with_repair_off(cluster, lambda others=others: _check_without(cluster, client, others))
    cluster.revive(5)
    eventually(lambda: widths(cluster) == {4})
    check_reads(client)


def _check_without(cluster: LocalCluster, client: Client, slots: tuple[int, ...]) -> None:
    with hidden_shards(cluster, *slots):
        check_reads(client)


def with_repair_off(cluster: LocalCluster, work: Callable[[], None]) -> None:
    """Hidden shards look damaged: nothing shall be stored in their place meanwhile."""
    node = leader(cluster)
    on_loop(cluster, node.leading.end)
    try:
        work()
    finally:
        on_loop(cluster, lambda: node.replica._change_role(leads=True))


def test_what_there_is_no_room_to_protect_is_told_and_stays_readable(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(memory="16MiB", tuning=replace(CALM, repair_delay_s=0.1))
    client = connect(cluster)
    files = {f"/{n}": content(4 * MIB, n) for n in range(10)}
    load(client, files)
    kill(cluster, 5)

    def told() -> bool:
        repair_once(cluster)
        return bool(client.status().repair.unprotectable)

    eventually(told)
    status = client.status()
    assert (status.margin, status.stripes.lost) == (1, 0)
    assert status.repair.stripes_left == 0
    check_reads(client, files)
    cluster.revive(5)
    repair(cluster, client)
    assert client.status().repair.unprotectable == 0
    check_reads(client, files)


# Damage


def _damage(cluster: LocalCluster, stripe: Stripe, index: int) -> ShardAt:
    shard = on_loop(cluster, lambda: ShardAt(cluster, stripe, index))
    shard.flip(8 * (len(shard.data) // 2))
    return shard


def _is_sound(cluster: LocalCluster, stripe: Stripe, index: int) -> bool:
    """Looks at what is there now, wherever the namespace says that it is."""
    (now,) = of_leader(cluster, lambda node: node.replica.state.locate([stripe.id]))
    shards = cluster.nodes[now.places[index].slot].storage.shards
    return on_loop(cluster, lambda: shards.verify(stripe.id, index))


def _is_as_it_was(cluster: LocalCluster, stripe: Stripe, index: int, shard: ShardAt) -> bool:
    """Sound is not enough: wrong bytes with a fresh checksum would be."""
    (now,) = of_leader(cluster, lambda node: node.replica.state.locate([stripe.id]))
    return on_loop(cluster, lambda: ShardAt(cluster, now, index)).data == shard.data


@pytest.mark.parametrize("index", [0, 5], ids=["data", "parity"])
def test_a_scrub_finds_a_flipped_bit_and_it_is_healed(
    start: StartCluster, connect: Connect, index: int
) -> None:
    cluster = start(tuning=replace(QUICK, scrub_bytes_per_s=1 << 30))
    client = connect(cluster)
    client.write("/a", content(64 * KIB))
    (stripe,) = stripes_of(cluster, "/a")
    used = shard_bytes(cluster)
    shard = _damage(cluster, stripe, index)
    eventually(lambda: stripes_of(cluster, "/a")[0].version == 1)
    assert _is_sound(cluster, stripe, index)
    assert _is_as_it_was(cluster, stripe, index, shard)
    assert shard_bytes(cluster) == used
    wait_protected(client)
    eventually(lambda: client.status().damaged_shards == 0)


def test_a_read_that_meets_flipped_bits_has_them_healed(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=replace(QUICK, scrub_bytes_per_s=1))  # it never gets there
    client = connect(cluster)
    client.write("/a", content(64 * KIB))
    (stripe,) = stripes_of(cluster, "/a")
    shards = {index: _damage(cluster, stripe, index) for index in (1, 2)}
    assert client.read("/a") == content(64 * KIB)
    eventually(lambda: stripes_of(cluster, "/a")[0].version >= 1)
    eventually(lambda: all(_is_sound(cluster, stripe, index) for index in (1, 2)))
    assert all(_is_as_it_was(cluster, stripe, index, shards[index]) for index in (1, 2))
    wait_protected(client)


def test_a_shard_that_its_agent_has_lost_is_put_back(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=QUICK)
    client = connect(cluster)
    client.write("/a", content(64 * KIB))
    (stripe,) = stripes_of(cluster, "/a")
    holder = cluster.nodes[stripe.places[0].slot].storage.shards
    on_loop(cluster, lambda: holder.drop([stripe.id]))
    assert client.read("/a") == content(64 * KIB)
    eventually(lambda: len(holder) == 1)
    wait_protected(client)


def test_damage_counts_in_the_margin_until_it_is_healed(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=SMALL)
    client = connect(cluster)
    client.write("/a", content(64 * KIB))
    (stripe,) = stripes_of(cluster, "/a")
    for index in (0, 3, 4):
        _damage(cluster, stripe, index)
        assert not _is_sound(cluster, stripe, index)
    eventually(lambda: client.status().margin == -1)
    assert client.status().damaged_shards == 3
    with pytest.raises(TooFewShards):
        client.read("/a")
    cluster.run(leader(cluster).leading.repairer.repair())
    assert client.status().repair.lost == 1


def test_a_refused_move_heals_nothing(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=SMALL)
    client = connect(cluster)
    client.write("/a", content(64 * KIB))
    (stripe,) = stripes_of(cluster, "/a")
    _damage(cluster, stripe, 3)
    assert not _is_sound(cluster, stripe, 3)
    eventually(lambda: client.status().margin == K - 1)
    late = msgspec.structs.replace(stripe, version=stripe.version + 5)
    assert not cluster.run(leader(cluster).leading.repairer._move([(late, {3: stripe.places[3]})]))
    assert client.status().margin == K - 1
    assert client.status().damaged_shards == 1


def test_what_an_agent_need_not_have_is_not_missed(start: StartCluster, connect: Connect) -> None:
    """A reader that does not know of a move asks the former holder."""
    cluster = start(agents=7, tuning=SMALL)
    client = connect(cluster)
    client.write("/a", content(64 * KIB))
    (stripe,) = stripes_of(cluster, "/a")
    (spare,) = set(range(7)) - {place.slot for place in stripe.places}
    node = cluster.nodes[spare]
    assert not on_loop(cluster, lambda: node.storage.shards.verify(stripe.id, 2))
    pulses = leader(cluster).leading.monitor.pulses
    eventually(lambda: spare in pulses and (stripe.id, 2) in pulses[spare].damaged)
    status = client.status()
    assert (status.margin, status.damaged_shards) == (K, 0)
    assert not cluster.run(leader(cluster).leading.repairer.repair())
    assert stripes_of(cluster, "/a") == [stripe]


# Who does not help


def _trusted(node: Node) -> set[int]:
    """The slots that this agent believes to be there."""
    return {agent.slot for agent in node.roster.alive()}


def test_a_worker_that_freezes_is_waited_for_no_longer_than_it_counts_as_up(
    start: StartCluster, connect: Connect
) -> None:
    """Its calls would last for minutes here."""
    tuning = replace(SMALL, repair_delay_s=600.0, fetch_timeout_s=300.0, store_timeout_s=300.0)
    cluster = start(tuning=tuning)
    client = connect(cluster)
    load(client)
    lose(cluster, 5)
    worker = next(slot for slot in (3, 4) if slot != leader(cluster).slot)
    node = leader(cluster)
    with Relay(cluster, worker) as relay:
        eventually(lambda: _is_up(cluster, worker))
        client.read("/3145728")
        eventually(lambda: on_loop(cluster, lambda: worker in _trusted(node)))
        relay.hold()
        cluster.run(leader(cluster).leading.repairer.repair())
        assert not _is_up(cluster, worker)
        relay.pass_on()
        eventually(lambda: _is_up(cluster, worker))
        repair(cluster, client)
    check_reads(client)


def fill(node: Node) -> None:
    node.faults.ballast_bytes = 1 << 40


def test_an_agent_that_comes_back_without_room_does_not_hold_its_shards_up(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=7, tuning=SMALL)
    client = connect(cluster)
    load(client)
    kill(cluster, 5)
    cluster.revive(5, prepare=fill)
    repair(cluster, client)
    assert on_loop(cluster, lambda: len(cluster.nodes[5].storage.shards)) == 0
    check_reads(client)


def test_what_is_freed_is_not_repaired(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=SMALL)
    client = connect(cluster)
    load(client)
    client.write("/freed", content(300 * KIB, "freed"))
    freed = {stripe.id for stripe in stripes_of(cluster, "/freed")}
    client.delete("/freed")
    lose(cluster, 1, 4)
    repair(cluster, client)
    versions = {stripe.id: stripe.version for stripe in all_stripes(cluster)}
    assert {id_ for id_, version in versions.items() if version == 0} == freed
