"""Moves the bytes of files into new stripes: from the log, from sparse or badly shaped stripes.

Runs on the leader. The move is one command, conditional on each file being unchanged, so
it never races with clients: a file that has changed in the meantime stays where it is.
"""

import logging
from collections.abc import AsyncIterator, Iterable

from diskless.agent.reader import Reader
from diskless.agent.replica import Replica
from diskless.agent.writer import Writer
from diskless.config import Tuning
from diskless.model import Extent, FileRecord, Stripe, cut
from diskless.namespace import commands as c
from diskless.policy import Grade

log = logging.getLogger(__name__)

REWRITE_BYTES_MAX = 4 << 20
REWRITE_FILES_MAX = 500
"""The most that callers should pass at once: all these bytes are held in memory."""


class Rewriter:
    def __init__(self, *, replica: Replica, writer: Writer, reader: Reader, tuning: Tuning) -> None:
        self._replica = replica
        self._writer = writer
        self._reader = reader
        self._tuning = tuning

    async def rewrite(self, records: list[FileRecord], *, sparse: set[str]) -> int:
        """Seals the inline bytes of `records`, and their bytes in `sparse`, into new stripes. Each
        grade gets its own stripes.

        Returns how many files moved. Raises TooFewShards, CapacityExceeded, TooFewAgents,
        Unavailable.
        """
        by_grade: dict[Grade, list[FileRecord]] = {}
        for record in records:
            by_grade.setdefault(record.grade, []).append(record)
        moved = 0
        for grade, alike in by_grade.items():
            moved += await self._rewrite(alike, grade, sparse)
        return moved

    async def _rewrite(self, records: list[FileRecord], grade: Grade, sparse: set[str]) -> int:
        data = b"".join([part async for part in self._bytes_to_move(records, sparse)])
        step = self._tuning.stripe_bytes
        stripes: list[Stripe] = []
        try:
            for at in range(0, len(data), step):
                part = data[at : at + step]
                stripes.append(
                    await self._writer.seal(part, grade=grade, from_reserve=bool(sparse))
                )
            moves = _moves(records, sparse, stripes)
            (result,) = await self._replica.execute(c.Relocate(tuple(stripes), tuple(moves)))
        finally:
            for stripe in stripes:
                self._writer.release(stripe)
        assert isinstance(result, c.Done)
        log.info("repacked files=%d of=%d bytes=%d", result.number, len(records), len(data))
        return result.number

    async def _bytes_to_move(
        self, records: Iterable[FileRecord], sparse: set[str]
    ) -> AsyncIterator[bytes | memoryview]:
        for record in records:
            if record.inline is not None:
                yield record.inline
                continue
            self._reader.learn(
                self._replica.state.locate({extent.stripe for extent in record.extents})
            )
            wanted = [extent for extent in record.extents if extent.stripe in sparse]
            for part in await self._reader.read(wanted):
                yield part


def _moves(
    records: Iterable[FileRecord], sparse: set[str], stripes: Iterable[Stripe]
) -> list[c.Move]:
    """The new extents of each file, with the moved bytes one after the other in `stripes`."""
    spread = [Extent(stripe.id, 0, stripe.payload_bytes) for stripe in stripes]
    at = 0
    moves: list[c.Move] = []
    for record in records:
        extents: list[Extent] = []
        old = record.extents if record.inline is None else (Extent("", 0, record.size),)
        for extent in old:
            if record.inline is None and extent.stripe not in sparse:
                extents.append(extent)
                continue
            extents += cut(spread, at, extent.length)
            at += extent.length
        moves.append(c.Move(record.id, record.layout, tuple(extents)))
    return moves
