"""Agents that say that they are about to end: they are emptied before, whoever leads, and what was
announced wrongly is taken back."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest

from diskless import ends
from diskless.client import Client
from diskless.config import KIB, MIB, ClusterSettings
from diskless.errors import TooFewShards
from diskless.launch.local import LocalCluster
from diskless.namespace import commands as c
from diskless.node import Node
from tests.agent_process import ProcessCluster
from tests.conftest import Connect, StartCluster
from tests.support import STRIPED, content, eventually, kill, leader, on_loop, stripes_of

TUNING = replace(STRIPED, stripe_bytes=64 * KIB, end_notice_s=50.0)
PATIENT = replace(TUNING, failure_timeout_s=5.0, hedge_delay_s=20.0)
"""A busy machine looks like neither a dead agent nor a slow one."""
FILES = {f"/{size}": content(size) for size in (1, 64 * KIB, MIB + 1, 2 * MIB)}


def write_all(client: Client) -> None:
    for path, data in FILES.items():
        client.write(path, data)


def read_all(client: Client) -> None:
    for path, data in FILES.items():
        assert client.read(path) == data


def slots_used(cluster: LocalCluster) -> set[int]:
    return {place.slot for path in FILES for s in stripes_of(cluster, path) for place in s.places}


def announce(cluster: LocalCluster, *slots: int) -> None:
    for slot in slots:
        life = leader(cluster).replica.state.agents[slot].incarnation
        ends_soon = c.AgentEnds(slot, life, f"Ray {slot}", 600_000)
        cluster.run(leader(cluster).namespace.run(ends_soon))


def fill(cluster: LocalCluster, *slots: int) -> None:
    """Leaves agents no room for anything."""

    def plant() -> None:
        for slot in slots:
            cluster.nodes[slot].faults.ballast_bytes = cluster.settings.memory_bytes

    on_loop(cluster, plant)


def begin_to_leave(cluster: LocalCluster, slot: int) -> "Leaving":
    return Leaving(cluster, cluster.nodes[slot])


class Leaving:
    """An agent that was told to end, in the background."""

    def __init__(self, cluster: LocalCluster, node: Node) -> None:
        self.ended: bool | None = None
        self._thread = Thread(target=self._leave, args=(cluster, node), daemon=True)
        self._thread.start()

    def _leave(self, cluster: LocalCluster, node: Node) -> None:
        self.ended = cluster.run(node.leave(why="SIGTERM"))

    def wait(self) -> bool | None:
        self._thread.join(60)
        return self.ended


class Watch:
    """Reads all files and looks at the margin, again and again, in the background."""

    def __init__(self, client: Client) -> None:
        self.margins: list[int] = []
        self.rounds = 0
        self.error: BaseException | None = None
        self._client = client
        self._over = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                read_all(self._client)
                self.margins.append(self._client.status().margin)
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self.error = error


def degraded_reads(cluster: LocalCluster) -> int:
    return on_loop(
        cluster, lambda: sum(n.storage.reader.degraded_reads for n in cluster.nodes.values())
    )


def test_an_agent_that_ends_is_empty_before_and_nobody_notices(
    start: StartCluster, connect: Connect
) -> None:
    """With room elsewhere the margin never falls below k, and no read does without a shard."""
    cluster = start(agents=8, tuning=PATIENT)
    client = connect(cluster)
    write_all(client)
    assert 7 in slots_used(cluster)
    read_all(client)
    before = degraded_reads(cluster)
    with Watch(connect(cluster)) as watch:
        leaving = begin_to_leave(cluster, 7)
        eventually(lambda: client.status().agents[7].state == "ending")
        assert leaving.wait() is True
        assert 7 not in slots_used(cluster)
        kill(cluster, 7)
        rounds = watch.rounds
        eventually(lambda: watch.rounds > rounds + 1)
    assert min(watch.margins) == 2
    read_all(client)
    assert degraded_reads(cluster) == before
    client.write("/new", content(MIB))
    assert client.read("/new") == content(MIB)


def test_a_leader_that_ends_hands_over_and_its_successor_empties_it(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=8, tuning=TUNING)
    client = connect(cluster)
    write_all(client)
    old = leader(cluster).slot
    leaving = begin_to_leave(cluster, old)
    assert leaving.wait() is True
    assert leader(cluster).slot != old
    assert old not in slots_used(cluster)
    kill(cluster, old)
    assert client.status().stripes.degraded == 0
    read_all(client)


def test_an_end_that_was_announced_wrongly_is_taken_back_by_hand(
    start: StartCluster, connect: Connect
) -> None:
    """The agent hears it too, and does not end."""
    cluster = start(agents=6, tuning=replace(TUNING, repair_interval_s=3600.0))
    client = connect(cluster)
    write_all(client)
    leaving = begin_to_leave(cluster, 5)
    eventually(lambda: client.status().agents[5].state == "ending")
    shown = client.status().agents[5]
    assert shown.shards_placed
    assert shown.bytes_placed
    assert shown.ends_in_s is not None
    assert 0 < shown.ends_in_s <= TUNING.end_notice_s
    assert client.drain(5, undo=True)
    assert leaving.wait() is False
    assert client.status().agents[5].state == "up"
    assert 5 in slots_used(cluster)


def test_an_agent_that_is_still_there_after_its_end_takes_shards_again(
    start: StartCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(agents=6, tuning=TUNING)
    client = connect(cluster)
    write_all(client)
    announce(cluster, 5)
    eventually(lambda: 5 not in slots_used(cluster))
    monkeypatch.setattr(ends, "GRACE_S", -3600.0)  # as if its end were long over
    eventually(lambda: client.status().agents[5].state == "up")
    announce(cluster, 5)
    assert client.status().agents[5].state == "up", "the same is not believed twice"
    eventually(lambda: 5 in slots_used(cluster))
    eventually(lambda: client.status().is_whole())
    read_all(client)
    kinds = [event.text for event in client.events(limit=1000) if event.kind == "ends"]
    assert any("agent-5 ends in 600 s" in text for text in kinds)
    assert any("agent-5 does not end after all" in text for text in kinds)


def test_the_next_life_on_a_host_that_ends_gets_nothing_until_that_is_over(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=7, tuning=TUNING)
    client = connect(cluster)
    write_all(client)
    announce(cluster, 6)
    eventually(lambda: 6 not in slots_used(cluster))
    kill(cluster, 6)
    cluster.revive(6)
    assert client.status().agents[6].state == "ending"
    client.write("/new", content(MIB))
    assert on_loop(cluster, lambda: len(cluster.nodes[6].storage.shards)) == 0
    client.drain(6, undo=True)
    assert client.status().agents[6].state == "up"


def test_with_k_plus_1_ends_at_once_and_no_room_status_is_loud_and_nothing_else_is_lost(
    start: StartCluster, connect: Connect
) -> None:
    """Too few agents would be left for any write: so nothing can be moved, writes go on, and what
    survives the ends can be read."""
    cluster = start(agents=3, data_shards=1, parity_shards=1, tuning=TUNING)
    client = connect(cluster)
    write_all(client)
    fill(cluster, 0)  # or it gets all of the first agent's before the second one is announced
    announce(cluster, 1, 2)
    eventually(lambda: client.status().repair.at_stake > 0)
    status = client.status()
    assert status.repair.unprotectable > 0
    assert status.margin == 1, "they are all still there"
    client.write("/during", content(MIB))
    read_all(client)
    client.drain(1, undo=True)
    client.drain(2, undo=True)
    eventually(lambda: client.status().repair.at_stake == 0)
    eventually(lambda: client.status().is_whole())
    read_all(client)


def test_with_k_plus_1_ends_at_once_and_full_agents_only_what_needs_them_is_lost(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=5, data_shards=2, parity_shards=1, tuning=TUNING)
    client = connect(cluster)
    names = [f"/{number}" for number in range(24)]
    for name in names:
        client.write(name, content(64 * KIB, name))
    fill(cluster, 0, 1, 2)
    ending = {3, 4}
    doomed = {
        name
        for name in names
        if any(ending <= {p.slot for p in s.places} for s in stripes_of(cluster, name))
    }
    assert 0 < len(doomed) < len(names)
    announce(cluster, *ending)
    eventually(lambda: client.status().repair.at_stake >= len(doomed))
    eventually(lambda: client.status().repair.unprotectable > 0)
    kill(cluster, *ending)
    with pytest.raises(TooFewShards):
        client.read(min(doomed))
    for name in set(names) - doomed:
        assert client.read(name) == content(64 * KIB, name)
    for name in names:
        client.delete(name)


def test_with_k_plus_1_ends_at_once_and_time_everything_is_saved(
    start: StartCluster, connect: Connect
) -> None:
    """Without spares stripes become narrower, the most important first."""
    cluster = start(agents=6, tuning=TUNING)
    client = connect(cluster)
    write_all(client)
    announce(cluster, 3, 4, 5)
    eventually(lambda: slots_used(cluster) == {0, 1, 2})
    eventually(lambda: client.status().repair.at_stake == 0)
    assert client.status().margin == 2
    kill(cluster, 5)
    read_all(client)


# With processes


@contextmanager
def processes(**settings: Any) -> Iterator[tuple[ProcessCluster, Client]]:
    chosen = ClusterSettings(
        name="ends",
        agents=5,
        data_shards=2,
        parity_shards=1,
        memory_bytes=64 * MIB,
        tuning=replace(PATIENT, **settings),
    )
    with ProcessCluster(chosen) as cluster, cluster.connect() as client:
        yield cluster, client


def ended(cluster: ProcessCluster, slot: int) -> bool:
    return cluster.agents[slot].has_ended


@pytest.mark.slow
def test_a_process_that_gets_sigterm_ends_when_it_is_empty() -> None:
    with processes() as (cluster, client):
        write_all(client)
        assert client.status().agents[4].shards_placed
        with Watch(client) as watch:
            os.kill(cluster.agents[4].pid, signal.SIGTERM)
            os.kill(cluster.agents[4].pid, signal.SIGTERM)
            eventually(lambda: ended(cluster, 4), 60.0)
            rounds = watch.rounds
            eventually(lambda: watch.rounds > rounds + 1)
        assert min(watch.margins) == 1
        status = client.status()
        assert (status.agents[4].shards_placed, status.stripes.degraded) == (0, 0)
        lead = next(v.slot for v in status.voters if v.role == "leader")
        os.kill(cluster.agents[int(lead.removeprefix("agent-"))].pid, signal.SIGTERM)
        eventually(lambda: ended(cluster, int(lead.removeprefix("agent-"))), 60.0)
        assert client.status().leader != lead
        read_all(client)


@pytest.mark.slow
def test_a_process_that_cannot_be_emptied_ends_when_its_time_is_up() -> None:
    with processes(end_notice_s=2.0, repair_interval_s=3600.0) as (cluster, client):
        write_all(client)
        os.kill(cluster.agents[4].pid, signal.SIGTERM)
        eventually(lambda: ended(cluster, 4), 60.0)
        assert client.status().agents[4].shards_placed
        read_all(client)
