"""All agents of a cluster with a tier, which can be lost at one blow, and restored.

`OnRay` is a cluster as users have it: SIGKILL goes to every agent and to Ray. `InAProcess` has
all agents in one process, so that its SIGKILL loses as much, and starts in a second: for
tests that lose everything again and again. This module is also its program.
"""

import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from diskless.client import descriptor
from diskless.config import MIB, ClusterSettings
from diskless.launch import sessions
from diskless.launch.local import LocalCluster
from diskless.launch.record import record_of
from tests.support import Program, ray_program

AGENTS, DATA, PARITY, MEMORY_MIB = 3, 2, 1, 256


class Fleet(Protocol):
    name: str

    def kill(self) -> None:
        """SIGKILL to everything."""

    def restore(self) -> None:
        """A cluster again, from the newest that the tier has."""


class OnRay:
    def __init__(self, program: Program, uri: str) -> None:
        self.name = program.name
        self._program = program
        self._uri = uri

    def kill(self) -> None:
        killed = sessions.kill(record_of(descriptor.load(self.name)).holder)
        assert killed > AGENTS, "all agents, and Ray's own processes"

    def restore(self) -> None:
        self._program.ok("up", "--restore", self._uri)


class InAProcess:
    def __init__(self, uri: str, sockets: str) -> None:
        self.name = f"fleet-{secrets.token_hex(3)}"
        self._uri = uri
        self._sockets = sockets

    def start(self, how: str = "tier") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.fleets", self.name, self._uri, how, self._sockets],
            stdin=subprocess.PIPE,  # held open: it ends with whoever started it
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "what it printed is on stderr"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def restore(self) -> None:
        self.start("restore")


@contextmanager
def on_ray(root: Path) -> Iterator[Fleet]:
    shape = ("--agents", str(AGENTS), "-m", str(DATA), "-k", str(PARITY))
    uri = f"file://{root}"
    with ray_program(*shape, "--memory", f"{MEMORY_MIB}MiB", "--tier", uri) as (program, _):
        yield OnRay(program, uri)


@contextmanager
def in_a_process(root: Path) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="fleet-") as sockets:
        fleet = InAProcess(f"file://{root}", sockets)
        fleet.start()
        try:
            yield fleet
        finally:
            fleet.kill()
            descriptor.remove(fleet.name)


def main(name: str, uri: str, how: str, sockets: str) -> None:
    tempfile.tempdir = sockets  # what a killed process leaves is removed with it
    settings = ClusterSettings(
        name=name,
        agents=AGENTS,
        data_shards=DATA,
        parity_shards=PARITY,
        memory_bytes=MEMORY_MIB * MIB,
    )
    with LocalCluster(settings, **{how: uri}):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
