"""Files whose bytes are in the tier alone: read there, by any agent, for whoever asks here.

A cold file is named to clients like a stripe (`cold_extent`), so that they read it as they read
any other. What is read is fetched in chunks, once for all who wait for it, and kept for a moment.
All that is returned was verified: each chunk by the tier's checksums, a whole file by its own too.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from diskless.agent.memory import Memory
from diskless.agent.tiers import Tiers
from diskless.checksum import file_checksum
from diskless.errors import CorruptData, DamagedTier, NotFound
from diskless.model import Extent, FileRecord
from diskless.namespace.views import TierPlace

CHUNK_BYTES = 4 << 20
FETCHES_MAX = 16
"""Chunks that are under way at once."""
CACHE_SHARE = 1 / 32
CACHE_BYTES_MAX = 64 << 20
PLACES_MAX = 16_384
PLACE_BYTES = 400
"""What Python's objects for a place that is remembered take."""
SIGN = "@"
"""Begins the name of a cold file where else a stripe's stands; theirs never do."""

Locate = Callable[[Sequence[int]], Awaitable[list[TierPlace | None]]]


class ColdName(NamedTuple):
    """A cold file, as its extents name it."""

    id: int
    size: int
    checksum: int

    def __str__(self) -> str:
        return f"{SIGN}{self.id}.{self.size}.{self.checksum:016x}"

    @classmethod
    def parse(cls, text: str) -> "ColdName":
        """Raises NotFound if it is none."""
        try:
            id_, size, checksum = text.removeprefix(SIGN).split(".")
            return cls(int(id_), int(size), int(checksum, 16))
        except ValueError:
            raise NotFound(f"there is no file {text[:80]!r} in the tier") from None


def cold_extent(record: FileRecord) -> Extent:
    """All of a cold file."""
    return Extent(str(ColdName(record.id, record.size, record.checksum)), 0, record.size)


def is_cold_extent(extent: Extent) -> bool:
    return extent.stripe.startswith(SIGN)


class ColdReader:
    def __init__(self, *, tiers: Tiers, locate: Locate, memory: Memory) -> None:
        """`locate` asks the namespace where files lie in the tier."""
        self._tiers = tiers
        self._locate = locate
        self._memory = memory
        self._places: OrderedDict[int, TierPlace] = OrderedDict()
        self._chunks: OrderedDict[tuple[int, int], memoryview] = OrderedDict()
        self._chunk_bytes = 0
        self._bytes_max = memory.part(CACHE_SHARE, CACHE_BYTES_MAX)
        self._fetching: dict[tuple[int, int], asyncio.Task[memoryview]] = {}
        self._turn = asyncio.Semaphore(FETCHES_MAX)
        memory.meter(lambda: {"caches": self._weight()}, lambda: (0, self._weight()))

    def _weight(self) -> int:
        return self._chunk_bytes + PLACE_BYTES * len(self._places)

    def learn(self, id_: int, place: TierPlace | None) -> None:
        """Remembers where a file lies, so that reading it asks nobody."""
        if place is not None:
            self._places[id_] = place
            while len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)

    def close(self) -> None:
        for task in list(self._fetching.values()):
            task.cancel()

    async def read(self, extent: Extent) -> list[memoryview]:
        """The bytes of an extent of a cold file. Raises NotFound if they have been freed,
        StoreDown and the like, DamagedTier, Unavailable."""
        name = ColdName.parse(extent.stripe)
        end = extent.offset + extent.length
        if extent.offset < 0 or extent.length < 0 or end > name.size:
            raise NotFound(f"file {name.id} has no bytes {extent.offset} to {end}")
        parts: list[memoryview] = []
        for start in range(extent.offset - extent.offset % CHUNK_BYTES, end, CHUNK_BYTES):
            chunk = await self._chunk(name, start)
            parts.append(chunk[max(extent.offset - start, 0) : end - start])
        return parts

    async def _chunk(self, name: ColdName, start: int) -> memoryview:
        key = (name.id, start)
        kept = self._chunks.get(key)
        if kept is not None:
            self._chunks.move_to_end(key)
            return kept
        task = self._fetching.get(key)
        if task is None:
            task = self._fetching[key] = asyncio.create_task(self._fetch(name, start))
            task.add_done_callback(lambda done: self._fetched(key, done))
        # Whoever gives up does not end it for the others.
        return await asyncio.shield(task)

    def _fetched(self, key: tuple[int, int], task: asyncio.Task[memoryview]) -> None:
        self._fetching.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._chunks[key] = task.result()
        self._chunk_bytes += len(task.result())
        while self._chunk_bytes > self._bytes_max and self._chunks:
            _, dropped = self._chunks.popitem(last=False)
            self._chunk_bytes -= len(dropped)

    async def _fetch(self, name: ColdName, start: int) -> memoryview:
        stop = min(start + CHUNK_BYTES, name.size)
        async with self._turn:
            place = self._places.get(name.id) or await self._find(name.id)
            with self._memory.charged("replies", stop - start):
                try:
                    data = await self._fetch_at(place, name, start, stop)
                except DamagedTier:
                    # It may have been written anew elsewhere, and the old place be gone.
                    again = await self._find(name.id)
                    if again == place:
                        raise
                    data = await self._fetch_at(again, name, start, stop)
        if len(data) == name.size and file_checksum(data) != name.checksum:
            raise CorruptData(f"file {name.id} in {place.segment} of the tier fails its checksum")
        return data

    async def _fetch_at(
        self, place: TierPlace, name: ColdName, start: int, stop: int
    ) -> memoryview:
        tier = self._tiers.get()
        return await tier.read(place, file=name.id, size=name.size, start=start, stop=stop)

    async def _find(self, id_: int) -> TierPlace:
        (place,) = await self._locate((id_,))
        if place is None:
            raise NotFound(f"the bytes of file {id_} are not in the tier: it is gone")
        self.learn(id_, place)
        return place
