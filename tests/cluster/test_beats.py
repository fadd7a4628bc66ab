"""What agents tell the leader with each beat, and what they need not tell again."""

import os

from diskless import local_cluster
from diskless.agent.ports import Pulse
from diskless.launch.local import LocalCluster
from tests.support import eventually


def pulse_of(cluster: LocalCluster, slot: int) -> Pulse | None:
    """The leader's last of an agent."""
    for node in cluster.nodes.values():
        leading = node.replica.leading
        if leading is not None:
            return leading.monitor.pulses.get(slot)
    return None


def test_an_account_comes_when_it_has_changed_and_stays_with_the_leader_until_then() -> None:
    with local_cluster() as cluster, cluster.connect() as store:
        slot = next(slot for slot, node in cluster.nodes.items() if node.replica.leading is None)

        def told() -> Pulse:
            eventually(lambda: pulse_of(cluster, slot) is not None)  # another may have come to lead
            found = pulse_of(cluster, slot)
            assert found is not None
            return found

        store.write("/a", os.urandom(1 << 20))
        eventually(lambda: told().memory.get("shards", 0) > 0)
        seen = [told()]

        def same_account_again() -> bool:
            """Two beats in a row that found nothing changed."""
            before, seen[0] = seen[0], told()
            return seen[0] is not before and seen[0].memory is before.memory

        eventually(same_account_again)
        held = seen[0].memory["shards"]
        assert seen[0].memory_version > 0
        store.delete("/a")
        store.write("/b", os.urandom(3 << 20))
        eventually(lambda: told().memory.get("shards", 0) > held)
