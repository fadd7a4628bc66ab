"""Files whose bytes are in the tier alone: read there, by any agent, for whoever asks here.

A cold file is named to clients like a stripe (`cold_extent`), so that they read it as they read
any other. What is read is fetched in chunks, once for all who wait for it, and kept for a moment.
An agent that wants chunks claims them first (`agent.claims`). If nobody has, it fetches them from
the tier itself; else from the agent that has, so that a thousand readers anywhere cost one
download, and a lone one no way between agents. An agent that was claimed by serves what it has or
is fetching from the tier, and never waits for a third one: nobody waits for himself.

Who reads one chunk after the other finds the next ones fetched already, several with one request.
What is fetched ahead of all readers together is half of what is kept at most. All that is returned
was verified: each chunk by the tier's checksums, a whole file by its own too.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from diskless.agent.chunks import (
    CHUNK_BYTES,
    Kept,
    Key,
    Packed,
    Run,
    Views,
    cut_views,
    stretches,
)
from diskless.agent.claims import Asked, Claim, Claims
from diskless.agent.memory import Memory
from diskless.agent.places import Locate, Places
from diskless.agent.ports import ChunkPeers
from diskless.agent.room import Room
from diskless.agent.tiers import Tiers
from diskless.checksum import FileChecksum, block_checksums, seed, verify_blocks
from diskless.errors import (
    BadRequest,
    CorruptData,
    DamagedTier,
    DisklessError,
    NotFound,
    Unavailable,
)
from diskless.model import AgentInfo, Extent, FileRecord, slot_name
from diskless.namespace.views import TierPiece, TierPlace

log = logging.getLogger(__name__)

RUN_CHUNKS_MAX = 4
"""Chunks that are fetched with one request, where there is room: those of a part of a file."""
RUNS_AHEAD = 2
"""Runs that are fetched before who reads in order asks for them, where there is room."""
AHEAD_FROM_BYTES = 512 << 10
"""Who asks for less at once looks at a header, or here and there."""
CACHE_SHARE = 1 / 32
CACHE_BYTES_MAX = 64 << 20
CACHE_BYTES_MIN = 2 * CHUNK_BYTES
"""Whoever reads a chunk in pieces comes back to it. As much may be on its way from the tier, and
as much from other agents."""
WAIT_S = 60.0
"""For room to fetch something: the store may be slow, and many may read."""
CLAIMS_ASKED_MAX = 3
"""Agents that are asked for a chunk before it is fetched here, whoever fetches it too."""
LATE_S = 1.0
LATE_PAUSE_S = 30.0
"""Who fails to give a chunk after so long is not asked for so long: each of the chunks that it had
claimed would have to wait for it."""
CLAIM_CHUNKS_MAX = 64
REQUESTS_MAX = 16
"""To the store at a time: many small ones would share its rate, and all run out of time."""
ASIDE_BYTES = 1 << 20
"""Hashing this much takes long enough for others to notice."""
SIGN = "@"
"""Begins the name of a cold file where else a stripe's stands; theirs never do."""


class Roster(Protocol):
    """What is asked of `agent.roster`."""

    slot: int
    agents: dict[int, AgentInfo]

    def registrar(self, file: int) -> AgentInfo | None: ...
    def alive(self) -> list[AgentInfo]: ...
    def suspect(self, agent: AgentInfo) -> None: ...


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

    @property
    def chunks(self) -> int:
        return -(-self.size // CHUNK_BYTES)

    def bytes_of(self, chunks: range) -> tuple[int, int]:
        """Where some chunks begin and end."""
        return chunks.start * CHUNK_BYTES, min(chunks.stop * CHUNK_BYTES, self.size)


def cold_extent(record: FileRecord) -> Extent:
    """All of a cold file."""
    return Extent(str(ColdName(record.id, record.size, record.checksum)), 0, record.size)


def is_cold_extent(extent: Extent) -> bool:
    return extent.stripe.startswith(SIGN)


class ColdReader:
    def __init__(
        self,
        *,
        tiers: Tiers,
        locate: Locate,
        memory: Memory,
        roster: Roster,
        peers: ChunkPeers,
    ) -> None:
        """`locate` asks the namespace where files lie in the tier."""
        self._tiers = tiers
        self._memory = memory
        self._roster = roster
        self._peers = peers
        self._places = Places(locate)
        self._claims = Claims(lambda slot: any(one.slot == slot for one in roster.alive()))
        bytes_max = max(memory.part(CACHE_SHARE, CACHE_BYTES_MAX), CACHE_BYTES_MIN)
        self._kept = Kept(bytes_max)
        self._packed = Packed()
        self._packing: dict[Key, asyncio.Task[tuple[memoryview, bytes]]] = {}
        self._ahead_max = bytes_max // (2 * CHUNK_BYTES)
        self._run_chunks = min(self._ahead_max, RUN_CHUNKS_MAX)
        self._ahead: set[Key] = set()
        """Chunks that are on their way, or kept, and that nobody has asked for yet."""
        self._claiming: dict[Key, Claim] = {}
        self._late: dict[int, float] = {}  # slots, and until when they are not asked
        self._loading: dict[Key, asyncio.Task[Run]] = {}  # from the tier
        self._coming: dict[Key, asyncio.Task[Views]] = {}  # from wherever
        self._loads = Room(
            bytes_max, count_max=REQUESTS_MAX, wait_s=WAIT_S, what="reads of the tier"
        )
        self._asks = Room(bytes_max, wait_s=WAIT_S, what="reads of others")
        self.learn = self._places.learn
        memory.meter(lambda: {"caches": self._weight()}, lambda: (0, self._weight()))

    def _weight(self) -> int:
        kept = self._kept.bytes + self._packed.bytes_held
        return kept + self._places.weight + self._claims.weight

    def close(self) -> None:
        tasks: set[asyncio.Task[Any]] = set()
        for some in (self._claiming, self._loading, self._coming, self._packing):
            tasks.update(some.values())
        for task in tasks:
            task.cancel()

    @property
    def has_tier(self) -> bool:
        return self._tiers.known

    async def read_pieces(self, pieces: Sequence[TierPiece]) -> Views:
        """These parts of files, one after the other. Raises as `read` does."""
        found: Views = []
        for piece in pieces:
            self.learn(piece.id, piece.place)
            name = str(ColdName(piece.id, piece.size, piece.checksum))
            found += await self.read(Extent(name, piece.offset, piece.length))
        return found

    async def read(self, extent: Extent) -> Views:
        """The bytes of an extent of a cold file. Raises NotFound if they have been freed,
        StoreDown and the like, DamagedTier, Unavailable."""
        name = ColdName.parse(extent.stripe)
        end = extent.offset + extent.length
        if extent.offset < 0 or extent.length < 0 or end > name.size:
            raise NotFound(f"file {name.id} has no bytes {extent.offset} to {end}")
        parts: Views = []
        for chunk in range(extent.offset // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
            start = chunk * CHUNK_BYTES
            views = await self._chunk(name, chunk, in_order=extent.length >= AHEAD_FROM_BYTES)
            parts += cut_views(views, max(extent.offset - start, 0), end - start)
        return parts

    async def _chunk(self, name: ColdName, chunk: int, *, in_order: bool) -> Views:
        key = (name.id, chunk)
        self._ahead.discard(key)
        kept = self._kept.get(key)
        if kept is None and key not in self._coming:
            self._begin(name, range(chunk, chunk + 1))
        task = self._coming.get(key)
        if in_order:
            self._look_ahead(name, chunk)
        if kept is not None:
            return kept
        assert task is not None
        return await asyncio.shield(task)  # Whoever gives up does not end it for the others.

    def _look_ahead(self, name: ColdName, chunk: int) -> None:
        """Begins with the rest of the chunk's run, and with the next ones, if the chunk before it
        was read lately too. All readers share the room for that."""
        if chunk and (name.id, chunk - 1) not in self._kept:
            return
        first = chunk - chunk % self._run_chunks
        for start in range(first, first + (1 + RUNS_AHEAD) * self._run_chunks, self._run_chunks):
            end = min(start + self._run_chunks, name.chunks)
            wanted = [at for at in range(max(start, chunk + 1), end) if self._is_new(name, at)]
            if len(self._ahead) + len(wanted) > self._ahead_max:
                return
            for stretch in stretches(wanted):
                self._begin(name, stretch)
                self._ahead |= {(name.id, at) for at in stretch}

    def _is_new(self, name: ColdName, chunk: int) -> bool:
        key = (name.id, chunk)
        return key not in self._kept and key not in self._coming

    # -- who fetches ----------------------------------------------------------------

    def claim(
        self, slot: int, file: int, chunks: range, *, without: int | None = None
    ) -> list[int]:
        """What `Claims.claim` says, for another agent. Raises BadRequest if that is too much."""
        if len(chunks) > CLAIM_CHUNKS_MAX:
            raise BadRequest(f"{CLAIM_CHUNKS_MAX} chunks can be claimed at once")
        return self._claims.claim(slot, file, chunks, without=without)

    async def serve(self, stripe: str, chunk: int) -> tuple[memoryview, bytes]:
        """A chunk for another agent, and its blocks' checksums; all who ask share the bytes.
        Raises Unavailable if this agent neither has it nor fetches it from the tier; else as
        `read` does."""
        name = ColdName.parse(stripe)
        key = (name.id, chunk)
        claim = self._claiming.get(key)
        if claim is not None:
            await asyncio.wait([claim])
        if (packed := self._packed.get(key)) is not None:
            return packed
        packing = self._packing.get(key)
        if packing is None:
            packing = self._packing[key] = asyncio.create_task(self._pack(stripe, key))
            packing.add_done_callback(lambda task: self._packing.pop(key))
            packing.add_done_callback(_ignore)
        return await asyncio.shield(packing)

    async def _pack(self, stripe: str, key: Key) -> tuple[memoryview, bytes]:
        file, chunk = key
        views = self._kept.get(key)
        if views is None:
            loading = self._loading.get(key)
            if loading is None:  # Agents that know of no claims take NotFound for a lost file.
                raise Unavailable(f"chunk {chunk} of file {file} is not here")
            views = (await asyncio.shield(loading)).of(chunk)
        packed = await asyncio.to_thread(_packed, stripe, chunk, views)
        self._packed.put(key, *packed)
        return packed

    def _begin(self, name: ColdName, chunks: range) -> None:
        """Sees to it that these come, from wherever."""
        claim, asked = self._begin_claim(name, chunks), Asked(chunks)
        for chunk in chunks:
            key = (name.id, chunk)
            task = self._coming[key] = asyncio.create_task(self._bring(name, chunk, claim, asked))
            task.add_done_callback(lambda done, key=key: self._came(key, done))  # type: ignore[misc]

    def _came(self, key: Key, task: asyncio.Task[Views]) -> None:
        self._coming.pop(key, None)
        _ignore(task)
        if key not in self._kept:
            self._ahead.discard(key)

    async def _bring(self, name: ColdName, chunk: int, claim: Claim, asked: Asked) -> Views:
        for asks in range(1, CLAIMS_ASKED_MAX + 1):
            try:
                who = (await asyncio.shield(claim))[chunk]
                if who == self._roster.slot:
                    break
                views = await self._ask(who, name, chunk)
                if views is not None:
                    self._keep(name.id, Run(range(chunk, chunk + 1), views))
                    return views
                if asks == CLAIMS_ASKED_MAX:
                    break
                some = await asked.missed(chunk, who)
            finally:
                asked.answered(chunk)
            claim, asked = self._claim_again(name, some, who, asked)
        key = (name.id, chunk)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        loading = self._loading.get(key) or self._load(name, range(chunk, chunk + 1))
        return (await asyncio.shield(loading)).of(chunk)

    def _claim_again(
        self, name: ColdName, chunks: range, without: int, asked: Asked
    ) -> tuple[Claim, Asked]:
        """The first whom `without` has disappointed claims for the others too."""
        if chunks.start not in asked.again:
            claim = self._begin_claim(name, chunks, without=without)
            asked.again[chunks.start] = claim, Asked(chunks)
        return asked.again[chunks.start]

    def _begin_claim(self, name: ColdName, chunks: range, *, without: int | None = None) -> Claim:
        task = asyncio.create_task(self._claim(name, chunks, without))
        keys = [(name.id, chunk) for chunk in chunks]
        self._claiming |= dict.fromkeys(keys, task)

        def done(_: object) -> None:
            _ignore(task)
            for key in keys:
                if self._claiming.get(key) is task:
                    del self._claiming[key]

        task.add_done_callback(done)
        return task

    async def _claim(self, name: ColdName, chunks: range, without: int | None) -> dict[int, int]:
        """Who fetches each of these; begins with those that this agent is to fetch, so that
        whoever is sent here finds them."""
        who = await self._registered(name.id, chunks, without)
        mine = [
            chunk
            for chunk, slot in zip(chunks, who, strict=True)
            if slot == self._roster.slot
            and (name.id, chunk) not in self._loading
            and (name.id, chunk) not in self._kept
        ]
        for stretch in stretches(mine):
            self._load(name, stretch)
        return dict(zip(chunks, who, strict=True))

    async def _registered(self, file: int, chunks: range, without: int | None) -> list[int]:
        """If nobody can be asked, it is this agent that fetches them all."""
        slot = self._roster.slot
        agent = self._roster.registrar(file)
        if agent is None:
            return self._claims.claim(slot, file, chunks, without=without)
        try:
            who = await self._peers.claim(agent, file=file, chunks=chunks, without=without)
            if len(who) == len(chunks):
                return who
        except DisklessError as error:
            if isinstance(error, Unavailable):
                self._roster.suspect(agent)  # so that the next ones are not claimed there
            log.info("not claimed file=%d agent=%s error=%s", file, slot_name(agent.slot), error)
        return [slot] * len(chunks)

    async def _ask(self, slot: int, name: ColdName, chunk: int) -> Views | None:
        """A chunk from an agent that has claimed it; None if it does not have it, or fails."""
        agent = self._roster.agents.get(slot)
        now_s = asyncio.get_running_loop().time
        if agent is None or self._is_late(slot):
            return None
        asked_s = math.inf
        start, stop = name.bytes_of(range(chunk, chunk + 1))
        try:
            async with self._asks.take(stop - start):
                if self._is_late(slot):  # by now
                    return None
                asked_s = now_s()
                with self._memory.charged("replies", stop - start):
                    data, checksums = await self._peers.fetch(
                        agent, stripe=str(name), index=chunk, first_block=0, blocks=0
                    )
            good = verify_blocks(data, checksums, seed=seed(str(name), chunk))
            if good and len(data) == stop - start:
                return [data]
            log.error("damaged on its way file=%d agent=%s", name.id, slot_name(slot))
        except DisklessError as error:
            log.info("not had of another file=%d agent=%s: %s", name.id, slot_name(slot), error)
            if now_s() - asked_s > LATE_S:
                self._late[slot] = now_s() + LATE_PAUSE_S
        return None

    def _is_late(self, slot: int) -> bool:
        return self._late.get(slot, 0.0) > asyncio.get_running_loop().time()

    # -- from the tier --------------------------------------------------------------

    def _load(self, name: ColdName, chunks: range) -> asyncio.Task[Run]:
        task = asyncio.create_task(self._fetch(name, chunks))
        keys = [(name.id, chunk) for chunk in chunks]
        self._loading |= dict.fromkeys(keys, task)

        def done(_: object) -> None:
            _ignore(task)
            for key in keys:
                if self._loading.get(key) is task:
                    del self._loading[key]

        task.add_done_callback(done)
        return task

    async def _fetch(self, name: ColdName, chunks: range) -> Run:
        start, stop = name.bytes_of(chunks)
        if not start < stop:
            raise NotFound(f"file {name.id} has no chunk {chunks.start}")
        views: Views = []
        at = start
        async with self._loads.take(stop - start):
            with self._memory.charged("replies", stop - start):
                while at < stop:  # once, but where a part of the file ends within
                    more = await self._fetch_from(name, at, stop)
                    views += more
                    at += sum(map(len, more))
        if (start, stop) == (0, name.size) and await _checksum(views, stop) != name.checksum:
            raise CorruptData(f"file {name.id} in {self._tiers.get().uri} fails its checksum")
        run = Run(chunks, views)
        self._keep(name.id, run)
        return run

    async def _fetch_from(self, name: ColdName, at: int, stop: int) -> Views:
        """Bytes from `at` to `stop`, or to the end of the part that has byte `at`."""
        place = await self._places.find(name.id, at)
        try:
            return await self._fetch_at(place, name, at, stop)
        except DamagedTier:
            # It may have been written anew elsewhere, and the old place be gone.
            self._places.forget(name.id)
            again = await self._places.find(name.id, at)
            if again == place:
                raise
            return await self._fetch_at(again, name, at, stop)

    async def _fetch_at(self, place: TierPlace, name: ColdName, start: int, stop: int) -> Views:
        tier = self._tiers.get()
        views = await tier.read(place, file=name.id, size=name.size, start=start, stop=stop)
        assert views, (place, start)
        return views

    def _keep(self, file: int, run: Run) -> None:
        self._ahead.difference_update(self._kept.put(file, run))


def _packed(stripe: str, chunk: int, views: Views) -> tuple[memoryview, bytes]:
    data = views[0][:] if len(views) == 1 else memoryview(b"".join(views))
    return data, block_checksums(data, seed=seed(stripe, chunk))


async def _checksum(views: Views, size: int) -> int:
    def value() -> int:
        checksum = FileChecksum()
        for view in views:
            checksum.update(view)
        return checksum.value()

    return await asyncio.to_thread(value) if size > ASIDE_BYTES else value()


def _ignore(task: asyncio.Task[Any]) -> None:
    """Of what was fetched for nobody yet: who wants it asks again, and hears it then."""
    if not task.cancelled():
        task.exception()
