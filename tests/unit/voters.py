"""What tests of lanes share: one cluster's keys and certificates, the door of its slot 1, and who
comes there."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from diskless.identity.certificates import Certificates, Pair, issue, make_authority
from diskless.identity.claims import Keyring
from diskless.identity.handshake import Challenge, Doorkeeper
from diskless.identity.refusals import Refusals
from diskless.rpc import lane
from diskless.rpc.lane import LaneDoor, Visitor
from diskless.rpc.tls import Tls

KEYRING = Keyring(cluster="c1", root=bytes(range(32)))
OTHER_KEY = Keyring(cluster="c1", root=bytes(32))
OTHER_CLUSTER = Keyring(cluster="c2", root=bytes(range(32)))
AUTHORITY = make_authority("test", "c1")
DEADLINE_S = 60.0


def lane_door(
    voter: lane.Voter,
    refusals: Refusals | None = None,
    tls: Tls | None = None,
    services: Mapping[str, Callable[[bytes], bytes]] | None = None,
) -> LaneDoor:
    return LaneDoor(
        slot=1,
        doorkeeper=Doorkeeper(KEYRING, slot=1),
        voter=voter,
        refusals=refusals or Refusals(),
        tls=tls,
        services=services,
    )


def visitor(
    keyring: Keyring = KEYRING, *, slot: int = 1, name: str = "agent-3", tls: Tls | None = None
) -> Visitor:
    return Visitor(credential=keyring.agent(name), slot=slot, sender=3, address="host:3", tls=tls)


def certificates(slot: int, authority: Pair = AUTHORITY) -> Certificates:
    pair = issue(authority, cluster="c1", slot=slot, hosts=("127.0.0.1",))
    return Certificates(pair, AUTHORITY.chain)


def tls_of(slot: int, authority: Pair = AUTHORITY) -> Tls:
    return Tls(certificates(slot, authority), cluster="c1")


class Voter:
    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.met: set[tuple[int, str]] = set()
        self.news = asyncio.Event()

    def receive(self, sender: int, address: str, message: bytes) -> None:
        self.met.add((sender, address))
        self.heard.append((sender, message))
        self.news.set()

    async def hears(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.heard) < count:
                self.news.clear()
                await self.news.wait()


def with_door(
    work: Callable[[Voter, int], Awaitable[None]],
    *,
    refusals: Refusals | None = None,
    tls: Tls | None = None,
) -> Voter:
    """Runs `work` with the voter of slot 1 and the port of its door."""

    async def run() -> Voter:
        voter = Voter()
        door = lane_door(voter, refusals, tls)
        try:
            await work(voter, await door.start("127.0.0.1"))
        finally:
            door.stop()
        return voter

    return asyncio.run(run())


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4) + message for message in messages)


class Wire:
    """A caller's end without a lane: it says what it likes, and keeps what it hears."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.said: list[bytes] = []

    @classmethod
    async def open(cls, port: int) -> "Wire":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def say(self, *messages: bytes) -> None:
        self.said += messages
        self.writer.write(framed(*messages))

    async def hear(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4)))

    async def is_closed(self) -> bool:
        """Waits until it is, and whether nothing more was said."""
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionResetError):
                return not await self._reader.read()
            return True

    async def prove(self, port: int, by: Visitor) -> bytes:
        """The handshake as a voter does it; the door's last word."""
        caller, hello = by.greeting(f"127.0.0.1:{port}")
        self.say(msgspec.msgpack.encode(hello))
        proof = caller.answer(msgspec.msgpack.decode(await self.hear(), type=Challenge))
        assert proof is not None
        self.say(msgspec.msgpack.encode(proof))
        return await self.hear()


async def closed_after(port: int, data: bytes) -> None:
    """Sends `data` and waits until the door closes the connection, having said nothing."""
    wire = await Wire.open(port)
    wire.writer.write(data)
    assert await wire.is_closed()
    wire.writer.close()
