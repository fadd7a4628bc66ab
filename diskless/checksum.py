"""Checksums that tell a shard's bytes from any others.

Owns the checksums of diskless: XXH3-64 of every 16 KiB block of a shard and of whatever lies
in the tier, and XXH64, which Spark's JVM has a library for, of a whole file; a frame between
client and agent has one of the two. They find accidents (a flipped bit, a mixed-up reply), not
attackers. PyECLib notices no flipped payload byte, so nothing but these does.

A block's checksum is seeded with the stripe, the index of the shard and the number
of the block in it. So the bytes of another stripe, shard or place do not verify,
even when they come with checksums that are right for where they belong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import (
    xxh3_64,
    xxh3_64_digest,
    xxh3_64_intdigest,
    xxh64,
    xxh64_digest,
    xxh64_intdigest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

BLOCK_BYTES = 16 * 1024
CHECKSUM_BYTES = 8


def seed(stripe: str, index: int) -> int:
    """The seed of block 0 of shard `index` of `stripe`; block n has this plus n."""
    # The top bit stays free, so that adding a block's number never overflows 64 bits.
    return xxh3_64_intdigest(f"{stripe}/{index}".encode()) >> 1


def block_checksums(data: Buffer, *, seed: int, first_block: int = 0) -> bytes:
    """The checksums of a run of blocks that starts at `first_block`, one after the other.

    Each takes CHECKSUM_BYTES, big-endian; the last block may be short. The checksums
    of blocks a to b of a shard are therefore `checksums[8 * a : 8 * b]` of all.
    """
    view = memoryview(data)
    starts = range(0, len(view), BLOCK_BYTES)
    # A digest is the big-endian form already: joining beats packing integers.
    return b"".join(
        [
            xxh3_64_digest(view[start : start + BLOCK_BYTES], block_seed)
            for block_seed, start in enumerate(starts, seed + first_block)
        ]
    )


def verify_blocks(data: Buffer, checksums: Buffer, *, seed: int, first_block: int = 0) -> bool:
    """Whether `data` is the run of blocks from `first_block` on that `checksums` belong to.

    Never true of no bytes at all, nor of more or fewer blocks than checksums. How
    many blocks the run should have is the caller's to check.
    """
    expected = memoryview(checksums)
    return len(expected) > 0 and expected == block_checksums(
        data, seed=seed, first_block=first_block
    )


def joint_checksum(first: Buffer, rest: Sequence[Buffer] = (), *, fast: bool) -> bytes:
    """The checksum of parts that follow one another, big-endian: XXH3-64, or XXH64 if it must
    be one that a JVM has. XXH3 takes a fifth of the time."""
    if not rest:
        return xxh3_64_digest(first) if fast else xxh64_digest(first)
    hash_ = xxh3_64(first) if fast else xxh64(first)
    for part in rest:
        hash_.update(part)
    return hash_.digest()


def frame_checksum(data: Buffer, *, key: int, start: int = 0, number: int) -> bytes:
    """Of frame `number` of the part of `key` that begins at byte `start` of it, in a tier's object,
    big-endian: the bytes of another part, or of another place in it, do not verify."""
    # Ids follow each other, and so do frames: the multipliers keep their seeds apart.
    seed = key * 0x9E37_79B9_7F4A_7C15 + start * 0xC2B2_AE3D_27D4_EB4F + number
    return xxh3_64_digest(data, seed & 0xFFFF_FFFF_FFFF_FFFF)


def file_checksum(data: Buffer) -> int:
    """The checksum of a file whose bytes are all at hand."""
    return xxh64_intdigest(data)


class FileChecksum:
    """The checksum of a file whose bytes arrive piece by piece, in order.

    After the same bytes, however cut, `value()` equals `file_checksum` of them all.
    """

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = xxh64()

    def update(self, data: Buffer) -> None:
        self._hash.update(data)

    def value(self) -> int:
        """The checksum of what came so far; more may follow."""
        return self._hash.intdigest()


class FileChecksums:
    """The checksums of files that follow one another in a stream, from byte `start` on.

    Who feeds it says where files end, no later than with the bytes before that.
    """

    __slots__ = ("_at", "_ended", "_hash", "_start")

    def __init__(self, start: int) -> None:
        self._start = self._at = start
        self._hash = FileChecksum()
        self._ended: dict[tuple[int, int], int] = {}

    def update(self, data: Buffer, ends: Iterable[int] = ()) -> None:
        """`ends` are positions in the stream, ascending, within these bytes or right after."""
        view = memoryview(data)
        for end in ends:
            count = end - self._at
            assert 0 <= count <= len(view)
            if self._start == self._at:  # All of it is here, as nearly always with small ones.
                self._ended[self._start, end] = file_checksum(view[:count])
            else:
                self._hash.update(view[:count])
                self._ended[self._start, end] = self._hash.value()
                self._hash = FileChecksum()
            view = view[count:]
            self._start = self._at = end
        if view:
            self._hash.update(view)
            self._at += len(view)

    def value(self, start: int, end: int) -> int | None:
        """Of the bytes from `start` to `end`; None if they are no file that came here whole."""
        if start == end:
            return file_checksum(b"")
        if (start, end) == (self._start, self._at):
            return self._hash.value()
        return self._ended.get((start, end))
