"""Thousands of strangers at agents' doors: they are let go, and nobody else notices them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import psutil
import pytest

from diskless.config import MIB, ClusterSettings
from diskless.rpc.server import CONNECTIONS_MAX
from diskless.rpc.services import KNOCK_METHOD
from tests.agent_process import ProcessCluster
from tests.crowd import PREFACE, call, strangers
from tests.support import CALM, content, eventually

STRANGERS = 3000
BYTES_EACH_MAX = 64 << 10
KNOCKS = 100_000
BYTES_KNOCK_MAX = 200


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
