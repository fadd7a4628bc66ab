"""Checksums that tell a shard's bytes from any others.

Owns the two checksums of diskless: XXH3-64 of every 16 KiB block of a shard, and XXH64,
which Spark's JVM has a library for, of a whole file. They find accidents (a flipped bit,
a mixed-up reply), not attackers. PyECLib notices no flipped payload byte, so nothing but
these does.

A block's checksum is seeded with the stripe, the index of the shard and the number
of the block in it. So the bytes of another stripe, shard or place do not verify,
even when they come with checksums that are right for where they belong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64_digest, xxh3_64_intdigest, xxh64, xxh64_intdigest

if TYPE_CHECKING:
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
