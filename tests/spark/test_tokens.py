"""Streams as clients: bound to a path, cut off, and over encrypted doors."""

import secrets
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from diskless.client import Client
from diskless.launch.local import LocalCluster
from tests.conftest import Connect, StartCluster
from tests.spark import streams
from tests.spark.streams import Feed, Numbers, OtherJvm, Said, files_under, rows_of, totals
from tests.support import BRISK, eventually

pytestmark = pytest.mark.usefixtures("end_all")

NAME = "test.diskless.name"
PROVIDERS = [
    pytest.param({}, id="hdfs"),
    pytest.param({streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: True}, id="rocksdb"),
]


@pytest.fixture
def bound(spark: SparkSession, cluster: LocalCluster, path: str) -> SparkSession:
    """A session whose token is for `path` alone, and has a name of its own."""
    session = spark.newSession()
    name = f"q{secrets.token_hex(4)}"
    session.conf.set(NAME, name)
    session.conf.set("fs.diskless.token", cluster.token(path, name=name))
    session.conf.set("fs.diskless.impl.disable.cache", "true")  # Hadoop shares by URI alone
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


def use_tcp(cluster: LocalCluster) -> None:
    """As from another host: only those doors are encrypted."""
    for node in cluster.nodes.values():
        Path(node.settings.socket_path).unlink()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stream_needs_a_token_for_its_checkpoint_and_nothing_else(
    bound: SparkSession, client: Client, feed: Feed, path: str, provider: dict[str, object]
) -> None:
    said = Said()
    with streams.settings(bound, provider):
        for _ in range(2):
            feed.arrive(2)
            streams.run(totals(feed.stream(bound)), f"diskless://{path}", said)
    assert said.latest == rows_of(totals(feed.batch(bound)))
    assert files_under(client, path)


def test_a_stream_elsewhere_is_refused_in_one_line_and_leaves_nothing(
    bound: SparkSession, client: Client, feed: Feed, path: str
) -> None:
    feed.arrive(1)
    with pytest.raises(Exception, match="AccessControlException") as refused:
        streams.run(totals(feed.stream(bound)), f"diskless://{path}-not", Said())
    lines = [line for line in str(refused.value).splitlines() if "AccessControl" in line]
    assert (
        f"{path}-not is not covered by the token {bound.conf.get(NAME)!r}, which is for {path}"
        in lines[0]
    )
    assert not client.exists(f"{path}-not")


def test_a_stream_whose_token_is_revoked_ends_and_says_so(
    bound: SparkSession, client: Client, path: str
) -> None:
    numbers = Numbers(rows=100, keys=10)
    query = streams.start(totals(numbers.stream(bound)), f"diskless://{path}", Said())
    streams.await_batch(query, 0)
    client.revoke_token(bound.conf.get(NAME))
    eventually(lambda: not query.isActive, streams.QUERY_S_MAX)
    assert f"the token {bound.conf.get(NAME)!r} was revoked" in str(query.exception())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stream_over_tls_goes_on_when_agents_die(
    spark: SparkSession,
    start: StartCluster,
    connect: Connect,
    path: str,
    provider: dict[str, object],
) -> None:
    cluster = start(agents=6, tls=True, tuning=BRISK)
    use_tcp(cluster)
    numbers, said = Numbers(rows=200, keys=10), Said()
    checkpoint = f"{cluster.uri}{path.lstrip('/')}"
    with (
        streams.settings(spark, provider | {streams.TIMEOUT: "60s"}),
        streams.running(totals(numbers.stream(spark)), checkpoint, said) as query,
    ):
        streams.await_more(query, 2)
        cluster.kill(1, 4)
        streams.await_more(query, 2)
        cluster.revive(1, 4)
        for slot in (1, 4):
            Path(cluster.nodes[slot].settings.socket_path).unlink()
        streams.await_more(query, 2)
    batches = max(said.batches) + 1
    assert said.latest == rows_of(totals(numbers.batch(spark, batches)))
    assert files_under(connect(cluster), path)


def test_executors_speak_tls_with_what_spark_was_told(
    spark: Any, start: StartCluster, feed: Feed, tmp_path: Path, path: str
) -> None:
    cluster = start(agents=3, data_shards=2, parity_shards=1, tls=True)
    use_tcp(cluster)
    feed.arrive(3)
    said = Said()
    with OtherJvm(cluster.uri, master="local-cluster[1,1,1024]") as other:
        other.start("q", f"diskless://{path}", feed=tmp_path / "feed")
        other.finish("q", said)
    assert said.latest == rows_of(totals(feed.batch(spark)))
