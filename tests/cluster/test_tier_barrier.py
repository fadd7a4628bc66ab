"""`durability=barrier` in a whole cluster: who waits, for whom, and whoever leads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diskless.client import Client
from diskless.config import MIB, ClusterSettings
from diskless.errors import DeadlineExceeded, NotDurable, TierBehind
from diskless.launch.local import LocalCluster
from diskless.namespace import queries as q
from tests.support import BRISK, eventually, leader

NOT_YET = (TierBehind, DeadlineExceeded)
SHORT_S = 8.0
"""Longer than an answer is held back at once."""
WAITERS = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def cluster(root: Path) -> Iterator[LocalCluster]:
    settings = ClusterSettings(
        name="barrier", agents=3, data_shards=1, parity_shards=1, memory_bytes=64 * MIB,
        tuning=BRISK,
    )  # fmt: skip
    with LocalCluster(settings, tier=f"file://{root}") as cluster:
        eventually(lambda: leader(cluster).replica.state.tier.attached)
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.connect() as client:
        client.policies.set("/c", "durability", "barrier")
        client.mkdirs("/c/q/state")
        client.mkdirs("/c/stateless")
        client.tier.flush()
        yield client


def silence(root: Path) -> None:
    root.rename(root.with_name("away"))
    root.write_text("in the way")


def speak(root: Path) -> None:
    root.unlink()
    root.with_name("away").rename(root)


def test_effects_wait_while_the_tier_is_silent_and_come_when_it_speaks(
    cluster: LocalCluster, client: Client, root: Path
) -> None:
    client.write("/c/q/offsets/0", b"plan")
    client.tier.flush()
    silence(root)
    client.write("/c/q/commits/0", b"its plan is in the tier")
    client.write("/c/q/offsets/1", b"plan")
    with cluster.connect(timeout_s=SHORT_S) as hasty:
        with pytest.raises(TierBehind, match="behind"):
            hasty.write("/c/q/state/1.delta", b"x")
        with pytest.raises(NOT_YET):
            hasty.read("/c/q/offsets/1")
        with pytest.raises(NOT_YET):
            hasty.write("/c/stateless/offsets/0", b"plan")
        assert hasty.read("/c/q/offsets/0") == b"plan"
        hasty.write("/elsewhere", b"goes on")
    with ThreadPoolExecutor(2) as pool:
        written = pool.submit(client.write, "/c/q/commits/1", b"x")
        read = pool.submit(client.read, "/c/stateless/offsets/0")
        eventually(lambda: client.status().tier.held > 0)  # type: ignore[union-attr]
        speak(root)
        written.result(30)
        assert read.result(30) == b"plan"


def test_a_new_leader_waits_for_plans_that_the_one_before_it_answered(
    cluster: LocalCluster, client: Client, root: Path
) -> None:
    silence(root)
    client.write("/c/q/offsets/0", b"plan")
    old = leader(cluster)
    cluster.kill(old.slot)
    eventually(lambda: leader(cluster).slot != old.slot)
    with cluster.connect(timeout_s=SHORT_S) as hasty:
        with pytest.raises(NOT_YET):
            hasty.write("/c/q/state/1.delta", b"x")
        with pytest.raises(NOT_YET):
            hasty.read("/c/q/offsets/0")
    speak(root)
    client.write("/c/q/state/2.delta", b"x")
    assert client.read("/c/q/offsets/0") == b"plan"


def test_a_plan_beyond_the_horizon_is_not_read_among_many_either(
    cluster: LocalCluster, client: Client, root: Path
) -> None:
    client.write("/c/q/offsets/0", b"plan")
    client.tier.flush()
    silence(root)
    client.write("/c/q/offsets/1", b"plan")
    replica = leader(cluster).replica
    with pytest.raises(NotDurable):
        replica.answer(q.OpenMany(("/c/q/offsets/0", "/c/q/offsets/1")))
    assert replica.answer(q.OpenMany(("/c/q/offsets/0", "/c/q/offsets//1"))).records[0] is not None
    speak(root)
    found = dict(client.read_many(["/c/q/offsets/0", "/c/q/offsets/1"]))
    assert found == {"/c/q/offsets/0": b"plan", "/c/q/offsets/1": b"plan"}


@pytest.mark.parametrize("durability", ["barrier", "sync"])
def test_others_do_not_stand_behind_those_who_wait_for_a_silent_tier(
    cluster: LocalCluster, client: Client, root: Path, durability: str
) -> None:
    client.policies.set("/c", "durability", durability)
    client.tier.flush()
    silence(root)
    if durability == "barrier":
        client.write("/c/q/offsets/0", b"plan")

    def wait(n: int) -> None:
        with cluster.connect() as patient:
            patient.write(f"/c/q/state/{n}", b"x")

    with ThreadPoolExecutor(WAITERS) as pool:
        waiting = []
        for n in range(WAITERS):  # each is done before the next comes: none wait together
            waiting.append(pool.submit(wait, n))
            eventually(lambda n=n: client.exists(f"/c/q/state/{n}"))
        client.write("/elsewhere", b"goes on")
        assert not any(one.done() for one in waiting)
        speak(root)
        for one in waiting:
            one.result(60)
