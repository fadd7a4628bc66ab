"""A large recursive delete on a live cluster: gone at once, taken apart by whoever leads."""

from dataclasses import replace

import pytest

from diskless.client import Client
from diskless.errors import NotFound
from diskless.launch.local import LocalCluster
from diskless.namespace.state import SWEEP_AT_ONCE
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, eventually, kill, leader, on_loop

FILES = 2 * SWEEP_AT_ONCE + 100
SLOW = replace(BRISK, janitor_interval_s=3600.0)
"""Nobody sweeps."""


def fill(client: Client, folder: str) -> None:
    for first in range(0, FILES, 700):
        names = range(first, min(first + 700, FILES))
        client.write_many({f"{folder}/{n % 3}/{n}": b"12" for n in names})


def files_held(cluster: LocalCluster) -> int:
    """Also of what is deleted and not swept yet."""
    state = leader(cluster).replica.state
    return on_loop(cluster, lambda: len(state.files))


def check_gone(client: Client, folder: str) -> None:
    with pytest.raises(NotFound):
        client.stat(f"{folder}/1/1")
    status = client.status()
    assert (status.files, status.directories, status.bytes_logical) == (1, 1, 4)
    assert [entry.path for entry in client.list("/")] == ["/kept"]


def test_all_is_gone_at_once_and_its_memory_soon(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    client.write("/kept", b"kept")
    fill(client, "/d")
    assert client.summary("/d").files == FILES
    assert client.delete("/d", recursive=True)
    check_gone(client, "/d")
    client.write("/d/1/1", b"new")
    eventually(lambda: client.status().files_unswept == 0)
    assert files_held(cluster) == 2
    assert client.read("/d/1/1") == b"new"


def test_the_next_leader_goes_on_sweeping(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=SLOW)
    client = connect(cluster)
    client.write("/kept", b"kept")
    fill(client, "/d")
    client.delete("/d", recursive=True)
    assert client.status().files_unswept == FILES
    kill(cluster, leader(cluster).slot)
    eventually(lambda: client.status().files_unswept == FILES)
    check_gone(client, "/d")
    cluster.run(leader(cluster).leading.janitor.sweep())
    assert client.status().files_unswept == 0
    assert files_held(cluster) == 1


def test_status_tells_how_late_every_loop_is(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    eventually(lambda: all(a.loop_lag.max_ms > 0 for a in client.status().agents))
    status = client.status()
    for lag in (status.loop_lag, *(agent.loop_lag for agent in status.agents)):
        assert 0 <= lag.p50_ms <= lag.p99_ms <= lag.max_ms
