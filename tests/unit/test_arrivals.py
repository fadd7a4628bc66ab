"""Whoever opens connections and proves nothing is turned away at the door, and nobody else."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from diskless.identity import arrivals
from diskless.identity.arrivals import ADDRESSES_MAX, BURST, PER_S, Arrivals
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind
from tests.unit.fake_cluster import LoopThread, RawClient, wait_until
from tests.unit.test_gateway import Harness

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"


def test_an_address_that_proves_nothing_gets_a_burst_and_then_so_many_in_a_second() -> None:
    now_s = [100.0]
    door = Arrivals(lambda: now_s[0])
    assert all(door.take("a") for _ in range(BURST))
    assert not door.take("a")
    assert door.take("b")
    now_s[0] += 1.0
    assert [door.take("a") for _ in range(int(PER_S) + 1)] == [True] * int(PER_S) + [False]


def test_who_proves_itself_takes_nothing_from_its_address() -> None:
    door = Arrivals(lambda: 0.0)
    for _ in range(3 * BURST):
        assert door.take("a")
        door.give_back("a")
    assert sum(door.take("a") for _ in range(2 * BURST)) == BURST, "and never more than that"


def test_addresses_are_forgotten_rather_than_kept_without_end() -> None:
    door = Arrivals(lambda: 0.0)
    for number in range(3 * ADDRESSES_MAX):
        assert door.take(str(number))
    assert len(door._left) == ADDRESSES_MAX


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(LoopThread(uvloop.new_event_loop), tmp_path / "doors" / "agent.sock")
    yield harness.start()
    for client in harness.clients:
        client.close()
    harness.thread.run(harness.gateway.stop())
    harness.thread.close()


def test_a_crowd_of_one_address_keeps_no_client_of_another_out(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "BURST", 3)
    monkeypatch.setattr(arrivals, "PER_S", 0.0)
    port = harness.gateway.tcp_port
    for _ in range(5):  # They prove themselves, so they are no crowd.
        harness.clients.append(RawClient(port=port).greeted())
    made = harness.gateway.counters.connections_total
    crowd = [socket.create_connection((HERE, port)) for _ in range(40)]
    refused = harness.gateway.refusals.counts
    wait_until(lambda: refused["gateway", "too many callers"] == 37, "the others are let go")
    assert harness.gateway.counters.connections_total == made + 3, "nothing was made for them"
    member = RawClient(port=port, source=ELSEWHERE).greeted()
    harness.clients.append(member)
    for client in (member, *harness.clients):
        client.send(Kind.STAT, m.Stat("/a"))
        assert client.receive()[0].kind == Kind.DONE
    for one in crowd:
        one.close()
