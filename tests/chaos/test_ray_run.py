"""Chaos on real processes: freezing, a short run, Ctrl-C in the middle of one."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from diskless.cli import exits
from diskless.client import connect
from diskless.launch.signals import thread_states
from tests.support import Program, eventually, is_whole, ray_program

AGENTS, K = 6, 2
SETTINGS = ("--agents", str(AGENTS), "-m", "4", "-k", str(K), "--memory", "128MiB")

pytestmark = pytest.mark.timeout(170)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with ray_program(*SETTINGS) as (program, _):
        yield program


def processes(program: Program) -> dict[str, str]:
    """What each agent's process does, by its slot."""
    agents = program.ok("status")["agents"]
    return {agent["slot"]: psutil.Process(agent["pid"]).status() for agent in agents}


def wait_until_whole(program: Program) -> None:
    """A run begins on no other cluster."""
    with connect(program.name) as client:
        eventually(lambda: is_whole(client, AGENTS))


def test_a_frozen_agent_counts_at_once_and_goes_on_where_it_was(program: Program):
    before = program.agent(3)
    assert program.ok("chaos", "pause", "3")["paused"] == {"agent-3": before.pid}
    assert set(thread_states(before.pid).values()) == {"T"}
    assert program.ok("chaos", "list")["down"] == {"agent-3": "paused"}
    line = program.refused(exits.OVER_BUDGET, "chaos", "kill", "4", "5")
    assert "agent-3 paused" in line
    assert program.ok("chaos", "resume", "3")["resumed"] == ["agent-3"]
    eventually(lambda: program.agent(3).state == "up")
    after = program.agent(3)
    assert (after.pid, after.incarnation) == (before.pid, before.incarnation)


def test_a_short_run_passes_and_says_how_to_do_it_again(program: Program, tmp_path: Path):
    wait_until_whole(program)
    done = program.run(
        "chaos", "run", "--seed", "5", "--duration", "20", "--largest", "1MiB",
        "--faults", "kill,pause,partition,slow", "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.returncode == exits.OK, done.stdout[-3000:] + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["verdict"]["passed"]
    assert outcome["planted"] >= 3
    assert outcome["findings"]["acknowledged"] > 100
    assert "--seed 5 --duration 20" in outcome["options"]["replay"]
    assert json.loads((tmp_path / "report.json").read_bytes()) == outcome
    assert program.ok("chaos", "list")["faults"] == []
    assert program.ok("status")["margin"] == K


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_thaws_whom_it_froze(program: Program, number: signal.Signals):
    wait_until_whole(program)
    with subprocess.Popen(
        [sys.executable, "-m", "diskless.cli", "--cluster", program.name, "chaos", "run",
         "--seed", "1", "--duration", "60", "--faults", "pause", "--largest", "4KiB"],
        stdout=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            if re.search(r"s  freeze agent-", line):
                break
        run.send_signal(number)
        rest = run.stdout.read()
    assert run.returncode == (exits.INTERRUPTED if number == signal.SIGINT else 128 + number)
    assert "all faults taken back" in rest
    assert psutil.STATUS_STOPPED not in processes(program).values()
    assert program.ok("chaos", "list")["faults"] == []


def test_heal_finds_what_a_killed_run_left_behind(program: Program):
    """SIGKILL gives a run no chance to clean up; its record does."""
    program.ok("chaos", "pause", "1", "2")
    assert program.ok("chaos", "heal")["resumed"] == ["agent-1", "agent-2"]
    with connect(program.name) as client:
        eventually(lambda: client.status().margin == K)


# Longer: `make chaos`.


def run_local(*arguments: str, status: int = exits.OK) -> str:
    """A run on a cluster of its own, with all sizes; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "diskless.cli", "chaos", "run", "--local", *arguments],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == status, done.stdout[-6000:] + done.stderr
    return done.stdout


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_kv_survives_everything_within_k(seed: int):
    run_local("--seed", str(seed), "--duration", "60",
              "--faults", "kill,pause,partition,corrupt,slow")  # fmt: skip


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["kill", "pause", "partition"])
def test_beyond_k_kv_fails_loudly_or_not_at_all(kind: str):
    arguments = ("--seed", "4", "--duration", "20", "--faults", kind, "--heal-timeout", "20")
    if kind == "kill":
        text = run_local(*arguments, "--max-down", str(K + 1), status=exits.BEYOND_PROMISE)
        assert "TooFewShards" in text
        assert "no wrong byte was served" in text
    else:
        run_local(*arguments, "--max-down", str(K + 1))  # Nothing is lost for good.


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workload", ["wordcount", "nexmark"])
def test_streams_survive_everything_within_k(workload: str):
    run_local("--seed", "9", "--duration", "90", "--workload", workload)
