"""This agent's part in the drain: reads files and uploads them to the tier as a segment.

It decides nothing: the leader says which files, and under what name. A segment counts only once a
manifest names it. The bytes in progress are bounded, and further uploads wait. It gets the parts of
a large file one after the other and reads them in order, so that it can verify the file's checksum
at the end without holding more than a few parts.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

from diskless.agent.cold import cold_extent
from diskless.agent.memory import Memory
from diskless.agent.ports import Stretch, Tier, Uploaded, Uploaders, UploadPart
from diskless.agent.reader import Reader
from diskless.agent.room import Room
from diskless.agent.tiers import Tiers
from diskless.checksum import FileChecksum, file_checksum
from diskless.errors import CorruptData, Unavailable
from diskless.model import AgentInfo, Extent, FileRecord, Stripe
from diskless.namespace.tier import is_cold

IN_HAND_SHARE = 1 / 4
IN_HAND_BYTES_MAX = 192 << 20
"""Bytes of segments, as read and as packed. A larger one runs alone."""
RUNS_MAX = 64
"""Large files whose next part may come."""
WAIT_S = 30.0
"""How long a part waits for those before it, and a segment for room."""
ASIDE_BYTES = 1 << 20
"""Joining and hashing this much takes long enough for others to notice."""


class Uploader:
    def __init__(self, *, reader: Reader, tiers: Tiers, memory: Memory) -> None:
        self._reader = reader
        self._tiers = tiers
        self._memory = memory
        self._room = Room(
            memory.part(IN_HAND_SHARE, IN_HAND_BYTES_MAX), wait_s=WAIT_S, what="other segments"
        )
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    async def upload(
        self,
        records: Sequence[FileRecord],
        stripes: Sequence[Stripe],
        *,
        number: int,
        name: str,
        part: UploadPart | None = None,
    ) -> Uploaded:
        """As `ports.Uploaders`."""
        tier = self._tiers.get()
        self._reader.learn(stripes)
        if part is not None:
            return await self._upload_part(tier, records[0], part, number=number, name=name)
        async with self._in_hand(sum(record.size for record in records)):
            files = [Stretch(record.id, await self.read(record)) for record in records]
            return await tier.upload(files, number=number, name=name)

    async def _upload_part(
        self, tier: Tier, record: FileRecord, part: UploadPart, *, number: int, name: str
    ) -> Uploaded:
        run = self._run(part)
        await run.turn(part.start)
        async with AsyncExitStack() as stack:
            with run.reading(part.end):
                # First its turn, then room: whoever has room must not wait for one that has none.
                await stack.enter_async_context(self._in_hand(part.end - part.start))
                data = await self._read_part(record, part, run.checksum)
            if part.end == record.size:
                self._runs.pop(part.run, None)
            stretch = Stretch(record.id, data, part.start, part.end < record.size)
            return await tier.upload((stretch,), number=number, name=name)

    def _run(self, part: UploadPart) -> "_Run":
        if not part.start:
            self._runs[part.run] = _Run()
            while len(self._runs) > RUNS_MAX:
                self._runs.popitem(last=False)
        run = self._runs.get(part.run)
        if run is None:
            raise Unavailable("this agent has not had the parts before: begin with the first one")
        self._runs.move_to_end(part.run)
        return run

    @asynccontextmanager
    async def _in_hand(self, size: int) -> AsyncIterator[None]:
        # A kind of its own: clients' uploads are refused when theirs is full.
        async with self._room.take(2 * size):
            with self._memory.charged("segments", 2 * size):
                yield

    async def _read_part(
        self, record: FileRecord, part: UploadPart, checksum: FileChecksum
    ) -> bytes:
        data = await self._join(record.extents, checksum.update)
        last = part.end == record.size
        if len(data) != part.end - part.start or (last and checksum.value() != record.checksum):
            raise _corrupt(record)
        return data

    async def read(self, record: FileRecord) -> bytes:
        """All bytes of a file, wherever they are, verified once more."""
        if record.inline is not None:
            return record.inline
        extents = (cold_extent(record),) if is_cold(record) else record.extents
        found: list[int] = []
        data = await self._join(extents, lambda data: found.append(file_checksum(data)))
        if len(data) != record.size or found[0] != record.checksum:
            raise _corrupt(record)
        return data

    async def _join(self, extents: Sequence[Extent], look: Callable[[bytes], None]) -> bytes:
        pieces = await self._reader.read(extents)

        def join() -> bytes:
            data = b"".join(pieces)
            look(data)
            return data

        if sum(extent.length for extent in extents) < ASIDE_BYTES:
            return join()
        return await asyncio.to_thread(join)


def _corrupt(record: FileRecord) -> CorruptData:
    return CorruptData(f"file {record.id} fails its checksum: it is not brought to the tier")


class _Run:
    """A large file on its way: how much of it was read, and the checksum of that."""

    def __init__(self) -> None:
        self.checksum = FileChecksum()
        self._at = 0
        self._failed = False
        self._moved = asyncio.Event()

    async def turn(self, start: int) -> None:
        """Returns when the parts before byte `start` were read. Raises Unavailable if they are
        not: then the file has to start again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not self._failed and self._at < start:
                    await self._moved.wait()
        if self._failed or self._at != start:
            raise Unavailable(f"the parts before byte {start} did not come: begin with the first")

    @contextmanager
    def reading(self, end: int) -> Iterator[None]:
        """Runs the block in turn: the next part's turn comes when the block has succeeded."""
        try:
            yield
            self._at = end
        except BaseException:
            self._failed = True
            raise
        finally:
            self._moved.set()
            self._moved = asyncio.Event()


class AllUploaders:
    """The uploaders of all agents: this one's own, and the others over the network."""

    def __init__(self, *, slot: int, here: Uploader, peers: Uploaders) -> None:
        self._slot = slot
        self._here = here
        self._peers = peers

    async def upload(
        self,
        agent: AgentInfo,
        records: Sequence[FileRecord],
        stripes: Sequence[Stripe],
        *,
        number: int,
        name: str,
        part: UploadPart | None = None,
    ) -> Uploaded:
        if agent.slot == self._slot:
            return await self._here.upload(records, stripes, number=number, name=name, part=part)
        return await self._peers.upload(
            agent, records, stripes, number=number, name=name, part=part
        )
