"""Logs and metrics of a real cluster on Ray, as its operator finds them."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from diskless.cli import exits
from tests.support import Program, eventually, ray_program

SETTINGS = ("--agents", "3", "-m", "1", "-k", "1", "--memory", "64MiB")

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISKLESS_LOG_FORMAT", "json")
        with ray_program(*SETTINGS) as (program, _):
            yield program


def lines(program: Program, *arguments: str) -> list[dict[str, str]]:
    done = program.run("logs", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_logs_are_found_also_those_of_lives_that_are_over(program: Program) -> None:
    served = [
        line["agent"] for line in lines(program, "-n", "1000") if "agent serves" in line["text"]
    ]
    assert sorted(served) == ["agent-0", "agent-1", "agent-2"]
    program.ok("chaos", "kill", "2")

    def lives() -> list[dict[str, str]]:
        return [one for one in lines(program, "2", "-n", "1000") if "agent serves" in one["text"]]

    eventually(lambda: len(lives()) == 2, 60)
    assert {line["agent"] for line in lives()} == {"agent-2"}
    said = json.loads(lives()[0]["text"])
    assert said["name"] == "diskless.node"
    assert "there is no agent-7" in program.refused(exits.USAGE, "logs", "7")
    eventually(lambda: program.ok("status")["margin"] == 1, 60)


def test_logs_are_followed(program: Program) -> None:
    command = [sys.executable, "-m", "diskless.cli", "--cluster", program.name]
    follow = subprocess.Popen(
        [*command, "logs", "1", "--follow", "-n", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        program.ok("chaos", "kill", "1")
        assert follow.stdout is not None
        assert any("agent serves" in line for line in follow.stdout)
    finally:
        follow.kill()
        follow.communicate()
    eventually(lambda: program.ok("status")["margin"] == 1, 60)


def test_a_cluster_has_metrics_unless_it_is_told_otherwise(program: Program) -> None:
    token = program.ok("token", "create", "--path", "/nothing", "--rights", "r")["token"]

    def addresses() -> list[str]:
        return [agent["http"] for agent in program.ok("status")["agents"]]

    eventually(lambda: all(addresses()))
    for address in addresses():
        asked = urllib.request.Request(
            f"{address}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert b"\ndiskless_shards " in answer.read()
