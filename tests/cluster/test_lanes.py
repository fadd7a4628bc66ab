"""Voters' lanes in a cluster: they are used, they come back, and nothing depends on them."""

import pytest

import diskless
from diskless.errors import Unauthorized
from diskless.launch.local import LocalCluster
from diskless.rpc.lane import LaneDoor
from diskless.rpc.voters import VoterLink
from tests.conftest import Connect, StartCluster
from tests.support import CALM, eventually, leader, on_loop


def lanes(cluster: LocalCluster, slot: int) -> list[bool]:
    """For each other voter, whether a lane leads there."""

    def usable() -> list[bool]:
        links = [link for _, link in cluster.nodes[slot].peers._links.values()]
        voters = [link for link in links if isinstance(link, VoterLink)]
        return [link._lane is not None and link._lane.usable for link in voters]

    return on_loop(cluster, usable)


def all_up(cluster: LocalCluster) -> bool:
    """Whether the leader reaches every other voter on a lane, and each of them the leader."""
    first, *others = (lanes(cluster, slot) for slot in range(cluster.settings.voters))
    return first == [True] * len(others) and all(any(lane) for lane in others)


def test_leader_and_followers_get_lanes_and_get_them_again(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=CALM)
    store = connect(cluster)
    store.write("/before", b"1")
    eventually(lambda: all_up(cluster))

    def cut() -> None:
        for node in cluster.nodes.values():
            for inbound in list(node.server._lanes._open):
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

    monkeypatch.setattr("diskless.rpc.voters.open_lane", refused)
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
