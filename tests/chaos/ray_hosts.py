"""Ray nodes on this machine, each with an address of its own, which are killed as a whole."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from diskless.config import MIB
from tests.support import eventually, session_of

WAIT_S = 90.0


class RayHosts:
    """Ray nodes with addresses of their own."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._directory = Path("/tmp") / f"dr-{secrets.token_hex(3)}"  # Ray wants a short path.
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 1
        self.ray = ""
        self.last = ""
        """Where commands run, as far as Ray is concerned."""

    def start_head(self) -> None:
        options = ("--port", "0", "--include-dashboard", "false")
        door = ("--ray-client-server-port", str(_free_port()))  # Several heads may be here.
        head = self._start("--head", *options, *door, "--temp-dir", str(self._directory))
        self._running["head"] = head
        address = self._directory / "ray_current_cluster"
        eventually(lambda: address.exists() and address.read_text(), WAIT_S)
        self.ray = address.read_text().strip()
        self.head = self.ray.rpartition(":")[0]

    def add(self) -> str:
        self._number += 1
        address = f"127.0.0.{self._number}"
        self._running[address] = self._start("--address", self.ray, "--node-ip-address", address)
        log = self._logs / f"{self._number}.log"
        eventually(lambda: "--block" in log.read_text(), WAIT_S)
        self.last = address
        return address

    def kill(self, *addresses: str) -> None:
        """Everything that runs there, at once."""
        ended = [self._running.pop(address) for address in addresses]
        for process in ended:
            for pid in session_of(process.pid):
                psutil.Process(pid).kill()
        for process in ended:
            process.wait(10)

    def agents(self, address: str) -> list[int]:
        """The processes of agents there, also of those that only begin."""
        found = []
        for pid in session_of(self._running[address].pid):
            with suppress(psutil.NoSuchProcess):
                if "AgentActor" in " ".join(psutil.Process(pid).cmdline()):
                    found.append(pid)
        return found

    def close(self) -> None:
        self.kill(*self._running)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        env |= {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}
        env["RAY_AUTH_MODE"] = "disabled"  # also where somebody's home has a token of Ray's
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"),
            *("--object-store-memory", str(80 * MIB), "--disable-usage-stats", *options),
        ]
        with open(self._logs / f"{self._number}.log", "wb") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env,
                start_new_session=True,
            )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
