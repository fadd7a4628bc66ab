"""What the schedules store: a small namespace that knows its past, and its form in the tier."""

import random
from dataclasses import dataclass, field

import msgspec

State = dict[str, int]
"""Paths and the ids of their files."""
PATHS = [f"/f{n}" for n in range(12)]


@dataclass
class Log:
    """Every state that there was, by position, and every file's bytes. Positions go on from
    where a restore began."""

    start_op: int = 0
    states: list[State] = field(default_factory=lambda: [{}])
    entries: list[tuple[int, str, int]] = field(default_factory=list)
    """Position, path, id of its file (0: deleted)."""
    bytes: dict[int, bytes] = field(default_factory=dict)
    last_file: int = 0
    last_files: list[int] = field(default_factory=lambda: [0])

    @property
    def op(self) -> int:
        return self.start_op + len(self.entries)

    def state(self, op: int) -> State:
        return self.states[op - self.start_op]

    def last_file_at(self, op: int) -> int:
        return self.last_files[op - self.start_op]

    def since(self, op: int, until: int) -> list[tuple[int, str, int]]:
        return self.entries[op - self.start_op : until - self.start_op]

    def act(self, rng: random.Random) -> None:
        path = rng.choice(PATHS)
        state = dict(self.states[-1])
        if path in state and rng.random() < 0.4:
            del state[path]
            file = 0
        else:
            self.last_file += 1
            file = state[path] = self.last_file
            size = rng.choice((0, 1, 20, 60, 200))
            self.bytes[file] = rng.randbytes(size) if rng.random() < 0.7 else bytes(size)
        self.entries.append((self.op + 1, path, file))
        self.states.append(state)
        self.last_files.append(self.last_file)


def encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def replay(state: State, journal: bytes) -> int:
    """Does what a piece of a journal says; the position that it leads to."""
    entries = msgspec.msgpack.decode(journal, type=list[tuple[int, str, int]])
    for _, path, file in entries:
        if file:
            state[path] = file
        else:
            del state[path]
    return entries[-1][0]


def picture(data: bytes) -> State:
    return msgspec.msgpack.decode(data, type=State)
