"""Revoked names reach every agent, whoever dies; whose events are; the audit files of voters."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from diskless.agent.revoked import PART_MAX
from diskless.client import Client
from diskless.errors import AlreadyExists, Forbidden, Unauthorized
from diskless.launch.local import LocalCluster
from diskless.namespace import commands as c
from diskless.namespace.events import EVENTS_MAX
from diskless.node import Node
from tests.cluster.test_tokens import TokenHand
from tests.conftest import Connect, StartCluster
from tests.support import eventually, kill, leader, on_loop

AGENTS, M, K = 7, 2, 2
"""Five of them vote."""
SHAPE = {"agents": AGENTS, "data_shards": M, "parity_shards": K}


def knowing(cluster: LocalCluster, *names: str) -> list[int]:
    """The slots of agents that know that all these are revoked."""

    def find() -> list[int]:
        nodes = cluster.nodes.items()
        return [slot for slot, node in nodes if all(name in node.revoked for name in names)]

    return sorted(on_loop(cluster, find))


def test_a_revoked_name_reaches_all_agents_voters_or_not(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**SHAPE)
    client = connect(cluster)
    assert knowing(cluster) == sorted(cluster.nodes)
    assert all(node.revoked.known for node in cluster.nodes.values())
    assert client.issue_token("q1", paths=["/a"], writes=True, expires_s=2 * 10**9)
    assert not client.issue_token("q1", paths=["/a"], writes=True, expires_s=2 * 10**9)
    with pytest.raises(AlreadyExists, match="q1"):
        client.issue_token("q1", paths=["/b"], writes=True, expires_s=2 * 10**9)
    assert knowing(cluster, "q1") == []
    client.revoke_token("q1")
    client.revoke_token("never-registered")
    eventually(lambda: knowing(cluster, "q1", "never-registered") == sorted(cluster.nodes))
    states = {token.name: token.state(0) for token in client.tokens()}
    assert states == {"q1": "revoked", "never-registered": "revoked"}


@pytest.mark.parametrize("lost", [*combinations(range(AGENTS), K)][::4], ids=str)
def test_revocations_survive_k_losses_and_reach_those_who_come_back(
    start: StartCluster, connect: Connect, lost: tuple[int, ...]
) -> None:
    cluster = start(**SHAPE)
    client = connect(cluster)
    client.revoke_token("before")
    kill(cluster, *lost)
    client.revoke_token("meanwhile")
    eventually(lambda: knowing(cluster, "before", "meanwhile") == sorted(cluster.nodes))
    cluster.revive(*lost)
    assert knowing(cluster, "before", "meanwhile") == list(range(AGENTS))


def test_a_new_leader_goes_on_and_a_voter_that_lost_its_memory_gets_the_list(
    start: StartCluster, connect: Connect
) -> None:
    """The leader goes, again and again: nobody remembers by having been there."""
    cluster = start(**SHAPE)
    client = connect(cluster)
    names: list[str] = []
    for _ in range(cluster.settings.voters):
        slot = leader(cluster).slot
        names.append(f"under-{len(names)}")
        client.revoke_token(names[-1])
        kill(cluster, slot)
        names.append(f"after-{len(names)}")
        client.revoke_token(names[-1])
        cluster.revive(slot)
        eventually(lambda: knowing(cluster, *names) == list(range(AGENTS)))
    assert [token.name for token in client.tokens()] == sorted(names)
    versions = {node.revoked.version for node in cluster.nodes.values()}
    assert versions == {len(names)}


def test_an_agent_serves_nobody_before_it_knows_a_long_list(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**SHAPE)
    client = connect(cluster)
    count = 3 * PART_MAX + 7
    execute = leader(cluster).namespace.execute

    async def revoke_many() -> None:
        for number in range(count):
            await execute(c.RevokeToken(f"name-{number}"))

    cluster.run(revoke_many())
    eventually(lambda: {n.revoked.version for n in cluster.nodes.values()} == {count})
    learned: list[tuple[bool, int]] = []
    for slot in (AGENTS - 1, leader(cluster).slot):
        kill(cluster, slot)
        cluster.run(cluster._start(slot))
        node = cluster.nodes[slot]
        watch_roster(node, learned)
        cluster.run(node.recover())
        cluster.run(node.ready(30.0))
        assert len(node.revoked) == count
    assert learned
    assert set(learned) == {(True, count)}, "no roster is learned before the list is known"
    client.write("/a", b"1")


def watch_roster(node: Node, learned: list[tuple[bool, int]]) -> None:
    update = node.roster.update

    def noting(**news: Any) -> None:
        learned.append((node.revoked.known, len(node.revoked)))
        update(**news)

    node.roster.update = noting  # type: ignore[method-assign]


def test_whoever_listens_is_told_on_every_agent(start: StartCluster, connect: Connect) -> None:
    cluster = start(**SHAPE)
    told: set[int] = set()
    for slot, node in cluster.nodes.items():
        on_loop(
            cluster, lambda slot=slot, node=node: node.revoked.on_change(lambda: told.add(slot))
        )
    connect(cluster).revoke_token("q1")
    eventually(lambda: told == set(range(AGENTS)))


def connected(cluster: LocalCluster) -> set[str]:
    """Who has a connection to any agent."""
    doors = [node.doors.gateway for node in cluster.nodes.values()]
    visitors = [connection.visitor for door in doors for connection in door._connections]
    return {visitor.principal.name for visitor in visitors if visitor is not None}


@pytest.mark.parametrize("loss", ["nobody", "the leader", "k agents"])
def test_a_revoked_token_is_good_nowhere_and_ends_its_connections(
    start: StartCluster, connect: Connect, loss: str
) -> None:
    cluster = start(**SHAPE)
    admin = connect(cluster)
    tokens = {name: cluster.token("/p", name=name) for name in ("q1", "q2")}
    clients = {name: connect(cluster, token=token) for name, token in tokens.items()}
    for name, client in clients.items():
        client.write(f"/p/{name}", b"1")
    if loss == "the leader":
        kill(cluster, leader(cluster).slot)
    elif loss == "k agents":
        kill(cluster, 1, AGENTS - 1)
    admin.revoke_token("q1")
    eventually(lambda: knowing(cluster, "q1") == sorted(cluster.nodes))
    with pytest.raises(Unauthorized, match="'q1' was revoked"):
        clients["q1"].read("/p/q1")
    for slot in cluster.nodes:
        with pytest.raises(Unauthorized, match="'q1' was revoked"):
            TokenHand(cluster, slot, tokens["q1"])
        TokenHand(cluster, slot, tokens["q2"]).connection.close()
    eventually(lambda: on_loop(cluster, lambda: "q1" not in connected(cluster)))
    assert clients["q2"].read("/p/q1") == b"1"
    assert "q2" in on_loop(cluster, lambda: connected(cluster))
    eventually(lambda: admin.status().refused.get("revoked", 0) >= len(cluster.nodes))


def test_only_an_admin_issues_lists_and_revokes(start: StartCluster, connect: Connect) -> None:
    cluster = start(agents=3, data_shards=1, parity_shards=1)
    client = connect(cluster, token=cluster.token("/", name="q1"))
    for refused in (
        lambda: client.issue_token("mine", paths=["/"], writes=True),
        lambda: list(client.tokens()),
        lambda: client.revoke_token("q1"),
    ):
        with pytest.raises(Forbidden, match="admin"):
            refused()
    assert list(connect(cluster).tokens()) == []


# Whose events are, and audit files.


@pytest.fixture
def audited(start: StartCluster, tmp_path: Path) -> LocalCluster:
    return start(agents=3, data_shards=1, parity_shards=1, audit_dir=str(tmp_path / "audit"))


def lines(tmp_path: Path, slot: int) -> list[dict[str, Any]]:
    path = tmp_path / "audit" / f"audit-agent-{slot}.log"
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts(client: Client, **wanted: Any) -> list[str]:
    return [event.text for event in client.events(**wanted)]


def test_events_say_whose_they_are_and_are_chosen_by_that(
    audited: LocalCluster, connect: Connect
) -> None:
    client = connect(audited)
    client.write("/a/1", b"1")
    client.rename("/a/1", "/b")
    client.drain(2)
    client.drain(2, undo=True)
    own = [event for event in client.events(who="admin") if event.kind != "session"]
    assert [event.text for event in own] == [
        "put /a/1 1 B", "rename /a/1 to /b", "agent-2 drains", "agent-2 no longer drains",
    ]  # fmt: skip
    assert texts(client, path="/b") == ["rename /a/1 to /b"]
    assert texts(client, path="/a/1") == ["put /a/1 1 B", "rename /a/1 to /b"]
    assert texts(client, who="nobody") == []
    other = connect(audited, token=audited.token("/a", "/b", name="q1"))
    other.write("/a/2", b"1")
    assert texts(client, who="q1", path="/") == ["put /a/2 1 B"]
    assert texts(other) == ["put /a/1 1 B", "rename /a/1 to /b", "put /a/2 1 B"]
    bound = connect(audited, token=audited.token("/a", name="q2"))
    assert texts(bound) == ["put /a/1 1 B", "put /a/2 1 B"]
    assert all(event.who == "" for event in client.events() if event.kind in ("up", "limit"))


def test_what_the_leader_forgot_is_in_its_file_and_in_the_next_leaders_too(
    audited: LocalCluster, connect: Connect, tmp_path: Path
) -> None:
    client = connect(audited)
    count = EVENTS_MAX + 500
    client.write("/first", b"1")
    execute = leader(audited).namespace.execute

    async def put_many() -> None:
        session = (await execute(c.OpenSession("q7")))[0].number
        for number in range(1, count + 1, 100):
            puts = tuple(
                c.Put(session, n, False, (c.NewFile(f"/q7/{n}", 1, 1, b"x"),))
                for n in range(number, number + 100)
            )
            await execute(c.Commit((), puts))

    audited.run(put_many())
    expected = [f"put /q7/{n} 1 B" for n in range(1, count + 1)]
    memory = leader(audited).replica.events
    assert "put /first 1 B" not in [event.text for event in memory.newest_first()]
    assert texts(client, path="/first") == ["put /first 1 B"]
    assert texts(client, who="q7", path="/q7", limit=5000) == expected
    assert texts(client, who="q7", path="/q7", limit=300) == expected[-300:]
    client.write("/last", b"1")
    late = client.events(limit=1)[0]
    assert texts(client, since_ms=late.time_ms, path="/last") == ["put /last 1 B"]
    slot = leader(audited).slot
    kill(audited, slot)
    assert texts(client, who="q7", path="/q7", limit=5000) == expected
    audited.revive(slot)
    client.write("/afterwards", b"1")

    def has_a_gap() -> bool:
        kinds = [line["kind"] for line in lines(tmp_path, slot)]
        return "gap" in kinds and "put" in kinds[kinds.index("gap") :]

    eventually(has_a_gap)
    files = [{line["text"] for line in lines(tmp_path, one)} for one in range(3)]
    assert all({"put /first 1 B", *expected} <= found for found in files)

    def have_the_last() -> bool:  # followers write it when they apply it
        files = [{line["text"] for line in lines(tmp_path, one)} for one in range(3)]
        return all("put /afterwards 1 B" in found for found in files)

    eventually(have_the_last)


def test_without_audit_files_the_leader_tells_what_it_remembers(
    start: StartCluster, connect: Connect
) -> None:
    client = connect(start(agents=3, data_shards=1, parity_shards=1))
    client.write("/a", b"1")
    assert texts(client, path="/a", limit=10**5) == ["put /a 1 B"]


def test_refused_attempts_are_counted_over_all_agents_and_in_the_files(
    audited: LocalCluster, connect: Connect, tmp_path: Path
) -> None:
    client = connect(audited)
    assert client.status().refused == {}
    for node in audited.nodes.values():
        for error in (Unauthorized("wrong key"), Forbidden("/a is not covered")):
            on_loop(
                audited,
                lambda node=node, error=error: node.refusals.note("gateway", error, "somebody"),
            )
    on_loop(audited, lambda: audited.nodes[1].refusals.note("lane", Unauthorized("no"), "it"))
    eventually(lambda: client.status().refused == {"Unauthorized": 4, "Forbidden": 3})
    expected = [
        "gateway: somebody: Unauthorized: wrong key",
        "gateway: somebody: Forbidden: /a is not covered",
    ]

    def refused(slot: int) -> list[str]:
        return [line["text"] for line in lines(tmp_path, slot) if line["kind"] == "refused"]

    eventually(lambda: refused(2) == expected)
    eventually(lambda: refused(1) == [*expected, "lane: it: Unauthorized: no"])
    assert not any("wrong key" in text for text in texts(client))


def test_a_broken_disk_costs_lines_and_no_command(
    start: StartCluster, connect: Connect, tmp_path: Path
) -> None:
    broken = tmp_path / "audit"
    broken.write_text("no directory")
    cluster = start(agents=3, data_shards=1, parity_shards=1, audit_dir=str(broken))
    client = connect(cluster)
    for number in range(20):
        client.write(f"/{number}", b"1")
    eventually(lambda: client.status().audit_dropped >= 3 * 20)
    assert len(texts(client, path="/7")) == 1
