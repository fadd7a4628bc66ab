"""One round: what changed since a manifest, packed, uploaded, and put into a manifest to be.

Whatever is added goes into one body. A round that stays below ROUND_BYTES_MAX is one object, the
manifest with its body; each time the body outgrows that, it is uploaded as a segment and the
next one begins. `finish` waits for all uploads: no manifest ever names what is not there.
Segments that agents uploaded are only named here.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
from typing_extensions import Buffer

from diskless.agent.ports import Stretch
from diskless.errors import StoreDown
from diskless.identity.cipher import Cipher
from diskless.namespace.parts import by_file
from diskless.tier import form
from diskless.tier.chain import Chain
from diskless.tier.manifest import (
    SEGMENTS,
    TABLE_ROWS_MAX,
    FileRow,
    Manifest,
    Part,
    Point,
    SegmentRow,
    Stream,
    segment_name,
    stream_key,
)
from diskless.tier.store import Store, Taken
from diskless.tier.work import aside

ROUND_BYTES_MAX = 4 * 1024 * 1024
UPLOADS_MAX = 4
ATTEMPTS_MAX = 3
SLICE_FILES = 200
"""Small files that are packed before other tasks run."""
RETRY_S = 0.5
"""A segment that did not arrive is sent again, before the whole round is."""


class Packer:
    """The body of an object: parts back to back."""

    def __init__(self, cipher: Cipher | None = None) -> None:
        self._cipher = cipher
        self.parts: list[Buffer] = []
        self.held: list[form.Held] = []
        """A segment's own head."""
        self.bytes = form.HEADER_BYTES

    async def add(self, key: int, data: Buffer, *, start: int = 0, more: bool = False) -> form.Held:
        """Where it lies now. `more` if it is a part of a file, and not the last."""
        size = len(memoryview(data))
        packed = await aside(size, form.pack, key, data, self._cipher, start=start)
        flags = packed.flags | (form.MORE if more else 0)
        is_part = more or start > 0
        held = form.Held(key, self.bytes, packed.stored_bytes, flags, start, size if is_part else 0)
        self.parts += packed.frames
        self.bytes += packed.stored_bytes
        self.held.append(held)
        if len(self.held) % SLICE_FILES == 0:
            await asyncio.sleep(0)
        return held


def _row(segment: int, held: form.Held) -> FileRow:
    return FileRow(
        held.key, segment, held.offset, held.stored_bytes, held.flags, held.start, held.size
    )


async def upload(
    store: Store,
    *,
    name: str,
    number: int,
    files: Iterable[Stretch],
    cipher: Cipher | None = None,
) -> tuple[SegmentRow, list[FileRow]]:
    """A segment of these files, or of a part of one: what an agent does for its share of a round.

    `name` and `number` come from `Round.reserve` and are used once.
    """
    packer = Packer(cipher)
    for id_, data, start, more in files:
        await packer.add(id_, data, start=start, more=more)
    rows = [_row(number, held) for held in packer.held]
    return await _put(store, packer, name=name, number=number, cipher=cipher), rows


async def _put(
    store: Store, packer: Packer, *, name: str, number: int, cipher: Cipher | None
) -> SegmentRow:
    assert name.startswith(SEGMENTS)
    data = await aside(
        packer.bytes, form.close_object, form.SEGMENT, packer.parts, packer.held, cipher
    )
    size = form.total_bytes(data)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            await store.put_new(name, data)
            break
        except Taken:
            # The name is random, so it is ours: an earlier attempt has arrived. All of it?
            if await store.size(name) != size:
                raise StoreDown(f"{store.uri}: {name} is not what was written there") from None
            await store.settle(name)
            break
        except StoreDown:
            if attempt == ATTEMPTS_MAX:
                raise
            await asyncio.sleep(attempt * RETRY_S)
    return SegmentRow(number, name, size)


@dataclass(frozen=True)
class Finished:
    """A round that only needs its number: give it to `Chain.append`."""

    manifest: Manifest
    rows: tuple[FileRow, ...]
    """Where the files lie that it brought; their segments are among `manifest.rows`."""
    parts: Sequence[Buffer]
    cipher: Cipher | None

    def encode(self) -> list[Buffer]:
        return form.close_object(form.MANIFEST, self.parts, self.manifest, self.cipher)


class Round:
    """Add what there is, in any order but for the pieces of one stream; then `finish`.

    `after` is the newest manifest, None for the first one of a chain. Used with `async with`:
    no upload outlives it. What an abandoned round wrote is garbage, which the collector knows
    by its name.
    """

    def __init__(
        self,
        chain: Chain,
        after: Manifest | None,
        *,
        round_id: str,
        limit_bytes: int = ROUND_BYTES_MAX,
    ) -> None:
        self.chain = chain
        self._limit_bytes = limit_bytes
        self.after = after
        self.number = after.number + 1 if after else 1
        self.round_id = round_id
        self._last_segment = after.last_segment if after else 0
        self._packer = Packer(chain.cipher)
        self._own = self._next_number()
        self._streams: dict[Stream, list[Part]] = {stream: [] for stream in Stream}
        self._rows: list[FileRow] = []
        self._parts: list[FileRow] = []
        """Of large files, which stay together in the order of their bytes."""
        self._brought: list[FileRow] = []
        self._brought_parts: list[FileRow] = []
        self._segments: list[SegmentRow] = []
        self._uploads: set[asyncio.Task[SegmentRow]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._uploads:
            task.cancel()
        await asyncio.gather(*self._uploads, return_exceptions=True)

    def reserve(self) -> tuple[int, str]:
        """A number and a name for a segment that an agent will upload."""
        number = self._next_number()
        return number, segment_name(self.number, self.round_id, number)

    def name_segment(self, segment: SegmentRow, rows: Sequence[FileRow]) -> None:
        """What an agent uploaded."""
        self.keep_segment(segment, rows)
        self._brought += (row for row in rows if not row.size)
        self._brought_parts += (row for row in rows if row.size)

    def keep_segment(self, segment: SegmentRow, rows: Sequence[FileRow]) -> None:
        """Of a whole manifest, what earlier ones named."""
        self._segments.append(segment)
        self._rows += (row for row in rows if not row.size)
        self._parts += (row for row in rows if row.size)

    async def add_file(self, id_: int, data: Buffer) -> None:
        number = self._own
        row = _row(number, await self._packer.add(id_, data))
        self._rows.append(row)
        self._brought.append(row)
        await self._flush_if_full()

    async def add(self, stream: Stream, data: Buffer) -> None:
        """The next piece of a stream."""
        parts = self._streams[stream]
        held = await self._packer.add(stream_key(stream, len(parts)), data)
        size = len(memoryview(data))
        parts.append(Part(self._own, held.offset, held.stored_bytes, held.flags, size))
        await self._flush_if_full()

    async def finish(
        self,
        *,
        op: int,
        time_ms: int,
        last_file: int,
        whole: bool = False,
        dropped: Sequence[int] = (),
        points: tuple[Point, ...] | None = None,
        doomed: Sequence[str] = (),
    ) -> Finished:
        """Returns when all segments are in the store. Raises what an upload raised.

        `points`, `doomed` and `dropped` come from `collect.plan`.
        """
        for parts in self._parts, self._brought_parts:
            parts.sort(key=lambda row: (row.id, row.start))
        for every in self._rows, self._parts:
            for rows in by_file(every, TABLE_ROWS_MAX, file=lambda row: row.id):
                await self.add(Stream.TABLE, msgspec.msgpack.encode(rows))
                await asyncio.sleep(0)  # There may be millions.
        await self._uploaded(0)
        after = self.after
        assert after is None or (op >= after.op and last_file >= after.last_file)
        manifest = Manifest(
            cluster=self.chain.cluster,
            name=self.chain.name,
            epoch=self.chain.epoch,
            number=self.number,
            round_id=self.round_id,
            op=op,
            time_ms=time_ms,
            last_file=last_file,
            previous=after.number if after else 0,
            previous_id=after.round_id if after else "",
            previous_op=after.op if after else 0,
            whole=whole,
            base=self.number if whole or after is None else after.base,
            takeovers=after.takeovers if after else (),
            own=self._own,
            own_bytes=self._packer.bytes,
            last_segment=self._last_segment,
            segments=tuple(sorted(self._segments, key=lambda row: row.number)),
            dropped=tuple(dropped),
            picture=tuple(self._streams[Stream.PICTURE]),
            journal=tuple(self._streams[Stream.JOURNAL]),
            tables=tuple(self._streams[Stream.TABLE]),
            ledger=tuple(self._streams[Stream.LEDGER]),
            points=points,
            doomed=tuple(doomed),
        )
        brought = (*self._brought, *self._brought_parts)
        return Finished(manifest, brought, self._packer.parts, self.chain.cipher)

    def _next_number(self) -> int:
        self._last_segment += 1
        return self._last_segment

    async def _flush_if_full(self) -> None:
        if self._packer.bytes < self._limit_bytes:
            return
        packer, number = self._packer, self._own
        self._packer, self._own = Packer(self.chain.cipher), self._next_number()
        await self._uploaded(UPLOADS_MAX - 1)
        name = segment_name(self.number, self.round_id, number)
        self._uploads.add(asyncio.create_task(self._upload(packer, name, number)))

    async def _upload(self, packer: Packer, name: str, number: int) -> SegmentRow:
        store, cipher = self.chain.store, self.chain.cipher
        return await _put(store, packer, name=name, number=number, cipher=cipher)

    async def _uploaded(self, limit: int) -> None:
        """Returns once no more than `limit` uploads are under way."""
        while len(self._uploads) > limit:
            done, self._uploads = await asyncio.wait(
                self._uploads, return_when=asyncio.FIRST_COMPLETED
            )
            failed = [error for task in done if (error := task.exception()) is not None]
            if failed:
                raise failed[0]
            self._segments += [task.result() for task in done]
