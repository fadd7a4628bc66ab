"""Whole hosts die: three Ray nodes, each with an address of its own on this machine."""

import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from diskless.cli import exits
from diskless.client import connect
from diskless.config import MIB
from tests.support import Program, content, eventually, session_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


def start_ray(log: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "2"),
        *("--object-store-memory", str(80 * MIB), "--disable-usage-stats", *options),
    ]
    with open(log, "wb") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip


def runs(pid: int) -> bool:
    """A process that nobody has waited for yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    for pid in session_of(process.pid):
        psutil.Process(pid).kill()
    process.wait(10)


@pytest.fixture
def three_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray whose nodes are 127.0.0.1, .2 and .3."""
    # Else Ray replaces a loopback address by that of the machine.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    directory = Path("/tmp") / f"dr-{secrets.token_hex(3)}"  # Ray wants a short path.
    with ExitStack() as started:
        started.callback(shutil.rmtree, directory, ignore_errors=True)
        head = start_ray(
            tmp_path / "1.log", "--head", "--port", "0", "--include-dashboard", "false",
            "--node-ip-address", "127.0.0.1", "--temp-dir", str(directory),
        )  # fmt: skip
        started.callback(end, head)
        address = directory / "ray_current_cluster"
        eventually(lambda: address.exists() and address.read_text(), 60)
        found = address.read_text().strip()
        for number in (2, 3):
            node = start_ray(
                tmp_path / f"{number}.log", "--address", found, "--node-ip-address",
                f"127.0.0.{number}",
            )  # fmt: skip
            started.callback(end, node)
        yield found


def test_a_killed_host_takes_its_agent_and_its_raylet_and_no_byte(three_nodes: str):
    program = Program(f"h-{secrets.token_hex(3)}")
    shape = ("--agents", "3", "-m", "2", "-k", "1", "--memory", "64MiB")

    def is_up() -> bool:
        """Until all nodes have joined, agents would share one."""
        done = program.run("up", *shape, "--ray-address", three_nodes)
        assert done.returncode == exits.OK, done.stderr
        if len({agent["host"] for agent in program.ok("status")["agents"]}) == 3:
            return True
        program.ok("down", "--discard")
        return False

    eventually(is_up, 120)
    try:
        with connect(program.name) as client:
            client.write("/a", content(3 * MIB))
            victim = next(
                agent for agent in program.ok("status")["agents"] if "127.0.0.3" in agent["host"]
            )
            raylet = psutil.Process(victim["pid"]).ppid()
            assert "raylet" in psutil.Process(raylet).name()

            killed = program.ok("chaos", "kill-host", "127.0.0.3")
            assert killed["killed"] == [victim["slot"]]
            eventually(lambda: not runs(victim["pid"]) and not runs(raylet))
            assert client.read("/a") == content(3 * MIB)
            eventually(lambda: client.status()["margin"] == 0)
            line = program.refused(exits.OVER_BUDGET, "chaos", "kill-host", "127.0.0.2")
            assert victim["slot"] in line
    finally:
        program.ok("down", "--discard")
