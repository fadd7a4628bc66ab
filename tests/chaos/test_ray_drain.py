"""Ends that Ray announces, on a Ray of several nodes: four agents on five, of which one is free."""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from diskless.client import Client, connect, descriptor
from diskless.config import MIB
from diskless.errors import DisklessError
from diskless.model import AgentStatus, parse_slot
from tests.chaos.ray_hosts import RayHosts
from tests.support import Program, content, eventually, is_whole

SMALL = ("--agents", "4", "-m", "2", "-k", "1", "--memory", "64MiB")
DATA = content(5 * MIB + 3)
WAIT_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    hosts = RayHosts(tmp_path_factory.mktemp("ray"))
    with ExitStack() as until_done:
        until_done.callback(hosts.close)
        hosts.start_head()
        for _ in range(4):
            hosts.add()
        yield hosts


@pytest.fixture(scope="module")
def client(hosts: RayHosts) -> Iterator[Client]:
    program = Program(f"d-{secrets.token_hex(3)}")
    program.ok("up", *SMALL, "--ray-address", hosts.ray)
    try:
        with connect(program.name) as client:
            client.write("/kept", DATA)
            yield client
    finally:
        if descriptor.descriptor_path(program.name).exists():
            program.ok("down", "--discard")


def agent_of(client: Client, slot: int) -> AgentStatus:
    return client.status().agents[slot]


def drain_node(hosts: RayHosts, node: str, deadline_s: int) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", hosts.ray),
            *("--node-id", node, "--reason", "DRAIN_NODE_REASON_PREEMPTION"),
            *("--reason-message", "a test", "--deadline-remaining-seconds", str(deadline_s)),
        ],
        check=True,
        capture_output=True,
        timeout=WAIT_S,
    )


def is_quiet(client: Client) -> bool:
    return is_whole(client, 4) and not client.status().repair.stripes_left


def test_an_agent_whose_node_ray_drains_is_emptied_and_brought_to_a_free_one(
    hosts: RayHosts, client: Client
) -> None:
    """Also one that votes, while nothing that is stored survives fewer losses."""
    there = [agent for agent in client.status().agents if parse_slot(agent.slot) < 3]
    address = {agent.slot: agent.host.rpartition("/")[2] for agent in there}
    victim = next(a for a in there if address[a.slot] not in (hosts.head, hosts.last))
    slot = parse_slot(victim.slot)
    assert victim.shards_placed
    drain_node(hosts, victim.node, deadline_s=600)
    seen = set()
    degraded = 0
    end_s = time.monotonic() + WAIT_S
    while agent_of(client, slot).node == victim.node or agent_of(client, slot).state != "up":
        assert time.monotonic() < end_s, client.status()
        try:
            status = client.status()
        except DisklessError:
            continue  # leadership is being handed over
        seen.add(status.agents[slot].state)
        if all(agent.is_there() for agent in status.agents if agent.slot != victim.slot):
            degraded = max(degraded, status.stripes.degraded)
    assert "ending" in seen
    assert degraded == 0
    eventually(lambda: is_quiet(client), WAIT_S)
    assert agent_of(client, slot).incarnation == 2
    assert client.read("/kept") == DATA
    hosts.kill(address[victim.slot])
    assert client.read("/kept") == DATA
    assert client.status().margin == 1
