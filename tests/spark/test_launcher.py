"""`cluster/launch.py` on one host: Ray, Spark standalone and agents, and a job by spark-submit."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from diskless.client import connect, descriptor
from diskless.launch.record import RayRecord
from tests.support import start_cluster

ROOT = Path(__file__).parents[2]
WORDCOUNT = ROOT / "diskless" / "workloads" / "wordcount.py"
CHECKPOINT = "diskless:///checkpoints/launched"
COMMAND_TIMEOUT_S = 240
SPARK_REST_PORT = 6066
"""Which every Spark master would like, and only one of a host can have."""


class Launch:
    """The launcher, with a home, a configuration and a state of its own."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.home = directory / "home"
        self.config = directory / "cluster.toml"
        ray, spark, ui = _free_ports(3)
        self.config.write_text(
            f"[head]\nray_port = {ray}\nspark_port = {spark}\nspark_ui_port = {ui}\n"
            '[spark]\nworkers = 1\n[diskless]\nname = "launched"\nmemory = "64MiB"\n'
        )

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        options = ("--config", str(self.config), "--state", str(self.state))
        return self.run(sys.executable, str(ROOT / "cluster" / "launch.py"), *options, *arguments)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command,
            env=os.environ | {"DISKLESS_HOME": str(self.home), "PATH": path},
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )

    def submit(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        options = ("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false")
        properties = ("--properties-file", str(self.state / "spark-defaults.conf"))
        return self.run("spark-submit", *properties, *options, str(WORDCOUNT), *arguments)


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    launch = Launch(tmp_path)
    try:
        yield launch
    finally:
        launch("down", "--discard")


@pytest.mark.slow  # as it is, tests/hosts has it on several hosts
@pytest.mark.timeout(600)
def test_a_stream_is_submitted_and_goes_on_from_its_checkpoint_when_submitted_again(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as other_master:
        with suppress(OSError):  # if somebody has it already, it need not be us
            other_master.enter_context(socket.create_server(("127.0.0.1", SPARK_REST_PORT)))
        up = launch("up")
    assert up.returncode == 0, up.stderr
    assert launch("status").stdout.count("runs") == 3  # Ray, the master, a worker
    before = launch("status").stdout
    assert "ray runs already" in launch("head").stdout
    assert launch("status").stdout == before

    first = launch.submit(CHECKPOINT, "--batches", "2", "--rows", "200")
    assert "equal to the batch answer" in first.stdout, first.stdout + first.stderr[-3000:]
    assert "batch   0 " in first.stdout
    second = launch.submit(CHECKPOINT, "--batches", "1", "--rows", "200")
    assert "equal to the batch answer" in second.stdout, second.stdout + second.stderr[-3000:]
    assert "batch   0 " not in second.stdout

    monkeypatch.setenv("DISKLESS_HOME", str(launch.home))
    with connect("launched") as client:
        assert client.exists("/checkpoints/launched/commits/0")

    refused = launch("down")
    assert refused.returncode != 0
    assert "--discard" in refused.stderr
    assert launch("down", "--discard").returncode == 0
    assert launch("status").stdout == ""


def test_a_wrong_configuration_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    launch = Launch(tmp_path)
    for text, named in (
        ("[diskless]\nagents = 3\n", "agents"),
        ("[spark]\ncoers = 2\n", "coers"),
        ("[head\n", "cluster.toml"),
    ):
        launch.config.write_text(text)
        refused = launch("up")
        assert refused.returncode != 0
        assert len(refused.stderr.splitlines()) == 1
        assert named in refused.stderr
    assert not list(tmp_path.glob("state/*.session"))


def test_a_head_without_memory_is_refused_where_agents_wait_for_the_old_one(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control store that does not know its nodes would end them, and all agents with them."""
    monkeypatch.setenv("DISKLESS_HOME", str(launch.home))
    with start_cluster() as cluster:
        known = descriptor.load(cluster.settings.name)
        (port,) = _free_ports(1)
        launch.config.write_text(f'[head]\nray_port = {port}\n[diskless]\nname = "{known.name}"\n')
        here = RayRecord(requested=f"127.0.0.1:{port}")
        descriptor.save(replace(known, ray=here.to_dict()))
        refused = launch("head")
        assert refused.returncode != 0
        assert "another ray_port" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        assert not list(launch.state.glob("*.session"))
