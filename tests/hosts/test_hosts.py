"""Whole hosts die, and cables are pulled, under a Spark stream that must count every row once.

Each host has an address, a Ray node, a Spark worker and an agent of its own: see
cluster/hosts.py. A host is killed with all that runs on it.
"""

import time

import pytest

from diskless.cli import exits
from tests.hosts.support import HOSTS, Site

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

CUT_S = 80.0
"""Longer than Ray, left as it is, would take for dead what it does not reach."""


def others(site: Site, *taken: int) -> list[int]:
    """The other hosts, but not the head; the leader's first."""
    left = [number for number in range(2, HOSTS + 1) if number not in taken]
    leader = site.leader()
    return sorted(left, key=lambda number: number != leader)


def test_k_hosts_die_at_once_under_a_stream_the_leaders_among_them(site: Site):
    with site.stream(1, "diskless:///killed") as stream:
        stream.spread_over(2)
        first = others(site, 1)[0]
        second = next(iter(stream.executors - {first}))
        site.kill(first, second)
        site.wait_down(first, second)
        assert site.status().margin == 0
        stream.advance(3)
        assert not stream.executors & {first, second}
        site.back(first, second)
        site.wait_margin()
        stream.advance(2)
        assert stream.finish()["equal"]


def test_a_hosts_cable_is_pulled_under_a_stream_and_put_back(site: Site):
    with site.stream(1, "diskless:///cut") as stream:
        stream.spread_over(2)
        cut = next(iter(stream.executors))
        before = site.agents()[cut].incarnation
        site.host(cut).cut()
        site.wait_down(cut)
        cut_s = time.monotonic()
        while time.monotonic() - cut_s < CUT_S:
            stream.advance(1)
        site.host(cut).join()
        site.wait_margin()
        stream.advance(10)
        assert site.agents()[cut].incarnation == before, "down is not lost"
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
        agent = site.agents()[victim].pid
        done = site.diskless(2, "chaos", "kill-host", host.name)
        assert done.returncode == exits.OK, done.stderr
        assert agent not in host.processes()
        assert not raylets(site, victim)
        site.wait_down(victim)
    refused = site.diskless(2, "chaos", "kill-host", site.host(third).address)
    assert refused.returncode == exits.OVER_BUDGET, refused.stderr
    assert raylets(site, third)
    assert site.status().margin == 0
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
