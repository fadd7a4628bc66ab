"""What was acknowledged outlives every agent: the drain, restores, cold reads and hydration."""

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import diskless
from diskless.agent.tiers import OpenTier
from diskless.client import Client
from diskless.config import KIB, MIB, ClusterSettings
from diskless.errors import (
    CorruptData,
    DeadlineExceeded,
    DisklessError,
    NotFound,
    StoreDown,
    Superseded,
    TierBehind,
)
from diskless.launch.local import LocalCluster
from diskless.model import TierOptions, TierReport
from diskless.namespace import commands as c
from diskless.tier.files import FileStore
from diskless.tier.port import TierPort
from diskless.tier.store import Metered
from tests.support import BRISK, STRIPED, content, eventually, leader, on_loop, record_of

M, K, AGENTS = 2, 1, 4


class Watched(FileStore):
    """A directory whose requests are counted by the agent that makes them, fail, or wait."""

    def __init__(self, root: Path, slot: int, watch: "Watch") -> None:
        super().__init__(root)
        self._slot = slot
        self._watch = watch

    async def put_new(self, name: str, parts: Sequence[Any]) -> None:
        await self._watch.request(self._slot, "put", name)
        await super().put_new(name, parts)
        await self._watch.request(self._slot, "done", name)

    async def get(self, name: str, start: int = 0, end: int | None = None) -> memoryview:
        await self._watch.request(self._slot, "get", name)
        return await super().get(name, start, end)


class Watch:
    """What agents ask of the store, and what becomes of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[tuple[int, str, str]] = []
        self.away = False
        self.gets_left: int | None = None
        """After so many nothing is read any more, and nobody is told, until it is None again."""
        self.silent_to: set[int] = set()
        """Agents whose reads are not answered."""
        self.stop_at: int | None = None
        self.stopped = threading.Event()
        self._go: asyncio.Event | None = None

    async def request(self, slot: int, verb: str, name: str) -> None:
        if self.away:
            raise StoreDown("the store is away")
        self.seen.append((slot, verb, name))
        if verb == "get":
            await self._stall(slot)
        if self.stop_at is not None and verb in ("put", "done"):
            self.stop_at -= 1
            if self.stop_at < 0:
                self.stop_at = None
                self._go = asyncio.Event()
                self.stopped.set()
                await self._go.wait()

    async def _stall(self, slot: int) -> None:
        if self.gets_left is not None:
            self.gets_left -= 1
        while slot in self.silent_to or (self.gets_left is not None and self.gets_left < 0):
            await asyncio.sleep(0.02)

    def go_on(self) -> None:
        assert self._go is not None
        self._go.set()

    def opener(self, slot: int) -> OpenTier:
        def open_tier(uri: str, options: TierOptions) -> TierPort:
            cluster = self.cluster
            store = Metered(Watched(self.root, slot, self))
            return TierPort(store, cluster=cluster.cluster_id, name=cluster.settings.name)

        return open_tier

    cluster: LocalCluster


class Clusters:
    """Local clusters on one tier, one after the other or beside each other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = f"file://{root}"
        self.watch = Watch(root)
        self.stack = ExitStack()

    def start(self, **options: Any) -> LocalCluster:
        return self._begin(tier=self.uri, **options)

    def restore(self, **options: Any) -> LocalCluster:
        return self._begin(restore=self.uri, **options)

    def _begin(
        self, *, tier: str = "", restore: str = "", watched: bool = False, at: Any = None,
        **settings: Any,
    ) -> LocalCluster:  # fmt: skip
        usual = {"agents": AGENTS, "data_shards": M, "parity_shards": K, "tuning": BRISK}
        name = f"tier-{random.randrange(1 << 40):x}"
        chosen = ClusterSettings(name=name, **(usual | {"memory_bytes": 128 * MIB} | settings))
        cluster = LocalCluster(
            chosen, tier=tier, restore=restore, at=at,
            open_tier=self.watch.opener if watched else None,
        )  # fmt: skip
        if watched:
            self.watch.cluster = cluster
        return self.stack.enter_context(cluster)

    def connect(self, cluster: LocalCluster, timeout_s: float = 20.0) -> Client:
        return self.stack.enter_context(cluster.connect(timeout_s=timeout_s))


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    found = Clusters(tmp_path / "tier")
    with found.stack:
        yield found


def tier_of(client: Client) -> TierReport:
    report = client.status().tier
    assert report is not None
    return report


def drained(client: Client) -> TierReport:
    """Once everything is in the tier."""

    def done() -> bool:
        try:
            report = tier_of(client)
        except DisklessError:
            return False
        return bool(report.horizon) and not report.lag_commands

    eventually(done)
    return tier_of(client)


def hydrated(client: Client) -> None:
    eventually(lambda: not tier_of(client).hydration.files_left)


FILES = {
    "/q/offsets/1": 100,
    "/q/state/0/1.delta": 30 * KIB,
    "/q/state/0/2.delta": 300 * KIB,
    "/big": 7 * MIB,
    "/empty": 0,
}


def write_all(client: Client) -> None:
    for path, size in FILES.items():
        client.write(path, content(size, path))


def check_all(client: Client) -> None:
    for path, size in FILES.items():
        assert client.read(path) == content(size, path), path


# Restores


@pytest.mark.parametrize(("data_shards", "parity_shards", "agents"), [(2, 1, 4), (3, 2, 6)])
def test_all_files_come_back_after_the_loss_of_everything_with_other_m_and_k(
    clusters: Clusters, data_shards: int, parity_shards: int, agents: int
) -> None:
    cluster = clusters.start()
    client = clusters.connect(cluster)
    write_all(client)
    client.snapshot("/q", "before")
    client.delete("/q/offsets/1")
    drained(client)
    cluster.kill(*list(cluster.nodes))
    again = clusters.restore(data_shards=data_shards, parity_shards=parity_shards, agents=agents)
    voters = list(again.nodes.values())[: again.settings.voters]
    assert [node.restored for node in voters] == [1.0] * len(voters)
    client = clusters.connect(again)
    with pytest.raises(NotFound):
        client.read("/q/offsets/1")
    assert client.read("/q/.snapshot/before/offsets/1") == content(100, "/q/offsets/1")
    client.write("/q/offsets/1", content(100, "/q/offsets/1"))
    check_all(client)
    hydrated(client)
    check_all(client)


def test_a_restore_of_a_restore_has_what_both_wrote(clusters: Clusters) -> None:
    for number in range(3):
        cluster = clusters.restore() if number else clusters.start()
        client = clusters.connect(cluster)
        for before in range(number):
            assert client.read(f"/{before}") == content(50 * KIB, before)
        client.write(f"/{number}", content(50 * KIB, number))
        assert drained(client).epoch == number + 1
        cluster.kill(*list(cluster.nodes))


def test_hydrated_files_need_no_tier(clusters: Clusters) -> None:
    cluster = clusters.start()
    client = clusters.connect(cluster)
    write_all(client)
    drained(client)
    cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore(watched=True))
    hydrated(client)
    clusters.watch.away = True
    check_all(client)


def test_a_cold_file_is_fetched_once_for_many_who_read_it(clusters: Clusters) -> None:
    cluster = clusters.start()
    client = clusters.connect(cluster)
    client.write("/cold", content(2 * MIB))
    drained(client)
    cluster.kill(*list(cluster.nodes))
    full = replace(BRISK, demote_delay_s=3600.0)
    again = clusters.restore(watched=True, tuning=full)
    node = again.nodes[3]
    record = record_of(again, "/cold")

    async def read_often() -> list[bytes]:
        from diskless.agent.cold import cold_extent

        async def one() -> bytes:
            return b"".join(await node.storage.reader.read([cold_extent(record)]))

        return await asyncio.gather(*(one() for _ in range(20)))

    clusters.watch.seen.clear()
    assert set(again.run(read_often())) == {content(2 * MIB)}
    gets = [name for slot, verb, name in clusters.watch.seen if verb == "get" and slot == 3]
    assert len(gets) <= 2


def test_damaged_bytes_of_the_tier_are_never_served(clusters: Clusters) -> None:
    cluster = clusters.start()
    client = clusters.connect(cluster)
    client.write("/good", content(40 * KIB, 1))
    drained(client)
    client.write("/bad", content(5 * MIB, 2))
    drained(client)
    cluster.kill(*list(cluster.nodes))
    (segment,) = (clusters.root / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    client = clusters.connect(clusters.restore())
    with pytest.raises(CorruptData):
        client.read("/bad")
    assert client.read("/good") == content(40 * KIB, 1)
    eventually(lambda: tier_of(client).hydration.damaged == 1)


# Rounds, and what goes wrong in them


def test_large_rounds_are_uploaded_by_several_agents(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster)
    clusters.watch.away = True
    for number in range(5):
        client.write(f"/{number}", content(9 * MIB, number))
    clusters.watch.away = False
    drained(client)
    segments = [
        (slot, name) for slot, verb, name in clusters.watch.seen
        if verb == "put" and name.startswith("segments/")
    ]  # fmt: skip
    assert len({slot for slot, _ in segments}) >= 2
    cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore())
    for number in range(5):
        assert client.read(f"/{number}") == content(9 * MIB, number)


@pytest.mark.parametrize("step", range(4))
def test_the_leader_dies_between_any_two_steps_of_a_round(clusters: Clusters, step: int) -> None:
    cluster = clusters.start(watched=True)
    client = clusters.connect(cluster)
    client.write("/first", b"1")
    drained(client)
    clusters.watch.stop_at = step
    for number in range(20):
        client.write(f"/{number}", content(400 * KIB, number))
    assert clusters.watch.stopped.wait(60)
    dead = leader(cluster).slot
    cluster.kill(dead)
    on_loop(cluster, clusters.watch.go_on)
    client.write("/last", b"2")
    drained(client)
    cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore())
    for number in range(20):
        assert client.read(f"/{number}") == content(400 * KIB, number)
    assert client.read("/last") == b"2"


def test_agents_that_die_while_they_upload_are_replaced(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True, tuning=STRIPED)
    client = clusters.connect(cluster)
    clusters.watch.away = True
    for number in range(5):
        client.write(f"/{number}", content(9 * MIB, number))
    led = leader(cluster).slot
    clusters.watch.away = False
    eventually(lambda: any(slot != led for slot, _, _ in clusters.watch.seen))
    victim = next(slot for slot, _, _ in clusters.watch.seen if slot != led)
    cluster.kill(victim)
    drained(client)
    cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore())
    for number in range(5):
        assert client.read(f"/{number}") == content(9 * MIB, number)


def test_while_the_store_is_away_memory_serves_and_status_says_why(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True)
    client = clusters.connect(cluster)
    client.write("/a", b"1")
    drained(client)
    clusters.watch.away = True
    client.write("/b", content(100 * KIB))
    eventually(lambda: tier_of(client).state == "failing")
    report = tier_of(client)
    assert "the store is away" in report.last_error
    assert report.lag_commands == 1
    assert report.lag_bytes == 100 * KIB
    assert client.read("/b") == content(100 * KIB)
    clusters.watch.away = False
    report = drained(client)
    assert (report.state, report.last_error) == ("draining", "")


# Durability by path


def set_policy(cluster: LocalCluster, path: str, value: str) -> None:
    node = leader(cluster)
    cluster.run(node.namespace.run(c.SetPolicy(path, "durability", value)))


def test_a_sync_write_is_acknowledged_when_it_is_durable(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True)
    client = clusters.connect(cluster)
    client.write("/s/0", b"0")
    set_policy(cluster, "/s", "sync")
    for number in range(1, 6):
        client.write(f"/s/{number}", content(30 * KIB, number))
        if number == 5:
            cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore())
    for number in range(1, 6):
        assert client.read(f"/s/{number}") == content(30 * KIB, number)


@pytest.mark.parametrize("size", [1, 3 * MIB], ids=["small", "streamed"])
def test_a_sync_write_fails_and_says_how_far_the_tier_is_behind(
    clusters: Clusters, size: int
) -> None:
    cluster = clusters.start(watched=True)
    client = clusters.connect(cluster, timeout_s=15.0)
    client.write("/s/0", b"0")
    set_policy(cluster, "/s", "sync")
    drained(client)
    clusters.watch.away = True
    with pytest.raises(TierBehind, match="behind"):
        client.write("/s/1", content(size))
    client.write("/other", b"2")
    clusters.watch.away = False
    drained(client)
    client.write("/s/2", b"3")


def test_memory_files_are_absent_after_a_restore_unless_they_were_renamed(
    clusters: Clusters,
) -> None:
    cluster = clusters.start()
    client = clusters.connect(cluster)
    client.mkdirs("/tmp")
    client.mkdirs("/kept")
    set_policy(cluster, "/tmp", "memory")
    client.write("/tmp/a", content(20 * KIB, "a"))
    client.write("/tmp/b", content(20 * KIB, "b"))
    drained(client)
    client.rename("/tmp/b", "/kept/b")
    drained(client)
    cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore())
    assert client.read("/kept/b") == content(20 * KIB, "b")
    with pytest.raises(NotFound):
        client.read("/tmp/a")


def test_whoever_writes_while_a_cluster_is_ended_loses_nothing_that_was_acknowledged(
    clusters: Clusters,
) -> None:
    cluster = clusters.start()
    client, other = clusters.connect(cluster), clusters.connect(cluster, timeout_s=8.0)
    acknowledged: list[int] = []

    def write() -> None:
        for number in count():
            other.write(f"/{number}", content(20 * KIB, number))
            acknowledged.append(number)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        eventually(lambda: len(acknowledged) > 20)
        client.tier.close()
        assert client.tier.flush().closed
        assert tier_of(client).state == "closed"
        with pytest.raises(DeadlineExceeded, match="the cluster is being ended"):
            writing.result()
    cluster.kill(*list(cluster.nodes))
    client = clusters.connect(clusters.restore())
    for number in acknowledged:
        assert client.read(f"/{number}") == content(20 * KIB, number)
    client.write("/more", b"1")


def test_a_cluster_that_was_closed_in_vain_is_opened_again(clusters: Clusters) -> None:
    cluster = clusters.start(watched=True)
    client = clusters.connect(cluster)
    client.write("/a", b"1")
    drained(client)
    client.tier.close()
    client.tier.close(closed=False)
    client.write("/b", b"2")
    assert drained(client).state == "draining"


# Two clusters


def test_the_old_cluster_stops_and_says_why(clusters: Clusters) -> None:
    old = clusters.start()
    client = clusters.connect(old)
    client.write("/s/0", b"0")
    set_policy(old, "/s", "sync")
    drained(client)
    new = clusters.connect(clusters.restore())
    assert new.read("/s/0") == b"0"
    with pytest.raises(DisklessError):
        client.write("/s/1", b"1")
    eventually(lambda: tier_of(client).state == "superseded")
    assert "epoch 2" in tier_of(client).last_error
    with pytest.raises(Superseded, match="epoch 2"):
        client.write("/s/2", b"2")
    client.write("/async", b"3")
    new.write("/s/1", b"new")
    drained(new)
    with pytest.raises(NotFound):
        new.read("/async")


def test_an_idle_cluster_notices_that_another_goes_on_with_its_tier(clusters: Clusters) -> None:
    client = clusters.connect(clusters.start())
    client.write("/a", b"1")
    drained(client)
    clusters.restore()
    eventually(lambda: tier_of(client).state == "superseded")


def test_an_idle_cluster_notices_that_its_store_is_away_and_that_it_is_back(
    clusters: Clusters,
) -> None:
    client = clusters.connect(clusters.start(watched=True))
    client.write("/a", b"1")
    drained(client)
    clusters.watch.away = True
    eventually(lambda: tier_of(client).state == "failing")
    clusters.watch.away = False
    eventually(lambda: tier_of(client).state == "draining")
    assert tier_of(client).last_error == ""


# Added to a cluster that runs


def test_a_tier_is_added_to_a_cluster_with_files(clusters: Clusters) -> None:
    cluster = clusters.stack.enter_context(
        diskless.local_cluster(agents=AGENTS, data_shards=M, parity_shards=K, tuning=BRISK)
    )
    client = clusters.connect(cluster)
    write_all(client)
    assert client.status().tier is None
    attach = c.AttachTier(clusters.uri, 1, 0)
    cluster.run(leader(cluster).namespace.run(attach))
    drained(client)
    cluster.kill(*list(cluster.nodes))
    check_all(clusters.connect(clusters.restore()))
