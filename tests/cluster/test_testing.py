"""diskless.testing: what users are given for tests of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

import diskless
from diskless.errors import BadRequest, TooFewShards, Unavailable
from diskless.testing import Cluster
from tests.support import content

MIB = 1 << 20


def test_urls_mean_the_cluster_of_the_test(diskless_cluster: Cluster) -> None:
    with fsspec.open("diskless:///runs/1", "wb") as file:
        file.write(b"bytes")
    with diskless.connect() as client:
        assert client.read("/runs/1") == b"bytes"
        assert client.status().cluster_id == diskless_cluster.status().cluster_id
    code = "import diskless; print(diskless.connect().read('/runs/1').decode())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "bytes\n"


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    monkeypatch.setenv("DISKLESS_TOKEN", "another cluster's")
    monkeypatch.delenv("DISKLESS_CLUSTER", raising=False)
    with Cluster(agents=3, data_shards=2, parity_shards=1) as cluster:
        assert os.environ["DISKLESS_HOME"] != str(tmp_path)
        assert "DISKLESS_TOKEN" not in os.environ
        assert cluster.alive == (0, 1, 2)
        with pytest.raises(BadRequest, match="open already"), Cluster():
            pass
    assert os.environ["DISKLESS_HOME"] == str(tmp_path)
    assert os.environ["DISKLESS_TOKEN"] == "another cluster's"
    assert "DISKLESS_CLUSTER" not in os.environ
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadRequest, match="not open"):
        cluster.connect()


def test_a_cluster_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    before = dict(os.environ)
    (tmp_path / "file").touch()
    with pytest.raises(diskless.DisklessError), Cluster(tier=f"file://{tmp_path}/file/tier"):
        pass
    assert dict(os.environ) == before
    with Cluster(agents=3, data_shards=2, parity_shards=1) as cluster:
        assert cluster.leader in cluster.alive


def test_k_kills_are_survived_and_more_fail_loudly(
    make_diskless_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_diskless_cluster(agents=3, data_shards=2, parity_shards=1)
    data = content(2 * MIB)
    with cluster.connect() as client, cluster.connect(timeout_s=2) as hasty:
        client.write("/a", data)
        cluster.kill(cluster.leader)
        assert client.read("/a") == data
        cluster.revive()
        cluster.wait_protected()
        cluster.kill(0)
        with pytest.raises(BadRequest, match="agent-0 does not run"):
            cluster.kill(0)
        cluster.kill(1)
        with pytest.raises((TooFewShards, Unavailable, TimeoutError)):
            hasty.read("/a")


def test_a_job_under_kills(diskless_cluster: Cluster) -> None:
    """A writer that never looks at errors, and every byte is there afterwards."""
    files = {}
    with diskless.connect() as client, diskless_cluster.kills(seed=5, pause_s=0.05) as killer:
        while len(killer.killed) < 3:
            path = f"/job/{len(files)}"
            files[path] = content(300_000, seed=len(files))
            client.write(path, files[path])
    assert diskless_cluster.alive == tuple(range(6))
    assert diskless_cluster.status().is_protected()
    assert {len(slots) for slots in killer.killed} == {2}
    with diskless.connect() as client:
        assert client.read_many(list(files)) == files


def interrupted_job(cluster: Cluster) -> Callable[[], None]:
    def job() -> None:
        with cluster.kills(seed=1) as killer:
            killer.wait_for(1)
            raise KeyboardInterrupt

    return job


def test_a_killer_stays_within_k_and_cleans_up_after_a_job_that_ends(
    diskless_cluster: Cluster,
) -> None:
    with (
        pytest.raises(BadRequest, match="between 1 and k"),
        diskless_cluster.kills(seed=1, at_once=3),
    ):
        pass
    job = interrupted_job(diskless_cluster)
    with pytest.raises(KeyboardInterrupt):
        job()
    assert diskless_cluster.alive == tuple(range(6)), "what was killed runs again"
