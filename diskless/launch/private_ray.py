"""A Ray of the cluster's own on this host: started, found again, and stopped.

Owns the processes and Ray's directory; never imports Ray, which runs as a command. Ray
listens on loopback only and demands a token. Its memory monitor is off, because it kills
agents; workers keep the priority and the OOM score of other processes, because an agent
holds data and is not a task that can run again. Everything it starts is in one session,
that of the *holder* process, by which `stop` finds it.
"""

import os
import secrets
import signal
import site
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

import diskless
from diskless.config import MIB
from diskless.errors import LaunchFailed
from diskless.launch.record import RayRecord

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 8.0
KILL_TIMEOUT_S = 5.0
POLL_S = 0.02
OBJECT_STORE_BYTES = 80 * MIB
"""The least that Ray accepts: shards live in the agents' heaps, not there."""
CPUS_MIN = 2
LOG_TAIL_CHARS = 300
CLOCK_SLACK_S = 2.0
"""Start times are derived from the boot time, which moves when the clock is set."""

_LOOPBACK = "127.0.0.1"
_HOLDERS: dict[int, "subprocess.Popen[bytes]"] = {}
"""Those that this process started: it must reap them when they end."""


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
        # With 0 Ray keeps every listener on the address of its node, which is loopback.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
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
    with open(directory / "ray.log", "wb") as log:
        process = subprocess.Popen(
            command,
            env=_with_package(environment(str(token), os.environ)),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _HOLDERS[process.pid] = process
    started_s = psutil.Process(process.pid).create_time()
    return RayRecord(
        host=socket.gethostname(), pid=process.pid, started_s=started_s, token=str(token)
    )


def wait_ready(record: RayRecord, directory: Path) -> str:
    """The address of Ray's control store, once it serves. Raises LaunchFailed."""
    announced = directory / "r" / "ray_current_cluster"
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        if announced.exists() and (address := announced.read_text().strip()):
            return address
        if not is_alive(record):
            raise LaunchFailed(f"Ray ended while it started: {_tail(directory / 'ray.log')}")
        time.sleep(POLL_S)
    raise LaunchFailed(
        f"Ray did not start within {START_TIMEOUT_S:g} s: {_tail(directory / 'ray.log')}"
    )


def is_alive(record: RayRecord) -> bool:
    return _holder(record) is not None


def stop(record: RayRecord) -> None:
    """Ends every process of that Ray. Raises LaunchFailed if one cannot be ended."""
    if _is_stranger(record):
        return  # All of ours have ended: a session's number is not given away before.
    holder = _holder(record)
    if holder is not None:
        holder.send_signal(signal.SIGTERM)
        _wait(lambda: _holder(record) is None, STOP_TIMEOUT_S)
    for process in _members(record.pid):
        _kill(process)
    if not _wait(lambda: not any(_members(record.pid)), KILL_TIMEOUT_S):
        left = ", ".join(str(process.pid) for process in _members(record.pid))
        raise LaunchFailed(f"these processes of Ray did not end: {left}")


def _holder(record: RayRecord) -> psutil.Process | None:
    """The holder, if it still is the process that we started."""
    child = _HOLDERS.get(record.pid)
    if child is not None and child.poll() is not None:
        del _HOLDERS[record.pid]
    if _is_stranger(record):
        return None
    try:
        process = psutil.Process(record.pid)
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _is_stranger(record: RayRecord) -> bool:
    """Whether the holder's number has gone to another process."""
    try:
        began_s = psutil.Process(record.pid).create_time()
    except psutil.NoSuchProcess:
        return False
    return abs(began_s - record.started_s) > CLOCK_SLACK_S


def _members(session: int) -> Iterator[psutil.Process]:
    """Living processes of a session."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def _wait(done: Callable[[], bool], timeout_s: float) -> bool:
    end_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True


def _with_package(env: dict[str, str]) -> dict[str, str]:
    """Lets agents import this very package, also where it is used without being installed."""
    root = str(Path(diskless.__file__).parent.parent)
    if root in (*site.getsitepackages(), site.getusersitepackages()):
        return env
    present = env.get("PYTHONPATH")
    return env | {"PYTHONPATH": f"{present}{os.pathsep}{root}" if present else root}


def _free_port() -> int:
    """Ray wants a number for the door of its client, which we do not use."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " ".join(lines)[-LOG_TAIL_CHARS:] or "it said nothing"
