"""Many small files in one reply: which ranges are read for them, and what is cut out."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.gateway.batch import GAP_BYTES_MAX, RANGE_BYTES_MAX, cut, merge
from diskless.model import Extent

extents = st.builds(
    Extent,
    st.sampled_from(["0.1.1", "0.1.2"]),
    st.integers(0, 3 * RANGE_BYTES_MAX),
    st.integers(1, 64 * 1024),
)


def test_files_that_lie_beside_each_other_are_read_as_one_range() -> None:
    ranges, pieces = merge([Extent("0.1.1", 20_000 * n, 20_000) for n in range(50)])
    assert ranges == [Extent("0.1.1", 0, 1_000_000)]
    assert [piece.start for piece in pieces] == [20_000 * n for n in range(50)]


def test_what_lies_far_apart_is_not_read_together() -> None:
    far = 100 + GAP_BYTES_MAX + 1
    assert len(merge([Extent("0.1.1", 0, 100), Extent("0.1.1", far, 100)])[0]) == 2
    assert len(merge([Extent("0.1.1", 0, 100), Extent("0.1.1", far - 1, 100)])[0]) == 1


STORED = {name: random.Random(name).randbytes(4 << 20) for name in ("0.1.1", "0.1.2")}


@settings(deadline=None, max_examples=60)
@given(st.lists(extents, max_size=30), st.integers(1000, 70_000))
def test_every_extent_is_cut_out_of_its_range_however_that_was_read(
    wanted: list[Extent], part_bytes: int
) -> None:
    ranges, pieces = merge(wanted)
    read = []
    for one in ranges:
        assert one.length <= RANGE_BYTES_MAX
        data = memoryview(STORED[one.stripe])[one.offset : one.offset + one.length]
        read.append([data[at : at + part_bytes] for at in range(0, len(data), part_bytes)])
    for extent, piece in zip(wanted, pieces, strict=True):
        expected = STORED[extent.stripe][extent.offset : extent.offset + extent.length]
        assert b"".join(cut(read[piece.range], piece)) == expected
