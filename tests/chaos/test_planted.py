"""Faults planted in agents do what they say, within the budget, and `heal` undoes them all."""

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from msgspec import structs

from diskless.chaos.faults import Chaos
from diskless.chaos.schedule import Step
from diskless.client import Client, descriptor
from diskless.config import MIB
from diskless.errors import (
    BadRequest,
    CapacityExceeded,
    OverBudget,
    ShardsAway,
    TooFewShards,
    Unavailable,
)
from diskless.launch.local import LocalCluster
from tests.chaos.signals import LocalSignals
from tests.conftest import Connect, StartCluster
from tests.support import (
    BRISK,
    CALM,
    STRIPED,
    content,
    eventually,
    leader,
    on_loop,
    record_of,
    stripes_of,
)

K = 2


@pytest.fixture
def make_chaos(connect: Connect) -> Callable[[LocalCluster], Chaos]:
    def make(cluster: LocalCluster) -> Chaos:
        known = descriptor.load(cluster.settings.name)
        return Chaos(known, connect(cluster), LocalSignals(cluster))

    return make


MakeChaos = Callable[[LocalCluster], Chaos]


def fault(kind: str, *victims: int, **details: object) -> Step:
    return Step(at_s=0, kind=kind, victims=victims, **details)  # type: ignore[arg-type]


def is_up(client: Client, slot: int) -> bool:
    return bool(client.status().agents[slot].state == "up")


def test_a_cut_off_agent_is_down_keeps_its_shards_and_is_back_after_heal(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=STRIPED)
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/before", content(MIB))
    life = client.status().agents[5].incarnation

    chaos.plant(fault("partition", 5), max_down=K)
    assert chaos.down().why == {5: "cut off"}, "before anybody has noticed"
    eventually(lambda: not is_up(client, 5))
    assert client.read("/before") == content(MIB)
    client.write("/during", content(MIB, 1))

    chaos.heal()
    eventually(lambda: is_up(client, 5) and client.status().margin == K)
    assert client.status().agents[5].incarnation == life
    assert client.read("/during") == content(MIB, 1)
    assert chaos.down().spent == 0


def test_a_cut_off_leader_is_replaced_and_what_it_hears_alone_is_not_acknowledged(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=BRISK)
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/a", b"1")
    old = leader(cluster).slot
    chaos.plant(fault("partition", old), max_down=K)
    client.write("/a", b"2", overwrite=True)
    assert client.read("/a") == b"2"
    assert any(node.replica.leads for slot, node in cluster.nodes.items() if slot != old)
    chaos.heal()
    eventually(lambda: client.status().margin == K)
    assert client.read("/a") == b"2"


def test_an_agent_that_reaches_nobody_does_not_call_the_others_dead(start: StartCluster):
    """TooFewAgents is final for a client; another agent could take its write."""
    cluster = start(tuning=CALM)
    node = cluster.nodes[5]

    def suspect_all() -> None:
        for agent in node.roster.agents.values():
            if agent.slot != 5:
                node.roster.suspect(agent)
        with pytest.raises(Unavailable, match="agent-5 reaches 1 of the 6 agents"):
            node.storage.writer.check_protectable()

    on_loop(cluster, suspect_all)


def test_a_read_waits_for_agents_that_are_only_cut_off(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    """k+1 of them: nothing is lost, so a patient client gets its bytes when they are back."""
    cluster = start(tuning=replace(CALM, failure_timeout_s=0.5, repair_delay_s=60.0))
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/a", content(3 * MIB))
    chaos.plant(fault("partition", 3, 4, 5), max_down=K + 1)
    eventually(lambda: not any(is_up(client, slot) for slot in (3, 4, 5)))
    reader, extents = cluster.nodes[0].storage.reader, record_of(cluster, "/a").extents
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(client.read, "/a")
        away = r"3 of 4 .* \(silent or gone: agent-3, agent-4, agent-5\)"
        with pytest.raises(ShardsAway, match=away):
            cluster.run(reader.read(extents))
        assert not patient.done()
        chaos.heal()
        assert patient.result() == content(3 * MIB)


def test_a_life_that_a_reader_has_not_heard_of_yet_is_not_lost(
    start: StartCluster, connect: Connect
):
    """Its roster comes with the next beat, and the stripe's places came with the file."""
    cluster = start(tuning=replace(CALM, failure_timeout_s=0.5))
    client = connect(cluster)
    client.write("/a", content(3 * MIB))
    extents = record_of(cluster, "/a").extents
    node = cluster.nodes[5]
    current = node.roster.agents

    def forget() -> None:
        older = {slot: structs.replace(current[slot], incarnation=0) for slot in (1, 2)}
        node.roster.agents = {s: a for s, a in current.items() if s != 3} | older

    on_loop(cluster, forget)
    with pytest.raises(ShardsAway):
        cluster.run(node.storage.reader.read(extents))
    # Whoever gives up sooner is cancelled, as a leader's tasks must be, and sees what it was for.
    away: list[TooFewShards] = []
    with pytest.raises(TimeoutError):
        cluster.run(asyncio.wait_for(node.storage.reader.read(extents, away=away), 0.8))
    assert isinstance(away[-1], ShardsAway)
    on_loop(cluster, lambda: setattr(node.roster, "agents", current))
    assert b"".join(cluster.run(node.storage.reader.read(extents))) == content(3 * MIB)


def test_a_read_does_not_wait_for_agents_that_count_as_lost(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    tuning = replace(CALM, failure_timeout_s=0.5, repair_delay_s=1.0)
    cluster = start(tuning=tuning)
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/a", content(3 * MIB))
    chaos.plant(fault("partition", 3, 4, 5), max_down=K + 1)
    with pytest.raises(TooFewShards, match=r"\(gone: agent-3, agent-4, agent-5\)"):
        client.read("/a")
    chaos.heal()
    eventually(lambda: client.status().margin == K)
    assert client.read("/a") == content(3 * MIB)


def test_a_read_does_not_wait_for_agents_whose_processes_have_ended(
    start: StartCluster, connect: Connect
):
    cluster = start(tuning=replace(CALM, repair_delay_s=60.0))
    client = connect(cluster)
    client.write("/a", content(3 * MIB))
    cluster.kill(3, 4, 5)
    with pytest.raises(TooFewShards, match=r"\(gone: agent-3, agent-4, agent-5\)"):
        client.read("/a")


def test_a_slow_agent_slows_what_needs_it_and_nothing_fails(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=CALM)
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/warm", content(MIB))
    numbers = itertools.count()

    def seconds(path: str) -> float:
        began = time.monotonic()
        client.write(path, content(MIB, path))
        return time.monotonic() - began

    chaos.plant(fault("slow", 5, delay_ms=400), max_down=K)
    assert seconds("/slow") >= 0.4, "a full stripe has a shard on every agent"
    assert client.read("/slow") == content(MIB, "/slow")
    chaos.heal()
    eventually(lambda: seconds(f"/fast-{next(numbers)}") < 0.4)


def test_flipped_bytes_never_reach_a_client_and_heal_flips_them_back(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=CALM)
    client, chaos = connect(cluster), make_chaos(cluster)
    paths = [f"/{number}" for number in range(6)]
    for path in paths:
        client.write(path, content(MIB, path))

    done = chaos.plant(fault("corrupt", 1, 4, shards=100, seed=3), max_down=K)
    assert set(done.flipped) == {1, 4}
    assert min(done.flipped.values()) >= 6
    assert chaos.down().why == dict.fromkeys([1, 4], "has corrupt shards")
    with pytest.raises(OverBudget, match="agent-1 has corrupt shards"):
        chaos.plant(fault("corrupt", 5, shards=100), max_down=K)
    assert all(client.read(path) == content(MIB, path) for path in paths)
    eventually(lambda: client.status().corrupt_shards_seen > 0)  # with the next pulse
    chaos.heal()
    eventually(lambda: chaos.down().spent == 0)

    chaos.plant(fault("corrupt", 1, 4, 5, shards=100), max_down=K + 1)
    with pytest.raises(TooFewShards):
        client.read(paths[0])
    assert chaos.heal().mended > 0
    assert all(client.read(path) == content(MIB, path) for path in paths)
    eventually(lambda: chaos.down().spent == 0)


def test_the_cluster_heals_flipped_bytes_by_itself(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=STRIPED)
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/a", content(3 * MIB))
    assert chaos.plant(fault("corrupt", 2, shards=2), max_down=K).flipped == {2: 2}
    eventually(lambda: chaos.down().spent == 0)
    assert chaos.heal().mended == 0, "they were rebuilt"
    assert client.read("/a") == content(3 * MIB)


def test_the_same_seed_flips_the_same_bytes(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=CALM)
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/a", content(MIB))
    (stripe,) = stripes_of(cluster, "/a")[:1]
    index = [place.slot for place in stripe.places].index(3)

    def flip(seed: int) -> bytes:
        chaos.plant(fault("corrupt", 3, shards=1, seed=seed), max_down=K)
        shards = cluster.nodes[3].storage.shards
        seen = on_loop(cluster, lambda: bytes(shards._stripes[stripe.id][index].data))
        chaos.heal()
        return seen

    assert flip(1) == flip(1)
    assert flip(1) != flip(2)


def test_a_damaged_shard_that_is_stored_anew_is_sound_and_is_left_alone_by_heal(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=CALM)
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/a", content(MIB))
    (stripe,) = stripes_of(cluster, "/a")[:1]
    index = [place.slot for place in stripe.places].index(3)
    shards = cluster.nodes[3].storage.shards
    good = on_loop(cluster, lambda: shards._stripes[stripe.id][index])
    data, checksums = bytes(good.data), good.checksums

    chaos.plant(fault("corrupt", 3, shards=1), max_down=K)

    def rebuild() -> None:
        shards.drop([stripe.id])
        shards.store(stripe.id, index, memoryview(data), checksums)

    on_loop(cluster, rebuild)
    assert chaos.down().spent == 0
    assert chaos.heal().mended == 0
    assert client.read("/a") == content(MIB)


def test_taken_memory_counts_as_full_and_comes_back(
    start: StartCluster, connect: Connect, make_chaos: MakeChaos
):
    cluster = start(tuning=CALM, memory="32MiB")
    client, chaos = connect(cluster), make_chaos(cluster)
    client.write("/before", content(MIB))
    chaos.plant(fault("fill", 3, share=1.0), max_down=0)
    with pytest.raises(CapacityExceeded, match="1 of 6 agents are full"):
        client.write("/refused", content(MIB))
    eventually(lambda: client.status().agents[3].bytes_used >= 32 * MIB)
    assert client.read("/before") == content(MIB)
    assert chaos.down().spent == 0
    chaos.heal()
    client.write("/after", content(MIB))
    assert not client.exists("/refused")


def test_faults_overlap_and_are_undone_one_by_one(start: StartCluster, make_chaos: MakeChaos):
    cluster = start(tuning=BRISK)
    chaos = make_chaos(cluster)
    first = chaos.plant(fault("partition", 5), max_down=K).fault
    chaos.plant(fault("slow", 4, delay_ms=50), max_down=K)
    assert first is not None
    assert cluster.nodes[0].faults.cut == {5}
    chaos.undo(first)
    assert cluster.nodes[0].faults.cut == frozenset()
    assert cluster.nodes[0].faults.delays_s == {4: 0.05}
    assert cluster.nodes[4].faults.delays_s == dict.fromkeys([0, 1, 2, 3, 5], 0.05)
    chaos.heal()
    assert not any(node.faults.disturbs for node in cluster.nodes.values())
    assert chaos.active == []


def test_faults_are_remembered_by_others_and_refuse_to_go_beyond_k(
    start: StartCluster, make_chaos: MakeChaos
):
    cluster = start(tuning=BRISK)
    make_chaos(cluster).plant(fault("partition", 4, 5), max_down=K)
    later = make_chaos(cluster)
    with pytest.raises(OverBudget, match=r"agent-4 cut off, agent-5 cut off.*--max-down 3"):
        later.plant(fault("slow", 3, delay_ms=10), max_down=K)
    with pytest.raises(BadRequest, match="there is no agent-6"):
        later.plant(fault("kill", 6), max_down=K)
    later.heal()
    later.plant(fault("slow", 3, delay_ms=10), max_down=K)
    later.heal()
