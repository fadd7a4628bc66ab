"""A Ray of the cluster's own on this host: started, found again, and stopped.

Owns the processes and Ray's directory; never imports Ray, which runs as a command. Ray
listens on loopback only and demands a token. Its memory monitor is off, because it kills
agents; workers keep the priority and the OOM score of other processes, because an agent
holds data and is not a task that can run again. Everything it starts is in one session,
that of the *holder* process, by which `stop` finds it.
"""

import os
import secrets
import site
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import diskless
from diskless.config import MIB
from diskless.errors import LaunchFailed
from diskless.launch import sessions
from diskless.launch.record import RayRecord

START_TIMEOUT_S = 60.0
POLL_S = 0.02
OBJECT_STORE_BYTES = 80 * MIB
"""The least that Ray accepts: shards live in the agents' heaps, not there."""
CPUS_MIN = 2

GCS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
GCS_PATIENCE_S = 365 * 24 * 3600
"""Raylets and agents exit when Ray's control store was gone for so long: 60 s unless told
otherwise. All would go at once, and with them every byte; so they wait for a year."""

NODE_PATIENCE = "RAY_health_check_failure_threshold"
NODE_PATIENCE_CHECKS = 10_000_000
"""Ray's control store calls a node dead that it did not reach five times, which takes a minute,
and the node ends with its agents as soon as it hears of it. If it was the head that was cut off,
these are all nodes. So it tries for a year; `rehoster` decides instead."""

LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

_LOOPBACK = "127.0.0.1"


def environment(token: str, base: Mapping[str, str]) -> dict[str, str]:
    """What Ray's processes, and any that speaks to them, must have in their environment."""
    kept = {key: value for key, value in base.items() if not key.startswith("RAY_")}
    return kept | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token,
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",
        "RAY_worker_oom_score_adjustment": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        GCS_PATIENCE: str(GCS_PATIENCE_S),
        NODE_PATIENCE: str(NODE_PATIENCE_CHECKS),
        # With 0 Ray keeps every listener on the address of its node, which is loopback.
        LOOPBACK_ONLY: "0",
    }


def write_token(path: Path) -> None:
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))


def spawn(directory: Path, token: Path) -> RayRecord:
    """Starts Ray with its files in `directory` and returns at once: see `wait_ready`."""
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port", "0", "--node-ip-address", _LOOPBACK),
        *("--ray-client-server-port", str(_free_port())),
        *("--no-monitor", "--include-dashboard", "false", "--include-log-monitor", "false"),
        *("--disable-usage-stats", "--log-style", "record", "--log-color", "false"),
        *("--object-store-memory", str(OBJECT_STORE_BYTES)),
        *("--num-cpus", str(max(CPUS_MIN, os.cpu_count() or 0))),
        *("--temp-dir", str(directory / "r")),
    ]
    holder = sessions.start(
        command,
        env=with_package(environment(str(token), os.environ)),
        log=directory / "ray.log",
    )
    return RayRecord(host=socket.gethostname(), holder=holder, token=str(token))


def wait_ready(record: RayRecord, directory: Path) -> str:
    """The address of Ray's control store, once it serves. Raises LaunchFailed."""
    announced, log = directory / "r" / "ray_current_cluster", directory / "ray.log"
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        if announced.exists() and (address := announced.read_text().strip()):
            return address
        if not sessions.is_alive(record.holder):
            raise LaunchFailed(f"Ray ended while it started: {sessions.tail(log)}")
        time.sleep(POLL_S)
    raise LaunchFailed(f"Ray did not start within {START_TIMEOUT_S:g} s: {sessions.tail(log)}")


def with_package(env: dict[str, str]) -> dict[str, str]:
    """Lets agents import this very package, also where it is used without being installed."""
    root = str(Path(diskless.__file__).parent.parent)
    if root in (*site.getsitepackages(), site.getusersitepackages()):
        return env
    present = env.get("PYTHONPATH")
    return env | {"PYTHONPATH": f"{present}{os.pathsep}{root}" if present else root}


def _free_port() -> int:
    """Ray wants a port for its client server, which we do not use."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
