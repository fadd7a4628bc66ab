"""Answers on `sync` paths: what a replica says that does not lead any more."""

from pathlib import Path

import pytest

from diskless.config import MIB, ClusterSettings
from diskless.errors import Unavailable
from diskless.launch.local import LocalCluster
from diskless.namespace import commands as c
from tests.support import BRISK, eventually


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_who_lost_the_lead_acknowledges_nothing_where_all_is_sync(
    tmp_path: Path, durability: str
) -> None:
    settings = ClusterSettings(
        name=f"lost-lead-{durability}", agents=3, data_shards=1, parity_shards=1,
        memory_bytes=64 * MIB, tuning=BRISK, durability=durability,
    )  # fmt: skip
    with LocalCluster(settings, tier=f"file://{tmp_path}/tier") as cluster:
        nodes = list(cluster.nodes.values())
        eventually(lambda: all(node.replica.state.tier.attached for node in nodes))
        other = next(node for node in nodes if node.replica.leading is None)
        held = other.replica._hold(c.Mkdirs(1, 1, "/a"), (c.Done(),))
        if durability == "sync":
            with pytest.raises(Unavailable):
                cluster.run(held)
        else:
            cluster.run(held)
