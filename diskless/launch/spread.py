"""The nodes of a Ray, whether they answer, and how an agent is tied to one.

Ray's soft affinity is no affinity for actors that ask for no CPU, so it is hard: Ray
restarts an agent where it was and nowhere else, and gives it up when that node is gone.
Which node it gets is decided in `seats`; who brings it to another one, in `rehoster`.

A Ray of ours never decides by itself that a node is gone: see docs/decisions.md. So what Ray
takes for alive may be dead; a node lives if its raylet answers as well. Ray's own calls wait
for as long as it takes, so its control store is asked directly, with a deadline.
"""

import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskless.errors import Unavailable
from diskless.launch import ray_internals, ray_link
from diskless.launch.seats import RayNode
from diskless.rpc import unary

KNOCK_TIMEOUT_S = 3.0
ASK_TIMEOUT_S = 5.0
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"


class RayletReply(Enum):
    SERVES = auto()
    ENDED = auto()
    """Its host says that nobody listens there, or a newer raylet does."""
    SILENT = auto()


def living_nodes() -> list[RayNode]:
    """Those that Ray takes for alive and that answer."""
    nodes = registered_nodes()
    replies = knock(nodes)
    return [node for node in nodes if replies[node.id] is RayletReply.SERVES]


def registered_nodes() -> list[RayNode]:
    """Those that Ray takes for alive. Raises Unavailable."""
    return sorted(
        RayNode(
            id=node.node_id.hex(),
            hostname=node.node_manager_hostname,
            address=node.node_manager_address,
            port=node.node_manager_port,
            started_ms=node.start_time_ms,
        )
        for node in _ask(ray_internals.alive_nodes).node_info_list
    )


def draining_nodes() -> dict[str, int]:
    """Those that Ray drains, and when they end by the wall clock, in milliseconds; 0 if that is
    not known. Raises Unavailable."""
    return {
        node.node_id.hex(): node.draining_deadline_timestamp_ms
        for node in _ask(ray_internals.draining_nodes).draining_nodes
    }


def forget(node_id: str) -> None:
    """Ray takes a node for dead from now on; if its raylet lives after all it ends, with all
    that runs there, when it hears of that. Raises Unavailable, also if Ray knows it is dead."""
    _ask(ray_internals.unregister_node, node_id, "diskless: its raylet has ended")


def _ask(call: Callable[..., ray_internals.Call], *arguments: str) -> Any:
    address = ray_link.address_of(ray)
    with ray_internals.open_channel(address) as channel:
        method, request = call(channel, *arguments)
        try:
            return unary.ask(method, request, timeout_s=ASK_TIMEOUT_S)
        except Unavailable as error:
            raise Unavailable(
                f"Ray's control store at {address} did not answer {call.__name__} ({error}): "
                "see whether its head runs and can be reached, and try again"
            ) from error


def knock(nodes: Sequence[RayNode], *, heard: Collection[str] = ()) -> dict[str, RayletReply]:
    """Whether their raylets answer; all are asked at once, except those that were heard."""
    newest: dict[tuple[str, int], RayNode] = {}
    for node in sorted(nodes, key=lambda node: node.started_ms):
        newest[node.address, node.port] = node
    answers = {node: RayletReply.SERVES for node in newest.values() if node.id in heard}
    asked = [node for node in newest.values() if node not in answers]
    with ThreadPoolExecutor(max(len(asked), 1)) as threads:
        answers |= zip(asked, threads.map(_knock, asked), strict=True)
    return {node.id: answers.get(node, RayletReply.ENDED) for node in nodes}


def _knock(node: RayNode) -> RayletReply:
    try:
        socket.create_connection((node.address, node.port), KNOCK_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return RayletReply.ENDED
    except OSError:
        return RayletReply.SILENT
    return RayletReply.SERVES if _is_serving(node) else RayletReply.SILENT


def _is_serving(node: RayNode) -> bool:
    """The kernel takes connections for a raylet that hangs, and its port may be another's now."""
    host = f"[{node.address}]" if ":" in node.address else node.address
    with ray_internals.open_channel(f"{host}:{node.port}") as channel:
        try:
            answer = unary.ask(channel.unary_unary(_HEALTH), b"", timeout_s=KNOCK_TIMEOUT_S)
        except Unavailable:
            return False
        return bool(answer == _SERVING)


def affinity(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)
