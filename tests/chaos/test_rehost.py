"""Agents outlive their hosts: their slots begin again on others, as long as there are any.

One cluster for the tests in their order, on a Ray of several nodes, each with an address of
its own on this machine, which are killed as a whole: the raylet and the agents at once. Ray is
told to notice that sooner than usual. Until the end the node that was started last is not
killed: Ray takes it for the one that commands run on.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from diskless.client import Client, connect, descriptor
from diskless.config import MIB
from diskless.errors import DisklessError
from diskless.launch import signals
from diskless.launch.rehoster import JOIN_S_MAX
from diskless.model import AgentStatus, parse_slot
from tests.chaos.ray_hosts import RayHosts
from tests.support import Program, content, eventually, is_living, is_whole, states

SMALL = ("--agents", "3", "-m", "2", "-k", "1", "--memory", "64MiB")
DATA = content(5 * MIB + 3)
WAIT_S = 90.0
HANG_S = JOIN_S_MAX + 30.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    """Five: the head, which has an agent or not, and four more."""
    hosts = RayHosts(tmp_path_factory.mktemp("ray"))
    with ExitStack() as until_done:
        until_done.callback(hosts.close)
        hosts.start_head()
        for _ in range(4):  # One after the other: at once, they time out here.
            hosts.add()
        yield hosts


@pytest.fixture(scope="module")
def spread_out(hosts: RayHosts) -> Iterator[Program]:
    program = Program(f"g-{secrets.token_hex(3)}")
    started = program.ok("up", *SMALL, "--ray-address", hosts.ray)
    assert any("ends all agents together" in line for line in started["advice"])
    with connect(program.name) as client:
        client.write("/kept", DATA)
    try:
        yield program
    finally:
        if descriptor.descriptor_path(program.name).exists():
            program.ok("down", "--discard")


@pytest.fixture(scope="module")
def onlooker(spread_out: Program) -> Iterator[Client]:
    with connect(spread_out.name) as client:
        yield client


def homes(client: Client) -> dict[int, str]:
    """The address of the host of each agent that is up."""
    return {
        parse_slot(agent.slot): agent.host.rpartition("/")[2]
        for agent in client.status().agents
        if agent.state == "up"
    }


def victim(hosts: RayHosts, client: Client) -> int:
    """A voter whose host may be killed, the leader if it is one."""
    leader = parse_slot(client.status().leader)
    found = [
        slot
        for slot, address in homes(client).items()
        if slot < 3 and address not in (hosts.head, hosts.last)
    ]
    assert found
    return leader if leader in found else found[0]


def agent_of(client: Client, slot: int) -> AgentStatus:
    return client.status().agents[slot]


def test_each_agent_has_a_host_of_its_own(onlooker: Client) -> None:
    assert len(set(homes(onlooker).values())) == 3


def test_a_voter_whose_host_died_begins_again_on_a_spare_one(
    hosts: RayHosts, spread_out: Program, onlooker: Client
) -> None:
    slot = victim(hosts, onlooker)
    before = homes(onlooker)
    hosts.kill(before[slot])
    killed_s = time.monotonic()
    # Just after the kill it is whole still, as far as anybody knows.
    eventually(lambda: is_whole(onlooker, 3) and agent_of(onlooker, slot).incarnation == 2, WAIT_S)
    print(f"re-hosted and protected after {time.monotonic() - killed_s:.1f} s")
    after = homes(onlooker)
    assert after[slot] not in before.values()
    assert len(set(after.values())) == 3
    assert onlooker.status().voters[slot].lag is not None
    assert onlooker.status().unhosted == {}
    assert onlooker.read("/kept") == DATA


def test_an_agent_that_is_dead_on_purpose_is_left_alone(
    spread_out: Program, onlooker: Client
) -> None:
    """Its node is alive: nobody but `revive` starts it. Two repair delays pass."""
    spread_out.ok("chaos", "kill", "2", "--stay-dead")
    eventually(lambda: states(onlooker)[2] == "down", WAIT_S)
    down_s = time.monotonic()
    eventually(lambda: time.monotonic() - down_s > 20, WAIT_S)
    assert states(onlooker)[2] == "down"
    assert onlooker.status().unhosted == {}
    spread_out.ok("chaos", "revive", "2")
    eventually(lambda: is_whole(onlooker, 3), WAIT_S)


def test_an_added_agent_gets_the_host_that_has_none(
    hosts: RayHosts, spread_out: Program, onlooker: Client
) -> None:
    grown = spread_out.ok("up", "--agents", "4", "--ray-address", hosts.ray)
    assert grown["added"] == ["agent-3"]
    eventually(lambda: is_whole(onlooker, 4), WAIT_S)
    assert len(set(homes(onlooker).values())) == 4


def test_without_a_spare_host_status_says_so_and_a_new_one_is_used(
    hosts: RayHosts, spread_out: Program, onlooker: Client
) -> None:
    slot = victim(hosts, onlooker)
    hosts.kill(homes(onlooker)[slot])
    eventually(lambda: f"agent-{slot}" in _unhosted(onlooker), WAIT_S)
    lines = [line for line in spread_out.run("status").stdout.splitlines() if "unhosted" in line]
    assert len(lines) == 1
    assert f"agent-{slot}: its host is gone or cut off and no other has room" in lines[0]
    assert onlooker.read("/kept") == DATA
    assert len(set(homes(onlooker).values())) == 3, "an agent was put beside another"

    new = hosts.add()
    eventually(lambda: is_whole(onlooker, 4), WAIT_S)
    assert homes(onlooker)[slot] == new
    assert onlooker.status().unhosted == {}
    assert onlooker.read("/kept") == DATA


def _unhosted(client: Client) -> dict[str, str]:
    try:
        found: dict[str, str] = client.status().unhosted
    except DisklessError:
        return {}
    return found


def test_one_that_hangs_as_it_begins_is_given_up_and_begins_again(
    hosts: RayHosts, onlooker: Client
) -> None:
    slot = victim(hosts, onlooker)
    hosts.kill(homes(onlooker)[slot])
    new = hosts.add()
    hung: list[int] = []
    eventually(lambda: hung.extend(hosts.agents(new)) or hung, WAIT_S)
    signals.stop(hung)
    assert agent_of(onlooker, slot).state == "down", "it joined before it was stopped"
    eventually(lambda: "did not join" in _unhosted(onlooker).get(f"agent-{slot}", ""), HANG_S)
    eventually(lambda: is_whole(onlooker, 4), WAIT_S)
    assert homes(onlooker)[slot] == new
    assert not any(is_living(pid) for pid in hung)
    assert onlooker.read("/kept") == DATA


def test_two_hosts_of_voters_at_once_are_one_too_many_and_nothing_is_made_up(
    hosts: RayHosts, spread_out: Program, onlooker: Client
) -> None:
    """The namespace stops, loudly; no agent without a memory may begin a new one."""
    gone = [
        address for slot, address in homes(onlooker).items() if slot < 3 and address != hosts.head
    ]
    hosts.kill(*gone[:2])
    refuse_everything(spread_out)
    hosts.add()  # Also with a host to spare: there is nobody who may decide to use it.
    refuse_everything(spread_out)


def refuse_everything(program: Program) -> None:
    with connect(program.name, timeout_s=8) as client:
        with pytest.raises(DisklessError) as refused:
            client.write("/late", b"1")
        assert refused.value.reason in ("NoQuorum", "Unavailable", "DeadlineExceeded")
        with pytest.raises(DisklessError):
            client.read("/kept")
