"""One client's connection: frames in, requests started, replies out, all within limits.

It owns the flow control. A connection stops reading while it has REQUESTS_MAX requests
in flight, while its client is slow to take replies, while the replies under way may
fill REPLY_BYTES_MAX, or while the gateway's budgets have no room for the next body or for
the reply to it. What has been read by then waits in the parser. It never decides what a
request means.

It begins with a handshake (identity/handshake.py) in which both sides prove who they are;
before that a client is a stranger, which may say two small things and keep nothing waiting.

Invariants: every request that was started gets one reply, unless the connection is gone;
a body is reserved in the budget from before it is received until its request is answered,
and a large reply from before it is made until its client has fetched it.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from diskless.config import KIB, MIB
from diskless.errors import BadFrame, DisklessError, InternalError
from diskless.gateway.backend import Buffer
from diskless.gateway.lobby import DOOR
from diskless.gateway.visitor import Visitor
from diskless.identity.handshake import Pending, Proof
from diskless.notes import MESSAGE_BYTES_MAX as NOTES_BYTES_MAX
from diskless.protocol.checkpoints import BatchNotes
from diskless.protocol.frames import (
    HELLO_BYTES_MAX,
    META_BYTES_MAX,
    NO_LEADER,
    PAYLOAD_BYTES_MAX,
    RECEIVE_BYTES,
    WITHIN_UNIT_S,
    Frame,
    FrameParser,
    pack_head,
)
from diskless.protocol.messages import (
    Challenged,
    Empty,
    Hello,
    Kind,
    List,
    Open,
    OpenMany,
    Prove,
    Read,
    Refusal,
    encode,
)
from diskless.protocol.operating import Events
from diskless.protocol.requests import DECODERS

if TYPE_CHECKING:
    from diskless.gateway.server import Gateway

REQUESTS_MAX = 256
"""Requests in flight on one connection."""
BURST_MAX = 64
"""Requests started before other connections get a turn."""
REPLY_BYTES_MAX = 12 * MIB
"""Payload that one connection's reads may have under way, unmade and unfetched together."""
UNSENT_BYTES_HIGH = 64 * KIB
"""Unsent bytes at which a client counts as slow. Until few are left, what it has asked for
stays reserved and nothing is started whose reply was not reserved."""
UNSENT_BYTES_LOW = 16 * KIB
FETCH_BYTES_MIN = MIB
"""What a slow client must fetch, unless it fetches all there is, within the time for it."""
REPLY_BYTES_MIN = 4 * KIB
PIECE_BYTES = 16 * KIB
"""What each further extent of a read counts as: it is work, however few bytes it has."""
OPENED_BYTES = 64 * KIB
ENTRY_BYTES = 320
NOTE_BYTES = 400
STATUS_BYTES = 64 * KIB
"""What is reserved for replies of which the request does not say how large they are: an opened
file may come with its bytes; an entry of a listing, or an event; a note of a batch; a status."""
JOIN_BYTES_MAX = 16 * KIB
"""Smaller payloads are cheaper to copy behind their header than to hand over apart."""
CLOSE_TIMEOUT_S = 5.0
"""How long a closed connection may take to fetch its last reply."""

log = logging.getLogger(__name__)

_DISCARDED = memoryview(bytearray(RECEIVE_BYTES))
"""Where bytes go that nobody wants."""

_KINDS = {int(kind): (kind, decoder) for kind, decoder in DECODERS.items()}
_LARGE_REPLIES = frozenset(
    (Kind.READ, Kind.OPEN, Kind.OPEN_MANY, Kind.LIST, Kind.EVENTS, Kind.STATUS, Kind.BATCH_NOTES)
)


class Request:
    """A decoded request and what it holds while it is worked on."""

    __slots__ = (
        "body_bytes", "connection", "deadline", "expired", "kind", "meta", "number",
        "payload", "reply_bytes", "reply_reserved", "running", "task", "within_s",
    )  # fmt: skip

    def __init__(self, connection: "Connection", frame: Frame) -> None:
        header = frame.header
        try:
            self.kind, decoder = _KINDS[header.kind]
            if self.kind is Kind.NOTE_BATCHES and header.meta_bytes > NOTES_BYTES_MAX:
                raise BadFrame(
                    f"notes of {header.meta_bytes} bytes, at most {NOTES_BYTES_MAX} are taken"
                )
            self.meta: Struct = decoder.decode(frame.meta)
        except KeyError:
            raise BadFrame(f"{header.kind} is no kind of request") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFrame(f"meta of {self.kind.name.lower()}: {error}") from None
        self.connection = connection
        self.number = header.request
        self.payload = frame.payload
        self.body_bytes = header.meta_bytes + header.payload_bytes
        self.reply_bytes = expected_reply_bytes(self.kind, self.meta)
        self.reply_reserved = not self.reply_bytes
        self.within_s = header.leader * WITHIN_UNIT_S
        """The client's patience; 0 if it did not tell."""
        self.deadline = 0.0
        self.expired = False
        self.running = False
        """Whether its task has begun: one that is cancelled before cleans nothing up."""
        self.task: asyncio.Task[None] | None = None


def expected_reply_bytes(kind: Kind, meta: Struct) -> int:
    """How large the reply may be, as far as the request itself tells; 0 for a small one."""
    if kind not in _LARGE_REPLIES:
        return 0
    if isinstance(meta, Read):
        wanted = sum(extent.length for extent in meta.extents)
        wanted += PIECE_BYTES * (len(meta.extents) - 1)
    elif isinstance(meta, Open):
        wanted = max(meta.prefetch, OPENED_BYTES)
    elif isinstance(meta, OpenMany):
        wanted = OPENED_BYTES * len(meta.paths)
    elif isinstance(meta, List | Events):
        wanted = min(meta.limit * ENTRY_BYTES, META_BYTES_MAX)
    elif isinstance(meta, BatchNotes):
        wanted = min(meta.limit * NOTE_BYTES, META_BYTES_MAX)
    elif isinstance(meta, Empty) and kind is Kind.STATUS:
        wanted = STATUS_BYTES
    else:
        return 0
    return min(max(wanted, REPLY_BYTES_MIN), PAYLOAD_BYTES_MAX)


class Connection(asyncio.BufferedProtocol):
    def __init__(self, gateway: "Gateway", number: int) -> None:
        self.number = number
        self.in_flight = 0
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self.transport: Any = None
        self._parser = FrameParser(body_bytes_max=HELLO_BYTES_MAX, admit=self._admit)
        self._pending: Pending | None = None
        self.visitor: Visitor | None = None
        """Who is there; None for a stranger."""
        self._closed = False
        self._draining = False
        self._reading = True
        self.slow_since: float | None = None
        """Since when it fetches too little of its replies."""
        self._held: Request | None = None
        self._reserved_bytes = 0
        self._reply_bytes = 0
        self._unfetched_bytes = 0
        self._in_line = False
        self._parked_bytes = 0
        self._bytes_out = 0
        self._fetched_bytes = 0
        self._refused_number = 0
        self.opened_at = self._heard_at = self._loop.time()
        self._end: asyncio.TimerHandle | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH, low=UNSENT_BYTES_LOW)
        _notice_dead_peers(transport.get_extra_info("socket"))
        self._gateway.connection_made(self)

    @property
    def address(self) -> str:
        """Where it comes from by TCP; "" by the Unix socket."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    def get_buffer(self, sizehint: int) -> memoryview:
        return _DISCARDED if self._draining else self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._draining:
            return
        self._heard_at = self._loop.time()
        self._gateway.counters.bytes_in += nbytes
        self._parser.received(nbytes)
        self.pump()

    def pause_writing(self) -> None:
        self.slow_since = self._loop.time()
        self._fetched_bytes = self._bytes_out - self.transport.get_write_buffer_size()
        self._gateway.slow[self] = None

    def resume_writing(self) -> None:
        self._fetched_all()
        self.pump()

    def _fetched_all(self) -> None:
        self.slow_since = None
        self._gateway.slow.pop(self, None)
        if self._unfetched_bytes:
            done, self._unfetched_bytes = self._unfetched_bytes, 0
            self._reply_bytes -= done
            self._gateway.replies.release(done)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        if self._end is not None:
            self._end.cancel()
        gateway, held = self._gateway, self._held
        gateway.requests.forget(self._granted)
        gateway.replies.forget(self._reply_granted)
        gateway.requests.release(self._reserved_bytes)
        self._reserved_bytes, self._held = 0, None
        if held is not None:
            gateway.requests.release(held.body_bytes)
            if held.reply_reserved:
                gateway.replies.release(held.reply_bytes)
        self._fetched_all()
        self._parser.close()
        self._park(0)
        gateway.connection_lost(self)

    # Flow control.

    def pump(self) -> None:
        """Starts what may be started of the frames that have come, and reads on if all was."""
        if self._closed:
            return
        try:
            drained = self._start_some()
        except DisklessError as error:
            self.refuse_and_close(error)
            return
        if drained != self._reading:
            self._read(drained)
        kept = self._parser.park()
        if kept != self._parked_bytes:
            self._park(kept)

    def _park(self, kept: int) -> None:
        self._gateway.parked_bytes += kept - self._parked_bytes
        self._parked_bytes = kept

    def _start_some(self) -> bool:
        """Whether every whole frame was started, so that more bytes may come."""
        for _ in range(BURST_MAX):
            request = self._held or self._next_request()
            if request is None:
                return not self._parser.stalled
            if not self._may_start(request):
                self._held = request
                return False
            self._held = None
            self._gateway.start_request(request)
            if self._closed:
                return False
        self._loop.call_soon(self.pump)
        return False

    def _next_request(self) -> Request | None:
        frame = self._parser.next()
        if frame is None:
            return None
        self._gateway.counters.frames_in += 1
        self._refused_number = frame.header.request  # Until it proves to be sound.
        request = Request(self, frame)
        if self.visitor is None:
            self._shake_hands(request.meta)
        elif request.kind in (Kind.HELLO, Kind.PROVE):
            raise BadFrame("the first two frames, and only they, are hello and prove")
        self._refused_number = 0
        self._reserved_bytes = 0  # The request holds it from here on.
        return request

    def _shake_hands(self, meta: Struct) -> None:
        """Takes a stranger's next message. Raises BadFrame, Unauthorized, Unavailable."""
        if isinstance(meta, Hello) and self._pending is None:
            self._pending = self._gateway.lobby.challenge(meta)
        elif isinstance(meta, Prove) and self._pending is not None:
            principal = self._pending.admit(Proof(meta.proof))
            self._gateway.lobby.admit(self)
            self.visitor = Visitor(self.number, principal)
            self._parser.body_bytes_max = META_BYTES_MAX + PAYLOAD_BYTES_MAX
        else:
            raise BadFrame("the first two frames must be hello and prove")

    def challenged(self) -> Challenged:
        """What a stranger that said hello is answered."""
        assert self._pending is not None
        challenge = self._pending.challenge
        return Challenged(challenge.slot, challenge.nonce, challenge.proof)

    def _may_start(self, request: Request) -> bool:
        if self.in_flight >= REQUESTS_MAX:
            return False
        if not request.reply_bytes:
            return self.slow_since is None
        wanted = self._reply_bytes + request.reply_bytes
        if self._reply_bytes and wanted > REPLY_BYTES_MAX:
            return False
        if not request.reply_reserved and not self._in_line:
            request.reply_reserved = self._gateway.replies.reserve(
                request.reply_bytes, self._reply_granted
            )
            self._in_line = not request.reply_reserved
        return request.reply_reserved

    def _reply_granted(self) -> None:
        assert self._held is not None
        self._held.reply_reserved = True
        self._in_line = False
        self._loop.call_soon(self.pump)

    def _read(self, reading: bool) -> None:
        if reading != self._reading and not self._closed:
            self._reading = reading
            if reading:
                self._heard_at = self._loop.time()
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _admit(self, body_bytes: int) -> bool:
        self._reserved_bytes = body_bytes
        if self._gateway.requests.reserve(body_bytes, self._granted):
            return True
        self._reserved_bytes = 0
        return False

    def _granted(self) -> None:
        header = self._parser.last_header
        assert header is not None
        self._reserved_bytes = header.meta_bytes + header.payload_bytes
        self._parser.grant()
        # Not at once: whoever released the room is still in the middle of its own work.
        self._loop.call_soon(self.pump)

    def is_silent(self, now: float, *, frame_timeout_s: float) -> bool:
        """Whether it owes us the rest of a frame for too long."""
        owes_more = self._reading and self._parser.mid_frame
        return owes_more and now - self._heard_at > frame_timeout_s

    def is_slow(self, now: float, *, reply_timeout_s: float) -> bool:
        """Whether it has been too slow for too long to take what it asked for."""
        if self.slow_since is None or now - self.slow_since <= reply_timeout_s:
            return False
        fetched = self._bytes_out - self.transport.get_write_buffer_size()
        if fetched - self._fetched_bytes < FETCH_BYTES_MIN:
            return True
        self.slow_since, self._fetched_bytes = now, fetched
        return False

    # Requests and replies.

    def begun(self, request: Request) -> None:
        self.in_flight += 1
        self._reply_bytes += request.reply_bytes

    def ended(self, request: Request) -> None:
        self.in_flight -= 1
        self._settle(request)
        if not self._reading:
            self.pump()

    def answered(self, request: Request) -> None:
        """As `begun` and `ended`, of a request that was answered at once."""
        if request.reply_bytes:
            self._reply_bytes += request.reply_bytes
            self._settle(request)

    def _settle(self, request: Request) -> None:
        """A reply that is not on its way yet stays reserved until it is."""
        if not request.reply_bytes:
            return
        if self.slow_since is not None and not self._closed:
            self._unfetched_bytes += request.reply_bytes
        else:
            self._reply_bytes -= request.reply_bytes
            self._gateway.replies.release(request.reply_bytes)

    def reply(self, request: Request, meta: Struct | bytes, parts: Sequence[Buffer]) -> None:
        """Sends what the handler answered. Large parts are not copied."""
        data = meta if isinstance(meta, bytes) else encode(meta)
        payload_bytes = sum([memoryview(part).nbytes for part in parts]) if parts else 0
        if len(data) > META_BYTES_MAX or payload_bytes > PAYLOAD_BYTES_MAX:
            log.error(
                "reply too large kind=%s meta_bytes=%d payload_bytes=%d",
                request.kind.name, len(data), payload_bytes,
            )  # fmt: skip
            self.refuse(request.number, InternalError("the reply does not fit in a frame"))
        else:
            self._send(Kind.DONE, request.number, data, parts, payload_bytes)

    def refuse(self, number: int, error: DisklessError) -> None:
        self._send(Kind.REFUSED, number, encode(Refusal.of(error)), (), 0)

    def refuse_and_close(self, error: DisklessError) -> None:
        """Says once, to the client and to the log, why this connection ends."""
        if self._closed:
            return
        self._gateway.refusals.note(DOOR, error, describe_peer(self.transport))
        header = self._parser.last_header
        self.refuse(header.request if header else self._refused_number, error)
        if self.visitor is not None:
            self.hang_up()
        else:
            self.close()

    def hang_up(self) -> None:
        """Ends the connection when the client does, or after a while anyway.

        What it is sending meanwhile is thrown away: it would lose the refusal if its next
        bytes met a closed door.
        """
        self._draining = True
        self._read(True)
        self._closed = True
        self.transport.write_eof()
        self._end = self._loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def close(self) -> None:
        """Ends the connection once its last replies are fetched, or after a while anyway."""
        if not self._closed:
            self._read(False)
            self._closed = True
            self.transport.close()
            self._end = self._loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def give_up(self) -> None:
        """Ends a connection whose client does not fetch its replies, with a line in the log."""
        log.warning(
            "replies not fetched peer=%s unsent_bytes=%d: connection closed",
            describe_peer(self.transport), self.transport.get_write_buffer_size(),
        )  # fmt: skip
        self.abort()

    def abort(self) -> None:
        self._closed = True
        self.transport.abort()

    def _send(
        self, kind: Kind, number: int, meta: bytes, parts: Sequence[Buffer], payload_bytes: int
    ) -> None:
        if self._closed:
            return
        leader, roster = (NO_LEADER, 0) if self.visitor is None else self._gateway.view()
        head = pack_head(
            kind, number, meta, parts,
            version=self._parser.version, leader=leader, roster=roster,
        )  # fmt: skip
        size = len(head) + payload_bytes
        self._gateway.counters.bytes_out += size
        self._bytes_out += size
        if not payload_bytes:
            self.transport.write(head)
        elif payload_bytes <= JOIN_BYTES_MAX:
            self.transport.write(b"".join((head, *parts)))
        else:
            self.transport.writelines((head, *parts))


def describe_peer(transport: asyncio.BaseTransport) -> str:
    """Who is at the other end, for one word of a log line."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except (AttributeError, OSError):  # Not Linux, or the peer is gone already.
            return "unix"
        pid, uid, _ = struct.unpack("3i", raw)
        return f"unix:pid={pid},uid={uid}"
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"


def _notice_dead_peers(sock: Any) -> None:
    """A host that vanished sends no FIN: TCP must ask, or its connection stays forever."""
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
