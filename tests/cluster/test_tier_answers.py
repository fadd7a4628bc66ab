"""Answers on `sync` paths: who waits for the tier, and who does not."""

from pathlib import Path

import pytest

from diskless.checksum import file_checksum
from diskless.config import MIB, ClusterSettings
from diskless.errors import TierBehind, Unavailable
from diskless.launch.local import LocalCluster
from diskless.namespace import commands as c
from tests.support import BRISK, eventually, leader


def settings(name: str, durability: str) -> ClusterSettings:
    return ClusterSettings(
        name=name, agents=3, data_shards=1, parity_shards=1,
        memory_bytes=64 * MIB, tuning=BRISK, durability=durability,
    )  # fmt: skip


def silence(root: Path) -> None:
    """From now on nothing can be written there."""
    root.rename(root.with_name("away"))
    root.write_text("in the way")


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_who_lost_the_lead_acknowledges_nothing_where_all_is_sync(
    tmp_path: Path, durability: str
) -> None:
    chosen = settings(f"lost-lead-{durability}", durability)
    with LocalCluster(chosen, tier=f"file://{tmp_path}/tier") as cluster:
        nodes = list(cluster.nodes.values())
        eventually(lambda: all(node.replica.state.tier.attached for node in nodes))
        other = next(node for node in nodes if node.replica.leading is None)
        held = other.replica._hold(c.Mkdirs(1, 1, "/a"), (c.Done(),))
        if durability == "sync":
            with pytest.raises(Unavailable):
                cluster.run(held)
        else:
            cluster.run(held)


def test_while_the_tier_is_silent_only_puts_on_sync_paths_wait_of_those_packed_together(
    tmp_path: Path,
) -> None:
    root = tmp_path / "tier"
    with (
        LocalCluster(settings("packed-together", "async"), tier=f"file://{root}") as cluster,
        cluster.connect() as client,
    ):
        client.policies.set("/s", "durability", "sync")
        silence(root)
        replica = leader(cluster).replica
        (opened,) = cluster.run(replica.execute(c.OpenSession("test")))
        assert isinstance(opened, c.Done)
        puts = tuple(
            c.Put(opened.number, n, False, (c.NewFile(path, 1, file_checksum(b"x"), b"x"),))
            for n, path in enumerate(("/s/a", "/a", "/s/b"), start=1)
        )
        results = cluster.run(replica.execute(c.Commit((), puts)))
        reasons = [result.reason if isinstance(result, c.Refused) else "" for result in results]
        assert reasons == ["NotDurable", "", "NotDurable"]


def test_what_lies_above_a_sync_path_waits_when_it_is_moved_or_deleted(tmp_path: Path) -> None:
    root = tmp_path / "tier"
    with (
        LocalCluster(settings("above-sync", "async"), tier=f"file://{root}") as cluster,
        cluster.connect(timeout_s=8.0) as client,
    ):
        client.mkdirs("/other")
        for path in ("/p/s", "/r/s"):
            client.mkdirs(path)
            client.policies.set(path, "durability", "sync")
        silence(root)
        client.rename("/other", "/another")
        with pytest.raises(TierBehind):
            client.rename("/p", "/q")
        with pytest.raises(TierBehind):
            client.delete("/r", recursive=True)
