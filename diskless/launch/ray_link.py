"""This process's connection to a Ray: made, kept quiet, and ended.

A Ray of our own needs its token in the environment before Ray is imported, so nothing
under `diskless` imports Ray before `attach` was called, except code that runs in Ray. A
Ray of the user's is taken as it is, environment and all.
"""

import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

from diskless.errors import BadSettings, LaunchFailed, Unavailable
from diskless.launch import ray_internals
from diskless.launch.private_ray import environment
from diskless.launch.record import RayRecord

if TYPE_CHECKING:
    from types import ModuleType

AUTO = "auto"
CONNECT_TIMEOUT_S = 3.0
INIT_TIMEOUT_S = 40.0


def check_address(text: str) -> str:
    """What `--ray-address` may be: `auto` or host:port. Raises BadSettings."""
    host, _, port = text.rpartition(":")
    if text == AUTO or (host and "/" not in host and port.isdecimal() and int(port) < 65536):
        return text
    raise BadSettings(f"--ray-address {text!r}: give auto, or HOST:PORT of Ray's control store")


def attach(record: RayRecord, namespace: str) -> "ModuleType":
    """Connects to the Ray of a record and gives the module `ray`.

    Raises Unavailable when nothing listens there, LaunchFailed when it is no Ray that
    takes us, or a version that diskless was not tested with.
    """
    ray_internals.check_version()
    address = record.address or record.requested
    if record.own:
        kept = environment(record.token, os.environ)
        for name in set(os.environ) - set(kept):
            del os.environ[name]
        os.environ.update(kept)
    if address != AUTO:
        check_listening(address)
    import ray

    if ray.is_initialized():
        if address_of(ray) == address:
            return ray
        raise LaunchFailed("this process is connected to another Ray: use a process of its own")
    ray_internals.hush(ray)
    _init(ray, address, namespace)
    return ray


def detach() -> None:
    """Ends the connection, if there is one; what runs in Ray continues."""
    # Ray reads its environment when it is imported, and `attach` may yet have to set that.
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def address_of(ray: "ModuleType") -> str:
    return str(ray.get_runtime_context().gcs_address)


def check_listening(address: str) -> None:
    """Raises Unavailable. Ray itself would wait for minutes where nothing listens."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise Unavailable(f"no Ray answers at {address}: {error.strerror or error}") from error


def _init(ray: "ModuleType", address: str, namespace: str) -> None:
    """ray.init in a thread: there are addresses at which it never returns."""
    failed: list[BaseException] = []

    def init() -> None:
        try:
            ray.init(
                address=address, namespace=namespace, log_to_driver=False, logging_level="error"
            )
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            failed.append(error)

    thread = threading.Thread(target=init, daemon=True)
    thread.start()
    thread.join(INIT_TIMEOUT_S)
    if thread.is_alive():
        raise LaunchFailed(f"Ray at {address} gave no answer within {INIT_TIMEOUT_S:g} s")
    if failed:
        raise LaunchFailed(_refusal(address, failed[0])) from failed[0]


def _refusal(address: str, error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    advice = ""
    if address == AUTO and isinstance(error, ConnectionError):
        return "no Ray runs here: start one with `ray start --head`, or leave --ray-address out"
    if isinstance(error, ConnectionError):
        advice = " (if it demands a token, set RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN_PATH)"
    return f"Ray at {address} cannot be used: {first}{advice}"
