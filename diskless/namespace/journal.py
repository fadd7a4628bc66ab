"""What was done to the namespace since the tier's last manifest: the changes themselves.

Each replica writes down for itself what it applies while a tier is attached: of every change
that was made what it takes to make it again, in the order of their numbers. Never the bytes of
files, where they lie, or whose they were. It is not part of the replicated state: a replica
that got its state by transfer, or has had too much to write down, has a gap, and `covers` says
so. Entries are kept in the form in which they lie in the tier: fields of the commands below
may be added, at their ends and with defaults, and never change their meaning.
"""

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from diskless.namespace import commands as c

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

JOURNAL_BYTES_MAX = 64 * 1024 * 1024
"""By far more than a second brings; what is older goes first."""
TRIM_AT_ONCE = 1000
"""Entries that are dropped in one step; what is left goes as others come."""
ENTRY_BYTES = 41
"""What an entry takes beside its own bytes: an object's head, and its place in the row."""


class Written(Struct, frozen=True, tag=True, array_like=True):
    """A put: its files have the ids from `first` on."""

    first: int
    overwrite: bool
    files: tuple[tuple[str, int, int], ...]
    """Path, size and checksum."""


class TokensForgotten(Struct, frozen=True, tag=True, array_like=True):
    """Tokens that had expired long ago were dropped, as many as one command may."""


What = (
    Written
    | TokensForgotten
    | c.Mkdirs
    | c.Rename
    | c.Delete
    | c.CreateSnapshot
    | c.RenameSnapshot
    | c.DeleteSnapshots
    | c.Clone
    | c.Rollback
    | c.Prune
    | c.Replace
    | c.IssueToken
    | c.RevokeToken
    | c.SetPolicy
    | c.RemovePolicy
)
Change = c.Put | What
"""What a state tells of; a put becomes what is written down of it."""


class Entry(Struct, frozen=True, array_like=True):
    change: int
    op: int
    time_ms: int
    what: What


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Entry).decode


class Journal:
    def __init__(self, *, bytes_max: int = JOURNAL_BYTES_MAX) -> None:
        self.since = 0
        """It has all changes after this one."""
        self.bytes_used = 0
        self._entries: deque[bytes] = deque()
        self._needless = 0  # up to here
        self._bytes_max = bytes_max

    @property
    def last(self) -> int:
        """The newest change that it has, or would follow."""
        return self.since + len(self._entries)

    def covers(self, change: int) -> bool:
        """Whether all that was done after `change` is here."""
        return self.since <= change <= self.last

    def after(self, change: int, *, upto: int, limit: int) -> list[bytes]:
        """The next entries, encoded: at most `limit`, none beyond `upto`. What is before them
        must be covered."""
        assert self.covers(change), (change, self.since, self.last)
        first = change - self.since
        return list(islice(self._entries, first, min(first + limit, upto - self.since)))

    def note(self, state: "NamespaceState", change: Change, done: c.Done) -> None:
        """Writes down the state's last change."""
        assert state.tier.change == self.last + 1, (state.tier.change, self.last)
        entry = Entry(state.tier.change, state.op, state.clock_ms, _stripped(state, change, done))
        data = encode(entry)
        self._entries.append(data)
        self.bytes_used += len(data) + ENTRY_BYTES
        while self._entries and self.bytes_used > self._bytes_max:
            self._drop()
        if self.since < self._needless:
            self._drop()
            self._drop()

    def trim(self, change: int) -> None:
        """What was done up to there is not needed any more."""
        self._needless = change
        for _ in range(min(change - self.since, TRIM_AT_ONCE)):
            self._drop()

    def restart(self, change: int) -> None:
        """Nothing is known of what was done up to there."""
        self._entries.clear()
        self.since, self.bytes_used = change, 0

    def _drop(self) -> None:
        if self._entries:
            self.bytes_used -= len(self._entries.popleft()) + ENTRY_BYTES
            self.since += 1


def _stripped(state: "NamespaceState", change: Change, done: c.Done) -> What:
    match change:
        case c.Put(overwrite=overwrite, files=files):
            rows = tuple([(file.path, file.size, file.checksum) for file in files])
            return Written(done.number, overwrite, rows)
        case c.CreateSnapshot(name=name):
            name = name or state.history.numbered(done.number).name
            return replace(change, session=0, sequence=0, name=name)
        case c.IssueToken() | c.RevokeToken() | c.SetPolicy() | c.RemovePolicy():
            return replace(change, who="")
        case Written() | TokensForgotten():
            return change
        case c.Replace():
            return replace(change, session=0, sequence=0, checked=False)
        case _:
            return replace(change, session=0, sequence=0)
