"""The nodes of a Ray, whether they answer, and how an agent is tied to one.

Ray's soft affinity is no affinity for actors that ask for no CPU, so it is hard: Ray
restarts an agent where it was and nowhere else, and gives it up when that node is gone.
Which node it gets is decided in `seats`; who brings it to another one, in `rehoster`.

A Ray of ours never decides by itself that a node is gone: see docs/decisions.md. So what Ray
takes for alive may be dead; a node lives if its raylet takes connections as well.
"""

import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskless.errors import Unavailable
from diskless.launch import ray_link
from diskless.launch.seats import RayNode

KNOCK_TIMEOUT_S = 1.5
FORGET_TIMEOUT_S = 5.0


class Door(Enum):
    OPEN = auto()
    CLOSED = auto()
    """The host says that nobody listens there."""
    SILENT = auto()


def living_nodes() -> list[RayNode]:
    """Those that Ray takes for alive and that answer."""
    nodes = registered_nodes()
    doors = knock(nodes)
    return [node for node in nodes if doors[node.id] is Door.OPEN]


def registered_nodes() -> list[RayNode]:
    """Those that Ray takes for alive."""
    return sorted(
        RayNode(
            node["NodeID"],
            node["NodeManagerHostname"],
            node["NodeManagerAddress"],
            node["NodeManagerPort"],
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def knock(nodes: Sequence[RayNode]) -> dict[str, Door]:
    """Whether their raylets take connections; all are tried at once."""
    with ThreadPoolExecutor(max(len(nodes), 1)) as threads:
        return dict(zip((node.id for node in nodes), threads.map(_knock, nodes), strict=True))


def _knock(node: RayNode) -> Door:
    try:
        socket.create_connection((node.address, node.port), KNOCK_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return Door.CLOSED
    except OSError:
        return Door.SILENT
    return Door.OPEN


def sharing_doors(nodes: Iterable[RayNode]) -> set[str]:
    """Nodes at the same address and port: a raylet was started again where one had died, and
    answers for both."""
    by_door: dict[tuple[str, int], list[str]] = {}
    for node in nodes:
        by_door.setdefault((node.address, node.port), []).append(node.id)
    return {id_ for ids in by_door.values() if len(ids) > 1 for id_ in ids}


def forget(node_id: str) -> None:
    """Ray takes a node for dead from now on, and gives up what ran there; if its raylet lives
    after all it ends, with its agents, when it hears of that. Raises Unavailable."""
    request = gcs_service_pb2.UnregisterNodeRequest(
        node_id=bytes.fromhex(node_id),
        node_death_info=common_pb2.NodeDeathInfo(
            reason=common_pb2.NodeDeathInfo.UNEXPECTED_TERMINATION,
            reason_message="diskless: it does not answer, and its agent begins elsewhere",
        ),
    )
    address = ray_link.address_of(ray)
    with init_grpc_channel(address) as channel:
        try:
            gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).UnregisterNode(
                request, timeout=FORGET_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise Unavailable(f"Ray at {address} did not forget a node: {error}") from error


def affinity(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)
