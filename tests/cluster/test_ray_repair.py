"""Repair on a real cluster: processes that are killed, paused, drained and restarted.

One cluster for all, so each test leaves it whole. What repair does in each case is tested
in test_repair.py; this is that it happens, by itself, to agents that are processes.
"""

import signal
from collections.abc import Iterator

import pytest

from diskless.cli import exits
from diskless.client import Client, connect
from diskless.config import KIB, MIB
from diskless.launch import signals
from diskless.model import AgentStatus, parse_slot
from tests.support import Program, content, eventually, ray_program

SETTINGS = ("--agents", "6", "-m", "4", "-k", "2", "--memory", "128MiB")
FILES = {f"/kept/{size}": content(size) for size in (1, 700, 20 * KIB, 300 * KIB, 9 * MIB + 5)}
REPAIR_S = 90.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with ray_program(*SETTINGS) as (program, _):
        with connect(program.name) as client:
            for path, data in FILES.items():
                client.write(path, data)
        yield program


@pytest.fixture
def client(program: Program) -> Iterator[Client]:
    """Before and after each test everything survives two losses."""
    with connect(program.name) as client:
        wait_protected(client)
        yield client
        wait_protected(client)
        for path, data in FILES.items():
            assert client.read(path) == data


def wait_protected(client: Client) -> None:
    eventually(lambda: client.status().margin == 2, REPAIR_S)


def has_all_its_shards(agent: AgentStatus) -> bool:
    return bool(agent.shards == agent.shards_placed)


def lives(client: Client) -> list[int]:
    return [agent.incarnation for agent in client.status().agents]


@pytest.mark.parametrize("victims", [("0", "3"), ("1", "2"), ("4", "5")], ids="+".join)
def test_pair_after_pair_is_lost_and_nothing_with_them(
    program: Program, client: Client, victims: tuple[str, ...]
) -> None:
    """Six agents die in all, which is four more than anything survives unrepaired."""
    before = sum(lives(client))
    program.ok("chaos", "kill", *victims)
    eventually(lambda: sum(lives(client)) == before + 2, REPAIR_S)
    wait_protected(client)
    assert client.status().stripes.degraded == 0


def test_a_paused_agent_that_returns_in_time_keeps_its_shards(
    program: Program, client: Client
) -> None:
    eventually(lambda: has_all_its_shards(program.agent(5)), REPAIR_S)  # a beat brings the count
    agent = program.agent(5)
    versions = [event.op for event in client.events() if event.kind == "repair"]
    signals.stop([agent.pid])
    try:
        eventually(lambda: client.status().agents[5].state == "down", REPAIR_S)
    finally:
        signals.send([agent.pid], signal.SIGCONT)
    wait_protected(client)
    after = program.agent(5)
    assert (after.incarnation, after.shards) == (agent.incarnation, agent.shards)
    assert [event.op for event in client.events() if event.kind == "repair"] == versions


def test_a_drained_agent_is_killed_for_nothing(program: Program, client: Client) -> None:
    drained = program.ok("drain", "5")
    assert drained == {"slot": "agent-5", "draining": True, "changed": True, "shards_left": 0}
    assert "draining: agent-5" in program.run("status").stdout
    program.ok("chaos", "kill", "5", "--stay-dead")
    eventually(lambda: client.status().agents[5].state == "down", REPAIR_S)
    assert client.status().margin == 2
    program.ok("chaos", "revive", "5")
    assert program.ok("drain", "5", "--undo")["changed"]
    eventually(lambda: client.status().agents[5].shards_placed > 0, REPAIR_S)


def test_a_rolling_restart_restarts_each_agent_once_and_the_leader_last(
    program: Program, client: Client
) -> None:
    before, leader = lives(client), parse_slot(client.status().leader)
    done = program.ok("restart", "--rolling")["restarted"]
    assert {agent["slot"] for agent in done} == {f"agent-{slot}" for slot in range(6)}
    assert done[-1]["slot"] == f"agent-{leader}"
    assert lives(client) == [life + 1 for life in before]


def test_restart_refuses_an_unknown_slot(program: Program, client: Client) -> None:
    assert "there is no agent-9" in program.refused(exits.USAGE, "restart", "9")
