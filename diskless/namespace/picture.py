"""The whole namespace of a marked moment as a row of chunks, and back again.

It is what a whole manifest of the tier holds: the tree and the snapshots, of each file what it
takes to know it (never its bytes or where they lie), policies, tokens and counters; no agents,
stripes or sessions. It is walked while the state changes: nothing that the mark holds changes.
The chunks lie in tiers for years: sections may be added, and rows of one never change.
A chunk is [section, rows].
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from diskless import policy
from diskless.model import FileRecord
from diskless.namespace import forest
from diskless.namespace.btree import Inner, Leaf, in_order
from diskless.namespace.history import Snapshot
from diskless.namespace.marked import Marked
from diskless.namespace.policies import asks_for_memory, rows_of
from diskless.namespace.state import NamespaceState
from diskless.namespace.tokens import Token
from diskless.namespace.tree import Directory, File

CHUNK_ROWS_MAX = 1000
CHUNK_BYTES_MAX = 128 * 1024
"""A chunk ends with the row that exceeds one of these: it takes a few milliseconds."""
TOKENS_PAGE = 500
WALK_STEPS = 2000
"""Of one stretch of a walk that makes no chunks."""

FileRow = tuple[int, int, int, int]
"""Id, size, time and checksum."""
_SnapshotRow = tuple[int, str, str, int, int, int, str, int]
"""Id, path, name, number of its root, time, op, cut, size of the cut."""
_TokenRow = tuple[str, tuple[str, ...], bool, int, int, int, int]
_SECTIONS: dict[str, Any] = {
    "counters": list[int],
    "files": list[FileRow],
    "nodes": list[forest.Row],
    "root": list[int],
    "snapshots": list[_SnapshotRow],
    "policies": list[tuple[str, str, str]],
    "tokens": list[_TokenRow],
}
_DECODERS = {name: msgspec.msgpack.Decoder(rows) for name, rows in _SECTIONS.items()}
_CHUNK = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_encode = msgspec.msgpack.Encoder().encode


class MarkGone(Exception):
    """The moment that was walked is not held any more."""


def rows(state: NamespaceState) -> Iterator[bytes]:
    """The chunks of what `state.marked` holds. The state may change between two of them; if
    the mark goes, raises MarkGone."""
    marked = state.marked
    if marked is None:
        raise MarkGone("nothing is marked")
    for chunk in _rows(state, marked):
        yield chunk
        _check(state, marked)


def _check(state: NamespaceState, marked: Marked) -> None:
    if state.marked is not marked:
        raise MarkGone(f"what was marked at change {marked.change} is gone")


def files_of(chunk: bytes) -> list[FileRow]:
    """The files that a chunk tells of; each is in one chunk."""
    section, raw = _CHUNK.decode(chunk)
    return _DECODERS["files"].decode(raw) if section == "files" else []


def _rows(state: NamespaceState, marked: Marked) -> Iterator[bytes]:
    yield _encode(
        (
            "counters",
            [
                marked.change,
                marked.op,
                marked.time_ms,
                marked.last_file,
                marked.last_snapshot,
                marked.tokens_version,
            ],
        )
    )
    snapshots = _snapshots(state, marked)
    feller = forest.Feller()
    numbers: list[int] = []
    yield from _chunks_of_trees(
        state, _trees(feller, [marked.root, *(one.root for one in snapshots)], numbers)
    )
    yield _encode(("root", numbers[:1]))
    yield from _chunks(
        "snapshots",
        (
            (
                one.id,
                one.path,
                marked.names.get(one.id, one.name),
                number,
                one.time_ms,
                one.op,
                one.cut,
                one.cut_size,
            )
            for one, number in zip(snapshots, numbers[1:], strict=True)
        ),
        size=lambda row: 60 + len(row[1]) + len(row[2]),
    )
    yield from _chunks("policies", rows_of(marked.policies), size=lambda row: 20 + len(row[0]))
    yield from _chunks("tokens", _tokens(state, marked), size=_token_bytes)


def _snapshots(state: NamespaceState, marked: Marked) -> list[Snapshot]:
    """Those of the moment, the oldest first."""
    here = [one for one in state.history.by_id.values() if one.id <= marked.last_snapshot]
    return sorted([*here, *marked.forgotten.values()], key=lambda one: one.id)


def _trees(
    feller: forest.Feller, roots: list[Directory], numbers: list[int]
) -> Iterator[forest.Row]:
    for root in roots:
        yield from feller.rows(root)
        numbers.append(feller.number)


def _chunks_of_trees(state: NamespaceState, trees: Iterator[forest.Row]) -> Iterator[bytes]:
    """Files come before the leaves that name them, and once, however many do."""
    told: set[int] = set()
    nodes: list[forest.Row] = []
    files: list[FileRow] = []
    room = CHUNK_BYTES_MAX
    for row in trees:
        nodes.append(row)
        room -= forest.row_bytes(row)
        for id_ in forest.files_of(row):
            file = state.files[id_]
            if file.refs > 1:
                if id_ in told:
                    continue
                told.add(id_)
            record = file.record
            files.append((id_, record.size, record.mtime_ms, record.checksum))
        if room <= 0 or len(nodes) >= CHUNK_ROWS_MAX:
            yield from _both(files, nodes)
            nodes, files, room = [], [], CHUNK_BYTES_MAX
    yield from _both(files, nodes)


def _both(files: list[FileRow], nodes: list[forest.Row]) -> Iterator[bytes]:
    if files:
        yield _encode(("files", files))
    if nodes:
        yield _encode(("nodes", nodes))


def _tokens(state: NamespaceState, marked: Marked) -> Iterator[_TokenRow]:
    told: set[str] = set()
    after, more = "", True
    while more:
        page, more = state.tokens.page(after=after, limit=TOKENS_PAGE)
        for token in page:
            if token.name not in marked.tokens:
                told.add(token.name)
                yield _token_row(token)
        after = page[-1].name if page else after
    # What has changed by now and was not told before: as it was.
    for name, before in list(marked.tokens.items()):
        if before is not None and name not in told:
            yield _token_row(before)


def _token_row(token: Token) -> _TokenRow:
    return (
        token.name,
        token.paths,
        token.writes,
        token.expires_s,
        token.issued_ms,
        token.revoked_ms,
        token.number,
    )


def _token_bytes(row: Any) -> int:
    return 60 + len(row[0]) + sum(map(len, row[1]))


def _chunks(
    section: str, found: Iterable[tuple[Any, ...]], *, size: Callable[[Any], int]
) -> Iterator[bytes]:
    chunk: list[tuple[Any, ...]] = []
    room = CHUNK_BYTES_MAX
    for row in found:
        chunk.append(row)
        room -= size(row)
        if room <= 0 or len(chunk) >= CHUNK_ROWS_MAX:
            yield _encode((section, chunk))
            chunk, room = [], CHUNK_BYTES_MAX
    if chunk:
        yield _encode((section, chunk))


class Painter:
    """Fills an empty state with the chunks of a picture, in their order. Its files are cold."""

    def __init__(self, state: NamespaceState) -> None:
        self._state = state
        state.tree.counts.clear()  # Its empty root goes.
        state.tier.attached = True
        self._planter = forest.Planter(state.files, state.tree.counts)

    def take(self, chunk: bytes) -> None:
        section, raw = _CHUNK.decode(chunk)
        decoder = _DECODERS.get(section)
        if decoder is None:
            raise ValueError(f"a picture with {section!r}, which a later version has written")
        getattr(self, f"_{section}")(decoder.decode(raw))

    def _counters(self, values: list[int]) -> None:
        state = self._state
        (
            state.tier.change,
            state.op,
            state.clock_ms,
            last_file,
            state.history.last,
            state.tokens.version,
        ) = values
        state.begin_epoch(files=last_file, sessions=0)

    def _files(self, rows: list[FileRow]) -> None:
        for id_, size, mtime_ms, checksum in rows:
            inline = None if size else b""
            # The leaves come later and are counted then.
            self._state.take(File(FileRecord(id_, size, mtime_ms, checksum, inline), 0))

    def _nodes(self, rows: list[forest.Row]) -> None:
        self._planter.take(rows)

    def _root(self, rows: list[int]) -> None:
        self._state.tree.root = self._planter.directory(rows[0])

    def _snapshots(self, rows: list[_SnapshotRow]) -> None:
        for id_, path, name, number, time_ms, op, cut, cut_size in rows:
            root = self._planter.directory(number)
            kept = Snapshot(id_, path, name, root, time_ms, op, cut, cut_size)
            self._state.history.restore(kept)

    def _policies(self, rows: list[tuple[str, str, str]]) -> None:
        self._state.policies.restore(rows)

    def _tokens(self, rows: list[_TokenRow]) -> None:
        for row in rows:
            self._state.tokens.add(Token(*row))


def restore_picture(state: NamespaceState, chunks: Iterable[bytes]) -> None:
    """Fills an empty state."""
    painter = Painter(state)
    for chunk in chunks:
        painter.take(chunk)


# -- which files the tier is to have --------------------------------------------------


def has_memory(state: NamespaceState) -> bool:
    """Whether some path of the marked moment asks for `memory`: else the tier is to have all."""
    assert state.marked is not None
    return asks_for_memory(state.marked.policies, default=state.tier.default_durability)


def durable_files(state: NamespaceState) -> Iterator[list[int]]:
    """The ids of all files that some path leads to which asks for more than `memory`: some of
    them twice. In stretches, between which the state may change; if the mark goes, raises
    MarkGone."""
    marked = state.marked
    assert marked is not None
    tops = [(marked.root, "/"), *((one.root, one.path) for one in _snapshots(state, marked))]
    default = state.tier.default_durability
    seen: set[Any] = set()
    found: list[int] = []
    for top, path in tops:
        asked = policy.effective(marked.policies, path, policy.DURABILITY, default=default)
        walk = _durable(marked.policies, top, path, asked.value, seen)
        for steps, id_ in enumerate(walk, start=1):
            if id_:
                found.append(id_)
            if steps % WALK_STEPS == 0:
                yield found
                _check(state, marked)
                found = []
    yield found


def _durable(
    table: policy.Table, top: Directory, path: str, asked: str, seen: set[Any]
) -> Iterator[int]:
    """The ids of durable files below a path; a 0 for all else that was looked at."""
    pending: list[tuple[Any, str, str]] = [(top, path, asked)]
    while pending:
        thing, path, asked = pending.pop()
        yield thing.record.id if type(thing) is File and asked != policy.MEMORY else 0
        if isinstance(thing, Leaf):
            above = path.rstrip("/")
            for name, node in in_order(thing).items():
                own = table.get(f"{above}/{name}", {}).get(policy.DURABILITY, asked)
                pending.append((node, f"{above}/{name}", own))
            continue
        if type(thing) is File or (
            isinstance(thing, Directory) and _is_done(table, thing, path, asked, seen)
        ):
            continue
        below = thing.children if isinstance(thing, Inner) else (thing.node,)
        pending += [(one, path, asked) for one in below]


def _is_done(
    table: policy.Table, directory: Directory, path: str, asked: str, seen: set[Any]
) -> bool:
    """Whether nothing durable is left to be found below a directory."""
    above = path.rstrip("/") + "/"
    if any(other.startswith(above) and other != path for other in table):
        return False
    if asked == policy.MEMORY or directory in seen:
        return True
    if directory.refs > 1:
        seen.add(directory)
    return False
