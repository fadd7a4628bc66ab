"""The code gives every lost shard back, whole or in part, and refuses when it cannot."""

import random
import subprocess
import sys
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from diskless import checksum, parity
from diskless.codec import Codec, codec_for, codec_of
from diskless.errors import BadSettings, CorruptData, TooFewShards
from diskless.model import Place, Stripe

SHAPES = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 2), (4, 2), (8, 3)]
EXTREMES = [(24, 8), (1, 8), (24, 1)]

shapes = pytest.mark.parametrize(("m", "k"), SHAPES, ids=str)
codecs = st.sampled_from(SHAPES + EXTREMES).map(lambda shape: codec_for(*shape))


def payload_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def without(shards: list[memoryview], lost: tuple[int, ...]) -> dict[int, memoryview]:
    return {index: shard for index, shard in enumerate(shards) if index not in lost}


# Every erasure set


@shapes
def test_every_loss_of_up_to_k_shards_is_recovered_byte_exact(m: int, k: int) -> None:
    codec = codec_for(m, k)
    shards = codec.encode(payload_of(1009))
    for count in range(1, k + 1):
        for lost in combinations(range(m + k), count):
            rebuilt = codec.reconstruct(without(shards, lost), lost)
            assert rebuilt == {index: shards[index] for index in lost}


@shapes
def test_every_choice_of_exactly_m_shards_gives_the_payload(m: int, k: int) -> None:
    codec, payload = codec_for(m, k), payload_of(1009)
    shards = dict(enumerate(codec.encode(payload)))
    for kept in combinations(range(m + k), m):
        columns = {index: shards[index] for index in kept}
        lost = [index for index in range(m) if index not in kept]
        whole = columns | codec.reconstruct(columns, lost)
        assert codec.join([whole[i] for i in range(m)], payload_bytes=1009) == payload


@shapes
def test_every_loss_of_k_plus_one_shards_is_refused_with_counts(m: int, k: int) -> None:
    codec = codec_for(m, k)
    shards = codec.encode(payload_of(1009))
    for lost in combinations(range(m + k), k + 1):
        with pytest.raises(TooFewShards, match=f"{m - 1} of {m} required shards readable"):
            codec.reconstruct(without(shards, lost), lost)


def test_no_shard_at_all_is_refused() -> None:
    with pytest.raises(TooFewShards, match="0 of 4"):
        codec_for(4, 2).reconstruct({}, [0])


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(EXTREMES), st.integers(1, 5000), st.randoms(use_true_random=False))
def test_k_losses_are_recovered_at_the_largest_shapes(
    shape: tuple[int, int], size: int, rng: random.Random
) -> None:
    codec = codec_for(*shape)
    shards = codec.encode(payload_of(size))
    lost = tuple(rng.sample(range(codec.total_shards), codec.parity_shards))
    assert codec.reconstruct(without(shards, lost), lost) == {i: shards[i] for i in lost}


def test_a_shard_that_fails_its_checksum_is_recovered_like_a_lost_one() -> None:
    codec = codec_for(4, 2)
    shards = codec.encode(payload_of(300_000))
    seeds = [checksum.seed("3.1.9", index) for index in range(6)]
    sums = [checksum.block_checksums(s, seed=seeds[i]) for i, s in enumerate(shards)]
    served = dict(enumerate(shards))
    for bad in (1, 5):
        flipped = bytearray(shards[bad])
        flipped[-1] ^= 1
        served[bad] = memoryview(flipped)

    good = {i: s for i, s in served.items() if checksum.verify_blocks(s, sums[i], seed=seeds[i])}
    assert sorted(good) == [0, 2, 3, 4]
    assert codec.reconstruct(good, [1, 5]) == {1: shards[1], 5: shards[5]}


# Parts of shards


@settings(deadline=None, max_examples=150)
@given(codecs, st.integers(1, 70_001), st.data())
def test_a_part_of_a_shard_is_rebuilt_from_the_same_part_of_others(
    codec: Codec, size: int, data: st.DataObject
) -> None:
    shards = codec.encode(payload_of(size))
    start = data.draw(st.integers(0, len(shards[0]) - 1))
    stop = data.draw(st.integers(start + 1, len(shards[0])))
    lost = data.draw(
        st.sets(st.integers(0, codec.total_shards - 1), min_size=1, max_size=codec.parity_shards)
    )
    columns = {i: s[start:stop] for i, s in without(shards, tuple(lost)).items()}
    rebuilt = codec.reconstruct(columns, sorted(lost))
    assert rebuilt == {i: shards[i][start:stop] for i in lost}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_columns_may_be_any_kind_of_buffer(kind: type) -> None:
    codec = codec_for(4, 2)
    shards = codec.encode(payload_of(999))
    columns = {i: kind(s) for i, s in without(shards, (0, 3)).items()}
    assert codec.reconstruct(columns, [3, 0]) == {0: shards[0], 3: shards[3]}


def test_only_the_m_lowest_columns_are_read() -> None:
    codec = codec_for(4, 2)
    shards = codec.encode(payload_of(999))
    columns = without(shards, (0,)) | {5: memoryview(bytes(len(shards[5])))}
    assert codec.reconstruct(columns, [0]) == {0: shards[0]}


def test_nothing_missing_rebuilds_nothing() -> None:
    codec = codec_for(4, 2)
    assert codec.reconstruct(dict(enumerate(codec.encode(b"x"))), []) == {}


def test_columns_of_different_lengths_are_refused() -> None:
    codec = codec_for(4, 2)
    columns = without(codec.encode(payload_of(999)), (0,))
    for index in columns:
        with pytest.raises(ValueError, match="one length"):
            codec.reconstruct(columns | {index: columns[index][1:]}, [0])


def test_empty_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        codec_for(2, 1).reconstruct({0: b"", 1: b""}, [2])


def test_rebuilding_a_shard_that_is_there_is_a_bug() -> None:
    codec = codec_for(2, 1)
    with pytest.raises(AssertionError):
        codec.reconstruct(dict(enumerate(codec.encode(b"ab"))), [0])


# The layout of a stripe


@pytest.mark.parametrize(("m", "k"), SHAPES + EXTREMES)
def test_shard_bytes_is_the_size_that_pyeclib_makes(m: int, k: int) -> None:
    codec = codec_for(m, k)
    for size in [*range(1, 200), 4095, 4096, 4097, 65_537, 2**20 - 1, 2**20, 2**20 + 1]:
        sizes = {len(shard) for shard in codec.encode(bytes(size))}
        assert sizes == {codec.shard_bytes(size)}


@shapes
def test_data_shards_are_the_payload_in_order_then_zeros(m: int, k: int) -> None:
    codec = codec_for(m, k)
    for size in range(1, 60):
        payload = payload_of(size)
        stored = b"".join(codec.encode(payload)[:m])
        assert stored == payload + bytes(len(stored) - size)


@settings(deadline=None, max_examples=80)
@given(codecs, st.binary(min_size=1, max_size=3000))
def test_a_payload_comes_back_from_its_data_shards(codec: Codec, payload: bytes) -> None:
    shards = codec.encode(payload)
    assert len(shards) == codec.data_shards + codec.parity_shards
    data = shards[: codec.data_shards]
    assert codec.join(data, payload_bytes=len(payload)) == payload


@settings(deadline=None, max_examples=120)
@given(codecs, st.integers(1, 3000), st.data())
def test_located_parts_of_shards_join_to_the_range_of_the_payload(
    codec: Codec, size: int, data: st.DataObject
) -> None:
    payload = payload_of(size)
    shards = codec.encode(payload)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    parts = codec.locate(payload_bytes=size, start=start, stop=stop)
    assert b"".join(shards[i][a:b] for i, a, b in parts) == payload[start:stop]
    assert all(i < codec.data_shards and a < b for i, a, b in parts)


def test_kept_parity_keeps_neither_the_payload_nor_other_shards_alive() -> None:
    for shard in codec_for(4, 2).encode(bytes(2**20))[4:]:
        assert memoryview(shard.obj).nbytes < len(shard) + 128


def test_full_data_shards_are_the_payload_and_no_copies_of_it() -> None:
    payload = bytearray(2**20)
    shards = codec_for(4, 2).encode(memoryview(payload))
    payload[0] = payload[2**20 - 1] = 1
    assert (shards[0][0], shards[3][-1]) == (1, 1)


@pytest.mark.parametrize(("m", "k"), SHAPES + EXTREMES)
def test_isa_l_by_itself_makes_the_shards_that_pyeclib_makes(m: int, k: int) -> None:
    codec = codec_for(m, k)
    for size in [*range(1, 4 * m + 2), 4097, 65_537]:
        payload = payload_of(size)
        want = [bytes(shard) for shard in codec._encode_by_copies(payload)]
        for offered in (payload, bytearray(payload), memoryview(bytearray(payload))):
            assert [bytes(shard) for shard in codec.encode(offered)] == want
        read_only = memoryview(payload)  # whose place cannot be told
        assert [bytes(shard) for shard in codec.encode(read_only)] == want


def test_isa_l_is_found_here() -> None:
    assert parity.encoder(data_shards=4, parity_shards=2) is not None


def test_an_empty_stripe_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        codec_for(4, 2).encode(b"")


# Shapes


@pytest.mark.parametrize(
    ("m", "k", "message"),
    [
        (0, 2, "0 data shards: choose 1 to 24"),
        (-1, 2, "-1 data shards: choose 1 to 24"),
        (25, 2, "25 data shards: choose 1 to 24"),
        (4, 0, "0 parity shards: choose 1 to 8"),
        (4, 9, "9 parity shards: choose 1 to 8"),
    ],
)
def test_a_shape_out_of_range_is_refused_with_the_range(m: int, k: int, message: str) -> None:
    with pytest.raises(BadSettings) as refused:
        codec_for(m, k)
    assert str(refused.value) == message


def test_a_shape_is_built_once() -> None:
    assert codec_for(4, 2) is codec_for(4, 2)
    assert codec_for(4, 2) is not codec_for(2, 4)


def test_our_m_is_data_and_our_k_is_parity() -> None:
    assert len(codec_for(3, 1).encode(b"abc")[0]) == 1
    assert len(codec_for(1, 3).encode(b"abc")[0]) == 3


# Memory

FAULTS_PER_STRIPE = """
import resource
from diskless.codec import codec_for
from diskless.malloc import keep_heap
if not keep_heap():
    raise SystemExit(77)
codec, payload = codec_for(4, 2), bytes(2**20)
for _ in range(10):
    codec.encode(payload)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    codec.encode(payload)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 50)
"""


def test_coding_stripe_after_stripe_faults_in_no_new_pages_when_the_heap_is_kept() -> None:
    command = [sys.executable, "-c", FAULTS_PER_STRIPE]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("this libc has no mallopt")
    assert done.returncode == 0, done.stderr
    # Without keep_heap() it is 140 to 780 faults of 4 KiB, depending on the heap's past.
    assert float(done.stdout) < 20


def test_a_stripe_of_another_code_is_refused_with_what_to_do() -> None:
    stripe = Stripe("0.1.7", 4, 2, 100, tuple(Place(slot, 1) for slot in range(6)))
    assert codec_of(stripe) is codec_for(4, 2)
    with pytest.raises(CorruptData, match=r"stripe 0\.1\.7 was encoded with 'xor'.*version"):
        codec_of(structs.replace(stripe, codec="xor"))
