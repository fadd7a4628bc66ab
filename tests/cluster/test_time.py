"""Wrong wall clocks: whatever they say, what must wait waits, and what is due is done."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

import diskless
from diskless.client import Client
from diskless.client.descriptor import load
from diskless.config import KIB, MIB, ClusterSettings
from diskless.errors import Unauthorized
from diskless.launch.local import LocalCluster
from tests.cluster.test_tokens import TokenHand
from tests.support import (
    BRISK,
    content,
    eventually,
    is_whole,
    leader,
    of_leader,
    on_loop,
    record_of,
    shards_stored,
    stripes_of,
)

DAY_MS = 86_400_000
M, K, AGENTS = 2, 1, 5
DELAYS = replace(
    BRISK, free_delay_s=1.0, orphan_delay_s=1.0, demote_delay_s=1.0, repair_delay_s=1.0
)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Clocks:
    """The wall clocks of a cluster's agents, each as far off as a test sets it."""

    def __init__(self) -> None:
        self.off_ms = dict.fromkeys(range(AGENTS), 0)
        self.read = {slot: partial(self._read, slot) for slot in range(AGENTS)}

    def _read(self, slot: int) -> int:
        return wall_ms() + self.off_ms[slot]


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def cluster(clocks: Clocks) -> Iterator[LocalCluster]:
    settings = ClusterSettings(
        name=f"time-{time.time_ns() % 10**9}",
        agents=AGENTS,
        data_shards=M,
        parity_shards=K,
        memory_bytes=64 * MIB,
        tuning=DELAYS,
    )
    with LocalCluster(settings, wall_clocks=clocks.read) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.connect() as client:
        yield client


def stamp(client: Client, cluster: LocalCluster, clocks: Clocks, off_ms: int) -> None:
    """Has one command committed while the leader's wall clock is wrong."""
    slot = leader(cluster).slot
    clocks.off_ms[slot] = off_ms
    client.write("/stamped", b"x", overwrite=True)
    clocks.off_ms[slot] = 0


def known(cluster: LocalCluster) -> set[str]:
    """Stripes that the namespace knows, freed ones too."""
    return of_leader(cluster, lambda node: set(node.replica.state.ledger.entries))


@pytest.mark.parametrize("off_ms", [DAY_MS, -DAY_MS])
def test_one_command_of_a_leader_whose_clock_is_a_day_off_holds_nothing_up(
    cluster: LocalCluster, client: Client, clocks: Clocks, off_ms: int
) -> None:
    """Freeing, demotion, repair, and giving up those who stay away."""
    client.write_many({f"/old/{n}": content(200 * KIB, n) for n in range(20)})
    old = {stripe.id for n in range(20) for stripe in stripes_of(cluster, f"/old/{n}")}
    assert old
    client.write("/kept", content(3 * MIB))
    stamp(client, cluster, clocks, off_ms)
    client.write("/larger", content(20 * KIB))
    client.delete("/old", recursive=True)
    victim = next(slot for slot in (3, 4) if slot != leader(cluster).slot)
    cluster.kill(victim)
    eventually(lambda: not known(cluster) & old)
    eventually(lambda: record_of(cluster, "/larger").inline is None)
    eventually(lambda: client.status().margin == K)
    leading = leader(cluster).leading
    assert leading is not None
    given_up = on_loop(cluster, leading.overdue)
    assert given_up == {victim}, "what the re-hoster looks after"
    assert client.read("/kept") == content(3 * MIB)
    assert abs(client.stat("/stamped").mtime_ms - wall_ms()) < DAY_MS / 2


def test_what_a_dead_agent_left_unfinished_is_fenced_by_elapsed_time(
    cluster: LocalCluster, client: Client, clocks: Clocks
) -> None:
    writer = next(slot for slot in (3, 4) if slot != leader(cluster).slot)

    async def seal() -> int:
        await cluster.nodes[writer].storage.writer.seal(content(512 * KIB))
        return sum(len(node.storage.shards) for node in cluster.nodes.values())

    assert cluster.run(seal()) == M + K
    stamp(client, cluster, clocks, DAY_MS)
    cluster.kill(writer)
    cluster.revive(writer)
    eventually(lambda: shards_stored(cluster) == 0)
    assert any(event.kind == "doubt" for event in client.events())


def test_modification_times_never_go_back_though_every_clock_does(
    cluster: LocalCluster, client: Client, clocks: Clocks
) -> None:
    times = []
    for number in range(12):
        clocks.off_ms = dict.fromkeys(clocks.off_ms, (-1) ** number * number * 3_600_000)
        client.write(f"/{number}", b"x")
        times.append(client.stat(f"/{number}").mtime_ms)
    assert times == sorted(times)


def test_a_wall_clock_that_is_set_interrupts_nobody(
    cluster: LocalCluster, client: Client, clocks: Clocks
) -> None:
    client.write("/a", b"1")
    view = leader(cluster).replica.view
    for off_ms in (DAY_MS, 0, -DAY_MS, 5000):
        clocks.off_ms[leader(cluster).slot] = off_ms
        assert client.read("/a") == b"1"
        client.write("/a", b"1", overwrite=True)
    eventually(lambda: is_whole(client, AGENTS))
    assert leader(cluster).replica.view == view


def test_a_token_that_one_agent_takes_for_expired_is_good_at_the_others(
    cluster: LocalCluster, clocks: Clocks
) -> None:
    keyring = load(cluster.settings.name).keyring
    soon_s = int(time.time()) + 3600
    token = keyring.client("q1", paths=("/p",), expires_s=soon_s).token
    wrong = leader(cluster).slot
    clocks.off_ms[wrong] = DAY_MS
    with pytest.raises(Unauthorized, match="has expired"):
        TokenHand(cluster, wrong, token)
    with diskless.connect(f"diskless://{cluster.settings.name}/", token=token) as client:
        client.write("/p/x", b"1")
        assert client.read("/p/x") == b"1"
