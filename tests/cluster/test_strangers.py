"""Thousands of strangers at agents' doors: they are let go, and nobody else notices them."""

import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress

import psutil
import pytest

from diskless.client import Client
from diskless.config import MIB, ClusterSettings
from diskless.rpc.server import CONNECTIONS_MAX
from diskless.rpc.services import KNOCK_METHOD
from tests.agent_process import ProcessCluster
from tests.crowd import PREFACE, Crowd, call, strangers
from tests.support import CALM, content, eventually

STRANGERS = 3000
BYTES_EACH_MAX = 64 << 10
KNOCKS = 100_000
BYTES_KNOCK_MAX = 200
SLOWER_MAX = 1.5
"""By how much commits may slow down beside strangers."""
ROUNDS = 3
TRIES = 3
ALONE_S = 0.7
BESIDE_S = 1.8
"""Commits are made for so long in turns, alone and beside strangers that come and stay: a machine
that others use is not the same for long."""


class Busy:
    """More strangers than gRPC accepts, that go on calling so that none is idle."""

    def __init__(self, found: list[socket.socket]) -> None:
        self._found = found
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        knock = call(KNOCK_METHOD)[len(PREFACE) :]
        stream = 1
        while not self._done.wait(1.0):
            stream += 2
            for stranger in self._found:
                with suppress(OSError):  # it was let go
                    stranger.setblocking(False)
                    stranger.sendall(knock[:5] + stream.to_bytes(4) + knock[9:])

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def connections_to(cluster: ProcessCluster, slot: int) -> int:
    """That the agent has open at its gRPC door."""
    agent = cluster.agents[slot]
    port = int(agent.begun["address"].rpartition(":")[2])
    return sum(
        connection.laddr.port == port and connection.status == psutil.CONN_ESTABLISHED
        for connection in psutil.Process(agent.pid).net_connections(kind="tcp")
    )


def commits_ms(client: Client, for_s: float) -> list[float]:
    """What each of the small commits of that time takes."""
    took: list[float] = []
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        began = time.perf_counter()
        client.write(f"/small/{len(took)}", b"1", overwrite=True)
        took.append(1000 * (time.perf_counter() - began))
    return took


def slower_beside(client: Client, crowd: Callable[[], AbstractContextManager[None]]) -> float:
    """By how much the median of commits grows beside a crowd; measured again if it is too much,
    since others may have slowed the machine down just then."""
    commits_ms(client, ALONE_S)  # The first ones warm up.
    for _ in range(TRIES):
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(ROUNDS):
            alone += commits_ms(client, ALONE_S)
            with crowd():
                beside += commits_ms(client, BESIDE_S)
        slower = statistics.median(beside) / statistics.median(alone)
        if slower <= SLOWER_MAX:
            break
    return slower


@pytest.fixture
def cluster() -> Iterator[ProcessCluster]:
    settings = ClusterSettings(
        name="strangers", agents=3, data_shards=2, parity_shards=1, tuning=CALM
    )
    with ProcessCluster(settings) as found:
        yield found


def test_3000_strangers_are_let_go_and_cost_little(cluster: ProcessCluster) -> None:
    leader = cluster.agents[0]
    address = str(leader.begun["address"])
    with cluster.connect() as client:
        client.write("/data", content(4 * MIB))
        usual, resident = connections_to(cluster, 0), leader.resident_bytes
        with strangers(address, STRANGERS) as all_of_them:
            client.write("/beside", b"1")
            grown = leader.resident_bytes - resident
            assert len(all_of_them) == STRANGERS
            eventually(lambda: connections_to(cluster, 0) <= usual, 30.0)
        assert grown <= STRANGERS * BYTES_EACH_MAX
        assert client.read("/data") == content(4 * MIB)
        assert client.status().margin == 1, "nobody was taken for dead"
        assert client.status().view == 0


@pytest.mark.slow  # it compares times: the machine must do nothing else
def test_commits_beside_3000_strangers_take_at_most_half_as_long_again(
    cluster: ProcessCluster,
) -> None:
    address = str(cluster.agents[0].begun["address"])
    with cluster.connect() as client, Crowd() as crowd:
        slower = slower_beside(
            client, lambda: crowd.staying(address, STRANGERS, for_s=BESIDE_S / 2)
        )
        assert slower <= SLOWER_MAX
        assert client.status().refused["too many callers"] > 0
        assert client.status().margin == 1, "nobody was taken for dead"
        assert client.status().view == 0


def test_a_stranger_that_knocks_without_listening_topples_nobody(cluster: ProcessCluster) -> None:
    leader = cluster.agents[0]
    host, _, port = str(leader.begun["address"]).rpartition(":")
    knock = call(KNOCK_METHOD)[len(PREFACE) :]
    knocks = [knock[:5] + number.to_bytes(4) + knock[9:] for number in range(1, 2 * KNOCKS, 2)]
    with cluster.connect() as client:
        client.write("/data", content(4 * MIB))
        resident = leader.resident_bytes
        for _ in range(4):
            with socket.create_connection((host, int(port)), timeout=5.0) as stranger:
                with suppress(OSError):  # nobody reads that much of a stranger
                    stranger.sendall(PREFACE + b"".join(knocks))
                client.write("/data", content(4 * MIB), overwrite=True)
        assert leader.resident_bytes - resident <= 4 * KNOCKS * BYTES_KNOCK_MAX
        assert client.status().margin == 1, "nobody was taken for dead"
        assert client.status().view == 0


def test_an_agent_gets_in_beside_more_busy_strangers_than_grpc_accepts(
    cluster: ProcessCluster,
) -> None:
    address = str(cluster.agents[0].begun["address"])
    with cluster.connect() as client:
        client.write("/data", content(4 * MIB))
        with strangers(address, CONNECTIONS_MAX + 200, (call(KNOCK_METHOD),)) as crowd:
            with closing(Busy(crowd)):
                cluster.kill(2)
                cluster.revive(2)
                client.write("/after", content(4 * MIB))  # It takes all three.
            # A crowd is counted when it has been shut down, and they come in several.
            eventually(
                lambda: client.status().refused["too many callers"] > CONNECTIONS_MAX // 2, 30.0
            )
        assert client.read("/data") == content(4 * MIB)
        assert client.status().view == 0


def test_commits_beside_3000_connections_in_a_second_to_the_gateway(
    cluster: ProcessCluster,
) -> None:
    address = str(cluster.agents[0].begun["gateway"])
    with cluster.connect() as client, Crowd() as crowd:
        slower = slower_beside(
            client, lambda: crowd.passing(address, per_s=STRANGERS, for_s=BESIDE_S)
        )
        assert slower <= SLOWER_MAX
        assert client.status().refused["too many callers"] > 0
        assert client.status().margin == 1, "nobody was taken for dead"
