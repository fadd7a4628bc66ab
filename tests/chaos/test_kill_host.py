"""Whole hosts die: three Ray nodes, each with an address of its own on this machine."""

import secrets
import shutil
import socket
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
from diskless.model import slot_name
from diskless.operate.ray_cluster import signals_to
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
def three_nodes(tmp_path: Path) -> Iterator[str]:
    """The address of a Ray whose nodes are this machine's address, 127.0.0.2 and 127.0.0.3."""
    directory = Path("/tmp") / f"dr-{secrets.token_hex(3)}"  # Ray wants a short path.
    with ExitStack() as started:
        started.callback(shutil.rmtree, directory, ignore_errors=True)
        head = start_ray(
            tmp_path / "1.log", "--head", "--port", "0", "--include-dashboard", "false",
            "--temp-dir", str(directory),
        )  # fmt: skip
        started.callback(end, head)
        address = directory / "ray_current_cluster"
        eventually(lambda: address.exists() and address.read_text(), 60)
        found = address.read_text().strip()
        for number in (2, 3):  # One after the other: at once, both time out here.
            log = tmp_path / f"{number}.log"
            address_of_its_own = ("--node-ip-address", f"127.0.0.{number}")
            started.callback(end, start_ray(log, "--address", found, *address_of_its_own))
            eventually(lambda log=log: "--block" in log.read_text(), 60)
        yield found


def test_a_killed_host_takes_its_agent_and_its_raylet_and_no_byte(three_nodes: str):
    """By Ray's names of hosts: to agents, all three are one, since they share a machine."""
    program = Program(f"h-{secrets.token_hex(3)}")
    started = program.run(
        "up", "--agents", "3", "-m", "2", "-k", "1", "--memory", "64MiB",
        "--ray-address", three_nodes,
    )  # fmt: skip
    assert started.returncode == exits.OK, started.stderr
    try:
        with connect(program.name) as client:
            client.write("/a", content(3 * MIB))
            pids = {agent.slot: agent.pid for agent in client.status().agents}
            raylets = {slot: psutil.Process(pid).ppid() for slot, pid in pids.items()}
            assert len(set(raylets.values())) == 3, "each agent has a node of its own"

            with signals_to(program.name) as ray:
                (dead,) = ray.kill_host(f"{socket.gethostname()}/127.0.0.3")
            victim = slot_name(dead)
            eventually(lambda: not runs(pids[victim]) and not runs(raylets[victim]))
            assert all(runs(pid) for slot, pid in pids.items() if slot != victim)
            assert all(runs(pid) for slot, pid in raylets.items() if slot != victim)
            assert client.read("/a") == content(3 * MIB)
            eventually(lambda: client.status().margin == 0)
            other = str((dead + 1) % 3)
            assert victim in program.refused(exits.OVER_BUDGET, "chaos", "kill", other)
    finally:
        program.ok("down", "--discard")
