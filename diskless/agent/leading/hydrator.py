"""Brings files whose bytes are in the tier alone back into memory: the newest first.

Runs on the leader, in the background, paced like repair. The move is one command, conditional on
each file being unchanged, so it never races with clients. Ends where memory would be short.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from diskless.agent.cold import CHUNK_BYTES, ColdReader, cold_extent
from diskless.agent.leading.pacer import Pacer
from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.agent.writer import Writer
from diskless.checksum import FileChecksum
from diskless.config import Tuning
from diskless.errors import CorruptData, DisklessError, NotFound
from diskless.model import Extent, FileRecord, HydrationStatus, Stripe, cut
from diskless.namespace import commands as c
from diskless.namespace.tier import is_cold
from diskless.namespace.views import tier_place

log = logging.getLogger(__name__)

WAVE_FILES = 200
WAVE_BYTES = 8 << 20
READS_MAX = 16
INTERVAL_S = 0.5
BACK_OFF_S_MAX = 10.0
FULL_SHARE = 0.75
"""Of an agent's memory in use, from which on nothing more is brought back by itself."""
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
        self._below = _EVERY_FILE
        self._began_s: float | None = None
        self.bytes_done = 0
        self.damaged: dict[int, DisklessError] = {}
        """Files whose bytes in the tier are not what they were."""

    async def run(self) -> None:
        pause_s = INTERVAL_S
        while True:
            try:
                if not self._replica.state.tier.cold or self._is_full():
                    self._began_s = None
                    await asyncio.sleep(INTERVAL_S)
                    continue
                if self._began_s is None:
                    self._began_s, self.bytes_done = self._now_s(), 0
                await self._wave()
                pause_s = INTERVAL_S
            except DisklessError as error:
                log.info("hydration put off error=%s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACK_OFF_S_MAX)
            except Exception:  # else nothing would ever come back
                log.exception("hydration failed")
                await asyncio.sleep(BACK_OFF_S_MAX)

    def _is_full(self) -> bool:
        return any(
            pulse.bytes_used > FULL_SHARE * pulse.bytes_max for pulse in self._pulses.values()
        )

    def report(self) -> HydrationStatus:
        tier = self._replica.state.tier
        took_s = self._now_s() - self._began_s if self._began_s is not None else 0.0
        rate = self.bytes_done / took_s if took_s > 0 else 0.0
        return HydrationStatus(
            files_left=len(tier.cold),
            bytes_left=tier.cold_bytes,
            bytes_done=self.bytes_done,
            bytes_per_s=round(rate),
            eta_s=round(tier.cold_bytes / rate, 1) if rate and tier.cold else None,
            damaged=len(self.damaged),
        )

    async def _wave(self) -> None:
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
        """The newest that were not tried yet; then all again, from the newest on."""
        state = self._replica.state
        ids = state.tier.newest_cold(below=self._below, limit=WAVE_FILES)
        if not ids:
            self._below = _EVERY_FILE
            return []
        found: list[FileRecord] = []
        size = 0
        for id_ in ids:
            self._below = id_
            file = state.files.get(id_)
            if file is None or not is_cold(file.record) or id_ in self.damaged:
                continue
            self._cold.learn(id_, tier_place(state.tier, id_))
            found.append(file.record)
            size += file.record.size
            if size >= WAVE_BYTES:
                break
        return found

    async def hydrate(self, records: list[FileRecord]) -> int:
        """Brings these back; how many moved. Raises what the store does, CapacityExceeded,
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
        whole = [(r, data) for r, data in zip(records, found, strict=True) if data is not None]
        stripes: list[Stripe] = []
        try:
            await self._seal(b"".join(data for _, data in whole), stripes)
            return await self._move([record for record, _ in whole], stripes)
        finally:
            for stripe in stripes:
                self._writer.release(stripe)

    async def _bring_large(self, record: FileRecord) -> int:
        """A chunk at a time, so that no more than that is in hand."""
        stripes: list[Stripe] = []
        checksum = FileChecksum()
        try:
            for start in range(0, record.size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, record.size - start)
                extent = Extent(cold_extent(record).stripe, start, length)
                data = b"".join(await self._cold.read(extent))
                checksum.update(data)
                await self._seal(data, stripes)
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
        """One damaged file keeps no other from coming back."""
        if isinstance(error, CorruptData):
            self.damaged[record.id] = error
            log.error("a file of the tier is damaged id=%d error=%s", record.id, error)

    async def _seal(self, data: bytes, stripes: list[Stripe]) -> None:
        step = self._tuning.stripe_bytes
        for at in range(0, len(data), step):
            stripes.append(await self._writer.seal(data[at : at + step]))

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
