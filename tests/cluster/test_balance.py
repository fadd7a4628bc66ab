"""A cluster that was full and has grown: its data moves to the new agents, and nothing is lost."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec
import pytest

from diskless.balance import START
from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import CapacityExceeded, Unavailable
from diskless.launch.local import LocalCluster
from diskless.model import BalanceStatus, ClusterStatus
from diskless.namespace import queries as q
from diskless.node import Node
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    content,
    eventually,
    hidden_shards,
    is_whole,
    leader,
    on_loop,
    repair_once,
    shards_stored,
    wait_until_down,
)

WIDE = {"agents": 6, "data_shards": 4, "parity_shards": 2, "memory": "16MiB"}
SMALL = replace(CALM, stripe_bytes=64 * KIB, repair_delay_s=0.5, orphan_delay_s=0.01)
"""Many stripes; the tests say when it moves."""


def load(client: Client, files: int) -> dict[str, bytes]:
    made = {f"/{n}": content(MIB, n) for n in range(files)}
    for path, data in made.items():
        client.write(path, data)
    return made


def fill(client: Client, path: str, data: bytes) -> bool:
    """Whether there was room."""
    try:
        client.write(path, data)
    except CapacityExceeded:
        return False
    return True


def check_reads(client: Client, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        assert client.read(path) == data, path


def is_even(found: BalanceStatus) -> bool:
    within = found.fullest_share <= (1 + START) * found.mean_share
    return found.state == "idle" and within and found.bytes_left == 0


def moved(node: Node) -> int:
    return sum(entry.stripe.version > 0 for entry in node.replica.state.ledger.entries.values())


def balance(cluster: LocalCluster, client: Client) -> None:
    """Repairs and moves until there is nothing left to do."""

    def done() -> bool:
        repair_once(cluster)
        status = client.status()
        return is_whole(client, len(status.agents)) and is_even(status.balance)

    eventually(done)


@contextmanager
def watched(cluster: LocalCluster) -> Iterator[list[ClusterStatus]]:
    """What the leader tells, again and again, as long as the block lasts. It is asked where the
    agents run: there nothing goes on while nobody looks."""
    saw: list[ClusterStatus] = []
    over = threading.Event()

    async def look() -> None:
        while not over.is_set():
            for node in [*cluster.nodes.values()]:
                if node.replica.leads_majority:
                    told = node.replica.answer(q.Report())
                    saw.append(msgspec.json.decode(told, type=ClusterStatus))
            await asyncio.sleep(0.02)

    looking = asyncio.run_coroutine_threadsafe(look(), cluster._loop)
    try:
        eventually(lambda: saw)
        yield saw
    finally:
        over.set()
    looking.result()


def test_a_full_cluster_that_grows_takes_writes_again(
    start: StartCluster, connect: Connect
) -> None:
    """And the margin is k at every moment of it."""
    cluster = start(**WIDE, tuning=STRIPED)
    client = connect(cluster)
    files: dict[str, bytes] = {}
    while fill(client, f"/{len(files)}", content(MIB, len(files))):
        files[f"/{len(files)}"] = content(MIB, len(files))
    assert len(files) > 30
    with watched(cluster) as saw:
        cluster.grow(8)
        eventually(lambda: is_even(client.status().balance))
    assert {status.margin for status in saw} == {2}
    assert all(status.stripes.healthy == status.stripes.total for status in saw)
    moving = [status.balance for status in saw if status.balance.state == "moving"]
    assert moving
    assert max(found.bytes_left for found in moving) > 10 * MIB
    more = {f"/more/{n}": content(MIB, n) for n in range(len(files) // 5)}
    for path, data in more.items():
        client.write(path, data)
    check_reads(client, files | more)
    agents = client.status().agents
    assert min(agent.shards_placed for agent in agents) > 0
    eventually(lambda: all(a.shards == a.shards_placed for a in client.status().agents))


async def stop_in_the_middle(cluster: LocalCluster, victim: int) -> None:
    """Ends an agent when some shards have been moved, and many have not."""
    node = next(node for node in cluster.nodes.values() if node.replica.leads)

    async def work() -> None:
        while True:
            await node.leading.repairer.repair()

    working = asyncio.create_task(work())
    while not moved(node):
        await asyncio.sleep(0)
    await cluster.nodes.pop(victim).stop()
    assert 0 < moved(node) < len(node.replica.state.ledger.entries) / 4, "not in the middle"
    working.cancel()


@pytest.mark.parametrize("victim", [0, 3, 6], ids=["leader", "source", "target"])
def test_a_death_in_the_middle_costs_nothing(
    start: StartCluster, connect: Connect, victim: int
) -> None:
    cluster = start(**WIDE, tuning=SMALL)
    client = connect(cluster)
    files = load(client, 12)
    shards = shards_stored(cluster)
    cluster.grow(8)
    assert leader(cluster).slot == 0
    cluster.run(stop_in_the_middle(cluster, victim))
    wait_until_down(cluster, victim)
    check_reads(client, files)
    cluster.revive(victim)
    balance(cluster, client)
    check_reads(client, files)
    for others in combinations(range(8), 2):
        with hidden_shards(cluster, *others):
            assert client.read("/0") == files["/0"]
    eventually(lambda: _swept(cluster) == shards)


def _swept(cluster: LocalCluster) -> int:
    """Reclaims what was not finished; how many shards there are then."""
    for node in cluster.nodes.values():
        cluster.run(node.storage.sweeper.review())
    cluster.run(leader(cluster).leading.janitor.fence())
    return shards_stored(cluster)


def test_agents_that_take_nothing_are_left_alone_and_asked_again(
    start: StartCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(**WIDE, tuning=SMALL)
    client = connect(cluster)
    files = load(client, 8)
    cluster.grow(8)
    node = leader(cluster)
    balancer = node.leading.repairer._balancer
    refusals = 0

    def refuse(*_: object, **__: object) -> int:
        nonlocal refusals
        refusals += 1
        raise CapacityExceeded("no room")

    with monkeypatch.context() as patch:
        for slot in (6, 7):
            patch.setattr(cluster.nodes[slot].storage.shards, "store", refuse)
        eventually(lambda: not cluster.run(node.leading.repairer.repair()) and refusals)
        before = refusals
        for _ in range(3):
            cluster.run(node.leading.repairer.repair())
        assert refusals == before
    assert on_loop(cluster, lambda: moved(node)) == 0
    check_reads(client, files)

    def hurry() -> bool:
        on_loop(cluster, lambda: setattr(balancer, "_again_s", 0.0))
        return cluster.run(node.leading.repairer.repair())

    eventually(hurry)
    balance(cluster, client)
    check_reads(client, files)


def test_what_is_even_stays_where_it_is(start: StartCluster, connect: Connect) -> None:
    """Also while files come and go."""
    cluster = start(**WIDE, tuning=SMALL)
    client = connect(cluster)
    load(client, 8)
    cluster.grow(8)
    balance(cluster, client)
    node = leader(cluster)
    before = on_loop(cluster, lambda: moved(node))
    for n in range(4):
        client.write(f"/more/{n}", content(MIB, n))
        client.delete(f"/{n}")
        cluster.run(node.leading.repairer.repair())
    ids = on_loop(cluster, lambda: [*node.replica.state.ledger.entries])
    assert on_loop(cluster, lambda: moved(node)) <= before, ids


def test_nothing_moves_while_an_agent_may_come_back_or_something_is_to_be_repaired(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**WIDE, tuning=replace(SMALL, repair_delay_s=3600.0))
    client = connect(cluster)
    files = load(client, 8)
    cluster.grow(8)
    cluster.kill(7)
    wait_until_down(cluster, 7)
    node = leader(cluster)
    for _ in range(5):
        cluster.run(node.leading.repairer.repair())
    assert on_loop(cluster, lambda: moved(node)) == 0
    found = client.status().balance
    assert found.state == "waiting"
    assert found.bytes_left > 0
    cluster.kill(5)
    cluster.revive(5, 7)
    cluster.run(node.leading.repairer.repair())
    stripes = on_loop(cluster, lambda: [*node.replica.state.ledger.entries.values()])
    again = [e.stripe for e in stripes if e.stripe.version > 0]
    assert again, "nothing was repaired"
    assert {p.slot for stripe in again for p in stripe.places} == set(range(6))
    balance(cluster, client)
    check_reads(client, files)


def test_agents_full_of_what_was_just_deleted_get_nothing_until_it_is_gone(
    start: StartCluster, connect: Connect
) -> None:
    """Else their reserve goes, and with it the room of the namespace. Stripes are fewer here, so
    that it does not need all of that room itself."""
    cluster = start(**WIDE, tuning=replace(SMALL, stripe_bytes=256 * KIB, free_delay_s=3600.0))
    client = connect(cluster)
    old = 0
    while fill(client, f"/old/{old}", content(MIB, old)):
        old += 1
    cluster.grow(12)
    new = 0
    while new < 36 and fill(client, f"/new/{new}", content(MIB, new)):
        new += 1
    client.delete("/old", recursive=True)
    node = leader(cluster)

    def fullest() -> float:
        return max(node.memory.used / node.memory.bytes_max for node in cluster.nodes.values())

    before = on_loop(cluster, fullest)
    for _ in range(20):
        cluster.run(node.leading.repairer.repair())
    assert on_loop(cluster, fullest) <= before + 0.01
    client.write("/after", content(MIB, 1))
    assert client.status().balance.state != "settled", "it begins again when there is room"


def test_a_move_that_was_not_committed_is_made_later(
    start: StartCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(**WIDE, tuning=replace(SMALL, stripe_bytes=MIB))
    client = connect(cluster)
    files = load(client, 6)
    cluster.grow(8)
    repairer = leader(cluster).leading.repairer
    mover = repairer._mover
    move, failed = mover.move, []

    async def fail_once(rebuilt: Sequence[Any]) -> Any:
        if rebuilt and not failed:
            failed.append(rebuilt)
            raise Unavailable("not committed: overloaded")
        return await move(rebuilt)

    monkeypatch.setattr(mover, "move", fail_once)
    monkeypatch.setattr(mover, "wave_stripes", lambda: 32)  # as when no client is at work
    while not failed:
        with suppress(Unavailable):
            cluster.run(repairer.repair())
    cluster.run(repairer.repair())
    assert client.status().balance.state != "settled"
    check_reads(client, files)
