"""All that we use of Ray's private modules and messages, which Ray does not promise to keep.

They may change with every minor version, so only versions that are tested are accepted
(`check_version`, and the bounds of `ray` in pyproject.toml, which are the same). To accept another
one, run the tests with it and change both. Ray reads its environment when it is imported, so
nothing here imports it before a function is called.
"""

from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from diskless import __version__
from diskless.errors import LaunchFailed

if TYPE_CHECKING:
    from types import ModuleType

VERSION_MIN = (2, 60)
VERSION_BELOW = (2, 61)
REQUIREMENT = f"ray>={VERSION_MIN[0]}.{VERSION_MIN[1]},<{VERSION_BELOW[0]}.{VERSION_BELOW[1]}"

_DIRECT = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def is_tested(version: str) -> bool:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return VERSION_MIN <= numbers < VERSION_BELOW


def check_version(version: str = "") -> None:
    """Raises LaunchFailed for a Ray that diskless was not tested with; for the installed one
    unless `version` says otherwise."""
    version = version or metadata.version("ray")
    if not is_tested(version):
        raise LaunchFailed(
            f"Ray {version} is not supported by diskless {__version__}: pip install '{REQUIREMENT}'"
        )


class Call(NamedTuple):
    """A method of Ray's control store, and what to send to it."""

    method: Any
    request: Any


def open_channel(address: str) -> Any:
    """A gRPC channel with Ray's own token and TLS, to be used in a `with`; no proxy is asked."""
    from ray._private.grpc_utils import init_grpc_channel

    return init_grpc_channel(address, _DIRECT)


def alive_nodes(channel: Any) -> Call:
    """Its answer has `node_info_list`: the nodes that the control store takes for alive."""
    from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    return Call(
        gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).GetAllNodeInfo,
        gcs_service_pb2.GetAllNodeInfoRequest(state_filter=gcs_pb2.GcsNodeInfo.ALIVE),
    )


def draining_nodes(channel: Any) -> Call:
    """Its answer has `draining_nodes`, each with the time by which it ends."""
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    return Call(
        gcs_service_pb2_grpc.NodeResourceInfoGcsServiceStub(channel).GetDrainingNodes,
        gcs_service_pb2.GetDrainingNodesRequest(),
    )


def unregister_node(channel: Any, node_id: str, reason: str) -> Call:
    from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    info = common_pb2.NodeDeathInfo(
        reason=common_pb2.NodeDeathInfo.UNEXPECTED_TERMINATION, reason_message=reason
    )
    return Call(
        gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).UnregisterNode,
        gcs_service_pb2.UnregisterNodeRequest(node_id=bytes.fromhex(node_id), node_death_info=info),
    )


def actor_id(handle: Any) -> str:
    return str(handle._actor_id.hex())


def actor_row(handle: Any) -> dict[str, Any]:
    """What the control store knows of an actor: `State`, `Pid`, `Address` and more."""
    from ray._private import state

    return state.actors(actor_id(handle)) or {}


def system_config() -> dict[str, Any]:
    """The settings that this Ray was started with."""
    from ray._private import state

    found: dict[str, Any] = state.state.get_system_config()
    return found


def hush(ray: "ModuleType") -> None:
    """Ray prints a line on our stdout whenever an agent dies; `status` says it better."""
    worker: Any = getattr(ray._private, "worker", None)
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
