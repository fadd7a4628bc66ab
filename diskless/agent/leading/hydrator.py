"""Loads files that are only in the tier back into memory: first those that somebody reads, then
those with the highest priority, the newest first. An evicted file is loaded only if it is wanted.

Runs on the leader, in the background, paced like repair. The move is one command, conditional on
each file being unchanged, so it never races with clients. Stops before memory becomes short.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from diskless.agent.chunks import CHUNK_BYTES
from diskless.agent.cold import ColdReader, cold_extent
from diskless.agent.leading.pacer import Pacer
from diskless.agent.memory import lasting
from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.agent.ticking import rest
from diskless.agent.writer import Writer
from diskless.checksum import FileChecksum
from diskless.config import Tuning
from diskless.errors import CorruptData, DisklessError, NotFound
from diskless.eviction import HYDRATE_SHARE
from diskless.model import PRIORITIES, Extent, FileRecord, HydrationStatus, Stripe, cut
from diskless.namespace import commands as c
from diskless.namespace.tier import is_cold
from diskless.namespace.views import tier_place
from diskless.policy import Grade

log = logging.getLogger(__name__)

WAVE_FILES = 200
WAVE_BYTES = 8 << 20
READS_MAX = 16
SAME_WAVE_MAX = 5
INTERVAL_S = 0.5
BACK_OFF_S_MAX = 10.0
SHUNNED_MAX = 20_000
DAMAGED_PAUSE_S = 300.0
"""A damaged file is tried again after so long: its object may have been restored in the store."""
WANTED_MAX = 1000
"""Wanted files that wait, before all others."""
_EVERY_FILE = 1 << 62


class Hydrator:
    def __init__(
        self,
        *,
        replica: Replica,
        cold: ColdReader,
        writer: Writer,
        pacer: Pacer,
        pulses: Mapping[int, Pulse],
        tuning: Tuning,
        now_s: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._cold = cold
        self._writer = writer
        self._pacer = pacer
        self._pulses = pulses
        self._tuning = tuning
        self._now_s = now_s
        self._priority, self._below = PRIORITIES[-1], _EVERY_FILE
        self._failures = 0  # of one wave, in a row
        self._began_s: float | None = None
        self._wanted: dict[int, None] = {}
        self._shunned: dict[int, None] = {}
        self.bytes_done = 0
        self.damaged: dict[int, float] = {}
        """Files whose bytes in the tier fail their checksum, and when they did."""

    async def run(self) -> None:
        pause_s = INTERVAL_S
        while True:
            try:
                self._hear()
                if not (self._replica.state.tier.cold or self._wanted) or self._is_full():
                    self._began_s = None
                    await rest(INTERVAL_S)
                    continue
                if self._began_s is None:
                    self._began_s, self.bytes_done = self._now_s(), 0
                await self._wave()
                pause_s = INTERVAL_S
            except DisklessError as error:
                log.info("hydration put off error=%s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACK_OFF_S_MAX)
            except Exception:  # otherwise nothing would be loaded any more
                log.exception("hydration failed")
                await asyncio.sleep(BACK_OFF_S_MAX)

    def want(self, ids: Iterable[int]) -> None:
        """Loads these files next, if there is room."""
        for id_ in ids:
            if len(self._wanted) < WANTED_MAX:
                self._wanted[id_] = None

    def shun(self, ids: Iterable[int]) -> None:
        """These files stay in the tier even if somebody reads them: they would be evicted again."""
        self._shunned |= dict.fromkeys(ids)
        while len(self._shunned) > SHUNNED_MAX:
            del self._shunned[next(iter(self._shunned))]

    @property
    def shunned(self) -> Collection[int]:
        return self._shunned.keys()

    def welcome(self, ids: Iterable[int]) -> None:
        """These files may be loaded again."""
        for id_ in ids:
            self._shunned.pop(id_, None)

    def _hear(self) -> None:
        """Collects the files that agents report as read."""
        tier, shunned = self._replica.state.tier, self._shunned
        for pulse in self._pulses.values():
            self.want(
                id_
                for id_ in pulse.cache.wanted
                if (id_ in tier.cold or id_ in tier.evicted) and id_ not in shunned
            )

    def _is_full(self) -> bool:
        """Whether nothing more may be loaded, because it would be evicted again. Readers then read
        from the tier."""
        full = any(
            lasting(pulse.memory) > HYDRATE_SHARE * pulse.bytes_max
            for pulse in self._pulses.values()
        )
        if full:
            self._wanted.clear()
        return full

    def report(self) -> HydrationStatus:
        tier = self._replica.state.tier
        took_s = self._now_s() - self._began_s if self._began_s is not None else 0.0
        rate = self.bytes_done / took_s if took_s > 0 else 0.0
        self.damaged = {
            id_: at_s
            for id_, at_s in self.damaged.items()
            if id_ in tier.cold or id_ in tier.evicted
        }
        return HydrationStatus(
            files_left=len(tier.cold),
            bytes_left=tier.cold_bytes,
            bytes_done=self.bytes_done,
            bytes_per_s=round(rate),
            eta_s=round(tier.cold_bytes / rate, 1) if rate and tier.cold else None,
            damaged=len(self.damaged),
        )

    async def _wave(self) -> None:
        """After an error that is not the files' own, the same wave is retried before all others,
        but not forever: it may be that only one object cannot be read."""
        before = self._priority, self._below
        try:
            await self._try_wave()
        except DisklessError:
            self._failures += 1
            if self._failures < SAME_WAVE_MAX:
                self._priority, self._below = before
            else:
                self._failures = 0
            raise
        self._failures = 0

    async def _try_wave(self) -> None:
        records = self._next()
        if not records:
            await asyncio.sleep(INTERVAL_S)
            return
        began_s = self._now_s()
        self._pacer.wave_begins()
        try:
            await self.hydrate(records)
        finally:
            pause_s = self._pacer.wave_ends(self._now_s() - began_s, clients_at_work=False)
        await asyncio.sleep(pause_s)

    def _next(self) -> list[FileRecord]:
        """Wanted files; else the newest of the highest priority that were not tried yet. After the
        last one it starts over."""
        state = self._replica.state
        if self._wanted:
            return self._next_wanted()
        while not (
            ids := state.tier.newest_cold(
                priority=self._priority, below=self._below, limit=WAVE_FILES
            )
        ):
            self._priority, self._below = self._priority - 1, _EVERY_FILE
            if self._priority < 0:
                self._priority = PRIORITIES[-1]
                return []
        found: list[FileRecord] = []
        size = 0
        for id_ in ids:
            self._below = id_
            file = state.files.get(id_)
            if file is None or not is_cold(file.record) or self._fails(id_):
                continue
            self._cold.learn(id_, tier_place(state.tier, id_))
            found.append(file.record)
            size += file.record.size
            if size >= WAVE_BYTES:
                break
        return found

    def _next_wanted(self) -> list[FileRecord]:
        state = self._replica.state
        found: list[FileRecord] = []
        size = 0
        while self._wanted and len(found) < WAVE_FILES and size < WAVE_BYTES:
            id_ = next(iter(self._wanted))
            del self._wanted[id_]
            file = state.files.get(id_)
            if file is not None and is_cold(file.record) and not self._fails(id_):
                self._cold.learn(id_, tier_place(state.tier, id_))
                found.append(file.record)
                size += file.record.size
        return found

    async def hydrate(self, records: list[FileRecord]) -> int:
        """Loads these files. Returns how many moved. Raises the store's errors, CapacityExceeded,
        TooFewAgents, Unavailable."""
        small = [record for record in records if record.size <= CHUNK_BYTES]
        moved = await self._bring_small(small) if small else 0
        for record in records:
            if record.size > CHUNK_BYTES:
                moved += await self._bring_large(record)
        return moved

    async def _bring_small(self, records: list[FileRecord]) -> int:
        turn = asyncio.Semaphore(READS_MAX)

        async def read(record: FileRecord) -> bytes | None:
            async with turn:
                return await self._read(record)

        found = await asyncio.gather(*(read(record) for record in records))
        by_grade: dict[Grade, list[tuple[FileRecord, bytes]]] = {}
        for record, data in zip(records, found, strict=True):
            if data is not None:
                by_grade.setdefault(record.grade, []).append((record, data))
        moved = 0
        for grade, whole in by_grade.items():
            stripes: list[Stripe] = []
            try:
                await self._seal(b"".join(data for _, data in whole), grade, stripes)
                moved += await self._move([record for record, _ in whole], stripes)
            finally:
                for stripe in stripes:
                    self._writer.release(stripe)
        return moved

    async def _bring_large(self, record: FileRecord) -> int:
        """Loads a chunk at a time, so that only one chunk is held outside of stripes."""
        stripes: list[Stripe] = []
        checksum = FileChecksum()
        try:
            for start in range(0, record.size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, record.size - start)
                extent = Extent(cold_extent(record).stripe, start, length)
                data = b"".join(await self._cold.read(extent))
                checksum.update(data)
                await self._seal(data, record.grade, stripes)
            if checksum.value() != record.checksum:
                raise CorruptData(f"file {record.id} in the tier fails its checksum")
            return await self._move([record], stripes)
        except (CorruptData, NotFound) as error:
            self._give_up(record, error)
            return 0
        finally:
            for stripe in stripes:
                self._writer.release(stripe)

    async def _read(self, record: FileRecord) -> bytes | None:
        try:
            return b"".join(await self._cold.read(cold_extent(record)))
        except (CorruptData, NotFound) as error:
            self._give_up(record, error)
            return None

    def _give_up(self, record: FileRecord, error: DisklessError) -> None:
        """A damaged file must not stop the others from being loaded."""
        if isinstance(error, CorruptData):
            self.damaged[record.id] = self._now_s()
            log.error("a file of the tier is damaged id=%d error=%s", record.id, error)

    def _fails(self, id_: int) -> bool:
        """Whether a file was damaged a moment ago."""
        return self._now_s() < self.damaged.get(id_, float("-inf")) + DAMAGED_PAUSE_S

    async def _seal(self, data: bytes, grade: Grade, stripes: list[Stripe]) -> None:
        step = self._tuning.stripe_bytes
        for at in range(0, len(data), step):
            stripes.append(await self._writer.seal(data[at : at + step], grade=grade))

    async def _move(self, records: list[FileRecord], stripes: list[Stripe]) -> int:
        spread = [Extent(stripe.id, 0, stripe.payload_bytes) for stripe in stripes]
        moves: list[c.Move] = []
        at = 0
        for record in records:
            moves.append(c.Move(record.id, record.layout, tuple(cut(spread, at, record.size))))
            at += record.size
        if not moves:
            return 0
        (result,) = await self._replica.execute(c.Relocate(tuple(stripes), tuple(moves)))
        if isinstance(result, c.Refused):
            raise result.error()
        self.bytes_done += at
        return result.number
