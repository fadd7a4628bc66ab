"""A real cluster that grows while it serves, on a Ray of its own.

One cluster for the tests in their order. How it grows on a Ray of several nodes is tested in
tests/chaos/test_rehost.py, what new agents are used for in test_grow.py.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskless.cli import exits
from diskless.client import Client, connect, descriptor
from diskless.config import MIB
from diskless.launch.record import record_of
from diskless.model import parse_slot
from tests.support import (
    Program,
    content,
    eventually,
    is_living,
    is_whole,
    ray_program,
    session_of,
    states,
)

SMALL = ("--agents", "3", "-m", "2", "-k", "1", "--memory", "64MiB")
DATA = content(5 * MIB + 3)
WAIT_S = 90.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with ray_program(*SMALL) as (program, _):
        with connect(program.name) as client:
            client.write("/kept", DATA)
        yield program


@pytest.fixture(scope="module")
def client(program: Program) -> Iterator[Client]:
    """One that was there from the beginning."""
    with connect(program.name) as client:
        yield client


def test_up_with_fewer_agents_or_another_shape_is_refused(program: Program) -> None:
    line = program.refused(exits.CLUSTER_EXISTS, "up", "--agents", "4", "-m", "3")
    assert "data_shards 2, not 3" in line
    assert "only its --agents can grow" in line
    assert "2 agents are too few" in program.refused(exits.USAGE, "up", "--agents", "2")


def test_an_up_that_was_killed_half_way_is_finished_by_the_next(
    program: Program, client: Client
) -> None:
    command = [sys.executable, "-m", "diskless.cli", "--cluster", program.name]
    first = subprocess.Popen(
        [*command, "up", "--agents", "5"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    eventually(lambda: descriptor.load(program.name).settings["agents"] == 5, WAIT_S)
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    assert len(descriptor.load(program.name).gateways) == 3, "it was killed too late"
    assert client.read("/kept") == DATA

    done = program.run("up")  # what is not given is as it is
    assert done.returncode == 0, done.stderr
    assert "5 agents, 2+1" in done.stdout
    eventually(lambda: states(client) == ["up"] * 5)
    assert [peer.slot for peer in descriptor.load(program.name).gateways] == list(range(5))


TAKEN = """
import sys
from diskless.operate import ray_cluster
with ray_cluster.attached(sys.argv[1], []) as identity:
    from diskless.launch import agents, spread
    node = spread.living_nodes()[0]
    agents.create(identity, {0: node}, founding=False)
    try:
        agents.create(identity, {0: node}, founding=True)
    except agents.LaunchFailed as error:
        print(error)
"""


def test_a_slot_that_somebody_else_has_started_is_left_alone(
    program: Program, client: Client
) -> None:
    before = [(a.pid, a.incarnation) for a in client.status().agents]
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, program.name],
        check=False, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "agent-0 is being started by somebody else" in done.stdout
    assert [(a.pid, a.incarnation) for a in client.status().agents] == before


def test_up_again_changes_nothing(program: Program, client: Client) -> None:
    before = [(a.pid, a.incarnation) for a in client.status().agents]
    again = program.ok("up", "--agents", "5")
    assert (again["started"], again["added"], again["agents_up"]) == (False, [], 5)
    assert [(a.pid, a.incarnation) for a in client.status().agents] == before
    line = program.refused(exits.CLUSTER_EXISTS, "up", "--agents", "4")
    assert "drain" in line


def test_the_new_agents_take_part_in_everything(program: Program, client: Client) -> None:
    client.write("/new", DATA)
    assert all(agent.shards_placed for agent in client.status().agents[3:])
    assert len(client.agents()) == 5, "a client of before does not know them"
    assert program.ok("drain", "4")["shards_left"] == 0
    program.ok("drain", "4", "--undo")
    (again,) = program.ok("restart", "4")["restarted"]
    assert again["incarnation"] == 2


@pytest.mark.slow  # tests/cluster/test_grow.py has it without Ray
def test_what_dead_agents_held_goes_to_the_new_ones(program: Program, client: Client) -> None:
    """One after the other, two of the first three: with three agents that were too many."""
    program.ok("up", "--agents", "5")  # where the tests above did not run
    leader = parse_slot(client.status().leader)
    program.ok("chaos", "kill", str((leader + 1) % 3), "--stay-dead")
    eventually(
        lambda: (
            client.status().stripes.degraded == 0
            and client.status().repair.stripes_left == 0
            and client.status().repair.waiting == 0
            and states(client).count("up") == 4
        ),
        WAIT_S,
    )
    assert client.status().stripes.lost == 0
    assert client.read("/kept") == DATA
    program.ok("chaos", "revive", str((leader + 1) % 3))
    eventually(lambda: is_whole(client, 5), WAIT_S)
    program.ok("chaos", "kill", "4", "--stay-dead")
    program.ok("chaos", "revive", "4")
    eventually(lambda: is_whole(client, 5), WAIT_S)


def test_two_hosts_may_grow_it_at_once(program: Program, client: Client, tmp_path: Path) -> None:
    """Each with a descriptor of its own, so that no lock keeps them apart."""
    copy = tmp_path / f"{program.name}.json"
    shutil.copy(descriptor.descriptor_path(program.name), copy)
    command = [sys.executable, "-m", "diskless.cli", "--cluster", program.name, "up"]
    both = [
        subprocess.Popen(
            [*command, "--agents", "6"],
            env=os.environ | {"DISKLESS_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for home in (descriptor.home(), tmp_path)
    ]
    said = [up.communicate(timeout=WAIT_S)[1] for up in both]
    assert [up.returncode for up in both] == [0, 0], said
    eventually(lambda: states(client) == ["up"] * 6)


def test_down_ends_the_new_agents_too(program: Program, client: Client) -> None:
    holder = record_of(descriptor.load(program.name)).holder.pid
    pids = [agent.pid for agent in client.status().agents]
    client.close()
    program.ok("down", "--discard")
    assert session_of(holder) == []
    assert not any(is_living(pid) for pid in pids)
