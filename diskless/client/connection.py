"""A blocking connection to one gateway: frames out, replies in, possibly many under way.

It owns its socket and nothing else. One thread at a time uses it. It never retries: it
either gives the reply to a request or, if anything about the stream is wrong (closed,
silent, garbled), closes itself and raises Unavailable, or Unauthorized where the agent says that
it will not speak to us any more; after that it is useless.
A refusal is a reply like any other, with `error` set. Nothing of a reply is used before its
checksum was compared.

The stream belongs to the process that opened it: in a forked child every connection is
closed from the start, without a word on the stream.
"""

import atexit
import os
import socket
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from diskless.errors import BadFrame, DisklessError, Garbled, Unauthorized, Unavailable
from diskless.model import ClusterStatus, slot_name
from diskless.notes import Noted
from diskless.protocol import checkpoints, history, messages, operating, tier, tokens
from diskless.protocol.frames import (
    HEADER_BYTES,
    META_BYTES_MAX,
    RECEIVE_BYTES,
    VERSION,
    VERSION_PLAIN,
    Header,
    check_sound,
    checksum_bytes,
    pack_head,
    pack_within,
    unpack_header,
)
from diskless.protocol.messages import Kind, Peer

Buffer = bytes | bytearray | memoryview

_REPLIES: dict[Kind, Any] = {
    Kind.HELLO: messages.Challenged,
    Kind.PROVE: messages.Welcome,
    Kind.SESSION: messages.Session,
    Kind.ROSTER: messages.Roster,
    Kind.PUT: messages.Committed,
    Kind.WRITE: messages.Written,
    Kind.COMMIT: messages.Committed,
    Kind.ABORT: messages.Empty,
    Kind.OPEN: messages.Opened,
    Kind.OPEN_MANY: messages.OpenedMany,
    Kind.READ: messages.Empty,
    Kind.STAT: messages.Status,
    Kind.LIST: messages.Listing,
    Kind.MKDIRS: messages.Created,
    Kind.RENAME: messages.Empty,
    Kind.DELETE: messages.Deleted,
    Kind.SUMMARY: messages.Summed,
    Kind.STATUS: ClusterStatus,
    Kind.EVENTS: operating.EventPage,
    Kind.DRAIN: operating.Drained,
    Kind.SNAPSHOT: history.Snapshotted,
    Kind.SNAPSHOTS: history.SnapshotList,
    Kind.RENAME_SNAPSHOT: messages.Empty,
    Kind.DELETE_SNAPSHOTS: messages.Empty,
    Kind.CLONE: messages.Empty,
    Kind.ROLLBACK: history.RolledBack,
    Kind.PRUNE: history.Pruned,
    Kind.REPLACE: messages.Empty,
    Kind.LEASES: checkpoints.LeaseList,
    Kind.KEEP_LEASES: checkpoints.LeasesKept,
    Kind.NOTE_BATCHES: messages.Empty,
    Kind.BATCH_NOTES: Noted,
    Kind.DIFF: history.Changes,
    Kind.USAGE: history.Used,
    Kind.RENEW: operating.Certificate,
    Kind.ISSUE_TOKEN: tokens.Issued,
    Kind.REVOKE_TOKEN: tokens.Revoked,
    Kind.TOKENS: tokens.TokenList,
    Kind.SET_POLICY: tier.PolicyChanged,
    Kind.REMOVE_POLICY: tier.PolicyChanged,
    Kind.POLICY: tier.Policies,
    Kind.FLUSH: tier.Flushed,
    Kind.ATTACH_TIER: messages.Empty,
    Kind.DETACH_TIER: tier.Detached,
    Kind.DRILLED: messages.Empty,
    Kind.FAULTS: operating.Planted,
}
_DECODERS = {kind: msgspec.json.Decoder(type_) for kind, type_ in _REPLIES.items()}
_REFUSAL = msgspec.json.Decoder(messages.Refusal)


class Reply(NamedTuple):
    request: int
    meta: Any
    payload: bytearray | memoryview
    error: DisklessError | None


class _Expected(NamedTuple):
    kind: Kind
    into: memoryview | None


class Connection:
    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self.peer = peer
        self.leader = 0
        self.roster = 0
        self.idle_since = 0.0
        self.welcome: messages.Welcome | None = None
        self._socket = sock
        self._finalizer = weakref.finalize(self, sock.close)
        self._finalizer.atexit = False  # `_close_all` is for that, and later.
        self._expected: dict[int, _Expected] = {}
        self._number = 0
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._start = 0
        self._end = 0
        _connections.add(self)

    @property
    def usable(self) -> bool:
        """Until it is closed."""
        return self._finalizer.alive

    @property
    def outstanding(self) -> int:
        return len(self._expected)

    def request(
        self, kind: Kind, meta: Struct, parts: Sequence[Buffer] = (), *, deadline: float
    ) -> Reply:
        """One request and its reply, when nothing else is under way.

        The agent knows the deadline: one that is well and only cannot answer yet says so
        in time, and is not taken for dead.
        """
        assert not self._expected
        within_s = deadline - time.monotonic()
        self.send(kind, meta, parts, deadline=deadline, within=pack_within(within_s))
        return self.receive(deadline=deadline)

    def send(
        self,
        kind: Kind,
        meta: Struct,
        parts: Sequence[Buffer] = (),
        *,
        deadline: float,
        into: memoryview | None = None,
        within: int = 0,
    ) -> int:
        """Sends a request and gives its number. The reply's payload must fill `into`.

        The parts are sent as they are, without a copy. Raises BadFrame, with nothing
        sent, when the meta is too large for a frame.
        """
        data = messages.encode(meta)
        if len(data) > META_BYTES_MAX:
            raise BadFrame(
                f"{kind.name.lower()}: {len(data)} bytes of meta, at most {META_BYTES_MAX} fit"
            )
        self._number += 1
        head = pack_head(kind, self._number, data, parts, version=VERSION, leader=within)
        self._expected[self._number] = _Expected(kind, into)
        self._send_all([head, *parts], deadline)
        return self._number

    def receive(self, *, deadline: float) -> Reply:
        """The next reply, whichever request it answers."""
        header, meta, payload = self._receive_frame(deadline)
        self.leader, self.roster = header.leader, header.roster
        expected = self._expected.pop(header.request, None)
        if expected is None or header.kind not in (Kind.DONE, Kind.REFUSED):
            raise self._unexpected(header, meta)
        if header.kind == Kind.REFUSED:
            refusal = self._decode_refusal(meta)
            if isinstance(refusal, Garbled):  # The agent closes the connection too.
                raise self._broken(f"says: {refusal}", Garbled)
            return Reply(header.request, None, bytearray(), refusal)
        try:
            decoded = _DECODERS[expected.kind].decode(meta)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._broken(f"garbled reply: {error}") from error
        return Reply(header.request, decoded, payload, None)

    def _receive_frame(self, deadline: float) -> tuple[Header, bytes, bytearray | memoryview]:
        """A frame as it was sent. A refusal may come without a checksum, from an agent that
        could not read our version."""
        self._fill(HEADER_BYTES, deadline)
        packed = bytes(self._buffer[self._start : self._start + HEADER_BYTES])
        try:
            header = unpack_header(packed)
        except BadFrame as error:
            raise self._broken(f"garbled reply: {error}", Garbled) from error
        self._start += HEADER_BYTES
        checksum_size = checksum_bytes(header.version)
        prelude = self._take(checksum_size + header.meta_bytes, deadline)
        # They are only good until the next receive.
        checksum, meta = bytes(prelude[:checksum_size]), bytes(prelude[checksum_size:])
        expected = self._expected.get(header.request)
        into = expected.into if expected is not None and header.kind == Kind.DONE else None
        payload = self._take_payload(header.payload_bytes, into, deadline)
        if header.version == VERSION_PLAIN and header.kind == Kind.REFUSED:
            raise self._unexpected(header, meta)
        if header.version != VERSION:
            raise self._broken(f"sent a reply of version {header.version}, not {VERSION}")
        try:
            check_sound(header.version, packed + meta, payload, checksum)
        except Garbled:
            raise self._broken("sent a reply that was damaged on its way", Garbled) from None
        return header, meta, payload

    def is_stale(self) -> bool:
        """Whether an idle connection was closed at the other end, or is out of step."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._finalizer.detach()
        self._socket.close()

    # Bytes.

    def _send_all(self, buffers: list[Buffer], deadline: float) -> None:
        left = sum([len(buffer) for buffer in buffers])
        while True:
            self._limit_wait(deadline)
            try:
                sent = self._socket.sendmsg(buffers)
            except OSError as error:
                raise self._broken(say_why(error)) from error
            left -= sent
            if not left:
                return
            buffers = _after(buffers, sent)

    def _receive_into(self, view: memoryview, deadline: float) -> int:
        self._limit_wait(deadline)
        try:
            count = self._socket.recv_into(view)
        except OSError as error:
            raise self._broken(say_why(error)) from error
        if not count:
            raise self._broken("closed the connection")
        return count

    def _fill(self, count: int, deadline: float) -> None:
        """Makes at least `count` bytes, at most RECEIVE_BYTES, wait in the buffer."""
        have = self._end - self._start
        if have >= count:
            return
        self._buffer[:have] = self._buffer[self._start : self._end]
        self._start, self._end = 0, have
        while self._end < count:
            self._end += self._receive_into(self._buffer[self._end :], deadline)

    def _take(self, count: int, deadline: float) -> memoryview | bytearray:
        """`count` bytes; they are only good until the next receive."""
        if count > RECEIVE_BYTES:
            return self._take_payload(count, None, deadline)
        self._fill(count, deadline)
        self._start += count
        return self._buffer[self._start - count : self._start]

    def _take_payload(
        self, count: int, into: memoryview | None, deadline: float
    ) -> bytearray | memoryview:
        if into is not None and len(into) != count:
            raise self._broken(f"sent {count} bytes where {len(into)} were asked for")
        target = bytearray(count) if into is None else into
        view = memoryview(target)
        done = min(count, self._end - self._start)
        view[:done] = self._buffer[self._start : self._start + done]
        self._start += done
        while done < count:
            done += self._receive_into(view[done:], deadline)
        return target

    def _limit_wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._broken("did not answer in time")
        if not self.usable:
            raise self._broken("was closed at this end")
        self._socket.settimeout(left)

    # What can be wrong.

    def _decode_refusal(self, meta: Buffer) -> DisklessError:
        try:
            return _REFUSAL.decode(meta).error()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._broken(f"garbled refusal: {error}") from error

    def _unexpected(self, header: Header, meta: Buffer) -> DisklessError:
        """A gateway that refuses the connection itself has no request to name."""
        if header.kind == Kind.REFUSED:
            refusal = self._decode_refusal(meta)
            broken = self._broken(f"refused the connection: {refusal}")
            return Unauthorized(str(broken)) if isinstance(refusal, Unauthorized) else broken
        return self._broken(f"sent kind {header.kind} for request {header.request}, never asked")

    def _broken(self, why: str, kind: type[Unavailable] = Unavailable) -> Unavailable:
        self.close()
        return kind(f"{describe(self.peer)} {why}")


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_all() -> None:
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_all)
atexit.register(_close_all)


def describe(peer: Peer) -> str:
    return f"{slot_name(peer.slot)} ({peer.gateway})" if peer.slot >= 0 else peer.gateway


def _after(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """What is left to send of `buffers` after `sent` bytes."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []


def say_why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
