"""The log: entries after a base that the state machine has already applied.

Op-numbers begin with 1. Invariants: `last` == `base` + number of entries; `bytes`
is the size of the entries' commands plus a constant for each; neither of the two clocks
that entries carry ever decreases.
"""

from collections.abc import Iterable

from diskless.namespace.replication.messages import Entry

ENTRY_BYTES = 200
COMMAND_BYTES = 60
"""What an entry and a command cost beyond the command's own bytes, roughly."""


def entry_bytes(entry: Entry) -> int:
    commands = entry.commands
    if len(commands) == 1:
        return ENTRY_BYTES + COMMAND_BYTES + len(commands[0])
    return ENTRY_BYTES + COMMAND_BYTES * len(commands) + sum(map(len, commands))


class Log:
    __slots__ = ("_entries", "base", "base_elapsed_ms", "base_time_ms", "bytes", "last")

    def __init__(self) -> None:
        self.base = 0
        self.base_time_ms = 0
        self.base_elapsed_ms = 0
        self.last = 0
        self.bytes = 0
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last_time_ms(self) -> int:
        return self._entries[-1].time_ms if self._entries else self.base_time_ms

    @property
    def last_elapsed_ms(self) -> int:
        return self._entries[-1].elapsed_ms if self._entries else self.base_elapsed_ms

    def clocks_at(self, op: int) -> tuple[int, int]:
        """Wall and elapsed time of an op that is not before the base."""
        if op == self.base:
            return self.base_time_ms, self.base_elapsed_ms
        entry = self.get(op)
        return entry.time_ms, entry.elapsed_ms

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.last += 1
        self.bytes += entry_bytes(entry)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def get(self, op: int) -> Entry:
        assert self.base < op <= self.last
        return self._entries[op - self.base - 1]

    def since(self, first: int, *, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on: as many as fit, and at least one if there is one."""
        assert first > self.base
        chosen: list[Entry] = []
        room = bytes_max
        for index in range(first - self.base - 1, len(self._entries)):
            entry = self._entries[index]
            room -= entry_bytes(entry)
            if room < 0 and chosen:
                break
            chosen.append(entry)
        return tuple(chosen)

    def bytes_after(self, op: int) -> int:
        """What the entries after `op` weigh."""
        assert op >= self.base
        return sum(map(entry_bytes, self._entries[op - self.base :]))

    def cut_after(self, op: int) -> None:
        """Forgets the entries after `op`, which must not have been applied."""
        assert op >= self.base
        gone = self._entries[op - self.base :]
        if gone:
            del self._entries[op - self.base :]
            self.last = op
            self.bytes -= sum(map(entry_bytes, gone))

    def drop_through(self, op: int) -> None:
        """Moves the base up to `op`: those entries were applied and nobody needs them."""
        count = min(op, self.last) - self.base
        if count > 0:
            gone = self._entries[:count]
            self.base += count
            self.base_time_ms = gone[-1].time_ms
            self.base_elapsed_ms = gone[-1].elapsed_ms
            self.bytes -= sum(map(entry_bytes, gone))
            del self._entries[:count]

    def reset(self, base: int, *, time_ms: int, elapsed_ms: int) -> None:
        """An empty log that continues after a snapshot of `base`."""
        self.base = self.last = base
        self.base_time_ms, self.base_elapsed_ms = time_ms, elapsed_ms
        self.bytes = 0
        self._entries = []
