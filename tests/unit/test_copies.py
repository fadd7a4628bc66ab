"""Copies of other agents' shards: what is found, what is kept, and who goes first."""

import gc
import tracemalloc

import msgspec
import pytest

from diskless.agent.copies import (
    COPY_BYTES,
    PASSED_SHARE,
    RECLAIM_MAX,
    RUNS_MAX,
    Copies,
    kept_at,
)
from diskless.agent.memory import Memory, Use
from diskless.agent.ports import CopyCounts
from diskless.checksum import BLOCK_BYTES, CHECKSUM_BYTES, block_checksums, seed
from diskless.cli.status import copy_lines
from diskless.config import MIB
from diskless.model import AgentInfo, CopyStatus, Extent, FileRecord
from tests.support import content

SHARD = 4 * BLOCK_BYTES - 100
"""Its last block is short."""
WHOLE = COPY_BYTES + SHARD + 4 * CHECKSUM_BYTES
"""What one shard takes."""


def make(bytes_max: int, memory_bytes: int = 64 * MIB) -> tuple[Memory, Copies]:
    memory = Memory(memory_bytes)
    return memory, Copies(slot=0, memory=memory, bytes_max=bytes_max)


def shard(stripe: str, index: int = 0) -> tuple[memoryview, bytes]:
    data = content(SHARD, (stripe, index))
    return memoryview(data), block_checksums(data, seed=seed(stripe, index))


def write(copies: Copies, *stripes: str) -> None:
    for stripe in stripes:
        copies.keep_written(stripe, [(0, *shard(stripe))])


def read(copies: Copies, stripe: str, first: int = 0, end: int = 4, index: int = 0) -> None:
    """As if these blocks had come from their holder."""
    data, checksums = shard(stripe, index)
    part = memoryview(bytes(data[first * BLOCK_BYTES : end * BLOCK_BYTES]))
    copies.keep(
        stripe, index, first, part, checksums[first * CHECKSUM_BYTES : end * CHECKSUM_BYTES]
    )


def found(copies: Copies, *stripes: str) -> list[str]:
    """Which of these are there, whole and as they were."""
    there = []
    for stripe in stripes:
        data = copies.find(stripe, 0, 0, SHARD)
        assert data is None or data == shard(stripe)[0]
        there += [stripe] if data is not None else []
    return there


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, SHARD), (0, 1), (SHARD - 1, SHARD), (BLOCK_BYTES - 1, BLOCK_BYTES + 1), (7, SHARD - 7)],
)
def test_any_range_of_what_is_kept_is_found(start: int, stop: int) -> None:
    _, copies = make(MIB)
    write(copies, "1.1.1")
    data = copies.find("1.1.1", 0, start, stop)
    assert data == shard("1.1.1")[0][start:stop]
    assert copies.counts() == CopyCounts(bytes_max=MIB, hits=1, bytes_hit=stop - start)


def test_nothing_is_found_that_was_not_kept() -> None:
    _, copies = make(MIB)
    read(copies, "1.1.1", 1, 3)
    assert copies.find("1.1.1", 0, BLOCK_BYTES, 3 * BLOCK_BYTES) is not None
    assert copies.find("1.1.1", 0, BLOCK_BYTES - 1, 3 * BLOCK_BYTES) is None
    assert copies.find("1.1.1", 0, BLOCK_BYTES, 3 * BLOCK_BYTES + 1) is None
    assert copies.find("1.1.1", 1, BLOCK_BYTES, 3 * BLOCK_BYTES) is None
    assert copies.find("1.1.10", 0, BLOCK_BYTES, 3 * BLOCK_BYTES) is None


@pytest.mark.parametrize("block", range(4))
def test_a_damaged_copy_is_dropped_and_counted_and_never_served(block: int) -> None:
    memory, copies = make(MIB)
    data, checksums = shard("1.1.1")
    bad = bytearray(data)
    bad[block * BLOCK_BYTES + 5] ^= 1
    copies.keep_written("1.1.1", [(0, memoryview(bytes(bad)), checksums)])
    beside = (block + 1) % 4 * BLOCK_BYTES
    assert copies.find("1.1.1", 0, beside, beside + 1) is not None, "that block is as it was"
    assert copies.find("1.1.1", 0, 0, SHARD) is None
    assert copies.counts().corrupt == 1
    assert len(copies) == memory.used == 0


def test_ranges_of_a_shard_are_kept_beside_each_other_and_not_twice() -> None:
    memory, copies = make(MIB)
    read(copies, "1.1.1", 0, 1)
    read(copies, "1.1.1", 1, 4)  # as an opening brings the first bytes, and a read the others
    assert copies.find("1.1.1", 0, 0, 10) is not None
    assert copies.find("1.1.1", 0, BLOCK_BYTES, SHARD) is not None
    read(copies, "1.1.1", 0, 4)
    read(copies, "1.1.1", 0, 4)
    assert memory.used == WHOLE
    for _ in range(3 * RUNS_MAX):
        read(copies, "1.1.1", 0, 3)
        read(copies, "1.1.1", 1, 4)
    assert memory.used < WHOLE + RUNS_MAX * WHOLE


def test_what_was_used_longest_ago_goes_first_and_the_limit_is_kept() -> None:
    memory, copies = make(3 * WHOLE)
    write(copies, "a", "b", "c")
    assert found(copies, "a") == ["a"]
    write(copies, "d")
    assert found(copies, "a", "b", "c", "d") == ["a", "c", "d"]
    for number in range(50):
        write(copies, f"{number}")
        assert memory.used == memory.of("copies") == 3 * WHOLE
    copies.drop(["49", "48", "47", "of another"])
    assert memory.used == len(copies) == 0


def test_who_reads_a_lot_once_pushes_nothing_out_and_what_is_read_again_is_kept() -> None:
    _, copies = make(3 * WHOLE)
    write(copies, "a", "b", "c")
    for number in range(20):
        read(copies, f"scan-{number}")
    assert found(copies, "a", "b", "c") == ["a", "b", "c"]
    read(copies, "scan-19")
    assert found(copies, "a", "scan-19") == ["scan-19"]
    for number in range(3 * PASSED_SHARE + 1):
        read(copies, f"other-{number}")
    read(copies, "scan-18")
    assert found(copies, "scan-18") == [], "it was read long ago"


def test_a_file_of_more_than_half_the_cache_is_not_taken() -> None:
    _, copies = make(MIB)
    assert copies.takes(0)
    assert copies.takes(MIB // 2)
    assert not copies.takes(MIB // 2 + 1)


# Memory


def test_copies_take_no_room_that_anything_else_wants() -> None:
    memory, copies = make(8 * MIB, memory_bytes=16 * MIB)
    before = {use: memory.room(use) for use in Use}
    write(copies, *(str(number) for number in range(100)))
    assert memory.used == memory.of("copies") == 100 * WHOLE
    assert {use: memory.room(use) for use in Use} == before
    assert memory.lasting == 0


@pytest.mark.parametrize("kind", ["shards", "requests", "log"])
def test_whoever_needs_the_room_has_it_at_once_and_the_oldest_goes(kind: str) -> None:
    memory, copies = make(8 * MIB, memory_bytes=16 * MIB)
    write(copies, *(str(number) for number in range(100)))
    memory.charge(kind, 14 * MIB - 50 * WHOLE)
    assert len(copies) == 50
    assert found(copies, *(str(n) for n in range(100))) == [str(n) for n in range(50, 100)]
    assert memory.used <= 14 * MIB, "the reserve is left to others"
    memory.charge(kind, 50 * WHOLE - 1)
    assert len(copies) == 0
    memory.charge(kind, MIB)
    write(copies, "late")
    read(copies, "later")
    assert len(copies) == 0, "there is no room but the reserve"
    memory.release(kind, 8 * MIB)
    write(copies, "again")
    assert found(copies, "again") == ["again"]


def test_what_is_metered_has_its_room_when_the_meter_is_read() -> None:
    memory, copies = make(8 * MIB, memory_bytes=16 * MIB)
    files = [0]
    memory.meter(lambda: {"files": files[0]}, lambda: (files[0], 0))
    write(copies, *(str(number) for number in range(100)))
    files[0] = 13 * MIB
    assert memory.used <= 14 * MIB
    assert 0 < len(copies) < 100


def test_giving_up_very_many_takes_several_steps() -> None:
    memory, copies = make(32 * MIB, memory_bytes=64 * MIB)
    data, checksums = memoryview(b"x"), block_checksums(b"x", seed=seed("s", 0))
    for number in range(RECLAIM_MAX + 10):
        copies.keep_written(str(number), [(0, data, checksums)])
    memory.charge("shards", 64 * MIB)
    assert len(copies) == 10
    memory.sums()
    assert len(copies) == 0


def test_the_account_is_honest() -> None:
    _, copies = make(1 << 40, memory_bytes=1 << 41)
    count = 4000
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(count):
        parts = [(n, memoryview(bytes(100)), bytes(8)) for n in range(3)]
        copies.keep_written(f"3.1.{number}", parts)
    for number in range(count * PASSED_SHARE):
        copies._is_known((f"4.1.{number}", 1, 0))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.7 < taken / (count * (COPY_BYTES + 3 * 108)) < 1.1


# What is told


def test_status_tells_how_much_was_near_once_something_was_wanted() -> None:
    assert copy_lines(CopyStatus()) == []
    assert copy_lines(CopyStatus(bytes_max=MIB)) == []
    told = CopyStatus(
        bytes_max=8 * MIB, bytes=3 * MIB, hits=9, misses=1, bytes_hit=3 * MIB, bytes_missed=MIB
    )
    (line,) = copy_lines(told)
    assert line == (
        "copies: 3.0 MiB of 8.0 MiB, 9 hits, 1 misses: 75.0% of the bytes that lie elsewhere "
        "were near"
    )
    (line,) = copy_lines(msgspec.structs.replace(told, corrupt=2))
    assert line.endswith("; 2 were damaged, and read from shards")


# Where a copy probably is

AGENTS = {
    slot: AgentInfo(slot, 3, "boot", "", "", "", "host", "", 1, up=slot != 2) for slot in range(4)
}


def written(*stripes: str, size: int = 3 * MIB, layout: int = 0) -> FileRecord:
    extents = tuple(Extent(stripe, 0, MIB) for stripe in stripes)
    return FileRecord(1, size, 0, 0, None, extents, layout)


def near(record: FileRecord, cache_bytes: int = 6 * MIB) -> int | None:
    return kept_at(record, AGENTS, cache_bytes=cache_bytes, stripe_bytes=MIB)


def test_a_file_is_near_the_agent_that_it_was_written_through() -> None:
    assert near(written("1.3.7", "1.3.8", "1.3.9")) == 1
    assert near(written("0.3.1")) == 0


@pytest.mark.parametrize(
    ("record", "cache_bytes"),
    [
        (written("1.3.7", "3.3.8"), 6 * MIB),  # two agents had a part in it
        (written("1.2.7"), 6 * MIB),  # in an earlier life
        (written("2.3.7"), 6 * MIB),  # it is down
        (written("9.3.7"), 6 * MIB),  # it is not known
        (written("1.3.7", size=MIB), 6 * MIB),  # packed, mostly by the leader
        (written("1.3.7", layout=1), 6 * MIB),  # moved since
        (written("1.3.7"), 6 * MIB - 1),  # too large to be kept
        (written("1.3.7"), 0),  # nobody keeps copies
        (written(), 6 * MIB),  # inline, or in the tier
    ],
)
def test_otherwise_no_agent_is_said_to_have_a_copy(record: FileRecord, cache_bytes: int) -> None:
    assert near(record, cache_bytes) is None
