"""The bytes of a frame: its header, its limits, and a parser that takes any split of them.

docs/frames.md is the specification. This module owns the header's layout and the frame's
checksum, and refuses, as BadFrame, whatever is no frame or breaks a limit, and as Garbled
what is not as it was sent. It never looks inside a meta or a payload otherwise, does no I/O,
and never allocates for a body that has not been admitted.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakSet

from diskless.checksum import joint_checksum
from diskless.config import KIB, MIB
from diskless.errors import BadFrame, Garbled

MAGIC = 0xD15C
VERSION_PLAIN = 1
"""Frames without a checksum: of clients of an earlier release, and refusals of what had no
version that could be told."""
VERSION = 2
"""Frames with an XXH3-64: what the Python client speaks."""
VERSION_JVM = 4
"""Frames with an XXH64, the one that a JVM has. No flipped bit makes one version another."""
VERSIONS = (VERSION_PLAIN, VERSION, VERSION_JVM)
CHECKSUM_BYTES = 8
NO_LEADER = 0xFFFF
ROSTER_MASK = 0xFFFF

META_BYTES_MAX = 4 * MIB
PAYLOAD_BYTES_MAX = 4 * MIB
HELLO_BYTES_MAX = 6 * KIB
"""Largest body (meta and payload) of a frame from a client that has not proved itself."""
RECEIVE_BYTES = 64 * KIB
"""Frames up to this size are cut out of one buffer, many for each recv. The body of a
larger one is received straight into memory of its own."""
SPARE_BUFFERS_MAX = 16
"""Buffers that wait for the next connection that receives something, or that a connection
keeps while it is idle: of thousands of idle connections the others have none."""

_HEADER = struct.Struct(">HBBHHQII")
HEADER_BYTES = _HEADER.size

WITHIN_UNIT_S = 0.01
"""Of the time within which a request wants its answer, where replies name the leader."""
WITHIN_MAX = 0xFFFF


class Header(NamedTuple):
    kind: int
    leader: int
    """In a request: `within`."""
    roster: int
    request: int
    meta_bytes: int
    payload_bytes: int
    version: int = VERSION_PLAIN


class Frame(NamedTuple):
    header: Header
    meta: bytes | memoryview
    payload: bytes | memoryview


def pack_header(
    kind: int,
    request: int,
    *,
    meta_bytes: int,
    payload_bytes: int = 0,
    leader: int = 0,
    roster: int = 0,
    version: int = VERSION_PLAIN,
) -> bytes:
    """The 24 bytes before a checksum, if there is one, a meta and a payload of these sizes."""
    return _HEADER.pack(MAGIC, version, kind, leader, roster, request, meta_bytes, payload_bytes)


Part = bytes | bytearray | memoryview


def pack_head(
    kind: int,
    request: int,
    meta: bytes,
    parts: Sequence[Part] = (),
    *,
    version: int,
    leader: int = 0,
    roster: int = 0,
) -> bytes:
    """All of a frame that comes before its payload, the `parts`: header, checksum, meta."""
    payload_bytes = sum([len(part) for part in parts]) if parts else 0
    header = _HEADER.pack(MAGIC, version, kind, leader, roster, request, len(meta), payload_bytes)
    if version == VERSION_PLAIN:
        return header + meta
    return header + joint_checksum(header + meta, parts, fast=version == VERSION) + meta


def checksum_bytes(version: int) -> int:
    """Of the checksum that follows the header of such a frame."""
    return 0 if version == VERSION_PLAIN else CHECKSUM_BYTES


def check_sound(version: int, head: Part, payload: Part, checksum: Part) -> None:
    """Raises Garbled if a frame, whose `head` is its header and meta, is not as it was sent.
    It must have a checksum."""
    rest = (payload,) if payload else ()
    if joint_checksum(head, rest, fast=version == VERSION) != checksum:
        raise Garbled("a frame was damaged on its way: send it again, through another agent")


def pack_within(seconds: float) -> int:
    """A request's `within`; 0 leaves the time to the agent."""
    return min(max(int(seconds / WITHIN_UNIT_S), 1), WITHIN_MAX)


def unpack_header(buffer: bytes | bytearray | memoryview, offset: int = 0) -> Header:
    """The header at `offset`. Raises BadFrame for a wrong magic, version or size."""
    magic, version, kind, leader, roster, request, meta_bytes, payload_bytes = _HEADER.unpack_from(
        buffer, offset
    )
    if magic != MAGIC:
        raise BadFrame(f"magic is {magic:04X}, not {MAGIC:04X}")
    if version not in VERSIONS:
        raise BadFrame(f"version is {version}, none of {', '.join(map(str, VERSIONS))}")
    if meta_bytes > META_BYTES_MAX:
        raise BadFrame(f"meta of {meta_bytes} bytes, at most {META_BYTES_MAX} are allowed")
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise BadFrame(f"payload of {payload_bytes} bytes, at most {PAYLOAD_BYTES_MAX} are allowed")
    return Header(kind, leader, roster, request, meta_bytes, payload_bytes, version)


def _admit_all(body_bytes: int) -> bool:
    return True


class _Buffers:
    """The buffers of all connections of a process, as far as those are idle."""

    def __init__(self) -> None:
        self.spare: list[memoryview] = []
        self.keepers: WeakSet[FrameParser] = WeakSet()

    def take(self) -> memoryview:
        return self.spare.pop() if self.spare else memoryview(bytearray(RECEIVE_BYTES))

    def give_back(self, buffer: memoryview) -> None:
        if len(self.spare) < SPARE_BUFFERS_MAX:
            self.spare.append(buffer)


_buffers = _Buffers()


class FrameParser:
    """Cuts frames out of a byte stream that arrives in pieces of any size.

    Offer `get_buffer()` to recv, report what came with `received()`, then call `next()`
    until it gives None. When a header has come, `admit(body_bytes)` is asked once; if it
    says no, the parser is `stalled` and gives nothing more until `grant()`. While it is
    stalled, or while `next()` still has frames to give, no more bytes may be received.
    A frame given out owns its bytes, and is as it was sent: the parser never touches them
    again. All frames of a stream have the version of its first. `park()` when there is nothing
    to do for a while: then it keeps what has come of the next frames, and a buffer only if few
    others do. `close()` at the end.
    """

    def __init__(
        self,
        *,
        body_bytes_max: int = META_BYTES_MAX + PAYLOAD_BYTES_MAX,
        admit: Callable[[int], bool] = _admit_all,
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self.stalled = False
        self._admit = admit
        self._buffer: memoryview | None = None
        self._keeps_buffer = False
        self._parked = b""
        self._start = 0
        self._end = 0
        self._header: Header | None = None
        self._packed = b""  # the header as it came
        self._version: int | None = None
        self._checksum_bytes = 0
        self._body: memoryview | None = None
        self._filled = 0

    @property
    def mid_frame(self) -> bool:
        """Whether part of a frame has come and the rest has not."""
        return self._header is not None or self._start < self._end or bool(self._parked)

    @property
    def version(self) -> int:
        """Of the stream, as far as that is known."""
        return self._version or VERSION_PLAIN

    @property
    def last_header(self) -> Header | None:
        """The header of the frame under way, so that a refusal can name its request."""
        return self._header

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._body is not None:
            return self._body[self._filled :]
        buffer = self._buffer
        if buffer is None:
            buffer = self._unpark()
        if not self._start:
            return buffer[self._end :] if self._end else buffer
        left = self._end - self._start
        if left:
            buffer[:left] = buffer[self._start : self._end]
        self._start, self._end = 0, left
        return buffer[left:]

    def park(self) -> int:
        """Gives the buffer back if too many are kept; returns how many bytes of the next frames
        have come."""
        if self._buffer is None:
            return len(self._parked)
        if self._keeps_buffer or len(_buffers.keepers) < SPARE_BUFFERS_MAX:
            if not self._keeps_buffer:
                self._keeps_buffer = True
                _buffers.keepers.add(self)
            return self._end - self._start
        if self._start < self._end:
            self._parked = bytes(self._buffer[self._start : self._end])
        _buffers.give_back(self._buffer)
        self._buffer, self._start, self._end = None, 0, 0
        return len(self._parked)

    def close(self) -> None:
        """No more will be asked of it."""
        if self._keeps_buffer:
            self._keeps_buffer = False
            _buffers.keepers.discard(self)
        if self._buffer is not None:
            _buffers.give_back(self._buffer)
            self._buffer, self._start, self._end = None, 0, 0

    def _unpark(self) -> memoryview:
        buffer = self._buffer = _buffers.take()
        if self._parked:
            self._end = len(self._parked)
            buffer[: self._end] = self._parked
            self._parked = b""
        return buffer

    def received(self, count: int) -> None:
        """`count` bytes were put at the front of the last `get_buffer()`."""
        if self._body is not None:
            self._filled += count
        else:
            self._end += count

    def grant(self) -> None:
        """The body that `admit` refused may come now."""
        assert self.stalled
        self.stalled = False

    def next(self) -> Frame | None:
        """The next whole frame, or None. Raises BadFrame or Garbled; the parser is useless
        then."""
        if self.stalled:
            return None
        if self._buffer is None and (self._parked or self._header is not None):
            self._unpark()
        header = self._header
        if header is None:
            if self._end - self._start < HEADER_BYTES:
                return None
            header = self._begin()
            if header is None:
                return None
        if self._body is not None:
            return self._take_large(header)
        body_bytes = self._checksum_bytes + header.meta_bytes + header.payload_bytes
        if self._end - self._start >= body_bytes:
            assert self._buffer is not None
            frame = self._cut(header, self._buffer, self._start, copy=True)
            self._start += body_bytes
            return frame
        if HEADER_BYTES + body_bytes > RECEIVE_BYTES:
            self._move_to_own_memory(body_bytes)
        return None

    def _begin(self) -> Header | None:
        """Takes the header of the next frame, and gives it if its body is admitted."""
        assert self._buffer is not None
        start = self._start
        header = unpack_header(self._buffer, start)
        if header.version != self._version:
            if self._version is not None:
                raise BadFrame(
                    f"version is {header.version} after frames of version {self._version}"
                )
            self._version = header.version
            self._checksum_bytes = checksum_bytes(header.version)
        self._header = header
        self._start = start + HEADER_BYTES
        self._packed = bytes(self._buffer[start : self._start])
        body_bytes = header.meta_bytes + header.payload_bytes
        if body_bytes > self.body_bytes_max:
            raise BadFrame(
                f"{body_bytes} bytes of meta and payload, "
                f"at most {self.body_bytes_max} are allowed here"
            )
        if self._admit(body_bytes):
            return header
        self.stalled = True
        return None

    def _take_large(self, header: Header) -> Frame | None:
        body = self._body
        assert body is not None
        if self._filled < len(body):
            return None
        self._body = None
        return self._cut(header, body, 0, copy=False)

    def _cut(self, header: Header, body: memoryview, start: int, *, copy: bool) -> Frame:
        """The frame whose checksum, meta and payload begin at `start`, if it is as it was sent."""
        meta_at = start + self._checksum_bytes
        payload_at = meta_at + header.meta_bytes
        meta = bytes(body[meta_at:payload_at])
        payload: bytes | memoryview = b""
        if header.payload_bytes:
            payload = body[payload_at : payload_at + header.payload_bytes]
            if copy:
                payload = bytes(payload)
        if self._checksum_bytes:
            check_sound(header.version, self._packed + meta, payload, body[start:meta_at])
        self._header = None
        return Frame(header, meta, payload)

    def _move_to_own_memory(self, body_bytes: int) -> None:
        here = self._end - self._start
        self._body = memoryview(bytearray(body_bytes))
        if self._buffer is not None:
            self._body[:here] = self._buffer[self._start : self._end]
        self._filled = here
        self._start = self._end = 0
