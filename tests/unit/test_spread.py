"""Whether raylets answer, with servers of our own in their place."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from ray.core.generated import gcs_pb2, gcs_service_pb2

from diskless.errors import Unavailable
from diskless.launch import ray_link, spread
from diskless.launch.seats import RayNode
from diskless.launch.spread import RayletReply, knock, living_nodes


class Health(grpc.GenericRpcHandler):
    """Answers to everything, as a raylet to its health check."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._reply)

    def _reply(self, request: bytes, _: Any) -> bytes:
        self.asked.append(request)
        return self.answer


@pytest.fixture
def raylet() -> Iterator[tuple[int, Health]]:
    handler = Health(b"\x08\x01")
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, handler
    server.stop(None).wait()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


def wait_for(monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
    monkeypatch.setattr(spread, "KNOCK_TIMEOUT_S", timeout_s)
    monkeypatch.setattr(spread, "ASK_TIMEOUT_S", timeout_s)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers has all the time that a busy machine takes."""
    wait_for(monkeypatch, 60.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """Nobody answers."""
    wait_for(monkeypatch, 0.3)


def at(id_: str, port: int, *, started_ms: int = 0) -> RayNode:
    return RayNode(id_, "h", "127.0.0.1", port, started_ms)


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_a_raylet_that_serves_is_there_and_one_that_has_ended_is_not(
    raylet: tuple[int, Health],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ended:
        nodes = [at("there", raylet[0]), at("ended", port_of(ended))]
    assert knock(nodes) == {"there": RayletReply.SERVES, "ended": RayletReply.ENDED}
    assert knock([]) == {}


@pytest.mark.usefixtures("impatient")
def test_a_connection_alone_is_no_answer(
    raylet: tuple[int, Health], listener: socket.socket
) -> None:
    """The kernel takes it for a raylet that hangs; and the port may be another's by now."""
    assert knock([at("hangs", port_of(listener))]) == {"hangs": RayletReply.SILENT}
    raylet[1].answer = b"\x08\x02"
    assert knock([at("not serving", raylet[0])]) == {"not serving": RayletReply.SILENT}


@pytest.mark.usefixtures("impatient")
def test_a_host_that_says_nothing_is_silent(listener: socket.socket) -> None:
    node = at("full", port_of(listener))
    waiting = [socket.socket() for _ in range(8)]
    try:
        for each in waiting:  # Then the kernel drops what else comes.
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", node.port))
        assert knock([node]) == {"full": RayletReply.SILENT}
    finally:
        for each in waiting:
            each.close()


def test_only_the_newest_of_those_at_one_address_and_port_can_have_answered(
    raylet: tuple[int, Health],
) -> None:
    """Where raylets have a fixed port, one that was started again answers for a dead one."""
    old, new = at("old", raylet[0], started_ms=1), at("new", raylet[0], started_ms=2)
    elsewhere = RayNode("elsewhere", "h", "127.0.0.2", raylet[0], 3)
    assert knock([new, old, elsewhere]) == {
        "old": RayletReply.ENDED,
        "new": RayletReply.SERVES,
        "elsewhere": RayletReply.ENDED,
    }


def test_one_that_was_heard_is_not_asked_and_a_dead_one_in_its_place_is_still_dead(
    listener: socket.socket,
) -> None:
    port = port_of(listener)  # which would not answer
    old, new = at("old", port, started_ms=1), at("new", port, started_ms=2)
    assert knock([old, new], heard={"new"}) == {"old": RayletReply.ENDED, "new": RayletReply.SERVES}


def test_only_what_answers_is_taken_for_alive(
    raylet: tuple[int, Health], listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(monkeypatch, 6.0)  # for the silent one in vain
    there, silent = at("there", raylet[0]), at("silent", port_of(listener))
    monkeypatch.setattr(spread, "registered_nodes", lambda: [there, silent])
    assert living_nodes() == [there]


def test_the_control_store_is_asked_for_living_nodes_and_told_of_a_dead_one_by_its_id(
    raylet: tuple[int, Health], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, store = raylet
    monkeypatch.setattr(ray_link, "address_of", lambda _: f"127.0.0.1:{port}")
    there = gcs_pb2.GcsNodeInfo(
        node_id=bytes(28), node_manager_hostname="h", node_manager_address="127.0.0.1",
        node_manager_port=7, start_time_ms=9,
    )  # fmt: skip
    store.answer = gcs_service_pb2.GetAllNodeInfoReply(node_info_list=[there]).SerializeToString()
    assert spread.registered_nodes() == [RayNode("00" * 28, "h", "127.0.0.1", 7, 9)]
    asked = gcs_service_pb2.GetAllNodeInfoRequest.FromString(store.asked[-1])
    assert asked.HasField("state_filter")
    assert asked.state_filter == gcs_pb2.GcsNodeInfo.ALIVE

    store.answer = b""
    spread.forget("ab" * 28)
    told = gcs_service_pb2.UnregisterNodeRequest.FromString(store.asked[-1])
    assert told.node_id == b"\xab" * 28


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ask", [spread.registered_nodes, lambda: spread.forget("00")])
def test_a_control_store_that_does_not_answer_is_unavailable_in_time(
    ask: Any, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{port_of(listener)}"
    monkeypatch.setattr(ray_link, "address_of", lambda _: address)
    with pytest.raises(Unavailable, match=address):
        ask()
