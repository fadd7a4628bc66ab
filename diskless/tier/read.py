"""Reading parts by their place: all that is returned has been verified."""

from typing import TypeVar

import msgspec
from typing_extensions import Buffer

from diskless.errors import DamagedTier
from diskless.identity.cipher import Cipher
from diskless.tier import form
from diskless.tier.form import FRAME_BYTES, FRAMED, Place
from diskless.tier.manifest import FileRow, Part, Stream, stream_key
from diskless.tier.store import Missing, Store
from diskless.tier.work import aside

_T = TypeVar("_T")


async def read_file(
    store: Store,
    name: str,
    place: Place,
    *,
    id_: int,
    size: int,
    start: int = 0,
    end: int | None = None,
    cipher: Cipher | None = None,
) -> bytes:
    """Bytes `start` to `end` of file `id_`, which has `size`; object `name` is where its segment
    is. Takes one request, two of a file of several frames. Raises DamagedTier."""
    end = size if end is None else min(end, size)
    if start >= end:
        return b""
    if not place.flags & FRAMED:
        stored = await fetch(store, name, place.offset, place.stored_bytes)
        whole = await aside(
            size, form.unpack, id_, stored, place.flags, name=name, size=size, cipher=cipher
        )
        return whole if (start, end) == (0, size) else whole[start:end]
    index = await fetch(store, name, place.offset, form.index_bytes(size))
    sizes = form.unpack_index(id_, index, name=name, size=size)
    first, last = start // FRAME_BYTES, -(-end // FRAME_BYTES)
    offset = place.offset + len(index) + sum(sizes[:first])
    stored = await fetch(store, name, offset, sum(sizes[first:last]))

    def join() -> bytes:
        frames = form.unpack_frames(
            id_,
            stored,
            place.flags,
            sizes[first:last],
            name=name,
            size=size,
            first=first,
            cipher=cipher,
        )
        skipped = first * FRAME_BYTES
        return b"".join(frames)[start - skipped : end - skipped]

    return await aside(len(stored), join)


async def read_stream(
    store: Store,
    name: str,
    stream: Stream,
    index: int,
    part: Part,
    *,
    cipher: Cipher | None = None,
) -> bytes:
    """One piece of a manifest's stream. Raises DamagedTier."""
    stored = await fetch(store, name, part.offset, part.stored_bytes)
    key = stream_key(stream, index)
    return await aside(
        part.size, form.unpack, key, stored, part.flags, name=name, size=part.size, cipher=cipher
    )


def rows_of(piece: Buffer, *, name: str) -> list[FileRow]:
    """The rows in a piece of a table."""
    return decode(piece, list[FileRow], name=name)


def decode(piece: Buffer, type_: type[_T], *, name: str) -> _T:
    try:
        return msgspec.msgpack.decode(piece, type=type_)
    except msgspec.DecodeError as error:
        raise form.damaged(name, str(error)) from None


async def fetch(store: Store, name: str, offset: int, count: int) -> bytes:
    """Raises DamagedTier if they are not all there."""
    try:
        data = await store.get(name, offset, offset + count)
    except Missing as error:
        raise DamagedTier(f"{name} is gone from {store.uri}", name=name) from error
    if len(data) != count:
        raise form.damaged(name, f"it ends before byte {offset + count}")
    return data
