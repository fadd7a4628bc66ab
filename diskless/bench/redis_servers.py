"""A Redis primary with two replicas on this machine, as somebody would run it by hand.

Three copies in memory and no file: `--save "" --appendonly no`. Owns the three processes
and their directory, and ends them by their ids.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
REPLICAS = 2
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.05
NO_SERVER = (
    "Redis was left out: redis-server is not installed (Debian, Ubuntu: apt install redis-server)"
)
NO_CLIENT = "Redis was left out: its Python client is missing (pip install 'diskless[bench]')"


class RedisMissing(Exception):
    """One line that says what to install."""


class Servers:
    """`ports[0]` is the primary's."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], ports: list[int]) -> None:
        self.processes = processes
        self.ports = ports

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def lose_all_but_one_replica(self) -> int:
        """Kills the primary and a replica; the port of the one that is left, now a primary."""
        for process in self.processes[:REPLICAS]:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        client = connect(self.ports[REPLICAS])
        client.replicaof("NO", "ONE")
        client.close()
        return self.ports[REPLICAS]


def check() -> None:
    """Raises RedisMissing, before anything is started."""
    if shutil.which("redis-server") is None:
        raise RedisMissing(NO_SERVER)
    try:
        import redis  # noqa: F401
    except ImportError:
        raise RedisMissing(NO_CLIENT) from None


def connect(port: int) -> Any:
    import redis

    return redis.Redis(host=LOOPBACK, port=port, socket_timeout=60)


def version() -> str:
    said = subprocess.run(
        ["redis-server", "--version"], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    return next((word[2:] for word in said.split() if word.startswith("v=")), said.strip())


@contextmanager
def servers() -> Iterator[Servers]:
    """Raises RedisMissing, TimeoutError."""
    check()
    directory = Path(tempfile.mkdtemp(prefix="diskless-bench-redis-"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        ports = _free_ports(1 + REPLICAS)
        for number, port in enumerate(ports):
            processes.append(_start(directory, port, ports[0] if number else None))
        _wait_replicating(ports[0])
        yield Servers(processes, ports)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(STOP_TIMEOUT_S)
        shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path, port: int, primary: int | None) -> subprocess.Popen[bytes]:
    command = [
        *("redis-server", "--port", str(port), "--bind", LOOPBACK),
        *("--save", "", "--appendonly", "no", "--daemonize", "no"),
        *("--dir", str(directory), "--dbfilename", f"{port}.rdb"),
        # 64 MiB values would else break the replicas' connections at its soft limit.
        *("--client-output-buffer-limit", "replica 0 0 0"),
        *("--repl-diskless-sync-delay", "0"),
    ]
    if primary is not None:
        command += ["--replicaof", LOOPBACK, str(primary)]
    with (directory / f"{port}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _wait_replicating(port: int) -> None:
    import redis

    deadline = time.monotonic() + START_TIMEOUT_S
    client = connect(port)
    while True:
        try:
            info = client.info("replication")
            if sum(info.get(f"slave{n}", {}).get("state") == "online" for n in range(REPLICAS)) == (
                REPLICAS
            ):
                client.close()
                return
        except redis.ConnectionError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"Redis had no {REPLICAS} replicas within {START_TIMEOUT_S:g} s")
        time.sleep(POLL_S)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
