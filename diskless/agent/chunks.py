"""Chunks of cold files, fetched from the tier and kept for a short time.

Bytes are never copied: a chunk is a list of views of the received data, in order. Chunks that came
with one request share a buffer, so they are counted and freed together.
"""

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence

CHUNK_BYTES = 4 << 20

Views = list[memoryview]
Key = tuple[int, int]
"""A file, and which of its chunks."""


class Run:
    """Chunks that came together: they share one buffer and are freed together."""

    def __init__(self, chunks: range, views: Views) -> None:
        self.chunks = chunks
        self.bytes = sum(map(len, views))
        self._views = [
            cut_views(views, at, at + CHUNK_BYTES)
            for at in range(0, len(chunks) * CHUNK_BYTES, CHUNK_BYTES)
        ]

    def of(self, chunk: int) -> Views:
        return self._views[chunk - self.chunks.start]


class Kept:
    """Chunks that were read lately."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._runs: dict[Key, Run] = {}
        self._order: OrderedDict[Run, int] = OrderedDict()  # the file of each
        self.bytes = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._runs

    def get(self, key: Key) -> Views | None:
        run = self._runs.get(key)
        if run is None:
            return None
        self._order.move_to_end(run)
        return run.of(key[1])

    def put(self, file: int, run: Run) -> list[Key]:
        """Which chunks were evicted for it."""
        self._order[run] = file
        self.bytes += run.bytes
        for chunk in run.chunks:
            self._runs.setdefault((file, chunk), run)
        gone: list[Key] = []
        while self.bytes > self._bytes_max:
            oldest, of = self._order.popitem(last=False)
            self.bytes -= oldest.bytes
            gone += [key for at in oldest.chunks if self._runs.get(key := (of, at)) is oldest]
            for key in gone:
                self._runs.pop(key, None)
        return gone


class Packed:
    """Chunks in one piece, with their checksums, for as long as an answer with them is unsent.
    Everybody who asks meanwhile gets the same bytes."""

    def __init__(self) -> None:
        self._unsent: dict[Key, tuple[weakref.ref[memoryview], bytes, int]] = {}

    @property
    def bytes_held(self) -> int:
        return sum(size for _, _, size in tuple(self._unsent.values()))

    def get(self, key: Key) -> tuple[memoryview, bytes] | None:
        data, checksums, _ = self._unsent.get(key, (lambda: None, b"", 0))
        found = data()
        return (found, checksums) if found is not None else None

    def put(self, key: Key, data: memoryview, checksums: bytes) -> None:
        def sent(ref: "weakref.ref[memoryview]") -> None:
            if (unsent := self._unsent.get(key)) is not None and unsent[0] is ref:
                del self._unsent[key]

        self._unsent[key] = weakref.ref(data, sent), checksums, len(data)


def cut_views(views: Iterable[memoryview], start: int, stop: int) -> Views:
    """Bytes `start` to `stop` of what the views are together, or as many as there are."""
    found: Views = []
    at = 0
    for view in views:
        if at >= stop:
            break
        if part := view[max(start - at, 0) : stop - at]:
            found.append(part)
        at += len(view)
    return found


def stretches(numbers: Sequence[int]) -> list[range]:
    """Numbers in order, as ranges without gaps."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found
