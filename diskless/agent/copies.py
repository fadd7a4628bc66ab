"""Copies of other agents' data shards: what clients wrote or read through this agent last.

A stripe's shards are spread, so most of what a client reads is on other hosts. This cache keeps
what has passed through this agent, as parts of data shards with their holders' checksums. A
stripe's payload never changes and its id is never reused, so a copy is never stale. A copy is
verified like bytes from a holder. A damaged copy is dropped, and the shards are read from their
holders.

It owns its bytes, charges them to the agent's account, and frees them, the oldest first, as soon as
anything else needs the room. Copies are not part of any guarantee: nothing is repaired from them,
and a stripe without its shards is lost even if copies exist.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diskless.agent.memory import Memory
from diskless.agent.ports import CopyCounts
from diskless.agent.shards import own
from diskless.checksum import BLOCK_BYTES, CHECKSUM_BYTES, seed, verify_blocks
from diskless.model import AgentInfo, FileRecord, StripeId, slot_name

log = logging.getLogger(__name__)

FILE_SHARE = 1 / 2
"""The part of the cache that one file may take: a larger file would only evict all others."""
RUNS_MAX = 8
"""Separate ranges of one shard that are kept."""
COPY_BYTES = 3700
"""Bytes of the Python objects for the copies of one stripe, and for ranges that were not kept."""
PASSED_SHARE = 8
"""Ranges that were read once and not kept are remembered, so many for each stripe that is."""
RECLAIM_MAX = 4096
"""Stripes that are freed in one step. The next step continues."""


class Run(NamedTuple):
    """Consecutive whole blocks of a shard."""

    first: int
    data: memoryview
    checksums: bytes

    @property
    def end(self) -> int:
        return self.first + len(self.checksums) // CHECKSUM_BYTES

    def has(self, first: int, end: int) -> bool:
        return self.first <= first and end <= self.end


class _Copy:
    """What is kept of one stripe."""

    __slots__ = ("bytes", "runs")

    def __init__(self) -> None:
        self.bytes = COPY_BYTES
        self.runs: dict[int, list[Run]] = {}

    def covering(self, index: int, first: int, end: int) -> Run | None:
        """The run that contains blocks `first` to `end` of a shard, if there is one."""
        for run in self.runs.get(index, ()):
            if run.has(first, end):
                return run
        return None

    def add(self, index: int, fresh: Run) -> None:
        """Adds a run. It replaces runs that it contains, and the oldest if there are too many."""
        before = self.runs.get(index, [])
        others = [run for run in before if not fresh.has(run.first, run.end)][1 - RUNS_MAX :]
        self.runs[index] = [*others, fresh]
        self.bytes += sum(map(_bytes, self.runs[index])) - sum(map(_bytes, before))


class Copies:
    def __init__(self, *, slot: int, memory: Memory, bytes_max: int) -> None:
        self._slot = slot
        self._memory = memory
        self._bytes_max = bytes_max
        self._stripes: OrderedDict[str, _Copy] = OrderedDict()  # least recently used first
        self._passed: OrderedDict[tuple[str, int, int], None] = OrderedDict()  # read, not kept
        self._hits = self._misses = 0
        self._bytes_hit = self._bytes_missed = 0
        self._corrupt = 0
        memory.give_way(self.reclaim)

    def __len__(self) -> int:
        """The number of stripes with copies."""
        return len(self._stripes)

    def counts(self) -> CopyCounts:
        """All since the agent started."""
        return CopyCounts(
            bytes_max=self._bytes_max,
            hits=self._hits,
            misses=self._misses,
            bytes_hit=self._bytes_hit,
            bytes_missed=self._bytes_missed,
            corrupt=self._corrupt,
        )

    def takes(self, file_bytes: int) -> bool:
        """Whether a file of so many bytes is small enough to be kept."""
        return file_bytes <= FILE_SHARE * self._bytes_max

    def find(self, stripe: str, index: int, start: int, stop: int) -> memoryview | None:
        """Bytes `start` to `stop` of a shard, verified, if they are here."""
        first, end = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        copy = self._stripes.get(stripe)
        run = copy.covering(index, first, end) if copy is not None else None
        if run is not None:
            a, b = first - run.first, end - run.first
            data = run.data[a * BLOCK_BYTES : b * BLOCK_BYTES]
            checksums = run.checksums[a * CHECKSUM_BYTES : b * CHECKSUM_BYTES]
            if verify_blocks(data, checksums, seed=seed(stripe, index), first_block=first):
                self._hits += 1
                self._bytes_hit += stop - start
                self._stripes.move_to_end(stripe)
                return data[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]
            self._corrupt += 1
            log.error(
                "corrupt copy stripe=%s index=%d agent=%s", stripe, index, slot_name(self._slot)
            )
            self.drop([stripe])
        return None

    def missed(self, count: int) -> None:
        """A client's read needed so many bytes from another agent."""
        self._misses += 1
        self._bytes_missed += count

    def keep(
        self, stripe: str, index: int, first_block: int, data: memoryview, checksums: bytes
    ) -> None:
        """Keeps whole blocks of a shard that were read and verified, if there is room.

        If others would have to be evicted for it, only if it was read before, recently: one large
        scan must neither evict what is read often nor pay for copying.
        """
        if self._is_full(len(data)) and not self._is_known((stripe, index, first_block)):
            return
        self._keep(stripe, [(index, first_block, data, checksums)])

    def keep_written(self, stripe: str, shards: Iterable[tuple[int, memoryview, bytes]]) -> None:
        """Keeps data shards of a stripe that was written: index, bytes and checksums of each."""
        self._keep(stripe, [(index, 0, data, checksums) for index, data, checksums in shards])

    def _keep(self, stripe: str, parts: Sequence[tuple[int, int, memoryview, bytes]]) -> None:
        """Adds parts of shards as the most recently used, and evicts older ones for them."""
        copy = self._stripes.pop(stripe, None)
        if copy is not None:
            self._memory.release("copies", copy.bytes)
        wanted = COPY_BYTES + sum(len(data) + len(sums) for _, _, data, sums in parts)
        room = min(self._bytes_max, self._memory.spare())
        if wanted > FILE_SHARE * room:
            return  # other uses take nearly all of the memory
        copy = copy or _Copy()
        for index, first_block, data, checksums in parts:
            copy.add(index, Run(first_block, own(data), checksums))
        self.reclaim(self._memory.of("copies") + copy.bytes - room)
        self._stripes[stripe] = copy
        self._memory.charge("copies", copy.bytes)

    def _is_full(self, count: int) -> bool:
        room = min(self._bytes_max, self._memory.spare())
        return self._memory.of("copies") + count + COPY_BYTES > room

    def _is_known(self, range_: tuple[str, int, int]) -> bool:
        """Whether it was skipped before, recently; if not, it is noted as skipped now."""
        if range_ in self._passed:
            del self._passed[range_]
            return True
        self._passed[range_] = None
        while len(self._passed) > PASSED_SHARE * len(self._stripes) + 1:
            self._passed.popitem(last=False)
        return False

    def drop(self, stripes: Iterable[str]) -> None:
        """Drops these: nobody will read them, or they are damaged."""
        for stripe in stripes:
            copy = self._stripes.pop(stripe, None)
            if copy is not None:
                self._memory.release("copies", copy.bytes)

    def reclaim(self, count: int) -> None:
        """Frees at least so many bytes, the least recently used first, as far as there are."""
        for _ in range(min(len(self._stripes), RECLAIM_MAX)):
            if count <= 0:
                break
            freed = self._stripes.popitem(last=False)[1].bytes
            self._memory.release("copies", freed)
            count -= freed


def kept_at(
    record: FileRecord,
    agents: Mapping[int, AgentInfo],
    *,
    cache_bytes: int,
    stripe_bytes: int,
) -> int | None:
    """The slot whose agent probably has a copy of a whole file: the one that it was written
    through, if that is known, was not restarted since, and keeps files of this size.

    No agent is asked. It is None for files that fit in a stripe, because the leader packs most of
    them and would appear to be near all of them, and for files that were moved since.
    """
    small = record.size <= stripe_bytes
    if record.layout or not record.extents or small or record.size > FILE_SHARE * cache_bytes:
        return None
    writers = [StripeId.parse(extent.stripe) for extent in record.extents]
    lives = {(writer.slot, writer.incarnation) for writer in writers}
    if len(lives) > 1:
        return None
    ((slot, incarnation),) = lives
    agent = agents.get(slot)
    return slot if agent is not None and agent.up and agent.incarnation == incarnation else None


def _bytes(run: Run) -> int:
    return len(run.data) + len(run.checksums)
