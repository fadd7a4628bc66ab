"""hosts.py leaves nothing behind: no process, namespace, cable or file of a host."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.hosts import BRIDGE, RUN, Hosts, Plan, configuration
from diskless.errors import LaunchFailed
from tests.support import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parents[2] / "cluster" / "hosts.py"


@pytest.fixture
def start(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`hosts.py up`, under way; ended with all that it made."""
    command = [sys.executable, str(PROGRAM), "up", "--hosts", "5", "--dir", str(tmp_path / "d")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(PROGRAM.parents[1])},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        subprocess.run([sys.executable, str(PROGRAM), "down"], check=False, timeout=60,
                       capture_output=True)  # fmt: skip


def left(directory: Path) -> list[str]:
    """What is there of hosts whose state is in that directory."""
    cables = [name for name in os.listdir("/sys/class/net") if name.startswith((BRIDGE, "dskv"))]
    processes = []
    for process in psutil.process_iter():
        try:
            if any(str(directory) in word for word in process.cmdline()):
                processes.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    files = [path for path in (RUN, "/run/dsk-plan.json") if os.path.exists(path)]
    return cables + processes + files


def test_ctrl_c_half_way_leaves_nothing(start: "subprocess.Popen[bytes]", tmp_path: Path):
    head_log = tmp_path / "d" / "dsk-1" / "spark-master.log"
    eventually(head_log.exists, 60)
    assert left(tmp_path / "d")
    os.killpg(start.pid, signal.SIGINT)  # as a terminal does
    assert start.wait(60) != 0
    assert left(tmp_path / "d") == []


def test_a_kill_half_way_leaves_something_that_down_finds(
    start: "subprocess.Popen[bytes]", tmp_path: Path
):
    head_log = tmp_path / "d" / "dsk-1" / "spark-master.log"
    eventually(head_log.exists, 60)
    start.kill()
    start.wait(10)
    assert left(tmp_path / "d")
    subprocess.run(
        [sys.executable, str(PROGRAM), "down"], check=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(PROGRAM.parents[1])},
    )  # fmt: skip
    assert left(tmp_path / "d") == []


def test_what_fails_half_way_is_named_and_can_be_taken_down(tmp_path: Path):
    hosts = Hosts(Plan(hosts=2, directory=str(tmp_path / "d")))
    wrong = configuration(2, data_shards=4, parity_shards=2, memory="64MiB", name="wrong")
    try:
        with pytest.raises(LaunchFailed, match="agents"):
            hosts.up(wrong)
        assert left(tmp_path / "d")
    finally:
        hosts.down()
    assert left(tmp_path / "d") == []


def test_hosts_are_made_once(tmp_path: Path):
    hosts = Hosts(Plan(hosts=2, directory=str(tmp_path / "d")))
    wrong = configuration(2, data_shards=4, parity_shards=2, memory="64MiB", name="wrong")
    try:
        with pytest.raises(LaunchFailed):
            hosts.up(wrong)  # they are there, and launch.py failed
        second = Hosts(Plan(hosts=2, directory=str(tmp_path / "e")))
        with pytest.raises(LaunchFailed, match="already"):
            second.up(wrong)
        second.down()
        assert BRIDGE in os.listdir("/sys/class/net"), "not its own to take down"
    finally:
        hosts.down()


def test_a_cable_is_shaped_both_ways_and_only_processes_that_are_named_end(tmp_path: Path):
    hosts = Hosts(Plan(hosts=2, directory=str(tmp_path / "d")))
    wrong = configuration(2, data_shards=4, parity_shards=2, memory="64MiB", name="wrong")
    try:
        with pytest.raises(LaunchFailed):
            hosts.up(wrong)  # they are there, and launch.py failed
        host, other = hosts.all
        host.shape("100mbit")
        for command in (host.command("tc", "qdisc", "show", "dev", "eth0"),
                        ["tc", "qdisc", "show", "dev", host.cable]):  # fmt: skip
            assert "rate 100Mbit" in subprocess.check_output(command, text=True)
        named, spared = (
            subprocess.Popen(place.command("sleep", "98765"), stdout=subprocess.DEVNULL)
            for place in (host, other)
        )
        try:
            eventually(lambda: host.end_some("98765") == 1)
            assert named.wait(10) != 0
            assert host.end_some("98765") == 0
            assert spared.poll() is None, "it is on another host"
        finally:
            for process in (named, spared):
                process.kill()
                process.wait(10)
    finally:
        hosts.down()
    assert left(tmp_path / "d") == []
