"""Voters' lanes in a cluster: they are used, they come back, and nothing depends on them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import diskless
from diskless.errors import Unauthorized
from diskless.launch.local import LocalCluster
from diskless.rpc.exchange import serve
from diskless.rpc.lane import LaneDoor
from diskless.rpc.laned import LanedLink, VoterLink
from diskless.rpc.services import MEMBERSHIP
from tests.conftest import Connect, StartCluster
from tests.support import CALM, eventually, leader, on_loop


def lanes(cluster: LocalCluster, slot: int, kind: type[LanedLink] = VoterLink) -> list[bool]:
    """For each other voter, or each agent that has beats from here, whether a lane leads there."""

    def usable() -> list[bool]:
        links = [link for _, link in cluster.nodes[slot].peers._links.values()]
        chosen = [link for link in links if type(link) is kind]
        return [link._lane is not None and link._lane.usable for link in chosen]

    return on_loop(cluster, usable)


def beats(cluster: LocalCluster, slot: int) -> int:
    """How many the first agent has sent to another."""
    links = cluster.nodes[0].peers._links.items()
    return sum(link._next_id for key, (_, link) in links if key[:2] == (MEMBERSHIP.method, slot))


def all_up(cluster: LocalCluster) -> bool:
    """Whether the leader reaches every other voter on a lane, and each of them the leader, and
    its beats every other agent."""
    first, *others = (lanes(cluster, slot) for slot in range(cluster.settings.voters))
    beaten = lanes(cluster, 0, LanedLink)
    return (
        first == [True] * len(others)
        and all(any(lane) for lane in others)
        and beaten == [True] * (cluster.settings.agents - 1)
    )


def test_leader_and_followers_get_lanes_and_get_them_again(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=CALM)
    store = connect(cluster)
    store.write("/before", b"1")
    eventually(lambda: all_up(cluster))

    def cut() -> None:
        for node in cluster.nodes.values():
            for inbound in list(node.doors.server._lanes._open):
                inbound.abort()

    on_loop(cluster, cut)
    store.write("/once", b"2")
    eventually(lambda: all_up(cluster))
    assert leader(cluster).slot == 0, "one cut between living voters deposes nobody"
    for n in range(5):
        on_loop(cluster, cut)
        store.write(f"/cut/{n}", b"3")
    assert [store.read(f"/cut/{n}") for n in range(5)] == [b"3"] * 5


def test_without_lanes_the_streams_serve(
    start: StartCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise ConnectionRefusedError("no lane here")

    monkeypatch.setattr("diskless.rpc.laned.open_lane", refused)
    cluster = start(tuning=CALM)
    store = connect(cluster)
    store.write("/a", b"1")
    cluster.kill(0, 1)
    store.write("/b", b"2")
    assert not any(lanes(cluster, 2))
    assert (store.read("/a"), store.read("/b")) == (b"1", b"2")


def test_lanes_that_accept_and_refuse_depose_nobody(
    start: StartCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy between hosts does, which accepts for a port that it then does not reach."""

    def refuse(*_: object) -> None:
        raise Unauthorized("not through here")

    monkeypatch.setattr(LaneDoor, "admit", refuse)
    cluster = start(tuning=CALM)
    store = connect(cluster)
    for n in range(20):
        store.write(f"/{n}", b"1")
    eventually(lambda: store.status().log.op >= 20)
    assert (leader(cluster).slot, store.status().view) == (0, 0)
    assert not any(lanes(cluster, 0))


@pytest.mark.parametrize("every", [4, 1 << 60], ids=["by and by", "when a shard is late"])
def test_an_agent_whose_grpc_alone_is_stuck_is_down_until_it_answers_there(
    start: StartCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Shards have no other way: its lanes, which are well, must not speak for it."""
    stuck: dict[object, asyncio.Event] = {}

    def serve_unless_stuck(requests: Any, context: Any, *, handle: Any, **rest: Any) -> Any:
        async def later(thawed: asyncio.Event, call: Any, payload: memoryview) -> Any:
            await thawed.wait()
            answer = handle(call, payload)
            return answer if isinstance(answer, tuple) else await answer

        def handled(call: Any, payload: memoryview) -> Any:
            thawed = stuck.get(handle.__self__)
            return handle(call, payload) if thawed is None else later(thawed, call, payload)

        return serve(requests, context, handle=handled, **rest)

    monkeypatch.setattr("diskless.rpc.server.serve", serve_unless_stuck)
    monkeypatch.setattr("diskless.rpc.laned.STREAM_EVERY", every)
    cluster = start(tuning=replace(CALM, store_timeout_s=0.5))
    store = connect(cluster)
    eventually(lambda: all_up(cluster))
    server, thawed = cluster.nodes[5].doors.server, asyncio.Event()
    on_loop(cluster, lambda: stuck.update({server: thawed, server._shards: thawed}))
    state = cluster.nodes[0].replica.state
    if every > 4:
        store.write("/a", b"1")  # a shard for each agent
    eventually(lambda: not state.agents[5].up)
    version, beaten = state.roster_version, beats(cluster, 5)
    store.write("/a", b"1", overwrite=True)
    eventually(lambda: beats(cluster, 5) >= beaten + 2)
    assert (state.roster_version, state.agents[5].up) == (version, False), "it stays down"
    on_loop(cluster, lambda: (stuck.clear(), thawed.set()))
    eventually(lambda: store.status().agents[5].state == "up")
    assert store.status().agents[5].incarnation == 1, "it keeps what it has"
    assert store.read("/a") == b"1"


def test_agents_at_ipv6_addresses_reach_each_other_and_are_reached(
    start: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskless.launch.local.BIND_HOST", "::1")
    cluster = start(tuning=CALM)
    assert cluster.nodes[0].address.startswith("[::1]:")
    uri = f"diskless://{cluster.nodes[0].gateway_address}/"
    with diskless.connect(uri, token=cluster.token()) as store:
        store.write("/a", b"1")
        eventually(lambda: all_up(cluster))
        assert store.read("/a") == b"1"
