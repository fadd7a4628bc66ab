"""One cluster of six agents and one Spark, for all tests of this directory.

The JVM cases in jvm/*.scala are compiled as the product is, into a jar of their own.
"""

import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import diskless
import diskless.spark
from diskless.client import Client
from diskless.config import MIB, ClusterSettings
from diskless.identity import certificates
from diskless.launch.local import LocalCluster
from diskless.spark.jar import build, jar
from tests.conftest import StartCluster
from tests.spark import streams
from tests.spark.streams import Feed
from tests.support import check_ledger_of_leader

CASES = Path(__file__).parent / "jvm"
ADDRESS = "127.0.0.1"
"""What Spark's executor is registered by, and one of the names of the cluster's host."""
START_TIMEOUT_S = 300
"""The first run compiles: the product once, and its tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first starts Spark, and compiles."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(START_TIMEOUT_S))


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """On the host that Spark's executor is on, as agents of Ray tell of theirs."""
    settings = ClusterSettings(
        name=f"spark-{secrets.token_hex(4)}", memory_bytes=256 * MIB, cache="10%"
    )
    host = f"a-name-for-it/{ADDRESS}"
    with LocalCluster(settings, hosts=dict.fromkeys(range(settings.agents), host)) as cluster:
        yield cluster
        check_ledger_of_leader(cluster)


@pytest.fixture(scope="session")
def spark(cluster: LocalCluster) -> Iterator[Any]:
    """A SparkSession whose `diskless:///` is the cluster, with the cases on its classpath."""
    from pyspark.sql import SparkSession

    cases = build("diskless-spark-tests", sorted(CASES.glob("*.scala")), classpath=[jar()])
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("diskless-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", ADDRESS)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars", str(cases))
    )
    session = diskless.spark.configure(builder, cluster.uri).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    conf = session._jsc.hadoopConfiguration()
    for key, value in (make_certificates() | make_tokens(cluster)).items():
        conf.set(f"test.diskless.{key}", value)
    yield session
    session.stop()


def make_certificates() -> dict[str, str]:
    """For TlsSuite: agent 0 of cluster `fake` and others, who are not that one."""
    now = datetime.now(UTC)
    ours = certificates.make_authority("fake", "fake")
    theirs = certificates.make_authority("fake", "fake")

    def issue(authority: certificates.Pair = ours, **changed: Any) -> certificates.Pair:
        about = {"cluster": "fake", "slot": 0, "hosts": ["elsewhere"]} | changed
        return certificates.issue(authority, **about)

    pairs = {
        "good": issue(),
        "stranger": issue(theirs),
        "expired": issue(now=now - timedelta(days=200)),
        "early": issue(now=now + timedelta(days=9)),
        "other-slot": issue(slot=7),
        "other-cluster": issue(cluster="other"),
        "own-host": issue(cluster="none", hosts=["127.0.0.1"]),
        "other-host": issue(cluster="none", hosts=["127.0.0.2"]),
    }
    found = {"tls.good.authority": ours.chain.decode()}
    for name, pair in pairs.items():
        found[f"tls.{name}.chain"] = pair.chain.decode()
        found[f"tls.{name}.key"] = pair.key.decode()
    return found


def make_tokens(cluster: LocalCluster) -> dict[str, str]:
    """For RightsSuite."""
    granted: dict[str, dict[str, Any]] = {
        "own": {},
        "reader": {"writes": False},
        "expired": {"expires_s": int(time.time()) - 60},
    }
    return {
        f"token.{name}": cluster.keyring.client(name, paths=["/rights/own"], **rights).token
        for name, rights in granted.items()
    }


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.connect() as client:
        yield client


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed")


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    """For one test alone. Without brackets: Spark takes those of a table's path for a pattern,
    and its reader of states escapes them twice, whatever the file system."""
    return f"/{request.path.stem}/{request.node.name}".replace("[", "-").replace("]", "")


@pytest.fixture
def end_all(spark: Any, start: StartCluster) -> Iterator[None]:
    """For tests with streams: Spark keeps a query's stores, and the pace at which it looks
    after them, until it is told to end them. Before their cluster ends: a store that looks
    for a cluster which is gone is waited for as long as it tries."""
    yield
    streams.end_all(spark)


@pytest.fixture(scope="session")
def jvm(spark: Any) -> Any:
    return spark._jvm
