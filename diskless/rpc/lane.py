"""The fast lane between two voters: their messages on a TCP connection of their own.

A message on a gRPC stream costs each side some 0.1 ms of Python, a commit takes two each
way, and every commit of a client waits for them. So the gRPC stream between two voters
(`Replica.Exchange`) introduces them, checks that they can talk, and tells where the lane is;
what they say then goes there, each message behind its length. First of all both ends prove
themselves (`identity.handshake`), with TLS inside of it. A lane is used once the other side has
welcomed us: what accepts connections and is no voter, as a proxy may, or refuses us, leaves
everything to the stream. Which message takes which way does not matter: the protocol expects
that any may be lost, late, doubled or out of order.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from diskless.errors import BadFrame, BadRequest, DisklessError, Unauthorized
from diskless.identity.claims import Credential, Role
from diskless.identity.handshake import (
    HANDSHAKE_TIMEOUT_S,
    Caller,
    Challenge,
    Doorkeeper,
    Knock,
    Pending,
    Proof,
)
from diskless.identity.handshake import MESSAGE_BYTES_MAX as HANDSHAKE_BYTES_MAX
from diskless.identity.refusals import Refusals
from diskless.model import format_address, slot_name
from diskless.rpc.acceptor import TlsAcceptor
from diskless.rpc.tls import Tls

DOOR = "lane"
MESSAGE_BYTES_MAX = 16 << 20
UNSENT_BYTES_MAX = 32 << 20
"""What may wait for a voter that does not read; the rest is dropped."""
OPEN_TIMEOUT_S = 2.0
STRANGERS_MAX = 64
"""Callers that have not proved themselves yet; one more ends the eldest, which had the most
time."""
LANES_MAX = 1024
"""Voters' lanes into one agent; there is one from each other voter."""
SILENCE_MS_MAX = 5_000
"""Bytes without a receipt for this long end the connection: after a cut TCP would try again
only minutes later, and a new connection comes up at once."""

KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
"""The receiving side sends nothing, so it would never notice that a host is gone."""
WELCOME = b"\x01"
"""What a door says to a voter's proof, and the last that it ever says."""

_LENGTH_BYTES = 4

S = TypeVar("S", bound=Struct)


class Hello(Struct, frozen=True, array_like=True):
    """Who wants to talk with whom."""

    knock: Knock
    slot: int
    """Whom the caller means: a restarted agent may have got the port of another."""
    sender: int
    address: str
    """Where the caller's own gRPC door is."""

    def about(self, dialled: str) -> str:
        """What both sides prove besides who they are."""
        facts = (self.slot, self.sender, self.address, dialled)
        return msgspec.json.encode(facts).decode()


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """A voter as it introduces itself to another."""

    credential: Credential
    slot: int
    sender: int
    address: str
    tls: Tls | None = None

    def greeting(self, dialled: str) -> tuple[Caller, Hello]:
        about = Hello(Knock("", ""), self.slot, self.sender, self.address).about(dialled)
        caller = Caller(self.credential, door=DOOR, about=about)
        return caller, Hello(caller.knock(), self.slot, self.sender, self.address)

    def tls_options(self, host: str) -> dict[str, Any]:
        """For asyncio's `create_connection`."""
        if self.tls is None:
            return {}
        return {
            "ssl": self.tls.lane_caller,
            "server_hostname": self.tls.name_of(self.slot, host),
            "ssl_handshake_timeout": OPEN_TIMEOUT_S,
        }


class Lane(asyncio.Protocol):
    """The sending end. `on_lost` is told of the end of one that was welcome."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._transport: Any = None
        self._welcome = False
        self._buffer = bytearray()
        self._said: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._welcome:
            return  # nothing is expected any more
        self._buffer += data
        while len(self._buffer) >= _LENGTH_BYTES:
            size = int.from_bytes(self._buffer[:_LENGTH_BYTES])
            if size > HANDSHAKE_BYTES_MAX or self._said.qsize() > 1:
                self._transport.abort()  # no door of ours says that, nor so much
                return
            if len(self._buffer) < _LENGTH_BYTES + size:
                return
            self._said.put_nowait(bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + size]))
            del self._buffer[: _LENGTH_BYTES + size]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._said.put_nowait(b"")
        if self._welcome:
            self._on_lost()

    @property
    def usable(self) -> bool:
        return self._welcome and self._transport is not None and not self._transport.is_closing()

    async def greet(self, caller: Caller, hello: Hello) -> None:
        """Returns once both sides have proved themselves. Raises ConnectionError if it was
        closed, Unauthorized if whoever listens is not the agent that is meant."""
        self.send(msgspec.msgpack.encode(hello))
        try:
            challenge = _decode(await self._hear(), Challenge)
        except BadFrame:
            challenge = None
        proof = caller.answer(challenge) if challenge is not None else None
        if proof is None:
            raise Unauthorized("whoever listens there is not an agent of this cluster")
        self.send(msgspec.msgpack.encode(proof))
        if await self._hear() != WELCOME:
            raise ConnectionRefusedError("it did not welcome us")
        self._welcome = True
        self._buffer.clear()

    async def _hear(self) -> bytes:
        said = await self._said.get()
        if not said or self._transport is None:
            raise ConnectionRefusedError("it was closed before we were welcome")
        return said

    def send(self, message: bytes) -> None:
        """Sends a message, or drops it when too much waits already."""
        if self._transport.get_write_buffer_size() + len(message) <= UNSENT_BYTES_MAX:
            self._transport.write(len(message).to_bytes(_LENGTH_BYTES) + message)

    def close(self) -> None:
        self._on_lost = lambda: None
        if self._transport is not None:
            self._transport.abort()


async def open_lane(host: str, port: int, visitor: Visitor, on_lost: Callable[[], None]) -> Lane:
    """A lane to a voter. Raises OSError, TimeoutError, Unauthorized."""
    loop = asyncio.get_running_loop()
    caller, hello = visitor.greeting(format_address(host, port))
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        _, lane = await loop.create_connection(
            lambda: Lane(on_lost), host, port, **visitor.tls_options(host)
        )
        try:
            await lane.greet(caller, hello)
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

    def __init__(
        self,
        *,
        slot: int,
        doorkeeper: Doorkeeper,
        voter: Voter,
        refusals: Refusals,
        tls: Tls | None = None,
    ) -> None:
        self.voter = voter
        self.address = ""
        """Where others are told that it is."""
        self._slot = slot
        self._doorkeeper = doorkeeper
        self._refusals = refusals
        self._tls = tls
        self._server: asyncio.Server | TlsAcceptor | None = None
        self._open: set[_Inbound] = set()
        self._strangers: dict[_Inbound, None] = {}

    async def start(self, host: str) -> int:
        """Listens and returns the port."""
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _Inbound(self), host, 0)
            port = int(self._server.sockets[0].getsockname()[1])
        else:
            self._server = TlsAcceptor(
                lambda: _Inbound(self),
                self._tls.lane_door,
                strangers_max=STRANGERS_MAX,
                timeout_s=HANDSHAKE_TIMEOUT_S,
                on_refused=self.refuse,
            )
            port = self._server.start(host)
        self.address = format_address(host, port)
        return port

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
            eldest.refuse(Unauthorized("others came after it", why="too many callers"))

    def refuse(self, error: DisklessError, peer: object) -> None:
        self._refusals.note(DOOR, error, peer)

    def lost(self, inbound: "_Inbound") -> None:
        self._open.discard(inbound)
        self._strangers.pop(inbound, None)

    def challenge(self, data: bytes) -> tuple[Hello, Pending]:
        """Raises Unauthorized, BadRequest, BadFrame."""
        hello = _decode(data, Hello)
        if hello.slot != self._slot:
            raise BadRequest(f"meant for slot {hello.slot}, this is {self._slot}")
        about = hello.about(self.address)
        pending = self._doorkeeper.challenge(hello.knock, door=DOOR, about=about, role=Role.AGENT)
        if pending.principal.name != slot_name(hello.sender):
            raise Unauthorized(
                f"{pending.principal.name} speaks for {slot_name(hello.sender)}", why="wrong name"
            )
        return hello, pending

    def admit(self, inbound: "_Inbound", pending: Pending, data: bytes) -> None:
        """Raises Unauthorized, BadFrame."""
        pending.admit(_decode(data, Proof))
        if len(self._open) - len(self._strangers) >= LANES_MAX:
            raise Unauthorized(f"there are {LANES_MAX} lanes already", why="too many lanes")
        self._strangers.pop(inbound, None)


class _Inbound(asyncio.Protocol):
    """One voter's messages, after its handshake."""

    def __init__(self, door: LaneDoor) -> None:
        self._door = door
        self._hello: Hello | None = None
        self._pending: Pending | None = None
        self._admitted = False
        self._buffer = bytearray()
        self._transport: Any = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _tune(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(HANDSHAKE_TIMEOUT_S, self._expire)
        self._door.opened(self)

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
            self.refuse(error)

    def refuse(self, error: DisklessError) -> None:
        self._door.refuse(error, self._transport.get_extra_info("peername"))
        self.abort()

    def abort(self) -> None:
        self._buffer.clear()
        self._transport.abort()

    def _expire(self) -> None:
        if not self._admitted:
            self.refuse(Unauthorized("it did not prove itself in time", why="too late"))

    def _take_whole_messages(self, data: bytes | bytearray) -> int:
        """Hands on what has come whole; returns how many bytes that was."""
        at, have = 0, len(data)
        while have - at >= _LENGTH_BYTES:
            start = at + _LENGTH_BYTES
            size = int.from_bytes(data[at:start])
            limit = MESSAGE_BYTES_MAX if self._admitted else HANDSHAKE_BYTES_MAX
            if size > limit:
                raise BadFrame(f"a message of {size} bytes, at most {limit} are allowed")
            if have - start < size:
                break
            at = start + size
            self._take(bytes(data[start:at]))
        return at

    def _take(self, message: bytes) -> None:
        hello = self._hello
        if self._admitted and hello is not None:
            self._door.voter.receive(hello.sender, hello.address, message)
        elif self._pending is None:
            self._hello, self._pending = self._door.challenge(message)
            self._say(msgspec.msgpack.encode(self._pending.challenge))
        else:
            self._door.admit(self, self._pending, message)
            self._admitted = True
            self._say(WELCOME)

    def _say(self, message: bytes) -> None:
        self._transport.write(len(message).to_bytes(_LENGTH_BYTES) + message)


def _decode(data: bytes, kind: type[S]) -> S:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise BadFrame(f"no {kind.__name__.lower()} of a voter: {error}") from None


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
