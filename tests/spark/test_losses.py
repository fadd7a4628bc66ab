"""Queries on `diskless://` while agents are lost: k and nobody notices, k+1 and they say why.

Agents of a local cluster are killed with their memory, or held: then nothing reaches them.
Agents on Ray are killed and paused for real.
"""

import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import diskless
from diskless.client import Client
from diskless.config import KIB
from diskless.errors import DeadlineExceeded, Unavailable
from diskless.launch import signals
from diskless.launch.local import LocalCluster
from diskless.model import parse_slot
from tests.conftest import Connect, StartCluster
from tests.spark import streams
from tests.spark.streams import Numbers, Said, files_under, rows_of, totals
from tests.support import BRISK, STRIPED, Program, Relay, eventually, kill, leader, ray_program

pytestmark = pytest.mark.usefixtures("end_all")

AGENTS, K = 6, 2
VOTERS = 2 * K + 1
NUMBERS = Numbers(rows=600, keys=500)
ROCKSDB = {streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: False}
SHORT = {streams.TIMEOUT: "6s"}
"""How long Spark waits for agents before a query fails."""
RECOVERY_S = 60.0


def check(spark: SparkSession, said: Said) -> None:
    """Every batch was said, and together they are right."""
    assert sorted(said.batches) == list(range(len(said.batches)))
    assert said.latest == rows_of(totals(NUMBERS.batch(spark, len(said.batches))))


def in_turn(first: int) -> list[int]:
    """All slots: the leader, those that would lead after it in their order, the others."""
    return [(first + n) % VOTERS for n in range(VOTERS)] + list(range(VOTERS, AGENTS))


# k losses.

EVERY_RUN = {(0, 1), (0, 2), (1, 5), (3, 4)}


@pytest.mark.parametrize(
    "turns",
    [
        pair if pair in EVERY_RUN else pytest.param(pair, marks=pytest.mark.slow)
        for pair in itertools.combinations(range(AGENTS), K)
    ],
    ids=lambda pair: "leader-and-{1}".format(*pair) if not pair[0] else "{}-and-{}".format(*pair),
)
def test_any_two_agents_may_die_while_a_query_runs(
    spark: SparkSession, start: StartCluster, turns: tuple[int, int]
) -> None:
    """All files are in stripes. Afterwards the state is read with both agents gone.

    For some of the pairs it is RocksDB's, which uploads files beside Spark's manager.
    """
    cluster, said = start(tuning=STRIPED), Said()
    checkpoint = f"{cluster.uri}q"
    stream = totals(NUMBERS.stream(spark))
    with streams.settings(spark, ROCKSDB if turns[1] % 2 else {}):
        with streams.running(stream, checkpoint, said) as query:
            streams.await_batch(query, 1)
            cluster.kill(*(in_turn(leader(cluster).slot)[turn] for turn in turns))
            streams.await_more(query, 3)
        with streams.running(stream, checkpoint, said) as query:
            streams.await_more(query, 2)
    check(spark, said)


# k+1 losses.

Pause = Callable[[], AbstractContextManager[None]]
"""Silences k+1 voters, the leader among them, until the block ends."""


@pytest.fixture
def silenced(start: StartCluster, connect: Connect) -> Iterator[tuple[LocalCluster, Pause]]:
    cluster = start()
    slots = in_turn(leader(cluster).slot)[: K + 1]
    with ExitStack() as stack:
        relays = [stack.enter_context(Relay(cluster, slot)) for slot in slots]
        wait_until_well(connect(cluster))

        @contextmanager
        def pause() -> Iterator[None]:
            for relay in relays:
                relay.hold()
            yield
            for relay in relays:
                relay.pass_on()

        yield cluster, pause


def wait_until_well(client: Client) -> None:
    """Until all agents are up and any k more may be lost."""

    def well() -> bool:
        try:
            status = client.status()
        except (DeadlineExceeded, Unavailable):
            return False
        return status.margin == K and all(a.state == "up" for a in status.agents)

    eventually(well, RECOVERY_S)


def check_fails_and_resumes(spark: SparkSession, client: Client, uri: str, pause: Pause) -> None:
    said, checkpoint = Said(), f"{uri}paused"
    with streams.settings(spark, SHORT):
        query = streams.start(totals(NUMBERS.stream(spark)), checkpoint, said)
        streams.await_batch(query, 1)
        with pause():
            eventually(lambda: not query.isActive, RECOVERY_S)
            cause = f"NoQuorum: the namespace needs {K + 1} of {VOTERS} voters"
            assert cause in str(query.exception())
        wait_until_well(client)
        offsets = sorted(int(Path(name).name) for name in files_under(client, "/paused/offsets"))
        commits = sorted(int(Path(name).name) for name in files_under(client, "/paused/commits"))
        assert offsets == list(range(len(offsets)))
        assert commits in (offsets, offsets[:-1])
        with streams.running(totals(NUMBERS.stream(spark)), checkpoint, said) as query:
            streams.await_more(query, 3)
    check(spark, said)


def test_without_a_quorum_a_query_fails_with_the_cause_and_resumes_when_agents_are_back(
    spark: SparkSession, silenced: tuple[LocalCluster, Pause], connect: Connect
) -> None:
    cluster, pause = silenced
    check_fails_and_resumes(spark, connect(cluster), cluster.uri, pause)


def test_a_query_that_waits_for_agents_stops_cleanly_and_another_waits_on(
    spark: SparkSession, silenced: tuple[LocalCluster, Pause]
) -> None:
    cluster, pause = silenced
    stopped_said, said = Said(), Said()
    stream = totals(NUMBERS.stream(spark))
    with streams.running(stream, f"{cluster.uri}other", said) as other:
        query = streams.start(stream, f"{cluster.uri}stopped", stopped_said)
        streams.await_batch(query, 1)
        with pause():
            await_standstill(query, other)
            began_s = time.monotonic()
            query.stop()
            assert time.monotonic() - began_s < 5.0
            assert query.exception() is None
        streams.await_more(other, 2)
    with streams.running(stream, f"{cluster.uri}stopped", stopped_said) as query:
        streams.await_more(query, 2)
    check(spark, said)
    check(spark, stopped_said)


def await_standstill(*queries: StreamingQuery) -> None:
    """Until no query has finished a batch for a while."""
    seen: list[int] = []
    since_s = 0.0

    def still() -> bool:
        nonlocal seen, since_s
        now = [streams.last_batch(query) for query in queries]
        if now != seen:
            seen, since_s = now, time.monotonic()
        return time.monotonic() - since_s > 3.0

    eventually(still)


def test_state_that_is_lost_for_good_is_never_made_up(
    spark: SparkSession, start: StartCluster, connect: Connect
) -> None:
    """k+1 agents die that had shards of it; k voters among them, so the namespace goes on."""
    cluster, said = start(tuning=BRISK), Said()
    client, checkpoint = connect(cluster), f"{cluster.uri}lost"
    stream = totals(Numbers(rows=20_000, keys=20_000).stream(spark))
    with streams.running(stream, checkpoint, said) as query:
        streams.await_batch(query, 1)
    eventually(lambda: client.status().bytes_inline < 16 * KIB)
    commits, batches = files_under(client, "/lost/commits"), dict(said.batches)

    kill(cluster, 3, 4, 5)
    query = streams.start(stream, checkpoint, said)
    eventually(lambda: not query.isActive, RECOVERY_S)
    cause = r"3 of 4 required shards readable \(gone: agent-3, agent-4, agent-5\)"
    assert re.search(cause, str(query.exception()))
    assert (files_under(client, "/lost/commits"), said.batches) == (commits, batches)


# On Ray.


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    settings = ("--agents", str(AGENTS), "-m", "4", "-k", str(K), "--memory", "128MiB")
    with ray_program(*settings) as (program, _):
        yield program


def processes(client: Client, turns: int) -> list[int]:
    """Of the leader and those that would lead after it."""
    status = client.status()
    slots = in_turn(parse_slot(status.leader))[:turns]
    return [status.agents[slot].pid for slot in slots]


@pytest.mark.timeout(300)
def test_agents_on_ray_are_paused_and_killed_while_a_query_runs(
    spark: SparkSession, program: Program
) -> None:
    uri = f"diskless://{program.name}/"

    @contextmanager
    def pause() -> Iterator[None]:
        pids = processes(client, K + 1)
        signals.stop(pids)
        try:
            yield
        finally:
            signals.send(pids, signal.SIGCONT)

    with diskless.connect(program.name) as client:
        check_fails_and_resumes(spark, client, uri, pause)

        said = Said()
        with streams.running(totals(NUMBERS.stream(spark)), f"{uri}killed", said) as query:
            streams.await_batch(query, 1)
            before = client.status()
            signals.send(processes(client, K), signal.SIGKILL)
            streams.await_more(query, 3)
        assert client.status().view > before.view
        check(spark, said)
