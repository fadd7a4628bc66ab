"""The margin that `status` tells: of stripes, of the namespace and its inline files, in hosts."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from diskless.cli.status import summary_lines
from diskless.config import KIB, MIB, ClusterSettings
from diskless.launch.local import LocalCluster
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from tests.conftest import Connect, StartCluster
from tests.support import CALM, STRIPED, content, eventually, kill, leader, on_loop, stripes_of

K = 2
INLINE = replace(CALM, inline_bytes_max=64 * KIB)


@contextmanager
def on_hosts(hosts: Mapping[int, str], **settings: Any) -> Iterator[LocalCluster]:
    usual = {"name": f"hosts-{len(hosts)}", "tuning": INLINE, "memory_bytes": 64 * MIB}
    wish = ClusterSettings(agents=len(hosts), **usual | settings)
    with LocalCluster(wish, hosts=hosts) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("hosts", "least"),
    [
        ("aaaaaa", 0),  # one host: with it everything is lost, though there is no stripe yet
        ("abcdef", 2),
        ("aaabcd", 0),  # three of five voters on one
        ("aabbcd", 1),
        ("abbcca", 1),
        ("abcdea", 2),
    ],
)
def test_inline_files_count_in_hosts_as_their_voters_do(hosts: str, least: int) -> None:
    with on_hosts(dict(enumerate(hosts))) as cluster, cluster.connect() as client:
        client.write("/inline", b"x" * 100)
        eventually(lambda: client.status().margin == K)
        status = client.status()
        assert status.stripes.total == 0
        assert status.margin_hosts == least
        shown = f"margin 2 ({least} in hosts)" if len(set(hosts)) > 1 else "margin 2  "
        assert shown in summary_lines(status)[0]


def test_stripes_count_in_hosts_too() -> None:
    """Nine agents on three hosts: no host has more than k of a stripe's six shards."""
    with on_hosts({n: "abc"[n % 3] for n in range(9)}) as cluster, cluster.connect() as client:
        client.write("/large", content(3 * MIB))
        eventually(lambda: client.status().margin == K)
        assert client.status().margin_hosts == 1
        kill(cluster, 0, 3, 6)  # a whole host: two voters, and a third of the shards
        status = client.status()
        assert (status.margin, status.margin_hosts) == (0, 0)
        assert client.read("/large") == content(3 * MIB)


def test_shards_that_had_to_share_hosts_are_spread_out_when_a_host_is_back() -> None:
    hosts = dict(enumerate("abccab"))
    with (
        on_hosts(hosts, data_shards=2, parity_shards=1, tuning=STRIPED) as cluster,
        cluster.connect() as client,
    ):
        client.write("/large", content(5 * MIB))
        eventually(lambda: client.status().margin_hosts == 1)

        def crowded() -> int:
            spread = [
                {hosts[place.slot] for place in s.places} for s in stripes_of(cluster, "/large")
            ]
            return sum(len(used) < 3 for used in spread)

        kill(cluster, 2, 3)
        eventually(lambda: crowded() == 5)
        assert client.read("/large") == content(5 * MIB)
        cluster.revive(2, 3)
        eventually(lambda: client.status().margin_hosts == 1)
        assert crowded() == 0
        kill(cluster, 0, 4)
        assert client.read("/large") == content(5 * MIB), "any host may go now"


def test_what_is_lost_while_shards_are_spread_out_does_not_wait_for_the_end_of_it() -> None:
    """Neither of them comes with a change of the roster: an agent that is given up after the
    delay, and damage."""
    hosts = dict(enumerate("abccab"))
    small = replace(CALM, stripe_bytes=64 * KIB, repair_delay_s=0.2)
    with (
        on_hosts(hosts, data_shards=2, parity_shards=1, tuning=small) as cluster,
        cluster.connect() as client,
    ):
        client.write("/large", content(8 * MIB))
        kill(cluster, 2, 3)
        repairer = leader(cluster).leading.repairer

        def is_rebuilt() -> bool:
            cluster.run(repairer.repair())
            return bool(client.status().stripes.degraded == 0)

        eventually(is_rebuilt)
        cluster.revive(2, 3)
        eventually(lambda: all(agent.state == "up" for agent in client.status().agents))
        oldest = stripes_of(cluster, "/large")[0]
        shards = cluster.nodes[oldest.places[0].slot].storage.shards
        waves: list[list[str]] = []
        wave = repairer._wave

        async def observed(stripes: Sequence[str]) -> Any:
            waves.append(list(stripes))
            if len(waves) == 1:
                assert oldest.id not in stripes
                shards.drop([oldest.id])
                shards.verify(oldest.id, 0)
                async with asyncio.timeout(50):
                    while not repairer.damaged():
                        await asyncio.sleep(0.01)
            return await wave(stripes)

        on_loop(cluster, lambda: setattr(repairer, "_wave", observed))
        assert leader(cluster).leading.repairer is repairer
        while len(waves) < 2:
            cluster.run(repairer.repair())
        assert waves[1][0] == oldest.id
        assert client.read("/large") == content(8 * MIB)


def test_a_voter_that_is_gone_costs_margin_without_any_stripe(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=INLINE)
    client = connect(cluster)
    client.write("/inline", b"x")
    for count, slot in enumerate((3, 1), 1):
        kill(cluster, slot)
        eventually(lambda count=count: client.status().margin == K - count)
        assert client.status().margin_hosts == 0
    cluster.revive(3, 1)
    eventually(lambda: client.status().margin == K)


def test_a_voter_that_does_not_take_part_costs_margin_though_its_agent_is_up(
    start: StartCluster, connect: Connect
) -> None:
    """It is there for the leader's beats, and hears nothing of the log."""
    cluster = start(tuning=INLINE)
    client = connect(cluster)
    eventually(lambda: client.status().margin == K)
    deaf = next(cluster.nodes[slot] for slot in (3, 4) if not cluster.nodes[slot].replica.leads)
    hear = deaf.replica.receive
    deaf.replica.receive = lambda sender, message: None  # type: ignore[method-assign]
    eventually(lambda: client.status().margin == K - 1)
    assert {agent.state for agent in client.status().agents} == {"up"}
    deaf.replica.receive = hear  # type: ignore[method-assign]
    eventually(lambda: client.status().margin == K)


def test_a_voter_that_answers_is_not_lost_though_the_roster_still_says_so(
    start: StartCluster, connect: Connect
) -> None:
    """As when one that slept is heard by the protocol first: a majority is there."""
    cluster = start(tuning=INLINE)
    client = connect(cluster)
    client.write("/inline", b"x")
    eventually(lambda: client.status().margin == K)
    replica = leader(cluster).replica

    async def margin_without_others() -> int:
        while True:
            agents = replica.state.agents
            others = [agents[slot] for slot in range(5) if slot != replica.slot]
            await asyncio.gather(
                *(replica.execute(c.AgentDown(agent.slot, agent.incarnation)) for agent in others)
            )
            if sum(replica.state.agents[slot].up for slot in range(5)) < K + 1:
                return int(json.loads(replica.answer(q.Report()))["margin"])

    assert cluster.run(margin_without_others()) == 0
    eventually(lambda: client.status().margin == K)


def test_shards_that_are_away_are_not_called_lost(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=CALM)
    client = connect(cluster)
    client.write("/large", content(3 * MIB))
    kill(cluster, 5, 3, 4)
    (first, *_) = summary_lines(client.status())
    assert "some data cannot be read now" in first
    assert "lost" not in first
