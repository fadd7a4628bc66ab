"""A namespace's whole state as a row of chunks, and back again.

`snapshot` yields bounded chunks on demand; the state must not change until it is
exhausted. Order is part of the state wherever later commands could see it (files,
children, freed stripes, sessions by use), so everything goes in the order it is in.
A chunk is [section, rows]; sections come in the order of `_SECTIONS`.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from diskless.model import AgentInfo, FileRecord, Stripe
from diskless.namespace import commands as c
from diskless.namespace.ledger import Entry
from diskless.namespace.sessions import _Session
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File
from diskless.namespace.weights import name_bytes

CHUNK_ROWS_MAX = 1000
CHUNK_BYTES_MAX = 128 * 1024
"""A chunk ends with the row that exceeds one of these: it takes a few milliseconds."""

_encode = msgspec.msgpack.Encoder().encode

_Row = tuple[Any, ...]
_Tree = list[tuple[int, str, int, int]]  # parent, name, mtime, file id or 0 for a directory
_Answers = list[tuple[int, int, c.Result]]  # session, sequence, answer
_SECTIONS: dict[str, Any] = {
    "counters": list[Any],
    "agents": list[tuple[AgentInfo]],
    "boots": list[tuple[int, str, int]],
    "files": list[tuple[FileRecord]],
    "tree": _Tree,
    "demotable": list[tuple[int]],
    "stripes": list[tuple[Stripe, int]],
    "extents": list[tuple[str, int, int]],
    "freed": list[tuple[str, int]],
    "fences": list[tuple[int, int, int]],
    "reaped": list[tuple[int, int, int]],
    "partly_dead": list[tuple[str]],
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
    yield from _chunks("tree", _walk(state.tree.root))
    yield from _chunks("demotable", ((id_,) for id_ in state.demotable))
    yield from _chunks(
        "stripes", ((entry.stripe, entry.live_bytes) for entry in ledger.entries.values())
    )
    yield from _chunks(
        "extents",
        (
            (stripe, file, length)
            for stripe, entry in ledger.entries.items()
            for file, length in entry.files.items()
        ),
    )
    yield from _chunks("freed", ledger.freed_ms.items())
    yield from _chunks("fences", ((*who, below) for who, below in ledger.fences.items()))
    yield from _chunks(
        "reaped", ((*who, n) for who, numbers in ledger.reaped.items() for n in numbers)
    )
    yield from _chunks("partly_dead", ((id_,) for id_ in ledger.partly_dead))
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
        state.bytes_logical,
        state.bytes_inline,
        state.bytes_max,
        state.roster_version,
        state._last_file,
        state.sessions._last,
        state.tree.directories,
        state.tree.root.mtime_ms,
        ledger.live_bytes,
        ledger.payload_bytes,
        ledger.stored_bytes,
        ledger.changes,
    ]


def _record_bytes(row: _Row) -> int:
    record: FileRecord = row[0]
    return 60 + len(record.inline or b"") + 40 * len(record.extents)


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


def _walk(root: Directory) -> Iterator[_Row]:
    """Every node below the root, after its parent: (number of the parent, name, mtime,
    file id), where directories are numbered as they come, the root being 0."""
    number = 0
    pending = [(0, root)]
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
            state.bytes_logical,
            state.bytes_inline,
            state.bytes_max,
            state.roster_version,
            state._last_file,
            state.sessions._last,
            state.tree.directories,
            state.tree.root.mtime_ms,
            ledger.live_bytes,
            ledger.payload_bytes,
            ledger.stored_bytes,
            ledger.changes,
        ) = values

    def _agents(self, rows: list[tuple[AgentInfo]]) -> None:
        for (agent,) in rows:
            self._state.agents[agent.slot] = agent

    def _boots(self, rows: list[tuple[int, str, int]]) -> None:
        for slot, boot, incarnation in rows:
            self._state._boots.setdefault(slot, {})[boot] = incarnation

    def _files(self, rows: list[tuple[FileRecord]]) -> None:
        # The tree comes later and gives them their places; this keeps their order.
        root = self._state.tree.root
        for (record,) in rows:
            self._state.files[record.id] = File("", root, record)
            self._state.extents += len(record.extents)

    def _tree(self, rows: _Tree) -> None:
        directories, files, tree = self._directories, self._state.files, self._state.tree
        for parent, name, mtime_ms, id_ in rows:
            above = directories[parent]
            tree.name_bytes += name_bytes(name)
            if id_:
                file = files[id_]
                file.name, file.parent = name, above
                above.children[name] = file
            else:
                directory = Directory(name, above, mtime_ms)
                above.children[name] = directory
                directories.append(directory)

    def _demotable(self, rows: list[tuple[int]]) -> None:
        for (id_,) in rows:
            self._state.demotable[id_] = None

    def _stripes(self, rows: list[tuple[Stripe, int]]) -> None:
        for stripe, live_bytes in rows:
            entry = self._state.ledger.entries[stripe.id] = Entry(stripe)
            self._state.ledger.places += len(stripe.places)
            entry.live_bytes = live_bytes

    def _extents(self, rows: list[tuple[str, int, int]]) -> None:
        for stripe, file, length in rows:
            self._state.ledger.entries[stripe].files[file] = length

    def _freed(self, rows: list[tuple[str, int]]) -> None:
        self._state.ledger.freed_ms.update(rows)

    def _fences(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, below in rows:
            self._state.ledger.fences[slot, incarnation] = below

    def _reaped(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, counter in rows:
            self._state.ledger.reaped.setdefault((slot, incarnation), set()).add(counter)

    def _partly_dead(self, rows: list[tuple[str]]) -> None:
        for (id_,) in rows:
            self._state.ledger.partly_dead[id_] = None

    def _sessions(self, rows: list[tuple[int, int, int, int, int]]) -> None:
        for number, *bare in rows:
            self._state.sessions.add(number, _Session(*bare))

    def _answers(self, rows: _Answers) -> None:
        for number, sequence, answer in rows:
            self._state.sessions.record(number, sequence, answer)
