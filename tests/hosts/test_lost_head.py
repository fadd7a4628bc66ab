"""The host of Ray's head and Spark's master dies, or is cut off: agents and streams go on.

Supervision then comes back in one of two ways: the head's host returns with its disk, or
another host takes its part.
"""

import time

import pytest

from diskless.cli import exits
from diskless.client import connect
from tests.hosts.support import HOSTS, NAME, POLL_S, Site, Stream

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

RAY_PATIENCE_S = 65.0
"""After so long without its control store a Ray node ends, with its agents, if left as it is;
and after so long without a node the control store has it end when it is back."""


def outlive(site: Site, stream: Stream) -> None:
    """The head's host dies, and the stream goes on past the time that Ray would wait."""
    head = site.hosts.head.number
    lost = site.agents()[head].slot
    lives = {slot: life for slot, life in site.lives().items() if slot != lost}
    site.kill(head)
    ends_s = time.monotonic() + 1.25 * RAY_PATIENCE_S
    while time.monotonic() < ends_s:
        stream.advance(1)
    assert site.lives() == lives, "no other agent died, or was restarted"


def check_supervised(site: Site, number: int) -> None:
    """An agent that dies is restarted."""
    victim = site.agents()[number]
    done = site.diskless(number, "chaos", "kill", victim.slot)
    assert done.returncode == exits.OK, done.stderr
    site.wait(
        f"{victim.slot} to live again",
        lambda status: any(
            row.slot == victim.slot and row.state == "up" and row.incarnation > victim.incarnation
            for row in status.agents
        ),
    )
    site.wait_margin()


def test_the_head_dies_under_a_stream_and_comes_back(site: Site):
    with site.stream(2, "diskless:///head") as stream:
        stream.advance(3)
        before = site.lives()
        outlive(site, stream)
        site.back(site.hosts.head.number)
        site.wait_margin()
        lost = site.agents()[site.hosts.head.number].slot
        after = site.lives()
        assert after.pop(lost) > before.pop(lost)
        assert after == before, "the others never noticed"
        check_supervised(site, 3)
        stream.advance(2)
        assert stream.finish()["equal"]


def test_a_head_that_was_cut_off_ends_nobody_when_it_is_back(site: Site):
    """It has lost sight of all others, and must not take them for dead.

    Without a stream: Spark's master, on the same host, does take its workers for lost.
    """
    head = site.hosts.head
    before = site.lives()
    head.cut()
    written = write_for_a_while(site, "cut")
    head.join()
    site.wait_margin()
    # A node that is taken for dead hears of it within a minute.
    written += write_for_a_while(site, "joined")
    assert site.lives() == before
    check_supervised(site, 3)
    site.kill(4)
    site.wait_down(4)
    site.back(4)
    site.wait_margin()
    with connect(NAME) as client:
        for path in written:
            assert client.read(path) == path.encode()


def write_for_a_while(site: Site, name: str) -> list[str]:
    """The files, each with its path as content."""
    written: list[str] = []
    ends_s = time.monotonic() + 1.25 * RAY_PATIENCE_S
    with connect(NAME) as client:
        while time.monotonic() < ends_s:
            path = f"/{name}-{len(written)}"
            client.write(path, path.encode())
            written.append(path)
            time.sleep(POLL_S)
    return written


def test_the_head_is_lost_and_another_host_takes_its_part(site: Site):
    with site.stream(3, "diskless:///moved") as stream:
        stream.advance(3)
        before = site.lives()
        outlive(site, stream)
        site.hosts.rehead(site.host(2))
        site.wait_margin()
        after = site.lives()
        assert after.keys() == before.keys()
        assert all(after[slot] > before[slot] for slot in before), "each began a new life"
        assert len(site.agents()) == HOSTS, "one on each host"
        check_supervised(site, 4)
        stream.advance(2)
        assert stream.finish()["equal"]
