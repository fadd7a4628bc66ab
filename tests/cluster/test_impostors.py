"""Others at the doors of a dead agent: they are taken for what they are, and learn nothing."""

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from typing import Self

import grpc
import pytest

from diskless.config import MIB
from diskless.launch.local import LocalCluster
from diskless.rpc.introduction import CHALLENGE_KEY, PROOF_KEY
from diskless.rpc.services import KNOCK_METHOD, METHODS
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, CALM, content, eventually, is_whole, on_loop, wait_until_down
from tests.unit.agents import Impostor, impostor, refused_with

VICTIM = 3


class Burglar:
    """Listens at both doors of an agent that has just died, and keeps what it is told."""

    def __init__(self, cluster: LocalCluster, slot: int) -> None:
        self._cluster = cluster
        node = cluster.nodes[slot]
        self._port = int(node.address.rsplit(":", 1)[1])
        self.lane_port = node.doors.server.lane_port
        self._doors = AsyncExitStack()
        self.calls = Impostor(_pretend)
        self.lane = bytearray()
        cluster.kill(slot)
        cluster.run(self._move_in())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.run(self._doors.aclose())

    async def _move_in(self) -> None:
        self.calls, _ = await self._doors.enter_async_context(impostor(_pretend, port=self._port))
        await self._doors.enter_async_context(
            await asyncio.start_server(self._listen, "127.0.0.1", self.lane_port)
        )

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.lane += data
        writer.close()


async def _pretend(context: grpc.aio.ServicerContext) -> None:
    context.set_trailing_metadata(((CHALLENGE_KEY, b"trust me"),))


def test_an_impostor_in_a_dead_agents_place_is_down_and_gets_nothing_that_lets_it_in(
    start: StartCluster, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start(agents=7, tuning=BRISK)
    client = connect(cluster)
    client.write("/before", content(4 * MIB))
    with caplog.at_level(logging.INFO, logger="diskless"), Burglar(cluster, VICTIM) as burglar:
        wait_until_down(cluster, VICTIM)
        client.write("/meanwhile", content(4 * MIB, "meanwhile"))
        assert client.read("/before") == content(4 * MIB)
        eventually(lambda: len(burglar.calls.metadata) > 20)
        lines = [line for line in caplog.messages if line.startswith("no agent")]
        assert 1 <= len(lines) <= len(cluster.nodes), "one of each, however often they try"
        assert burglar.calls.messages == []
        assert not burglar.lane
        assert {method for method, _ in burglar.calls.metadata} == {KNOCK_METHOD}
        assert cluster.key not in repr(burglar.calls.metadata)
        replay(cluster, burglar.calls)
    cluster.revive(VICTIM)
    eventually(lambda: is_whole(client, 7))
    assert client.read("/meanwhile") == content(4 * MIB, "meanwhile")


def replay(cluster: LocalCluster, got: Impostor) -> None:
    """Sends what an impostor was told to living agents: nobody lets it in."""

    async def run() -> None:
        for slot in (0, 1, 6):
            address = cluster.nodes[slot].address
            for _, metadata in got.metadata[:10]:
                await refused_with(address, KNOCK_METHOD, metadata)
                proofs = [(PROOF_KEY, value) for _, value in metadata if isinstance(value, bytes)]
                for method in METHODS:
                    code = await refused_with(address, method, (*metadata, *proofs))
                    assert code is grpc.StatusCode.UNAUTHENTICATED

    cluster.run(run())


def test_two_clusters_on_one_host_do_not_speak_to_each_other(
    start: StartCluster, connect: Connect
) -> None:
    """Even where an agent of one gets the port that the other knows an agent at."""
    ours, theirs = start(agents=7, tuning=CALM), start(agents=7, tuning=CALM)
    client, other = connect(ours), connect(theirs)
    client.write("/a", b"ours")
    port = int(ours.nodes[VICTIM].address.rsplit(":", 1)[1])
    ours.kill(VICTIM)

    async def move() -> None:
        server = theirs.nodes[VICTIM].doors.server
        await server.stop()
        await server.start("127.0.0.1", port)

    theirs.run(move())
    wait_until_down(ours, VICTIM)
    refusals = theirs.nodes[VICTIM].refusals
    eventually(lambda: on_loop(theirs, lambda: refusals.counts["grpc", "another cluster"]))
    other.write("/a", b"theirs")
    client.write("/b", content(4 * MIB))
    assert (client.read("/a"), other.read("/a")) == (b"ours", b"theirs")
    assert not on_loop(theirs, lambda: theirs.nodes[VICTIM].replica.leads)
