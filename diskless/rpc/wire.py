"""Batches with payload: valid protobuf, but laid out so that payload is not copied.

A protobuf parser copies every `bytes` field, and a builder copies it too; for shards
of 256 KiB that costs more than the calls themselves. So a batch is written with its
`payload_bytes` (fixed32, field 1) first and its `payload` (field 15) last: the sender
joins the parsed part and the buffers once, and the receiver slices. Any protobuf
implementation can read and, keeping that order, write it.
"""

import struct
from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from diskless.errors import BadFrame

_SIZE_TAG = 0x0D  # field 1, fixed32
_PAYLOAD_TAG = 0x7A  # field 15, length-delimited
_PREFIX = struct.Struct("<BI")

Buffer = bytes | bytearray | memoryview


class Message(Protocol):
    """As much of a generated protobuf class as is needed here."""

    def SerializeToString(self) -> bytes: ...

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...


M = TypeVar("M", bound=Message)


def join(header: Message, payload: Sequence[Buffer]) -> bytes:
    """One message from its header, which has no payload fields set, and its payload."""
    size = sum(len(part) for part in payload)
    if size == 0:
        return header.SerializeToString()
    prefix = _PREFIX.pack(_SIZE_TAG, size)
    tail = bytes([_PAYLOAD_TAG]) + _varint(size)
    return b"".join((prefix, header.SerializeToString(), tail, *payload))


def split(kind: type[M], data: bytes) -> tuple[M, memoryview]:
    """The header and the payload of a message. Raises BadFrame when it is not one."""
    view = memoryview(data)
    size = 0
    if len(data) >= _PREFIX.size and data[0] == _SIZE_TAG:
        _, size = _PREFIX.unpack_from(data)
    tail = bytes([_PAYLOAD_TAG]) + _varint(size) if size else b""
    end = len(data) - size - len(tail)
    if size and (end < _PREFIX.size or not data.startswith(tail, end)):
        raise BadFrame(f"batch of {len(data)} bytes claims {size} bytes of payload")
    start = _PREFIX.size if size else 0
    try:
        header = kind.FromString(data[start:end])
    except DecodeError as error:
        raise BadFrame(f"batch of {len(data)} bytes does not parse: {error}") from None
    return header, view[len(data) - size :]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
