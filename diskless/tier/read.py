"""Reading parts by their place: all that is returned has been verified."""

from collections.abc import MutableMapping, Sequence
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
    indexes: MutableMapping[tuple[str, int], Sequence[int]] | None = None,
) -> list[memoryview]:
    """Bytes `start` to `end` of file `id_`, which has `size`, as far as they are in the part at
    `place`, a view for each frame; object `name` is where its segment is. Takes one request, two
    of a compressed part of several frames whose index is not among `indexes`, where it is put.
    Raises DamagedTier."""
    begins, size = place.start, place.size or size
    start = max(start - begins, 0)
    end = size if end is None else min(end - begins, size)
    if start >= end:
        return []
    if not place.flags & FRAMED:
        stored = await fetch(store, name, place.offset, place.stored_bytes)
        whole = await aside(
            size, form.unpack, id_, stored, place.flags,
            name=name, size=size, start=begins, cipher=cipher,
        )  # fmt: skip
        return [memoryview(whole)[start:end]]
    sizes = form.frame_sizes(place, size, name=name)
    if sizes is None and indexes is not None:
        sizes = indexes.get((name, place.offset))
    if sizes is None:
        index = await fetch(store, name, place.offset, form.index_bytes(size))
        sizes = form.unpack_index(id_, index, name=name, size=size, start=begins)
        if indexes is not None:
            indexes[name, place.offset] = sizes
    first, last = start // FRAME_BYTES, -(-end // FRAME_BYTES)
    offset = place.offset + form.index_bytes(size) + sum(sizes[:first])
    stored = await fetch(store, name, offset, sum(sizes[first:last]))

    def unpack() -> list[memoryview]:
        frames = form.unpack_frames(
            id_,
            stored,
            place.flags,
            sizes[first:last],
            name=name,
            size=size,
            first=first,
            start=begins,
            cipher=cipher,
        )
        return [
            memoryview(frame)[max(start - at, 0) : end - at]
            for at, frame in zip(range(first * FRAME_BYTES, end, FRAME_BYTES), frames, strict=True)
        ]

    return await aside(len(stored), unpack)


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


async def fetch(store: Store, name: str, offset: int, count: int) -> memoryview:
    """Raises DamagedTier if they are not all there."""
    try:
        data = await store.get(name, offset, offset + count)
    except Missing as error:
        raise DamagedTier(f"{name} is gone from {store.uri}", name=name) from error
    if len(data) != count:
        raise form.damaged(name, f"it ends before byte {offset + count}")
    return data
