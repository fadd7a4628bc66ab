"""What `diskless adopt` refuses before it touches anything."""

import pytest

from diskless.client import descriptor
from diskless.client.descriptor import Descriptor
from diskless.errors import BadRequest, BadSettings, LaunchFailed
from diskless.launch import actors
from diskless.launch.local import LocalCluster
from diskless.launch.record import RayRecord
from diskless.model import ClusterStatus
from diskless.operate import ending
from diskless.operate.adopt import adopt
from tests.conftest import StartCluster
from tests.support import eventually


def no_progress(_what: str, _done: int, _total: int) -> None:
    pass


def test_a_ray_of_the_clusters_own_cannot_be_replaced():
    descriptor.save(Descriptor(cluster="c", name="own", key="s", ray=RayRecord().to_dict()))
    with pytest.raises(BadRequest, match="a Ray of its own"):
        adopt("own", "10.0.0.1:6380", progress=no_progress)


def test_down_does_not_leave_agents_behind_that_another_ray_runs(
    start: StartCluster, monkeypatch: pytest.MonkeyPatch
):
    """A cluster that was adopted half way: without its descriptor nobody would find them."""
    cluster = start(agents=4, data_shards=2, parity_shards=1)
    known = descriptor.load(cluster.settings.name)
    here = {0, 1}
    monkeypatch.setattr(actors, "find", lambda _, slot: object() if slot in here else None)
    with pytest.raises(LaunchFailed, match="agent-2, agent-3 of cluster"):
        ending.refuse_to_orphan(known)
    cluster.kill(3)
    here.add(2)
    eventually(lambda: status(cluster).agents[3].state == "down")
    ending.refuse_to_orphan(known)


def status(cluster: LocalCluster) -> ClusterStatus:
    with cluster.connect() as client:
        return client.status()


def test_an_address_without_a_port_is_refused():
    with pytest.raises(BadSettings, match="HOST:PORT"):
        adopt("own", "10.0.0.1", progress=no_progress)
