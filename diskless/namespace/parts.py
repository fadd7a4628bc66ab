"""A large file in parts: how it is cut, which of its bytes lie where, and rows that stay together.

The tier has a file as one part, or as several that follow each other without a gap. A part is
uploaded, read and verified by itself, so that nobody has to hold a large file whole. Pure.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from diskless.model import Extent, cut

PARTS_MAX = 1400
"""Of one file: its rows go into one command. A larger file has larger parts."""
STEP_BYTES = 4 << 20
"""Parts begin at multiples of this, where they are that large: as chunks that are read do."""

T = TypeVar("T")


class Span(NamedTuple):
    """A part to be: bytes `start` to `end` of a file of `size`."""

    start: int
    end: int
    size: int

    @property
    def more(self) -> bool:
        """Whether others follow."""
        return self.end < self.size


def spans(size: int, part_bytes: int) -> list[Span]:
    """The parts of a file: of `part_bytes` each, and the last of a fourth of that at least, so that
    there are no tiny ones. One if the file is not larger than that."""
    if size > PARTS_MAX * part_bytes:
        part_bytes = -(-size // (PARTS_MAX * STEP_BYTES)) * STEP_BYTES
    starts = list(range(0, size, part_bytes)) or [0]
    if len(starts) > 1 and size - starts[-1] < part_bytes // 4:
        starts.pop()
    ends = [*starts[1:], size]
    return [Span(start, end, size) for start, end in zip(starts, ends, strict=True)]


class Layout:
    """Where the bytes of a file are in memory, to be cut many times."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        self._extents = extents
        self._starts = list(accumulate((extent.length for extent in extents), initial=0))

    def cut(self, start: int, end: int) -> list[Extent]:
        """What holds bytes `start` to `end`."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = bisect_right(self._starts, end - 1)
        return cut(self._extents[first:last], start - self._starts[first], end - start)


def by_file(rows: Sequence[T], limit: int, *, file: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The rows in pieces of at most `limit`, those of one file in one piece. They follow each
    other, and are no more than PARTS_MAX."""
    assert limit >= PARTS_MAX
    at = 0
    while at < len(rows):
        end = min(at + limit, len(rows))
        while end < len(rows) and file(rows[end - 1]) == file(rows[end]):
            end -= 1
        assert end > at, f"file {file(rows[at])} has more than {limit} parts"
        yield rows[at:end]
        at = end
