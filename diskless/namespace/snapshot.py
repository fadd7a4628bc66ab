"""A namespace's whole state as a row of chunks, and back again.

`snapshot` yields bounded chunks on demand; the state must not change until it is
exhausted. Order is part of the state wherever later commands could see it (files,
children, freed stripes, sessions by use), so everything goes in the order it is in.
A chunk is [section, rows]; sections come in the order of `_SECTIONS`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from diskless.model import AgentInfo, FileRecord, Stripe
from diskless.namespace import commands as c
from diskless.namespace.sessions import _Session
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File

CHUNK_ROWS_MAX = 1000
CHUNK_BYTES_MAX = 128 * 1024
"""A chunk ends with the row that exceeds one of these: it takes a few milliseconds."""

_encode = msgspec.msgpack.Encoder().encode

_Row = tuple[Any, ...]
_Tree = list[tuple[int, str, int, int]]  # parent, name, mtime, file id or 0 for a directory
_DOOMED = -1
"""The parent of a directory that a delete has detached."""
_Answers = list[tuple[int, int, c.Result]]  # session, sequence, answer
_SECTIONS: dict[str, Any] = {
    "counters": list[Any],
    "agents": list[tuple[AgentInfo]],
    "boots": list[tuple[int, str, int]],
    "files": list[tuple[FileRecord]],
    "tree": _Tree,
    "demotable": list[tuple[int, int]],
    "stripes": list[tuple[Stripe, int, list[tuple[int, int]]]],
    "freed": list[tuple[str, int]],
    "doubted": list[tuple[int, int, int]],
    "fences": list[tuple[int, int, int]],
    "reaped": list[tuple[int, int, int]],
    "sessions": list[tuple[int, int, int, int, int]],
    "answers": _Answers,
}
_DECODERS = {name: msgspec.msgpack.Decoder(rows) for name, rows in _SECTIONS.items()}
_CHUNK = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def snapshot(state: NamespaceState) -> Iterator[bytes]:
    ledger, sessions = state.ledger, state.sessions
    yield _encode(("counters", _counters(state)))
    yield from _chunks("agents", ((agent,) for agent in state.agents.values()))
    yield from _chunks(
        "boots",
        (
            (slot, boot, incarnation)
            for slot, boots in state._boots.items()
            for boot, incarnation in boots.items()
        ),
    )
    yield from _chunks(
        "files", ((file.record,) for file in state.files.values()), size=_record_bytes
    )
    yield from _chunks("tree", _walk(state.tree.root, state.doomed.roots))
    yield from _chunks("demotable", state.demotable_ms.items())
    yield from _chunks(
        "stripes",
        (
            (entry.stripe, entry.live_bytes, list(entry.files.items()))
            for entry in ledger.entries.values()
        ),
        size=_stripe_bytes,
    )
    yield from _chunks("freed", ledger.freed_ms.items())
    yield from _chunks("doubted", ((*who, since) for who, since in ledger.doubted_ms.items()))
    yield from _chunks("fences", ((*who, below) for who, below in ledger.fences.items()))
    yield from _chunks(
        "reaped", ((*who, n) for who, numbers in ledger.reaped.items() for n in numbers)
    )
    yield from _chunks(
        "sessions", ((number, *known.bare) for number, known in sessions._sessions.items())
    )
    yield from _chunks(
        "answers",
        (
            (number, sequence, answer)
            for number, known in sessions._sessions.items()
            for sequence, answer in known.items()
        ),
    )


def _counters(state: NamespaceState) -> list[int]:
    ledger = state.ledger
    return [
        state.clock_ms,
        state.elapsed_ms,
        state.lost_ms,
        state.bytes_inline,
        state.bytes_max,
        state.roster_version,
        state._last_file,
        state.sessions._last,
        state.tree.root.mtime_ms,
        state.doomed.files,
        state.doomed.directories,
        state.doomed.name_bytes,
        ledger.live_bytes,
        ledger.payload_bytes,
        ledger.stored_bytes,
    ]


def _record_bytes(row: _Row) -> int:
    record: FileRecord = row[0]
    return 60 + len(record.inline or b"") + 40 * len(record.extents)


def _stripe_bytes(row: _Row) -> int:
    stripe, _, files = row
    return 60 + 12 * len(stripe.places) + 12 * len(files)


def _chunks(section: str, rows: Iterable[_Row], *, size: Any = None) -> Iterator[bytes]:
    iterator = iter(rows)
    while True:
        if size is None:
            chunk = list(islice(iterator, CHUNK_ROWS_MAX))
        else:
            chunk, room = [], CHUNK_BYTES_MAX
            for row in iterator:
                chunk.append(row)
                room -= size(row)
                if room <= 0 or len(chunk) >= CHUNK_ROWS_MAX:
                    break
        if not chunk:
            return
        yield _encode((section, chunk))


def _walk(root: Directory, doomed: Sequence[Directory]) -> Iterator[_Row]:
    """Every node below the root, after its parent: (number of the parent, name, mtime,
    file id), where directories are numbered as they come, the root being 0. First those
    that are doomed, which have no parent."""
    pending = [(0, root)]
    number = 0
    for directory in doomed:
        number += 1
        pending.append((number, directory))
        yield _DOOMED, directory.name, directory.mtime_ms, 0
    while pending:
        parent, directory = pending.pop()
        for name, child in directory.children.items():
            if isinstance(child, File):
                yield parent, name, 0, child.record.id
            else:
                number += 1
                pending.append((number, child))
                yield parent, name, child.mtime_ms, 0


class Restorer:
    """Fills an empty state with the chunks of a snapshot, in their order."""

    def __init__(self, state: NamespaceState) -> None:
        self._state = state
        self._directories = [state.tree.root]

    def take(self, chunk: bytes) -> None:
        section, raw = _CHUNK.decode(chunk)
        getattr(self, f"_{section}")(_DECODERS[section].decode(raw))

    def _counters(self, values: list[int]) -> None:
        state = self._state
        ledger = state.ledger
        (
            state.clock_ms,
            state.elapsed_ms,
            state.lost_ms,
            state.bytes_inline,
            state.bytes_max,
            state.roster_version,
            state._last_file,
            state.sessions._last,
            state.tree.root.mtime_ms,
            state.doomed.files,
            state.doomed.directories,
            state.doomed.name_bytes,
            ledger.live_bytes,
            ledger.payload_bytes,
            ledger.stored_bytes,
        ) = values

    def _agents(self, rows: list[tuple[AgentInfo]]) -> None:
        for (agent,) in rows:
            self._state.agents[agent.slot] = agent

    def _boots(self, rows: list[tuple[int, str, int]]) -> None:
        for slot, boot, incarnation in rows:
            self._state._boots.setdefault(slot, {})[boot] = incarnation

    def _files(self, rows: list[tuple[FileRecord]]) -> None:
        # The tree comes later and gives them their names; this keeps their order.
        for (record,) in rows:
            self._state.files[record.id] = File("", record)
            self._state.extents += len(record.extents)

    def _tree(self, rows: _Tree) -> None:
        directories, files = self._directories, self._state.files
        for parent, name, mtime_ms, id_ in rows:
            if parent == _DOOMED:
                directories.append(Directory(name, mtime_ms))
                self._state.doomed.roots.append(directories[-1])
                continue
            above = directories[parent]
            if id_:
                file = files[id_]
                file.name = name
                above.attach(file, now_ms=above.mtime_ms)
            else:
                directory = Directory(name, mtime_ms)
                above.attach(directory, now_ms=above.mtime_ms)
                directories.append(directory)

    def _demotable(self, rows: list[tuple[int, int]]) -> None:
        self._state.demotable_ms.update(rows)

    def _stripes(self, rows: list[tuple[Stripe, int, list[tuple[int, int]]]]) -> None:
        for stripe, live_bytes, files in rows:
            self._state.ledger.restore(stripe, live_bytes, files)

    def _freed(self, rows: list[tuple[str, int]]) -> None:
        self._state.ledger.freed_ms.update(rows)

    def _doubted(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, since_ms in rows:
            self._state.ledger.doubted_ms[slot, incarnation] = since_ms

    def _fences(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, below in rows:
            self._state.ledger.fences[slot, incarnation] = below

    def _reaped(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, counter in rows:
            self._state.ledger.reaped.setdefault((slot, incarnation), set()).add(counter)

    def _sessions(self, rows: list[tuple[int, int, int, int, int]]) -> None:
        for number, *bare in rows:
            self._state.sessions.add(number, _Session(*bare))

    def _answers(self, rows: _Answers) -> None:
        for number, sequence, answer in rows:
            self._state.sessions.record(number, sequence, answer)
