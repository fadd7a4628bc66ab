"""A block verifies only as itself: right bytes, right stripe, right shard, right place."""

import random
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.checksum import (
    BLOCK_BYTES,
    CHECKSUM_BYTES,
    FileChecksum,
    FileChecksums,
    block_checksums,
    file_checksum,
    joint_checksum,
    seed,
    verify_blocks,
)
from diskless.codec import codec_for

STRIPE = "3.7.1842"
SIZES = [1, 7, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 70_001]


def bytes_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_whole_shard_verifies_with_one_checksum_a_block(size: int) -> None:
    shard, key = bytes_of(size), seed(STRIPE, 0)
    sums = block_checksums(shard, seed=key)
    assert len(sums) == CHECKSUM_BYTES * -(-size // BLOCK_BYTES)
    assert verify_blocks(shard, sums, seed=key)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 70_001), st.data())
def test_a_flipped_bit_anywhere_is_caught(size: int, data: st.DataObject) -> None:
    shard, key = bytearray(bytes_of(size)), seed(STRIPE, 0)
    sums = block_checksums(shard, seed=key)
    shard[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not verify_blocks(shard, sums, seed=key)


def test_a_flipped_byte_in_any_block_of_any_shard_is_caught_in_that_block_only() -> None:
    for index, shard in enumerate(codec_for(4, 2).encode(bytes_of(300_000))):
        key = seed(STRIPE, index)
        sums = block_checksums(shard, seed=key)
        for bad in range(-(-len(shard) // BLOCK_BYTES)):
            flipped = bytearray(shard)
            flipped[bad * BLOCK_BYTES] ^= 0xFF
            found = block_checksums(flipped, seed=key)
            differ = [i for i in range(0, len(sums), 8) if sums[i : i + 8] != found[i : i + 8]]
            assert differ == [8 * bad]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("stripe", "index"), [("3.7.1843", 2), ("3.8.1842", 2), ("4.7.1842", 2), (STRIPE, 3)]
)
def test_a_shard_under_another_stripe_or_index_is_caught(
    size: int, stripe: str, index: int
) -> None:
    shard = bytes_of(size)
    sums = block_checksums(shard, seed=seed(STRIPE, 2))
    assert verify_blocks(shard, sums, seed=seed(STRIPE, 2))
    assert not verify_blocks(shard, sums, seed=seed(stripe, index))


def test_blocks_from_another_place_are_caught_though_their_own_checksums_come_along() -> None:
    shard, key = bytes_of(4 * BLOCK_BYTES), seed(STRIPE, 0)
    sums = block_checksums(shard, seed=key)
    second, its_sum = shard[BLOCK_BYTES : 2 * BLOCK_BYTES], sums[8:16]
    assert verify_blocks(second, its_sum, seed=key, first_block=1)
    assert not verify_blocks(second, its_sum, seed=key, first_block=2)


def test_blocks_of_equal_bytes_have_different_checksums() -> None:
    sums = block_checksums(bytes(2 * BLOCK_BYTES), seed=seed(STRIPE, 0))
    assert sums[:8] != sums[8:]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6 * BLOCK_BYTES), st.data())
def test_any_run_of_blocks_verifies_with_its_slice_of_the_checksums(
    size: int, data: st.DataObject
) -> None:
    shard, key = bytes_of(size), seed(STRIPE, 1)
    sums = block_checksums(shard, seed=key)
    blocks = -(-size // BLOCK_BYTES)
    first = data.draw(st.integers(0, blocks - 1))
    stop = data.draw(st.integers(first + 1, blocks))
    run = shard[first * BLOCK_BYTES : stop * BLOCK_BYTES]
    assert verify_blocks(run, sums[8 * first : 8 * stop], seed=key, first_block=first)


@pytest.mark.parametrize("size", SIZES)
def test_a_truncated_or_lengthened_shard_is_caught(size: int) -> None:
    shard, key = bytes_of(size), seed(STRIPE, 0)
    sums = block_checksums(shard, seed=key)
    for wrong in (shard[:-1], shard + b"\0", shard[:-BLOCK_BYTES], shard + bytes(BLOCK_BYTES)):
        assert not verify_blocks(wrong, sums, seed=key)


def test_fewer_or_more_checksums_than_blocks_are_caught() -> None:
    shard, key = bytes_of(3 * BLOCK_BYTES), seed(STRIPE, 0)
    sums = block_checksums(shard, seed=key)
    for wrong in (sums[:-8], sums[:-1], sums + bytes(8), b""):
        assert not verify_blocks(shard, wrong, seed=key)


def test_no_bytes_never_verify() -> None:
    assert not verify_blocks(b"", b"", seed=seed(STRIPE, 0))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_shards_and_checksums_may_be_any_kind_of_buffer(kind: type) -> None:
    shard, key = bytes_of(40_000), seed(STRIPE, 0)
    sums = block_checksums(kind(shard), seed=key)
    assert sums == block_checksums(shard, seed=key)
    assert verify_blocks(kind(shard), kind(sums), seed=key)


def test_stripe_and_index_cannot_be_mistaken_for_each_other() -> None:
    pairs = [
        (f"{s}.{i}.{c}", n) for s in range(3) for i in range(3) for c in (1, 11) for n in (1, 11)
    ]
    assert len({seed(stripe, index) for stripe, index in pairs}) == len(pairs)


def test_checksums_stay_what_agents_of_other_versions_expect() -> None:
    assert seed(STRIPE, 2) == 0x552D04A57A168B12
    sums = block_checksums(b"a" * BLOCK_BYTES + b"b", seed=seed(STRIPE, 2))
    assert sums.hex() == "879b1ca78ef07ceb6816c8dad9738a55"
    assert file_checksum(b"diskless") == 0x2BEBB15499E24736


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=600), max_size=8))
def test_a_file_checksum_is_the_same_however_the_file_is_cut(pieces: list[bytes]) -> None:
    streamed = FileChecksum()
    for piece in pieces:
        streamed.update(piece)
    assert streamed.value() == file_checksum(b"".join(pieces))


def test_a_file_checksum_can_be_read_midway_and_go_on() -> None:
    streamed = FileChecksum()
    streamed.update(b"disk")
    assert streamed.value() == file_checksum(b"disk")
    streamed.update(memoryview(b"less"))
    assert streamed.value() == file_checksum(b"diskless")


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=6),
    st.integers(1, 200),
    st.integers(0, 1000),
)
def test_files_that_follow_one_another_have_their_own_checksums(
    files: list[bytes], piece_bytes: int, start: int
) -> None:
    stream = b"".join(files)
    ends = [start + at for at in accumulate(map(len, files))]
    sums = FileChecksums(start)
    for at in range(0, len(stream), piece_bytes):
        piece = stream[at : at + piece_bytes]
        inside = [end for end in ends if start + at < end <= start + at + len(piece)]
        sums.update(piece, inside)
    for file, (begin, end) in zip(files, pairwise([start, *ends]), strict=True):
        assert sums.value(begin, end) == file_checksum(file)


def test_of_bytes_that_are_no_file_which_came_whole_nothing_is_said() -> None:
    sums = FileChecksums(100)
    sums.update(b"a" * 50, [120])
    assert sums.value(100, 120) == file_checksum(b"a" * 20)
    assert sums.value(120, 150) == file_checksum(b"a" * 30)
    for start, end in ((0, 120), (90, 120), (100, 150), (120, 149), (100, 119)):
        assert sums.value(start, end) is None


def test_joint_checksums_stay_what_clients_of_other_versions_expect() -> None:
    parts = (b"disk", bytearray(b"le"), memoryview(b"ss"))
    assert joint_checksum(parts[0], parts[1:], fast=False) == file_checksum(b"diskless").to_bytes(
        8, "big"
    )
    assert joint_checksum(parts[0], parts[1:], fast=True).hex() == "30deacd10603173b"
