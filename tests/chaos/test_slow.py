"""One slow agent: what the cluster does about it, and what is left of its throughput."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from diskless.chaos.faults import Chaos
from diskless.chaos.kv import KeyValue
from diskless.chaos.schedule import Step
from diskless.chaos.slowdown import GRACE_S, SHARE_MIN
from diskless.client import Client, descriptor
from diskless.config import MIB
from diskless.launch.local import LocalCluster
from diskless.model import AgentInfo
from diskless.namespace import commands as c
from tests.chaos.signals import LocalSignals
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    content,
    eventually,
    is_whole,
    kill,
    leader,
    on_loop,
    states,
    stripes_of,
)

pytestmark = pytest.mark.usefixtures("slow_agents")

K = 2
AGENTS = 6
DELAY_MS = 300
GATEWAY = 5
"""Does not vote, and takes the bulk of all clients here."""
WINDOW_S = 0.5
WINDOWS = 6
TRIES = 3
"""Others may slow the machine down just then."""


def connect_through(cluster: LocalCluster, gateway: int) -> Client:
    """A client that prefers this agent for bulk: which one that is, is left to chance."""
    while True:
        client = cluster.connect(timeout_s=30)
        if client._caller._routes.peers[0].slot == gateway:
            return client
        client.close()


@contextmanager
def slow(cluster: LocalCluster, *slots: int, delay_ms: int = DELAY_MS) -> Iterator[None]:
    """Those agents' messages take longer, as `diskless chaos slow` has it."""
    with cluster.connect(timeout_s=10) as client:
        chaos = Chaos(descriptor.load(cluster.settings.name), client, LocalSignals(cluster))
        done = chaos.plant(
            Step(at_s=0, kind="slow", victims=slots, delay_ms=delay_ms), max_down=AGENTS
        )
        assert done.fault is not None
        assert not {*slots} & {*done.untold}
        yield
        chaos.undo(done.fault)


def rate(work: KeyValue) -> float:
    """Operations in a second: the median of some windows."""
    counts = []
    work.news()
    for _ in range(WINDOWS):
        began_s = time.monotonic()
        time.sleep(WINDOW_S)
        counts.append(work.news().done / (time.monotonic() - began_s))
    return statistics.median(counts)


@contextmanager
def traffic(cluster: LocalCluster) -> Iterator[KeyValue]:
    work = KeyValue(lambda: connect_through(cluster, GATEWAY), seed=7, root="/kv")
    work.start()
    try:
        time.sleep(1.0)
        yield work
    finally:
        work.stop()
    findings = work.finish()
    assert (findings.wrong, findings.undecided, findings.unreadable) == ([], [], [])
    assert findings.refusals == {}


@pytest.mark.parametrize("role", ["leader", "voter", "gateway"])
def test_whoever_is_slow_most_of_the_throughput_is_left(
    start: StartCluster, connect: Connect, role: str
) -> None:
    cluster = start(agents=AGENTS)
    client = connect(cluster)
    slot = {"leader": 0, "voter": 1, "gateway": GATEWAY}[role]
    assert leader(cluster).slot == 0
    shares: list[float] = []
    with traffic(cluster) as work:
        while not shares or (shares[-1] < SHARE_MIN and len(shares) < TRIES):
            before = rate(work)
            with slow(cluster, slot):
                time.sleep(GRACE_S)
                during = rate(work)
                assert leader(cluster).slot != slot
                assert states(client)[slot] == "slow"
            eventually(lambda: is_whole(client, AGENTS))
            shares.append(during / before)
    assert shares[-1] >= SHARE_MIN, shares


def test_new_stripes_go_round_a_slow_agent_and_are_widened_when_it_is_well(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=AGENTS, tuning=STRIPED)
    client = connect(cluster)
    client.write("/before", content(MIB))
    with slow(cluster, 5):
        eventually(lambda: states(client)[5] == "slow")
        eventually(lambda: all(is_slow(cluster, node, 5) for node in range(AGENTS)))
        client.write("/during", content(2 * MIB))
        (*during,) = stripes_of(cluster, "/during")
        assert [(s.data_shards, s.parity_shards) for s in during] == [(3, K)] * 2
        assert all(place.slot != 5 for stripe in during for place in stripe.places)
        assert client.read("/before") == content(MIB)
        status = client.status()
        assert status.margin == K, "it has its shards"
        assert status.repair.stripes_left == 0, "nothing is moved for it"
        assert 5 in {place.slot for place in stripes_of(cluster, "/before")[0].places}
    eventually(lambda: is_whole(client, AGENTS))
    eventually(lambda: {s.data_shards for s in stripes_of(cluster, "/during")} == {4})
    assert client.read("/during") == content(2 * MIB)
    assert [event.text for event in client.events() if event.kind == "slow"] == [
        "agent-5 is slow",
        "agent-5 is no longer slow",
    ]


def is_slow(cluster: LocalCluster, observer: int, slot: int) -> bool:
    def ask() -> AgentInfo:
        return cluster.nodes[observer].roster.agents[slot]

    return on_loop(cluster, ask).slow


def test_a_write_is_not_refused_for_want_of_quick_agents(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=3, data_shards=2, parity_shards=1, tuning=STRIPED)
    client = connect(cluster)
    kill(cluster, 2)
    # Not so slow that the leader's lease is over when this voter's answer comes: it has no other.
    with slow(cluster, 1, delay_ms=100):
        eventually(lambda: states(client) == ["up", "slow", "down"])
        client.write("/a", content(MIB))
        (stripe,) = stripes_of(cluster, "/a")
        assert {place.slot for place in stripe.places} == {0, 1}
        assert client.read("/a") == content(MIB)


def test_no_more_than_k_are_slow_and_the_others_go_on(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=8, tuning=STRIPED)
    client = connect(cluster)
    with slow(cluster, 5, 6, 7):
        eventually(lambda: states(client).count("slow") == K)
        client.write("/a", content(MIB))
        assert client.read("/a") == content(MIB)
        assert states(client).count("slow") == K
    eventually(lambda: is_whole(client, 8))


def test_a_write_goes_to_a_slow_agent_before_it_is_refused_for_want_of_room(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=STRIPED)
    client = connect(cluster)
    faults = cluster.nodes[2].faults
    with slow(cluster, 3):
        eventually(lambda: states(client)[3] == "slow")
        on_loop(cluster, lambda: setattr(faults, "ballast_bytes", cluster.settings.memory_bytes))
        client.write("/a", content(MIB))
        (stripe,) = stripes_of(cluster, "/a")
        assert {place.slot for place in stripe.places} == {0, 1, 3}
        assert client.read("/a") == content(MIB)


def test_a_new_life_is_not_slow(start: StartCluster, connect: Connect) -> None:
    cluster = start(agents=AGENTS, tuning=STRIPED)
    client = connect(cluster)
    assert cluster.run(leader(cluster).namespace.run(c.AgentSlow(5, 1, True))).changed
    kill(cluster, 5)
    cluster.revive(5)
    assert states(client)[5] == "up"


def test_a_leader_that_was_found_slow_finds_itself_well(
    start: StartCluster, connect: Connect
) -> None:
    """Nobody else would: a leader does not beat itself."""
    cluster = start(agents=AGENTS, tuning=STRIPED)
    client = connect(cluster)
    slot = leader(cluster).slot
    assert cluster.run(leader(cluster).namespace.run(c.AgentSlow(slot, 1, True))).changed
    eventually(lambda: states(client)[slot] == "up")


@pytest.mark.parametrize("victims", [(0, 1), (0, 5)])
def test_a_slow_leader_hands_over_to_one_that_is_not(
    start: StartCluster, connect: Connect, victims: tuple[int, int]
) -> None:
    """With another one slow beside it, and no commit is lost on the way."""
    cluster = start(agents=AGENTS, tuning=STRIPED)
    client = connect(cluster)
    with slow(cluster, *victims):
        eventually(lambda: leader(cluster).slot not in victims)
        for number in range(20):
            client.write(f"/{number}", content(100, number))
        eventually(lambda: {n for n, s in enumerate(states(client)) if s == "slow"} == {*victims})
        assert leader(cluster).slot not in victims
    for number in range(20):
        assert client.read(f"/{number}") == content(100, number)


def test_a_read_does_not_wait_for_a_slow_holder(start: StartCluster) -> None:
    """Its agent is out of reach here, and nobody has noticed yet: who asks it waits."""
    for_ever = {"failure_timeout_s": 60.0, "fetch_timeout_s": 60.0, "hedge_delay_s": 60.0}
    cluster = start(agents=AGENTS, tuning=replace(CALM, **for_ever))
    with connect_through(cluster, 1) as client:
        for number in range(AGENTS):  # so that it holds bytes of some of them
            client.write(f"/{number}", content(MIB, number))
        cluster.run(leader(cluster).namespace.run(c.AgentSlow(5, 1, True)))
        eventually(lambda: all(is_slow(cluster, node, 5) for node in range(AGENTS)))

        def cut_off() -> None:
            for slot in range(AGENTS - 1):
                cluster.nodes[slot].faults.cut_off({5})

        on_loop(cluster, cut_off)
        for number in range(AGENTS):
            assert client.read(f"/{number}") == content(MIB, number)
        on_loop(cluster, lambda: [node.faults.heal() for node in cluster.nodes.values()])
