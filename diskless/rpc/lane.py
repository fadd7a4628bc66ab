"""The fast lane between two voters: their messages on a plain TCP connection.

A message on a gRPC stream costs each side some 0.1 ms of Python, a commit takes two each
way, and every commit of a client waits for them. So the gRPC stream between two voters
(`Replica.Exchange`) introduces them, checks that they may and can talk, and tells where the
lane is; what they say then goes there, each message behind its length. A lane is used once the
other side has answered its hello: what accepts connections and is no voter, as a proxy may, or
refuses us, leaves everything to the stream. Which message takes which way does not matter: the
protocol expects that any may be lost, late, doubled or out of order.
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from diskless.errors import BadFrame, BadRequest, DisklessError, Unauthorized

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 16 << 20
HELLO_BYTES_MAX = 4 << 10
UNSENT_BYTES_MAX = 32 << 20
"""What may wait for a voter that does not read; the rest is dropped."""
OPEN_TIMEOUT_S = 2.0
HELLO_TIMEOUT_S = 5.0
STRANGERS_MAX = 64
"""Callers that have not said hello yet; one more ends the eldest, which had the most time."""
SILENCE_MS_MAX = 5_000
"""Bytes without a receipt for this long end the connection: after a cut TCP would try again
only minutes later, and a new connection comes up at once."""

KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
"""The receiving side sends nothing, so it would never notice that a host is gone."""
WELCOME = b"\x01"
"""All that a door ever says."""

_LENGTH_BYTES = 4


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who wants to talk with whom, and by what right."""

    secret: str
    slot: int
    """Whom the caller means: a restarted agent may have got the port of another."""
    sender: int
    address: str
    """Where the caller's own gRPC door is."""


_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Lane(asyncio.Protocol):
    """The sending end. `on_lost` is told of the end of one that was welcome."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._transport: Any = None
        self._welcome = False
        self._answered = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._welcome = True
        self._answered.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._answered.set()
        if self._welcome:
            self._on_lost()

    @property
    def usable(self) -> bool:
        return self._welcome and self._transport is not None and not self._transport.is_closing()

    async def greet(self, hello: Hello) -> None:
        """Returns once the other side has taken our hello. Raises ConnectionError."""
        self.send(msgspec.msgpack.encode(hello))
        await self._answered.wait()
        if not self.usable:
            raise ConnectionRefusedError("it was closed before our hello was answered")

    def send(self, message: bytes) -> None:
        """Sends a message, or drops it when too much waits already."""
        if self._transport.get_write_buffer_size() + len(message) <= UNSENT_BYTES_MAX:
            self._transport.write(len(message).to_bytes(_LENGTH_BYTES) + message)

    def close(self) -> None:
        self._on_lost = lambda: None
        if self._transport is not None:
            self._transport.abort()


async def open_lane(host: str, port: int, hello: Hello, on_lost: Callable[[], None]) -> Lane:
    """A lane to a voter. Raises OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        _, lane = await loop.create_connection(lambda: Lane(on_lost), host, port)
        try:
            await lane.greet(hello)
        except BaseException:  # also when cancelled: nobody else knows of it
            lane.close()
            raise
    return lane


class Voter(Protocol):
    """This agent's part in replicating the namespace."""

    def receive(self, sender: int, address: str, message: bytes) -> None:
        """Takes a message of the voter `sender`, whose gRPC door is at `address`."""
        ...


class LaneDoor:
    """The receiving ends of an agent, behind one port of their own."""

    def __init__(self, *, slot: int, secret: str, voter: Voter) -> None:
        self.voter = voter
        self._slot = slot
        self._secret = secret.encode()
        self._server: asyncio.Server | None = None
        self._open: set[_Inbound] = set()
        self._strangers: dict[_Inbound, None] = {}

    async def start(self, host: str) -> int:
        """Listens and returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Inbound(self), host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for inbound in list(self._open):
            inbound.abort()

    def opened(self, inbound: "_Inbound") -> None:
        self._open.add(inbound)
        self._strangers[inbound] = None
        if len(self._strangers) > STRANGERS_MAX:
            eldest = next(iter(self._strangers))
            del self._strangers[eldest]
            eldest.abort()

    def lost(self, inbound: "_Inbound") -> None:
        self._open.discard(inbound)
        self._strangers.pop(inbound, None)

    def admit(self, inbound: "_Inbound", data: bytes) -> Hello:
        """Raises Unauthorized, BadRequest, BadFrame."""
        hello = self._check(data)
        self._strangers.pop(inbound, None)
        return hello

    def _check(self, data: bytes) -> Hello:
        try:
            hello = _decode_hello(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadFrame(f"no voter's hello: {error}") from None
        if not hmac.compare_digest(hello.secret.encode(), self._secret):
            raise Unauthorized("the cluster's secret is missing or wrong")
        if hello.slot != self._slot:
            raise BadRequest(f"meant for slot {hello.slot}, this is {self._slot}")
        return hello


class _Inbound(asyncio.Protocol):
    """One voter's messages. The first is its hello."""

    def __init__(self, door: LaneDoor) -> None:
        self._door = door
        self._hello: Hello | None = None
        self._buffer = bytearray()
        self._transport: Any = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _tune(transport.get_extra_info("socket"))
        self._door.opened(self)
        self._patience = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._expire)

    def connection_lost(self, error: Exception | None) -> None:
        self._door.lost(self)
        if self._patience is not None:
            self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        try:
            if buffer:
                buffer += data
                del buffer[: self._take_whole_messages(buffer)]
            else:  # as nearly always: a message comes whole
                at = self._take_whole_messages(data)
                if at < len(data):
                    buffer += data[at:]
        except DisklessError as error:
            peer = self._transport.get_extra_info("peername")
            log.warning("lane closed peer=%s error=%s", peer, error)
            self.abort()

    def abort(self) -> None:
        self._buffer.clear()
        self._transport.abort()

    def _expire(self) -> None:
        if self._hello is None:
            self.abort()

    def _take_whole_messages(self, data: bytes | bytearray) -> int:
        """Hands on what has come whole; returns how many bytes that was."""
        at, have = 0, len(data)
        while have - at >= _LENGTH_BYTES:
            start = at + _LENGTH_BYTES
            size = int.from_bytes(data[at:start])
            limit = HELLO_BYTES_MAX if self._hello is None else MESSAGE_BYTES_MAX
            if size > limit:
                raise BadFrame(f"a message of {size} bytes, at most {limit} are allowed")
            if have - start < size:
                break
            at = start + size
            self._take(bytes(data[start:at]))
        return at

    def _take(self, message: bytes) -> None:
        if self._hello is None:
            self._hello = self._door.admit(self, message)
            self._transport.write(WELCOME)
            return
        self._door.voter.receive(self._hello.sender, self._hello.address, message)


def _tune(sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_USER_TIMEOUT", SILENCE_MS_MAX),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
