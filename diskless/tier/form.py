"""The tier's format, version 2: how an object is laid out, and how parts lie in it.

An object is a header, parts back to back, a head (what the object says of itself) and a trailer
with a checksum of all of it. Manifests, segments and floors are all such objects. A part is the
bytes of one file, or of a stretch of a large one, or a piece of one of a manifest's streams; it
can be read by its place alone and verifies by itself: its frames of FRAME_BYTES carry checksums
that are seeded with its key and with where in the file it begins, so that no other part is taken
for it. Owns no I/O, and never guesses: what does not verify is DamagedTier, what was written by a
later version is said to be that. Version 1 had no stretches: a file was one part.
"""

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import zstandard
from msgspec import Struct
from typing_extensions import Buffer

from diskless.checksum import CHECKSUM_BYTES, frame_checksum, joint_checksum
from diskless.errors import DamagedTier, WrongKey
from diskless.identity.cipher import FINGERPRINT_BYTES, Cipher

VERSION = 2
MAGIC = b"diskless"
MANIFEST, SEGMENT, FLOOR = 1, 2, 3
"""Kinds of objects."""
FRAME_BYTES = 1024 * 1024

ZSTD, SEALED, FRAMED, MORE = 1, 2, 4, 8
"""Flags of a part: compressed; encrypted; of several frames, behind an index of their sizes; not
the last of its file."""
COMPRESS_BYTES_MIN = 256
SAMPLE_BYTES = 16 * 1024
GAIN_MIN = 0.9
"""A part is compressed if a sample of it comes out smaller than this share of itself."""
LEVEL = 1

_HEADER = struct.Struct(">8sBBxx")
_TRAILER = struct.Struct(f">QIIBBxx{FINGERPRINT_BYTES}s{CHECKSUM_BYTES}s8s")
"""Where the head is, its bytes as they lie there and as they were, its flags, the kind, the
key's fingerprint, the checksum of all before it (the trailer's first part too), the magic."""
_UNSUMMED = CHECKSUM_BYTES + len(MAGIC)
HEADER_BYTES = _HEADER.size
TRAILER_BYTES = _TRAILER.size
_HEAD_KEY = (1 << 64) - 1
_NO_KEY = bytes(FINGERPRINT_BYTES)

_T = TypeVar("_T")
_threads = threading.local()


class Place(Struct, frozen=True, array_like=True):
    """Where a part lies: in which object (by number of segment), and where in it."""

    segment: int
    offset: int
    stored_bytes: int
    flags: int
    start: int = 0
    """The byte of the file that it begins with."""
    size: int = 0
    """Its bytes; 0 if it is the whole file."""


class Held(Struct, frozen=True, array_like=True):
    """A part, as the head of its segment names it."""

    key: int
    offset: int
    stored_bytes: int
    flags: int
    start: int = 0
    size: int = 0
    """As of Place."""


class Packed(NamedTuple):
    """A part as it will lie in an object."""

    frames: tuple[Buffer, ...]
    stored_bytes: int
    flags: int


# --- parts ---


def pack(key: int, data: Buffer, cipher: Cipher | None = None, *, start: int = 0) -> Packed:
    """The part of `key` that begins at its byte `start`. Takes a while for large data: see
    `work.aside`."""
    view = memoryview(data)
    flags = (ZSTD if _pays(view) else 0) | (SEALED if cipher else 0)
    pieces = [view[at : at + FRAME_BYTES] for at in range(0, len(view), FRAME_BYTES)] or [view]
    frames: list[Buffer] = []
    sizes = []
    for number, piece in enumerate(pieces):
        stored = _stored(piece, _about(key, start, number), flags, cipher)
        frames += (frame_checksum(stored, key=key, start=start, number=number), stored)
        sizes.append(CHECKSUM_BYTES + len(stored))
    if len(pieces) > 1:
        flags |= FRAMED
        index = struct.pack(f">{len(sizes)}I", *sizes)
        frames[:0] = (frame_checksum(index, key=key, start=start, number=len(sizes)), index)
        sizes.append(CHECKSUM_BYTES + len(index))
    return Packed(tuple(frames), sum(sizes), flags)


def unpack(
    key: int,
    stored: Buffer,
    flags: int,
    *,
    name: str,
    size: int,
    start: int = 0,
    cipher: Cipher | None = None,
) -> bytes:
    """The `size` bytes of a part of object `name`, all of which is here. Raises DamagedTier."""
    view = memoryview(stored)
    if not flags & FRAMED:
        return bytes(_frame(key, start, 0, view, flags, name=name, size=size, cipher=cipher))
    skipped = index_bytes(size)
    sizes = unpack_index(key, view[:skipped], name=name, size=size, start=start)
    return b"".join(
        unpack_frames(
            key, view[skipped:], flags, sizes, name=name, size=size, start=start, cipher=cipher
        )
    )


def frames_of(size: int) -> int:
    return max(1, -(-size // FRAME_BYTES))


def index_bytes(size: int) -> int:
    """How much of a FRAMED part of `size` bytes is its index."""
    return CHECKSUM_BYTES + 4 * frames_of(size)


def frame_sizes(place: Place, size: int, *, name: str) -> Sequence[int] | None:
    """The bytes that each frame of a FRAMED part of `size` bytes takes, if that follows from its
    place: not of a compressed one. Raises DamagedTier if it cannot be so."""
    if place.flags & ZSTD:
        return None
    count = frames_of(size)
    more, rest = divmod(place.stored_bytes - index_bytes(size) - size, count)
    if rest or more < CHECKSUM_BYTES:
        raise damaged(name, "a part of it has another size than its bytes take")
    last = size - (count - 1) * FRAME_BYTES
    return [*(FRAME_BYTES + more,) * (count - 1), last + more]


def unpack_index(
    key: int, stored: Buffer, *, name: str, size: int, start: int = 0
) -> tuple[int, ...]:
    """The bytes that each frame of a FRAMED part takes. Raises DamagedTier."""
    count = frames_of(size)
    view = memoryview(stored)
    if len(view) != index_bytes(size):
        raise damaged(name, "a part of it is cut short")
    found = frame_checksum(view[CHECKSUM_BYTES:], key=key, start=start, number=count)
    if view[:CHECKSUM_BYTES] != found:
        raise damaged(name, "a part of it fails its checksum")
    return struct.unpack(f">{count}I", view[CHECKSUM_BYTES:])


def unpack_frames(
    key: int,
    stored: Buffer,
    flags: int,
    sizes: Sequence[int],
    *,
    name: str,
    size: int,
    first: int = 0,
    start: int = 0,
    cipher: Cipher | None = None,
) -> Iterator[bytes | memoryview]:
    """The frames from number `first` on, as many as `sizes` has: `stored` begins with them."""
    view = memoryview(stored)
    for number, count in enumerate(sizes, first):
        raw_bytes = min(FRAME_BYTES, size - number * FRAME_BYTES)
        frame = view[:count]
        yield _frame(key, start, number, frame, flags, name=name, size=raw_bytes, cipher=cipher)
        view = view[count:]


def _stored(
    piece: memoryview, about: bytes, flags: int, cipher: Cipher | None
) -> bytes | memoryview:
    data: bytes | memoryview = piece
    if flags & ZSTD:
        data = _compressor().compress(data)
    if cipher is not None:
        data = cipher.seal(data, about)
    return data


def _frame(
    key: int,
    start: int,
    number: int,
    stored: memoryview,
    flags: int,
    *,
    name: str,
    size: int,
    cipher: Cipher | None,
) -> bytes | memoryview:
    """Of what is neither compressed nor sealed, no copy is made."""
    data: bytes | memoryview = stored[CHECKSUM_BYTES:]
    if stored[:CHECKSUM_BYTES] != frame_checksum(data, key=key, start=start, number=number):
        raise damaged(name, "a part of it fails its checksum")
    if flags & SEALED:
        if cipher is None:
            raise WrongKey(f"{name} is encrypted and no key was given")
        data = cipher.open(data, _about(key, start, number))
    if flags & ZSTD:
        try:
            data = _decompressor().decompress(data, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise damaged(name, f"a part of it does not decompress ({error})") from None
    if len(data) != size:
        raise damaged(name, f"a part of it has {len(data)} bytes, not {size}")
    return data


def _pays(view: memoryview) -> bool:
    """Whether compressing is worth it, by a sample from the beginning, the middle and the end."""
    if len(view) < COMPRESS_BYTES_MIN:
        return False
    if len(view) > 3 * SAMPLE_BYTES:
        middle = len(view) // 2
        view = memoryview(
            b"".join(
                (view[:SAMPLE_BYTES], view[middle : middle + SAMPLE_BYTES], view[-SAMPLE_BYTES:])
            )
        )
    return len(_compressor().compress(view)) < GAIN_MIN * len(view)


def _about(key: int, start: int, number: int) -> bytes:
    """What a sealed frame is bound to."""
    if not start:  # as it was before files had several parts
        return struct.pack(">QI", key & 0xFFFF_FFFF_FFFF_FFFF, number)
    return struct.pack(">QIQ", key & 0xFFFF_FFFF_FFFF_FFFF, number, start)


def _compressor() -> zstandard.ZstdCompressor:
    """One for each thread: they cannot be shared."""
    if not hasattr(_threads, "compressor"):
        _threads.compressor = zstandard.ZstdCompressor(level=LEVEL)
    return _threads.compressor  # type: ignore[no-any-return]


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_threads, "decompressor"):
        _threads.decompressor = zstandard.ZstdDecompressor()
    return _threads.decompressor  # type: ignore[no-any-return]


# --- objects ---


def header(kind: int) -> bytes:
    return _HEADER.pack(MAGIC, kind, VERSION)


def close_object(
    kind: int, body: Sequence[Buffer], head: Any, cipher: Cipher | None = None
) -> list[Buffer]:
    """All of an object, in pieces: header, body, head, trailer."""
    parts: list[Buffer] = [header(kind), *body]
    offset = sum(len(memoryview(part)) for part in parts)
    raw = msgspec.msgpack.encode(head)
    packed = pack(_HEAD_KEY, raw, cipher)
    parts += packed.frames
    fingerprint = cipher.fingerprint if cipher else _NO_KEY
    where = (offset, packed.stored_bytes, len(raw), packed.flags, kind)
    trailer = _TRAILER.pack(*where, fingerprint, bytes(CHECKSUM_BYTES), MAGIC)[:-_UNSUMMED]
    checksum = joint_checksum(parts[0], [*parts[1:], trailer], fast=True)
    return [*parts, trailer, checksum, MAGIC]


def open_object(
    data: Buffer, kind: int, type_: type[_T], *, name: str, cipher: Cipher | None = None
) -> _T:
    """The head of an object, all of which is here. Raises DamagedTier; WrongKey at once, by the
    key's fingerprint."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES + TRAILER_BYTES:
        raise damaged(name, f"it has {len(view)} bytes")
    magic, found, version = _HEADER.unpack(view[:HEADER_BYTES])
    if magic != MAGIC or view[-len(MAGIC) :] != MAGIC:
        raise damaged(name, "it is no object of a tier, or torn")
    if version > VERSION:
        raise damaged(name, f"it is of format {version}, this diskless knows {VERSION}")
    if view[-_UNSUMMED : -len(MAGIC)] != joint_checksum(view[:-_UNSUMMED], fast=True):
        raise damaged(name, "it fails its checksum")
    offset, count, size, flags, again, fingerprint, _, _ = _TRAILER.unpack(view[-TRAILER_BYTES:])
    if found != kind or again != kind:
        raise damaged(name, f"it is of kind {found}, not {kind}")
    check_key(fingerprint, cipher)
    stored = view[offset : offset + count]
    raw = unpack(_HEAD_KEY, stored, flags, name=name, size=size, cipher=cipher)
    try:
        return msgspec.msgpack.decode(raw, type=type_)
    except msgspec.DecodeError as error:
        raise damaged(name, str(error)) from None


def check_key(fingerprint: bytes, cipher: Cipher | None) -> None:
    """Raises WrongKey if what has this fingerprint was not written with this cipher."""
    if cipher is None and fingerprint != _NO_KEY:
        raise WrongKey("the tier is encrypted: name its key file (--tier-key FILE)")
    if cipher is not None and fingerprint == _NO_KEY:
        raise WrongKey("the tier is not encrypted, but a key was given: leave --tier-key out")
    if cipher is not None and fingerprint != cipher.fingerprint:
        raise WrongKey(
            f"the tier is encrypted with another key: its fingerprint is {fingerprint.hex()}, "
            f"that of the key given {cipher.fingerprint.hex()}"
        )


def damaged(name: str, why: str) -> DamagedTier:
    return DamagedTier(f"{name} is damaged: {why}", name=name)


def total_bytes(parts: Iterable[Buffer]) -> int:
    return sum(len(memoryview(part)) for part in parts)
