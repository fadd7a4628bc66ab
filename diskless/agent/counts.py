"""What an agent counts of its work for clients: how often, how many bytes, how long it took.

Counting is part of every commit and every read, so it must stay at well under a microsecond, and
what is kept never grows.
"""

from bisect import bisect_left

from diskless.model import TrafficCounts

EDGES_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets; the last bucket has all that took longer."""

BUCKETS = len(EDGES_S) + 1


class Durations:
    """How many took how long, in buckets."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_s = 0.0

    def note(self, took_s: float) -> None:
        self.counts[bisect_left(EDGES_S, took_s)] += 1
        self.sum_s += took_s

    def copy(self) -> tuple[tuple[int, ...], float]:
        """The buckets' counts and the sum, as they are now."""
        return tuple(self.counts), self.sum_s


class Traffic:
    """What was done for clients. What failed is counted elsewhere, by its reason."""

    __slots__ = ("bytes_read", "bytes_written", "commits", "files_written", "reads")

    def __init__(self) -> None:
        self.commits = Durations()
        self.files_written = 0
        self.bytes_written = 0
        self.reads = Durations()
        self.bytes_read = 0

    def committed(self, *, files: int, size: int, took_s: float) -> None:
        self.commits.note(took_s)
        self.files_written += files
        self.bytes_written += size

    def totals(self) -> TrafficCounts:
        return TrafficCounts(tuple(self.commits.counts), self.bytes_written, self.bytes_read)

    def read(self, *, size: int, took_s: float) -> None:
        self.reads.note(took_s)
        self.bytes_read += size
