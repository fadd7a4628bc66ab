"""Whole hosts die, and cables are pulled, under a Spark stream that must count every row once.

Each host has an address, a Ray node, a Spark worker and an agent of its own: see
cluster/hosts.py. A host is killed with all that runs on it.
"""

import pytest

from diskless.cli import exits
from tests.hosts.support import HOSTS, PARITY_SHARDS, Site

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def others(site: Site, *taken: int) -> list[int]:
    """The other hosts, the leader's first, the head last."""
    left = [number for number in range(2, HOSTS + 1) if number not in taken]
    leader = site.leader()
    return sorted(left, key=lambda number: number != leader)


def test_k_hosts_die_at_once_and_a_cable_is_pulled_under_a_stream(site: Site):
    with site.stream(1, "diskless:///killed") as stream:
        stream.spread_over(4)

        victims = others(site, 1)[:PARITY_SHARDS]
        site.kill(*victims)
        site.wait_down(*victims)
        stream.advance(4)
        assert not stream.executors & {site.host(number).address for number in victims}
        site.back(*victims)
        site.wait_margin()

        cut = others(site, 1)[0]
        before = site.agents()[cut]["incarnation"]
        site.host(cut).cut()
        site.wait_down(cut)
        stream.advance(1)  # Not for long: in a minute Ray would end the host's agent.
        site.host(cut).join()
        site.wait_margin()
        assert site.agents()[cut]["incarnation"] == before, "down is not lost"
        stream.advance(2)
        assert stream.finish()["equal"]


def test_a_query_goes_on_elsewhere_when_its_drivers_host_dies(site: Site):
    with site.stream(3, "diskless:///driver") as stream:
        stream.advance(4)
        site.kill(3)
        assert stream.process.wait(30) != 0
        committed = stream.batches
    with site.stream(4, "diskless:///driver") as stream:
        stream.advance(3)
        # The last batch may have been committed without the driver having said so.
        assert stream.batches[0] in (committed[-1] + 1, committed[-1] + 2)
        site.back(3)
        site.wait_margin()
        stream.advance(2)
        assert stream.finish()["equal"]


def test_kill_host_reaches_other_hosts_and_counts_their_agents(site: Site):
    first, second, third = others(site, 2)
    for victim in (first, second):
        host = site.host(victim)
        agent = site.agents()[victim]["pid"]
        done = site.diskless(2, "chaos", "kill-host", host.name)
        assert done.returncode == exits.OK, done.stderr
        assert agent not in host.processes()
        assert not raylets(site, victim)
        site.wait_down(victim)
    refused = site.diskless(2, "chaos", "kill-host", site.host(third).address)
    assert refused.returncode == exits.OVER_BUDGET, refused.stderr
    assert raylets(site, third)
    assert site.status()["margin"] == 0
    for victim in (first, second):
        site.host(victim).kill()  # its Spark worker: then it can be started as a whole
        site.back(victim)
    site.wait_margin()


def raylets(site: Site, number: int) -> list[int]:
    found = []
    for pid in site.host(number).processes():
        try:
            with open(f"/proc/{pid}/comm") as file:
                name = file.read().strip()
        except OSError:  # it ended meanwhile
            continue
        if name == "raylet":
            found.append(pid)
    return found
