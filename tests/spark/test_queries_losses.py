"""Agents die while Spark works for a verb of queries; and all of them, before a query goes back."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import diskless.spark
from diskless.client import Client, connect
from diskless.launch.local import LocalCluster
from diskless.spark import queries
from tests.spark import streams
from tests.spark.fleets import Fleet, in_a_process
from tests.spark.streams import Feed, OtherJvm, Said
from tests.spark.test_queries import FORMATS, expected, run, state_of
from tests.support import eventually, is_whole, leader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("end_all")]


@pytest.fixture
def whole(cluster: LocalCluster, client: Client) -> Iterator[LocalCluster]:
    """The cluster of all tests, which is made whole again after this one."""
    agents = len(cluster.nodes)
    yield cluster
    cluster.revive(*(set(range(agents)) - set(cluster.nodes)))
    eventually(lambda: is_whole(client, agents), streams.QUERY_S_MAX)


def diff(spark: Any, client: Client, path: str, n: int) -> object:
    found = diskless.spark.changes(spark, path, 0, 2).collect()
    return sorted((row.change, row.key.key, tuple(row.new)) for row in found)


def repartition(spark: Any, client: Client, path: str, n: int) -> object:
    """To three partitions, to two, and so on; the same query each time."""
    queries.repartition(spark, client, path, 3 - n % 2, force=True)
    return state_of(spark, path, "changelog")


@pytest.mark.parametrize("verb", [diff, repartition])
def test_k_agents_and_the_leader_die_during_a_verb_that_spark_does(
    spark: Any, client: Client, whole: LocalCluster, feed: Feed, path: str, verb: Any
) -> None:
    """Each round is right, those in which they died too, and the query goes on afterwards."""
    said = Said()
    feed.arrive(3)
    run(spark, client, feed, path, said, FORMATS["changelog"])
    found: list[object] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                found.append(verb(spark, client, path, len(found)))
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    with streams.settings(spark, FORMATS["changelog"]):
        thread = threading.Thread(target=work)
        thread.start()
        eventually(lambda: failed or len(found) >= 1, streams.QUERY_S_MAX)
        whole.kill(leader(whole).slot, max(whole.nodes))
        before = len(found)
        eventually(lambda: failed or len(found) > before + 1, streams.QUERY_S_MAX)
        stop.set()
        thread.join(streams.QUERY_S_MAX)
    assert not thread.is_alive()
    assert failed == []
    assert all(one == found[0] for one in found)
    feed.arrive(2)
    run(spark, client, feed, path, said, FORMATS["changelog"])
    assert said.latest == expected(spark, feed) == state_of(spark, path, "changelog")


def test_a_checkpoint_that_came_from_the_tier_goes_back_as_any_other(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    """All agents are killed after eight batches, and the query goes on from the fourth."""
    said = Said()

    def run_to_the_end(fleet: Fleet) -> None:
        with OtherJvm(f"diskless://{fleet.name}/", master="local[2]") as jvm:
            at = f"diskless://{fleet.name}/q"
            jvm.start("q", at, feed=tmp_path / "feed", conf=FORMATS["changelog-2"])
            jvm.finish("q", said)

    with in_a_process(tmp_path / "tier") as fleet:
        feed.arrive(8)
        run_to_the_end(fleet)
        with connect(fleet.name) as client:
            client.tier.flush()
        fleet.kill()
        fleet.restore()
        with connect(fleet.name) as client:
            assert queries.rollback(client, {"/q": 3}).snapshot == "before-batch-3"
        feed.arrive(2)
        run_to_the_end(fleet)
        with connect(fleet.name) as client:
            assert queries.show(client, "/q").query.last_batch == 9
    assert sorted(said.batches) == list(range(10))
    assert said.latest == expected(spark, feed)
