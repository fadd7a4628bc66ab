"""What requests that read files mean: opening them, and reading extents."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import cast

from diskless.agent.cold import ColdReader, cold_extent, is_cold_extent
from diskless.agent.copies import kept_at
from diskless.agent.counts import Traffic
from diskless.agent.hits import Hits
from diskless.agent.reader import Reader
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.config import ClusterSettings
from diskless.errors import BadRequest, TooFewShards
from diskless.gateway.backend import Answer, Buffer, PersonalHandlers
from diskless.gateway.marks import Marks
from diskless.gateway.statuses import file_status
from diskless.gateway.visitor import Visitor
from diskless.model import Extent, FileRecord, cut
from diskless.namespace import queries as q
from diskless.namespace.tier import is_cold
from diskless.protocol import messages as m
from diskless.protocol.frames import PAYLOAD_BYTES_MAX
from diskless.protocol.messages import Kind

READ_EXTENTS_MAX = 256
"""Of one read, as each takes some time of the loop, however small it is. The parts of a file that
fill a frame are fewer: a stripe has 64 KiB or more."""


class ReadHandlers:
    """A part of the gateway's backend."""

    def __init__(
        self,
        *,
        settings: ClusterSettings,
        roster: Roster,
        namespace: Router,
        reader: Reader,
        cold: ColdReader,
        hits: Hits,
        marks: Marks,
        traffic: Traffic,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._namespace = namespace
        self._reader = reader
        self._cold = cold
        self._hits = hits
        self._marks = marks
        self._traffic = traffic
        self.personal: PersonalHandlers = {Kind.OPEN: self._open, Kind.READ: self._read}

    def _open(self, visitor: Visitor, meta: m.Open, _: Buffer) -> Answer | Awaitable[Answer]:
        began_s = time.monotonic()
        opened = self._namespace.ask(q.Open(meta.path), lambda opened: opened)
        if not isinstance(opened, q.OpenedFile):
            return self._open_afar(visitor, meta, opened)
        if opened.record.inline is not None:
            self._traffic.read(size=opened.record.size, took_s=time.monotonic() - began_s)
            return self._opened(visitor, meta, opened), (opened.record.inline,)
        if meta.prefetch <= 0:
            return self._opened(visitor, meta, opened), (b"",)
        return self._prefetch(visitor, meta, opened)

    async def _open_afar(
        self, visitor: Visitor, meta: m.Open, asked: Awaitable[q.OpenedFile]
    ) -> Answer:
        began_s = time.monotonic()
        opened = await asked
        if opened.record.inline is not None:
            self._traffic.read(size=opened.record.size, took_s=time.monotonic() - began_s)
            return self._opened(visitor, meta, opened), (opened.record.inline,)
        return await self._prefetch(visitor, meta, opened)

    async def _prefetch(self, visitor: Visitor, meta: m.Open, opened: q.OpenedFile) -> Answer:
        answer = self._opened(visitor, meta, opened)
        wanted = min(meta.prefetch, opened.record.size, PAYLOAD_BYTES_MAX)
        if wanted <= 0 or (is_cold(opened.record) and wanted < opened.record.size):
            return answer, ()  # The rest is asked of another agent: that one is to fetch it all.
        wanted_extents = cut(_extents(opened.record), 0, wanted)
        return answer, await self._read_counted(wanted_extents, opened.record.size)

    def _opened(self, visitor: Visitor, meta: m.Open, opened: q.OpenedFile) -> m.Opened:
        self._reader.learn(opened.stripes)
        record = opened.record
        self._cold.learn(record.id, opened.place)
        found = _extents(record)
        places = _places(opened) if meta.places else []
        near = self._near(record) if meta.places else None
        if visitor.rights.bound:
            extents = self._marks.extents(visitor.principal, found)
        else:  # Without a mark they read as they are.
            extents = cast(list[m.MarkedExtent], list(found))
        return m.Opened(file_status(meta.path, record), extents, places, near)

    def _near(self, record: FileRecord) -> int | None:
        return kept_at(
            record,
            self._roster.agents,
            cache_bytes=self._settings.cache_bytes,
            stripe_bytes=self._settings.tuning.stripe_bytes,
        )

    async def _read(self, visitor: Visitor, meta: m.Read, _: Buffer) -> Answer:
        if len(meta.extents) > READ_EXTENTS_MAX:
            raise BadRequest(f"one read may ask for {READ_EXTENTS_MAX} extents at most")
        if visitor.rights.bound:
            self._marks.check_extents(visitor.principal, meta.extents)
        if any(extent.offset < 0 or extent.length <= 0 for extent in meta.extents):
            raise BadRequest("an extent needs an offset of 0 or more and at least one byte")
        if sum(extent.length for extent in meta.extents) > PAYLOAD_BYTES_MAX:
            raise BadRequest(f"one read may ask for {PAYLOAD_BYTES_MAX} bytes at most")
        return m.Empty(), await self._read_counted(meta.extents, meta.size)

    async def _read_counted(self, extents: Sequence[Extent], file_bytes: int) -> list[memoryview]:
        began_s = time.monotonic()
        away: list[TooFewShards] = []
        try:
            parts = await self._reader.read(extents, away=away, file_bytes=file_bytes)
        except asyncio.CancelledError:
            if not away:
                raise
            raise away[-1] from None  # its client cannot wait any longer, and hears for whom it was
        took_s = time.monotonic() - began_s
        self._traffic.read(size=sum(extent.length for extent in extents), took_s=took_s)
        if any(map(is_cold_extent, extents)):
            self._hits.missed(extents, waited_s=took_s)
        else:
            self._hits.hit()
        return parts


def _places(opened: q.OpenedFile) -> list[list[int]]:
    holders = {
        stripe.id: [place.slot for place in stripe.places[: stripe.data_shards]]
        for stripe in opened.stripes
    }
    return [holders.get(extent.stripe, []) for extent in _extents(opened.record)]


def _extents(record: FileRecord) -> tuple[Extent, ...]:
    """Where a file's bytes can be read, in memory or in the tier."""
    return (cold_extent(record),) if is_cold(record) else record.extents
