"""What tests of the gRPC door share: an agent's door with next to nothing behind it, those who
call there, and an impostor that keeps whatever it is told."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from diskless.agent.faults import Faults
from diskless.agent.memory import Memory
from diskless.agent.ports import Beat, Pulse
from diskless.agent.shards import ShardStore
from diskless.config import MIB, Tuning
from diskless.identity.claims import Keyring
from diskless.identity.handshake import Doorkeeper
from diskless.identity.refusals import Refusals
from diskless.model import AgentInfo
from diskless.rpc.peers import Peers
from diskless.rpc.server import AgentServer
from diskless.rpc.services import KNOCK_METHOD, METHODS
from diskless.rpc.tls import Tls
from tests.unit.voters import KEYRING, Voter

Metadata = tuple[tuple[str, str | bytes], ...]

_loop = asyncio.new_event_loop()
"""Never closed: gRPC hands on what ends late to the loop that it began on, and stumbles if that
is no more."""


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    _loop.run_until_complete(work())


class Member:
    """Counts the leader's beats."""

    def __init__(self) -> None:
        self.beats = 0

    def pulse(self, beat: Beat) -> Pulse:
        self.beats += 1
        return Pulse("boot", beat.roster_version, 0, {}, 0, 0, 0, ())


class Agent:
    """Slot 1's door."""

    def __init__(self, tls: Tls | None = None, keyring: Keyring = KEYRING) -> None:
        self.refusals = Refusals()
        self.member = Member()
        self.voter = Voter()
        self.address = ""
        nothing: Any = None
        self.server = AgentServer(
            slot=1,
            doorkeeper=Doorkeeper(keyring, slot=1),
            refusals=self.refusals,
            tls=tls,
            shards=ShardStore(memory=Memory(MIB), now_s=time.monotonic),
            rebuilds=nothing,
            uploader=nothing,
            cold=nothing,
            namespace=nothing,
            member=self.member,
            voter=self.voter,
            notes=nothing,
        )


@asynccontextmanager
async def agent(
    tls: Tls | None = None, *, keyring: Keyring = KEYRING, port: int = 0
) -> AsyncIterator[Agent]:
    found = Agent(tls, keyring)
    found.address = await found.server.start("127.0.0.1", port)
    try:
        yield found
    finally:
        await found.server.stop()


@asynccontextmanager
async def calling(keyring: Keyring = KEYRING, tls: Tls | None = None) -> AsyncIterator[Peers]:
    """The calls of slot 3."""
    peers = Peers(slot=3, keyring=keyring, tuning=Tuning(), faults=Faults(Memory(MIB)), tls=tls)
    peers.address = "host:3"
    try:
        yield peers
    finally:
        await peers.close()


def at(address: str, slot: int = 1) -> AgentInfo:
    return AgentInfo(slot, 1, "boot", address, "", "", "", "", 0)


async def beat(peers: Peers, address: str, *, slot: int = 1, timeout_s: float = 10.0) -> Pulse:
    return await peers.beat(at(address, slot), Beat(3, 7, None, True, 0), timeout_s=timeout_s)


Answer = Callable[[grpc.aio.ServicerContext], Any]


class Impostor:
    """Listens where an agent was, does with a call what its test says, and keeps the rest."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.metadata: list[tuple[str, Metadata]] = []
        self.messages: list[bytes] = []

    def handle(self, method: str) -> grpc.GenericRpcHandler:
        async def run(requests: Any, context: grpc.aio.ServicerContext) -> None:
            self.metadata.append((method, tuple(context.invocation_metadata() or ())))
            await self._answer(context)
            if method != KNOCK_METHOD:
                async for message in requests:
                    self.messages.append(message)

        service, name = method.removeprefix("/").split("/")
        handler = grpc.stream_stream_rpc_method_handler(run)
        return grpc.method_handlers_generic_handler(service, {name: handler})


@asynccontextmanager
async def impostor(answer: Answer, *, port: int = 0) -> AsyncIterator[tuple[Impostor, str]]:
    found = Impostor(answer)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers(
        tuple(found.handle(method) for method in (KNOCK_METHOD, *METHODS))
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield found, f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)


async def refused_with(address: str, method: str, metadata: Metadata) -> grpc.StatusCode:
    """The end of a stream that is opened with that metadata."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = channel.stream_stream(method)(metadata=metadata, timeout=60.0)
        return await stream.code()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
