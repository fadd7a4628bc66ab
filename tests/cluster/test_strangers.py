"""Thousands of strangers at the gRPC door: they are let go, and nobody else notices them."""

import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle

import psutil
import pytest

from diskless.client import Client
from diskless.config import MIB, ClusterSettings
from diskless.rpc.services import KNOCK_METHOD, SHARDS
from tests.agent_process import ProcessCluster
from tests.support import CALM, content, eventually

STRANGERS = 3000
BYTES_EACH_MAX = 64 << 10
KNOCKS = 100_000
BYTES_KNOCK_MAX = 200
COMMITS = 300
SLOWER_MAX = 3.0
"""By how much commits may slow down; measured in one run, on a machine that others use too."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def _string(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _call(method: str) -> bytes:
    """HTTP/2's first frames of a gRPC call whose messages never come."""
    headers = (
        b"\x83\x86\x04" + _string(method)
        + b"\x01" + _string("diskless")
        + b"\x0f\x10" + _string("application/grpc")
        + b"\x00" + _string("te") + _string("trailers")
    )  # fmt: skip
    frame = len(headers).to_bytes(3) + bytes((1, 4)) + (1).to_bytes(4)
    return _PREFACE + frame + headers


FIRST_WORDS = (b"", _PREFACE, b"GET / HTTP/1.1\r\n\r\n", _call(SHARDS.method), _call(KNOCK_METHOD))


@contextmanager
def strangers(address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that say something, or nothing, and wait."""
    host, _, port = address.rpartition(":")
    found = []
    try:
        for _, words in zip(range(count), cycle(FIRST_WORDS), strict=False):
            stranger = socket.create_connection((host, int(port)), timeout=10.0)
            found.append(stranger)
            stranger.sendall(words)
        yield found
    finally:
        for stranger in found:
            stranger.close()


def connections_to(cluster: ProcessCluster, slot: int) -> int:
    """That the agent has open at its gRPC door."""
    agent = cluster.agents[slot]
    port = int(agent.begun["address"].rpartition(":")[2])
    return sum(
        connection.laddr.port == port and connection.status == psutil.CONN_ESTABLISHED
        for connection in psutil.Process(agent.pid).net_connections(kind="tcp")
    )


def commit_ms(client: Client, round_: int) -> float:
    """What a small commit takes, in the middle of many."""
    took = []
    for number in range(COMMITS):
        began = time.perf_counter()
        client.write(f"/{round_}/{number}", b"1")
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


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
        commit_ms(client, 0)
        before_ms = commit_ms(client, 1)
        usual, resident = connections_to(cluster, 0), leader.resident_bytes
        with strangers(address, STRANGERS) as all_of_them:
            beside_ms = commit_ms(client, 2)
            grown = leader.resident_bytes - resident
            assert len(all_of_them) == STRANGERS
            eventually(lambda: connections_to(cluster, 0) <= usual, 30.0)
        assert grown <= STRANGERS * BYTES_EACH_MAX
        assert beside_ms <= SLOWER_MAX * before_ms
        assert client.read("/data") == content(4 * MIB)
        assert client.status().margin == 1, "nobody was taken for dead"
        assert client.status().view == 0


def test_a_stranger_that_knocks_without_listening_topples_nobody(cluster: ProcessCluster) -> None:
    leader = cluster.agents[0]
    host, _, port = str(leader.begun["address"]).rpartition(":")
    knock = _call(KNOCK_METHOD)[len(_PREFACE) :]
    knocks = [knock[:5] + number.to_bytes(4) + knock[9:] for number in range(1, 2 * KNOCKS, 2)]
    with cluster.connect() as client:
        client.write("/data", content(4 * MIB))
        resident = leader.resident_bytes
        for _ in range(4):
            with socket.create_connection((host, int(port)), timeout=5.0) as stranger:
                with suppress(OSError):  # nobody reads that much of a stranger
                    stranger.sendall(_PREFACE + b"".join(knocks))
                client.write("/data", content(4 * MIB), overwrite=True)
        assert leader.resident_bytes - resident <= 4 * KNOCKS * BYTES_KNOCK_MAX
        assert client.status().margin == 1, "nobody was taken for dead"
        assert client.status().view == 0
