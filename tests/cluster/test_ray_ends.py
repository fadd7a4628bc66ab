"""A real agent of a Ray that gets SIGTERM: it is emptied, ends, and Ray starts the next life."""

import os
import signal

import psutil
import pytest

from diskless.client import connect
from diskless.config import MIB
from tests.support import content, eventually, ray_program

DATA = content(5 * MIB + 3)
WAIT_S = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_an_agent_that_gets_sigterm_is_emptied_and_ends_and_ray_starts_the_next_life() -> None:
    with (
        ray_program("--agents", "4", "-m", "2", "-k", "1", "--memory", "64MiB") as (program, _),
        connect(program.name) as client,
    ):
        client.write("/kept", DATA)
        victim = client.status().agents[3]
        assert victim.shards_placed
        process = psutil.Process(victim.pid)
        os.kill(victim.pid, signal.SIGTERM)
        os.kill(victim.pid, signal.SIGTERM)
        eventually(lambda: client.status().agents[3].state == "ending")
        eventually(lambda: not is_running(process), WAIT_S)
        assert client.status().agents[3].shards_placed == 0
        eventually(lambda: client.status().agents[3].incarnation == victim.incarnation + 1, WAIT_S)
        again = client.status().agents[3]
        assert (again.state, again.shards_placed) == ("ending", 0), "its host may still go"
        assert program.ok("drain", "3", "--undo")["changed"]
        assert client.status().agents[3].state == "up"
        assert client.read("/kept") == DATA


def is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
