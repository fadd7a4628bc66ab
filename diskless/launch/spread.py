"""The nodes of a Ray, whether they answer, and how an agent is tied to one.

Ray's soft affinity is no affinity for actors that ask for no CPU, so it is hard: Ray
restarts an agent where it was and nowhere else, and gives it up when that node is gone.
Which node it gets is decided in `seats`; who brings it to another one, in `rehoster`.

A Ray of ours never decides by itself that a node is gone: see docs/decisions.md. So what Ray
takes for alive may be dead; a node lives if its raylet answers as well. Ray's own calls wait
for as long as it takes, so its control store is asked directly, with a deadline.
"""

import socket
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Any

import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskless.errors import Unavailable
from diskless.launch import ray_link
from diskless.launch.seats import RayNode
from diskless.rpc import unary

KNOCK_TIMEOUT_S = 3.0
ASK_TIMEOUT_S = 5.0
_DIRECT = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"


class Door(Enum):
    OPEN = auto()
    CLOSED = auto()
    """Its host says that nobody listens there, or a newer raylet does."""
    SILENT = auto()


def living_nodes() -> list[RayNode]:
    """Those that Ray takes for alive and that answer."""
    nodes = registered_nodes()
    doors = knock(nodes)
    return [node for node in nodes if doors[node.id] is Door.OPEN]


def registered_nodes() -> list[RayNode]:
    """Those that Ray takes for alive. Raises Unavailable."""
    request = gcs_service_pb2.GetAllNodeInfoRequest(state_filter=gcs_pb2.GcsNodeInfo.ALIVE)
    return sorted(
        RayNode(
            id=node.node_id.hex(),
            hostname=node.node_manager_hostname,
            address=node.node_manager_address,
            port=node.node_manager_port,
            started_ms=node.start_time_ms,
        )
        for node in _ask("GetAllNodeInfo", request).node_info_list
    )


def forget(node_id: str) -> None:
    """Ray takes a node for dead from now on; if its raylet lives after all it ends, with all
    that runs there, when it hears of that. Raises Unavailable, also if Ray knows it is dead."""
    info = common_pb2.NodeDeathInfo(
        reason=common_pb2.NodeDeathInfo.UNEXPECTED_TERMINATION,
        reason_message="diskless: its raylet has ended",
    )
    _ask(
        "UnregisterNode",
        gcs_service_pb2.UnregisterNodeRequest(node_id=bytes.fromhex(node_id), node_death_info=info),
    )


def _ask(method: str, request: Any) -> Any:
    address = ray_link.address_of(ray)
    with init_grpc_channel(address, _DIRECT) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            return unary.ask(getattr(stub, method), request, timeout_s=ASK_TIMEOUT_S)
        except Unavailable as error:
            raise Unavailable(
                f"Ray's control store at {address} did not answer {method} ({error}): "
                "see whether its head runs and can be reached, and try again"
            ) from error


def knock(nodes: Sequence[RayNode], *, heard: Collection[str] = ()) -> dict[str, Door]:
    """Whether their raylets answer; all are asked at once, except those that were heard."""
    newest: dict[tuple[str, int], RayNode] = {}
    for node in sorted(nodes, key=lambda node: node.started_ms):
        newest[node.address, node.port] = node
    answers = {node: Door.OPEN for node in newest.values() if node.id in heard}
    asked = [node for node in newest.values() if node not in answers]
    with ThreadPoolExecutor(max(len(asked), 1)) as threads:
        answers |= zip(asked, threads.map(_knock, asked), strict=True)
    return {node.id: answers.get(node, Door.CLOSED) for node in nodes}


def _knock(node: RayNode) -> Door:
    try:
        socket.create_connection((node.address, node.port), KNOCK_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return Door.CLOSED
    except OSError:
        return Door.SILENT
    return Door.OPEN if _is_serving(node) else Door.SILENT


def _is_serving(node: RayNode) -> bool:
    """The kernel takes connections for a raylet that hangs, and its port may be another's now."""
    host = f"[{node.address}]" if ":" in node.address else node.address
    with init_grpc_channel(f"{host}:{node.port}", _DIRECT) as channel:
        try:
            answer = unary.ask(channel.unary_unary(_HEALTH), b"", timeout_s=KNOCK_TIMEOUT_S)
        except Unavailable:
            return False
        return bool(answer == _SERVING)


def affinity(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)
