"""All agents look through what they have at the pace that the leader chooses."""

from diskless.config import MIB
from diskless.launch.local import LocalCluster
from diskless.upkeep import BRISK, FASTEST, USUAL
from tests.conftest import Connect, StartCluster
from tests.support import STRIPED, content, eventually, kill, on_loop


def paces(cluster: LocalCluster) -> set[float]:
    return on_loop(cluster, lambda: {node.roster.upkeep_pace for node in cluster.nodes.values()})


def test_agents_look_faster_when_one_fails_and_when_damage_is_found(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=5, data_shards=2, parity_shards=1, tuning=STRIPED)
    client = connect(cluster)
    client.write("/a", content(MIB))
    assert paces(cluster) == {USUAL}

    kill(cluster, 4)
    eventually(lambda: client.status().upkeep.pace >= BRISK)
    upkeep = client.status().upkeep
    assert "failed or were slow" in upkeep.pace_why
    assert upkeep.scrub_bytes_per_s == STRIPED.scrub_bytes_per_s * upkeep.pace
    cluster.revive(4)

    on_loop(cluster, lambda: cluster.nodes[3].storage.shards.flip_bytes(4, random_seed=1))
    assert client.read("/a") == content(MIB)
    eventually(lambda: "damaged" in client.status().upkeep.pace_why, 60.0)
    eventually(lambda: paces(cluster) == {FASTEST})
    assert client.read("/a") == content(MIB)
