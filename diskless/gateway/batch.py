"""Many small files in one reply: a restart reads hundreds.

Files that were written together lie beside each other in a stripe. So what is read is as few
ranges as possible, each of one stripe, and every file's bytes are cut out of those. Whatever
cannot come along (a large file, one whose range fails, what is in the tier alone, the rest when
the reply is full) is left to its client to be read by itself, which then hears why if it cannot.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import NamedTuple

from diskless.agent.reader import TOGETHER_MAX, Reader
from diskless.agent.router import Router
from diskless.config import KIB, MIB
from diskless.errors import BadRequest, DisklessError
from diskless.gateway.backend import Answer, Buffer
from diskless.gateway.connection import OPENED_BYTES
from diskless.gateway.statuses import file_status
from diskless.gateway.visitor import Visitor
from diskless.model import Extent, FileRecord
from diskless.namespace import queries as q
from diskless.namespace.tier import is_cold
from diskless.protocol import messages as m
from diskless.protocol.frames import PAYLOAD_BYTES_MAX

GAP_BYTES_MAX = 16 * KIB
"""What may lie between two extents that are read as one range: the block of a checksum."""
RANGE_BYTES_MAX = MIB


class Piece(NamedTuple):
    """Where an extent lies in what is read: in which range, and from where on."""

    range: int
    start: int
    length: int


class BatchHandlers:
    def __init__(self, namespace: Router, reader: Reader) -> None:
        self._namespace = namespace
        self._reader = reader

    def open_many(self, _: Visitor, meta: m.OpenMany, __: Buffer) -> Answer | Awaitable[Answer]:
        if not 1 <= len(meta.paths) <= q.OPEN_FILES_MAX:
            raise BadRequest(f"1 to {q.OPEN_FILES_MAX} files can be opened at once")
        asked = self._namespace.ask(q.OpenMany(tuple(meta.paths)), lambda found: found)
        return self._answer(meta.paths, asked)

    async def _answer(
        self, names: Sequence[str], asked: q.OpenedFiles | Awaitable[q.OpenedFiles]
    ) -> Answer:
        opened = asked if isinstance(asked, q.OpenedFiles) else await asked
        self._reader.learn(opened.stripes)
        small = _choose(opened.records)
        content = await self._read([opened.records[number] for number in small])
        found = dict(zip(small, content, strict=True))
        files: list[m.OpenedOne] = []
        payload: list[bytes | memoryview] = []
        for number, (path, record) in enumerate(zip(names, opened.records, strict=True)):
            if record is None:
                why = opened.refusals[number]
                files.append(m.OpenedOne(refusal=m.Refusal(why.reason, why.message)))
                continue
            parts = found.get(number)
            payload += parts or ()
            files.append(m.OpenedOne(file_status(path, record), here=parts is not None))
        return m.OpenedMany(files), payload

    async def _read(
        self, records: Sequence[FileRecord | None]
    ) -> list[list[bytes | memoryview] | None]:
        """The bytes of each, in parts; None where they could not be read."""
        known = [record for record in records if record is not None]
        ranges, pieces = merge([extent for record in known for extent in record.extents])
        parts: list[list[memoryview] | BaseException] = []
        for at in range(0, len(ranges), TOGETHER_MAX):
            parts += await asyncio.gather(
                *(self._reader.read([one], file_bytes=0) for one in ranges[at : at + TOGETHER_MAX]),
                return_exceptions=True,
            )
        for error in parts:
            if isinstance(error, BaseException) and not isinstance(error, DisklessError):
                raise error
        places = iter(pieces)
        return [_content(record, [next(places) for _ in record.extents], parts) for record in known]


def _choose(records: Sequence[FileRecord | None]) -> list[int]:
    """Which files' bytes come along."""
    room = min(OPENED_BYTES * len(records), PAYLOAD_BYTES_MAX)
    chosen: list[int] = []
    for number, record in enumerate(records):
        if record is not None and record.size <= min(OPENED_BYTES, room) and not is_cold(record):
            chosen.append(number)
            room -= record.size
    return chosen


def merge(extents: Sequence[Extent]) -> tuple[list[Extent], list[Piece]]:
    """The ranges to read, and for each extent its place in them."""
    order = sorted(range(len(extents)), key=lambda n: (extents[n].stripe, extents[n].offset))
    ranges: list[Extent] = []
    pieces: dict[int, Piece] = {}
    for number in order:
        extent = extents[number]
        end = extent.offset + extent.length
        last = ranges[-1] if ranges else None
        if (
            last is None
            or last.stripe != extent.stripe
            or extent.offset > last.offset + last.length + GAP_BYTES_MAX
            or end - last.offset > RANGE_BYTES_MAX
        ):
            last = Extent(extent.stripe, extent.offset, extent.length)
            ranges.append(last)
        elif end > last.offset + last.length:
            last = ranges[-1] = Extent(last.stripe, last.offset, end - last.offset)
        pieces[number] = Piece(len(ranges) - 1, extent.offset - last.offset, extent.length)
    return ranges, [pieces[number] for number in range(len(extents))]


def _content(
    record: FileRecord,
    pieces: Sequence[Piece],
    parts: Sequence[list[memoryview] | BaseException],
) -> list[bytes | memoryview] | None:
    if record.inline is not None:
        return [record.inline]
    found: list[bytes | memoryview] = []
    for piece in pieces:
        whole = parts[piece.range]
        if isinstance(whole, BaseException):
            return None
        found += cut(whole, piece)
    return found


def cut(parts: Iterable[memoryview], piece: Piece) -> list[memoryview]:
    """The bytes of a piece, of the parts that its range was read in."""
    found: list[memoryview] = []
    skip, left = piece.start, piece.length
    for part in parts:
        if skip >= len(part):
            skip -= len(part)
            continue
        taken = part[skip : skip + left]
        found.append(taken)
        skip, left = 0, left - len(taken)
        if not left:
            break
    assert not left, "a range was read short"
    return found
