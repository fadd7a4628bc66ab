"""Whether raylets answer, with sockets of our own in their place."""

import socket
from collections.abc import Iterator

import pytest

from diskless.launch import spread
from diskless.launch.seats import RayNode
from diskless.launch.spread import Door, knock, sharing_doors


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


def at(id_: str, port: int) -> RayNode:
    return RayNode(id_, "h", "127.0.0.1", port)


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_a_raylet_that_listens_is_there_and_one_that_does_not_is_not(
    listener: socket.socket,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ended:
        nodes = [at("there", port_of(listener)), at("ended", port_of(ended))]
    assert knock(nodes) == {"there": Door.OPEN, "ended": Door.CLOSED}
    assert knock([]) == {}


def test_a_host_that_says_nothing_is_silent_and_holds_up_nobody_for_long(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "KNOCK_TIMEOUT_S", 0.2)
    node = at("full", port_of(listener))
    waiting = [socket.socket() for _ in range(8)]
    try:
        for each in waiting:  # Then the kernel drops what else comes.
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", node.port))
        assert knock([node]) == {"full": Door.SILENT}
    finally:
        for each in waiting:
            each.close()


def test_only_nodes_at_the_same_address_and_port_share_a_door() -> None:
    same = [at("old", 7000), at("new", 7000)]
    others = [at("beside", 7001), RayNode("elsewhere", "h", "127.0.0.2", 7000)]
    assert sharing_doors([*same, *others]) == {"old", "new"}
