"""The table of the notes of Spark's listeners: the last batches of each query, bounded.

Soft state of one voter. Notes per query, queries and bytes are limited. The query that sent nothing
for the longest time loses its notes first. Until a table is full, its content does not depend on
the order of arrival. Pure.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from diskless.notes import NOTES_KEPT, RUNS_KEPT, Noted, key, unpack

QUERIES_MAX = 1000
ROW_BYTES = 1400
"""Bytes of a query without its path and notes, and bytes around a note: both measured
(tests/unit/test_noted.py)."""
NOTE_BYTES = 64
CHAR_BYTES = 4
"""Of a path, at most."""
INDEX_ENTRIES_MAX = 100

_KEY = struct.Struct(">QQQ")
"""Batch, time and run, stored in front of a note, so that notes can be compared and ordered without
unpacking them."""
_BATCH_BYTES = 8
_RUN = slice(16, 24)
_NO_RUN = bytes(8)


class Row(Struct, frozen=True, array_like=True):
    """Notes of one query on their way between agents."""

    path: str
    query: str
    notes: list[bytes]


class IndexEntry(Struct, frozen=True, array_like=True):
    """What an agent has of a query, so that another agent knows whether to ask for it."""

    path: str
    query: str
    mark: int
    """Computed from all its notes, in any order: the same for the same notes."""


class _Kept:
    __slots__ = ("mark", "newest_ms", "notes", "query")

    def __init__(self, query: str) -> None:
        self.query = query
        self.notes: deque[bytes] = deque()
        self.newest_ms = 0
        self.mark = 0


class NoteTable:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._queries: OrderedDict[str, _Kept] = OrderedDict()
        """By path, the most recently updated last."""
        self.bytes_used = 0

    def add(self, path: str, query: str, notes: Iterable[bytes]) -> int:
        """Adds notes that were just received; returns how many of them are new. Another query at
        the same path is another checkpoint: the notes of the earlier one are dropped. Raises
        msgspec.DecodeError for anything but notes."""
        return self._take(path, query, [_keyed(note) for note in notes])

    def _take(self, path: str, query: str, notes: Iterable[bytes]) -> int:
        kept = self._queries.get(path)
        if kept is not None and kept.query != query:
            self._forget(path)
            kept = None
        if kept is None:
            kept = self._queries[path] = _Kept(query)
            self.bytes_used += ROW_BYTES + CHAR_BYTES * len(path)
        self._queries.move_to_end(path)
        new = sum(self._append(kept, note) for note in notes)
        self._trim()
        return new

    def merge(self, row: Row) -> None:
        """Merges what another agent has of a query, in the order of the driver's clock. Of two
        queries at one path the most recent one is kept."""
        mine = self._queries.get(row.path)
        theirs = [_keyed(note) for note in row.notes]
        if mine is not None and mine.query != row.query:
            if max(map(_time_ms, theirs), default=0) <= mine.newest_ms:
                return
            mine = None
        both = {note[: _KEY.size]: note for note in (*(mine.notes if mine else ()), *theirs)}
        ordered = sorted(both.values(), key=lambda note: (_time_ms(note), note))
        self._forget(row.path)
        self._take(row.path, row.query, ordered)

    def of(self, path: str, limit: int = NOTES_KEPT) -> Noted:
        kept = self._queries.get(path)
        if kept is None:
            return Noted()
        wanted = list(kept.notes)[-limit:] if limit > 0 else []
        return Noted(kept.query, [unpack(note[_KEY.size :]) for note in wanted])

    def row(self, path: str) -> Row | None:
        kept = self._queries.get(path)
        if kept is None:
            return None
        return Row(path, kept.query, [note[_KEY.size :] for note in kept.notes])

    def index(self, after: str) -> list[IndexEntry]:
        """A page of what is here, by path."""
        paths = sorted(path for path in self._queries if path > after)[:INDEX_ENTRIES_MAX]
        return [self._entry(path) for path in paths]

    def lacks(self, entry: IndexEntry) -> bool:
        """Whether another agent may have notes that are not here."""
        mine = self._queries.get(entry.path)
        return mine is None or (mine.query, mine.mark) != (entry.query, entry.mark)

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def _entry(self, path: str) -> IndexEntry:
        kept = self._queries[path]
        return IndexEntry(path, kept.query, kept.mark)

    def _append(self, kept: _Kept, note: bytes) -> bool:
        last = kept.notes[-1] if kept.notes else b""
        # Batches come in order: only a repeat or a query that went back needs a search.
        if note[:_BATCH_BYTES] <= last[:_BATCH_BYTES]:
            own = note[: _KEY.size]
            if any(other.startswith(own) for other in kept.notes):
                return False
        kept.notes.append(note)
        kept.mark ^= xxh3_64_intdigest(note)
        kept.newest_ms = max(kept.newest_ms, _time_ms(note))
        self.bytes_used += NOTE_BYTES + len(note)
        if len(kept.notes) > NOTES_KEPT:
            self._drop(kept, _least(kept.notes))
        return True

    def _drop(self, kept: _Kept, index: int) -> None:
        note = kept.notes[index]
        del kept.notes[index]
        kept.mark ^= xxh3_64_intdigest(note)
        self.bytes_used -= NOTE_BYTES + len(note)

    def _forget(self, path: str) -> None:
        kept = self._queries.pop(path, None)
        if kept is not None:
            weight = sum(NOTE_BYTES + len(note) for note in kept.notes)
            self.bytes_used -= ROW_BYTES + CHAR_BYTES * len(path) + weight

    def _trim(self) -> None:
        while self._queries and (
            self.bytes_used > self._bytes_max or len(self._queries) > QUERIES_MAX
        ):
            path, kept = next(iter(self._queries.items()))
            if kept.notes and len(self._queries) <= QUERIES_MAX:
                self._drop(kept, 0)
            else:
                self._forget(path)


def _least(notes: deque[bytes]) -> int:
    """Which note is dropped first if there are too many: the oldest that is neither the first nor
    the last of its run. The starts and ends of runs say how often a query failed, which is useful
    for longer than the durations of its batches."""
    before, run = b"", notes[0][_RUN]
    for index in range(2 * RUNS_KEPT):
        after = notes[index + 1][_RUN]
        if run == _NO_RUN or before == run == after:
            return index
        before, run = run, after
    return 0


def _keyed(data: bytes) -> bytes:
    return _KEY.pack(*key(data)) + data


def _time_ms(note: bytes) -> int:
    time_ms: int = _KEY.unpack_from(note)[1]
    return time_ms
