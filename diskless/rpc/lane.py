"""The fast lane between two agents: small messages on a TCP connection of their own.

A message on a gRPC stream costs each side about 0.1 ms of Python. A commit takes two messages each
way, and every commit of a client waits for them. So two voters use their gRPC stream
(`Replica.Exchange`) only to identify each other, to check versions, and to learn the lane's port.
Their messages then use the lane, each with its length in front. A leader's heartbeats, which have
answers, use a lane too (`Membership.Exchange`, `Hello.service`). Both ends authenticate first
(`identity.handshake`), inside TLS if the cluster has it. A lane is used once the other side has
accepted us. If it refuses us, or is a proxy that accepts any connection, all messages stay on the
stream. The order between lane and stream does not matter: the protocol tolerates messages that are
lost, late, duplicated or reordered.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from diskless.errors import BadFrame, BadRequest, DisklessError, Unauthorized
from diskless.identity.arrivals import Acceptor
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
from diskless.rpc.lane_tls import LaneTls
from diskless.rpc.tls import Tls

DOOR = "lane"
MESSAGE_BYTES_MAX = 16 << 20
UNSENT_BYTES_MAX = 32 << 20
"""Unsent bytes for an agent that does not read. Beyond that, messages are dropped."""
OPEN_TIMEOUT_S = 2.0
STRANGERS_MAX = 64
"""Callers that have not authenticated yet. One more closes the oldest."""
LANES_MAX = 1024
"""Lanes into one agent: one from each other voter, and one for a leader's heartbeats."""
SILENCE_MS_MAX = 5_000
"""Bytes that are not acknowledged for this long close the connection. After a network failure TCP
would retry only minutes later, while a new connection works at once."""

KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
"""Without keepalives a side that only receives would never notice that the other host is gone."""
WELCOME = b"\x01"
"""Accepts a caller. After it, a lane's server sends nothing but answers to calls."""

_LENGTH_BYTES = 4

S = TypeVar("S", bound=Struct)


class Hello(Struct, frozen=True, array_like=True):
    """Who wants to talk with whom."""

    knock: Knock
    slot: int
    """The slot that the caller wants to reach: a restarted agent may have the port of another
    one."""
    sender: int
    address: str
    """The address of the caller's own gRPC server."""
    service: str = ""
    """The method that it calls; each call is answered on the lane. Empty for a voter."""

    def about(self, dialled: str) -> str:
        """What both sides prove besides their identity."""
        facts = (self.slot, self.sender, self.address, dialled)
        return msgspec.json.encode((*facts, self.service) if self.service else facts).decode()


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """How an agent identifies itself to another one."""

    credential: Credential
    slot: int
    sender: int
    address: str
    tls: Tls | None = None
    service: str = ""

    def greeting(self, dialled: str) -> tuple[Caller, Hello]:
        hello = Hello(Knock("", ""), self.slot, self.sender, self.address, self.service)
        caller = Caller(self.credential, door=DOOR, about=hello.about(dialled))
        return caller, msgspec.structs.replace(hello, knock=caller.knock())


class Lane(asyncio.Protocol):
    """The sending end. `on_lost` is called when an accepted lane ends, `on_answer` with each
    answer."""

    def __init__(
        self, on_lost: Callable[[], None], on_answer: Callable[[bytes], None] | None = None
    ) -> None:
        self._on_lost = on_lost
        self._on_answer = on_answer
        self._transport: Any = None
        self._welcome = False
        self._buffer = bytearray()
        self._said: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._welcome and self._on_answer is None:
            return  # nothing is expected any more
        self._buffer += data
        if self._welcome:
            self._take_answers()
            return
        while len(self._buffer) >= _LENGTH_BYTES:
            size = int.from_bytes(self._buffer[:_LENGTH_BYTES])
            if size > HANDSHAKE_BYTES_MAX or self._said.qsize() > 1:
                self._transport.abort()  # not one of our servers
                return
            if len(self._buffer) < _LENGTH_BYTES + size:
                return
            self._said.put_nowait(bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + size]))
            del self._buffer[: _LENGTH_BYTES + size]

    def _take_answers(self) -> None:
        buffer = self._buffer
        while len(buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES])
            if end > _LENGTH_BYTES + MESSAGE_BYTES_MAX:
                self._transport.abort()
                return
            if len(buffer) < end:
                return
            answer = bytes(buffer[_LENGTH_BYTES:end])
            del buffer[:end]
            assert self._on_answer is not None
            try:
                self._on_answer(answer)
            except BadFrame:
                self._transport.abort()
                return

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._said.put_nowait(b"")
        if self._welcome:
            self._on_lost()

    @property
    def usable(self) -> bool:
        return self._welcome and self._transport is not None and not self._transport.is_closing()

    async def greet(self, caller: Caller, hello: Hello) -> None:
        """Returns once both sides have authenticated. Raises ConnectionError if it was closed,
        Unauthorized if the process there is not the agent that is wanted."""
        self.send(msgspec.msgpack.encode(hello))
        try:
            challenge = _decode(await self._hear(), Challenge)
        except BadFrame:
            challenge = None
        proof = caller.answer(challenge) if challenge is not None else None
        if proof is None:
            raise Unauthorized("the process there is not an agent of this cluster")
        self.send(msgspec.msgpack.encode(proof))
        if await self._hear() != WELCOME:
            raise ConnectionRefusedError("it did not accept us")
        self._welcome = True
        self._buffer.clear()

    async def _hear(self) -> bytes:
        said = await self._said.get()
        if not said or self._transport is None:
            raise ConnectionRefusedError("it was closed before it accepted us")
        return said

    def post(self, message: bytes) -> bool:
        """As `send`; False if the lane is not open."""
        transport = self._transport
        if not self._welcome or transport is None or transport.is_closing():
            return False
        size = len(message)
        if transport.get_write_buffer_size() + size <= UNSENT_BYTES_MAX:
            transport.write(size.to_bytes(_LENGTH_BYTES) + message)
        return True

    def send(self, message: bytes) -> None:
        """Sends a message, or drops it if too much is unsent."""
        if self._transport.get_write_buffer_size() + len(message) <= UNSENT_BYTES_MAX:
            self._transport.write(len(message).to_bytes(_LENGTH_BYTES) + message)

    def close(self) -> None:
        self._on_lost = lambda: None
        if self._transport is not None:
            self._transport.abort()


async def open_lane(
    host: str,
    port: int,
    visitor: Visitor,
    on_lost: Callable[[], None],
    on_answer: Callable[[bytes], None] | None = None,
) -> Lane:
    """A lane to an agent. Raises OSError, TimeoutError, Unauthorized."""
    loop = asyncio.get_running_loop()
    caller, hello = visitor.greeting(format_address(host, port))
    lane, tls = Lane(on_lost, on_answer), visitor.tls
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        try:
            if tls is None:
                await loop.create_connection(lambda: lane, host, port)
            else:
                name = tls.name_of(visitor.slot, host)
                layer = LaneTls(lane, tls.lane_caller, server_name=name)
                await loop.create_connection(lambda: layer, host, port)
                await layer.shaken()
            await lane.greet(caller, hello)
        except BaseException:  # also when cancelled: nobody else can close it
            lane.close()
            raise
    return lane


class Voter(Protocol):
    """This agent's part in replicating the namespace."""

    def receive(self, sender: int, address: str, message: bytes) -> None:
        """Receives a message of the voter `sender`, whose gRPC server is at `address`."""
        ...


class LaneDoor:
    """The receiving ends of an agent's lanes, on one port."""

    def __init__(
        self,
        *,
        slot: int,
        doorkeeper: Doorkeeper,
        voter: Voter,
        refusals: Refusals,
        tls: Tls | None = None,
        services: Mapping[str, Callable[[bytes], bytes]] | None = None,
    ) -> None:
        """`services` answer batches of calls, by method, and raise BadFrame."""
        self.voter = voter
        self.services = services or {}
        self.address = ""
        """The address that others are told."""
        self._slot = slot
        self._doorkeeper = doorkeeper
        self._refusals = refusals
        self._tls = tls
        self._acceptor: Acceptor | None = None
        self._open: set[_Inbound] = set()
        self._strangers: dict[_Inbound, None] = {}

    async def start(self, host: str) -> int:
        """Listens and returns the port."""
        self._acceptor = Acceptor(self._accept, on_refused=self._refuse_crowd)
        port = self._acceptor.start(host)
        self.address = format_address(host, port)
        return port

    def _accept(self) -> "_Inbound | LaneTls":
        inbound = _Inbound(self)
        if self._tls is None:
            return inbound
        return LaneTls(inbound, self._tls.lane_door, on_refused=inbound.refuse)

    def stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for inbound in list(self._open):
            inbound.abort()

    def opened(self, inbound: "_Inbound") -> None:
        self._open.add(inbound)
        self._strangers[inbound] = None
        if len(self._strangers) > STRANGERS_MAX:
            eldest = next(iter(self._strangers))
            del self._strangers[eldest]
            eldest.refuse(Unauthorized("closed for newer callers", why="too many callers"))

    def refuse(self, error: DisklessError, peer: object) -> None:
        self._refusals.note(DOOR, error, peer)

    def _refuse_crowd(self, peer: str) -> None:
        crowd = Unauthorized(
            "too many callers from there have not authenticated", why="too many callers"
        )
        self.refuse(crowd, peer)

    def lost(self, inbound: "_Inbound") -> None:
        self._open.discard(inbound)
        self._strangers.pop(inbound, None)

    def challenge(self, data: bytes) -> tuple[Hello, Pending]:
        """Raises Unauthorized, BadRequest, BadFrame."""
        hello = _decode(data, Hello)
        if hello.slot != self._slot:
            raise BadRequest(f"meant for slot {hello.slot}, this is {self._slot}")
        if hello.service and hello.service not in self.services:
            raise BadRequest(f"{hello.service} is not served on a lane")
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
        if self._acceptor is not None:
            self._acceptor.arrivals.give_back(inbound.address)


class _Inbound(asyncio.Protocol):
    """A lane from a voter or a leader: its handshake, then its messages or calls."""

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
            elif self._admitted and len(data) - _LENGTH_BYTES == int.from_bytes(
                data[:_LENGTH_BYTES]
            ):  # the usual case: exactly one whole message
                self._take(data[_LENGTH_BYTES:])
            else:
                at = self._take_whole_messages(data)
                if at < len(data):
                    buffer += data[at:]
        except DisklessError as error:
            self.refuse(error)

    @property
    def address(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    def refuse(self, error: DisklessError) -> None:
        self._door.refuse(error, self._transport.get_extra_info("peername"))
        self.abort()

    def abort(self) -> None:
        self._buffer.clear()
        self._transport.abort()

    def _expire(self) -> None:
        if not self._admitted:
            self.refuse(Unauthorized("it did not authenticate in time", why="too late"))

    def _take_whole_messages(self, data: bytes | bytearray) -> int:
        """Handles all complete messages; returns how many bytes they had."""
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
            if hello.service:
                self._answer(self._door.services[hello.service](message))
            else:
                self._door.voter.receive(hello.sender, hello.address, message)
        elif self._pending is None:
            self._hello, self._pending = self._door.challenge(message)
            self._say(msgspec.msgpack.encode(self._pending.challenge))
        else:
            self._door.admit(self, self._pending, message)
            self._admitted = True
            self._say(WELCOME)

    def _answer(self, message: bytes) -> None:
        if self._transport.get_write_buffer_size() + len(message) > UNSENT_BYTES_MAX:
            raise BadFrame("it calls, and does not read the answers")
        self._say(message)

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
