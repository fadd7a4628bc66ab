"""A namespace's whole state as a row of chunks, and back again.

`snapshot` yields bounded chunks on demand; the state must not change until it is
exhausted. Order is part of the state wherever later commands could see it (files, freed
stripes, sessions by use), so everything goes in the order it is in. What directories share
goes once.
A chunk is [section, rows]; sections come in the order of `_SECTIONS`.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from diskless.model import (
    PRIORITY_DEFAULT,
    AgentInfo,
    DrillStatus,
    FileRecord,
    Stripe,
    TierOptions,
)
from diskless.namespace import commands as c
from diskless.namespace import forest, marked
from diskless.namespace.doomed import Job
from diskless.namespace.history import Snapshot
from diskless.namespace.leases import Lease
from diskless.namespace.ledger import stored_bytes
from diskless.namespace.marked import Marked
from diskless.namespace.policies import rows_of
from diskless.namespace.sessions import _Session
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Segment
from diskless.namespace.tokens import Token
from diskless.namespace.tree import File
from diskless.policy import parity_of, priority_of

CHUNK_ROWS_MAX = 1000
CHUNK_BYTES_MAX = 128 * 1024
"""A chunk ends with the row that exceeds one of these: it takes a few milliseconds."""

_encode = msgspec.msgpack.Encoder().encode

_Row = tuple[Any, ...]
_Doomed = list[tuple[int, list[int]]]  # files left, numbers of what is pending
_KeptRow = tuple[int, str, str, int, int, int, str, int]
_Kept = list[_KeptRow]
"""Of each snapshot: id, path, name, number of its root, time, op, cut, size of the cut."""
_SessionRow = tuple[int, int, int, int, int, str, str]
_LeaseRow = tuple[str, str, int, int]
_Answers = list[tuple[int, int, c.Result]]  # session, sequence, answer
_SECTIONS: dict[str, Any] = {
    "counters": list[Any],
    "agents": list[tuple[AgentInfo]],
    "boots": list[tuple[int, str, int]],
    "files": list[tuple[FileRecord]],
    "nodes": list[forest.Row],
    "root": list[tuple[int]],
    "doomed": _Doomed,
    "kept": _Kept,
    "demotable": list[tuple[int, int]],
    "stripes": list[tuple[Stripe, int, list[tuple[int, int]]]],
    "freed": list[tuple[str, int]],
    "doubted": list[tuple[int, int, int]],
    "fences": list[tuple[int, int, int]],
    "reaped": list[tuple[int, int, int]],
    "sessions": list[_SessionRow],
    "answers": _Answers,
    "leases": list[_LeaseRow],
    "tokens": list[tuple[Token]],
    "policies": list[tuple[str, str, str]],
    "tier": list[Any],
    "drill": list[tuple[DrillStatus]],
    "segments": list[tuple[int, Segment]],
    "places": list[tuple[int, bytes]],
    "cold": list[tuple[int, int]],
    "evicted": list[tuple[int, int]],
    "plans": list[tuple[str, int, bool]],
    "mark": list[Any],
    "mark_policies": list[tuple[str, str, str]],
    "mark_kept": _Kept,
    "mark_names": list[tuple[int, str]],
    "mark_tokens": list[tuple[str, Token | None]],
}
_DECODERS = {name: msgspec.msgpack.Decoder(rows) for name, rows in _SECTIONS.items()}
_CHUNK = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def snapshot(state: NamespaceState) -> Iterator[bytes]:
    ledger, sessions = state.ledger, state.sessions
    yield _encode(("counters", _read_counters(state)))
    yield from _chunks("agents", ((agent,) for agent in state.agents.values()))
    yield from _chunks(
        "boots",
        (
            (slot, boot, incarnation)
            for slot, boots in state.roster.boots.items()
            for boot, incarnation in boots.items()
        ),
    )
    yield from _chunks(
        "files", ((file.record,) for file in state.files.values()), size=_record_bytes
    )
    numbers = yield from _forest(state)
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
    yield from _chunks(
        "leases",
        (
            (path, lease.application, lease.since_ms, lease.used_ms)
            for path, lease in state.leases.by_path.items()
        ),
    )
    yield from _chunks(
        "tokens", ((token,) for token in state.tokens.by_name.values()), size=_token_bytes
    )
    yield from _chunks("policies", rows_of(state.policies.table))
    yield from _tier(state)
    if state.marked is not None:
        yield from _mark(state.marked, numbers)


def _tier(state: NamespaceState) -> Iterator[bytes]:
    tier = state.tier
    yield _encode(("tier", [getattr(tier, name) for name in _TIER]))
    if tier.drill is not None:
        yield from _chunks("drill", [(tier.drill,)])
    yield from _chunks("segments", tier.segments.items())
    places = ((id_, tier.packed(id_)) for id_ in tier.places)
    yield from _chunks("places", places, size=lambda row: 20 + len(row[1]))
    yield from _chunks("cold", tier.cold.items())
    yield from _chunks("evicted", tier.evicted.items())
    yield from _chunks("plans", tier.plans.rows())


def _mark(held: Marked, numbers: Iterator[int]) -> Iterator[bytes]:
    """The numbers are those of its root, and of the snapshots' that it holds."""
    yield _encode(
        (
            "mark",
            [
                next(numbers),
                held.change,
                held.op,
                held.time_ms,
                held.last_file,
                held.last_snapshot,
                held.tokens_version,
                held.bytes_used,
            ],
        )
    )
    yield from _chunks("mark_policies", rows_of(held.policies))
    yield from _chunks(
        "mark_kept", (_kept_row(one, next(numbers)) for one in held.forgotten.values())
    )
    yield from _chunks("mark_names", held.names.items())
    yield from _chunks("mark_tokens", held.tokens.items())


def _forest(state: NamespaceState) -> Generator[bytes, None, Iterator[int]]:
    """The answer has the numbers of what the mark holds."""
    feller = forest.Feller()
    roots: list[int] = []

    def rows() -> Iterator[forest.Row]:
        yield from feller.rows(state.tree.root)
        roots.append(feller.number)
        for job in state.doomed.jobs:
            for thing in job.pending:
                yield from feller.rows(thing)
                roots.append(feller.number)
        for kept in state.history.by_id.values():
            yield from feller.rows(kept.root)
            roots.append(feller.number)
        if state.marked is not None:
            yield from feller.rows(state.marked.root)
            roots.append(feller.number)
            for kept in state.marked.forgotten.values():
                yield from feller.rows(kept.root)
                roots.append(feller.number)

    yield from _chunks("nodes", rows(), size=forest.row_bytes)
    numbers = iter(roots)
    yield from _chunks("root", [(next(numbers),)])
    yield from _chunks(
        "doomed", ((job.files, [next(numbers) for _ in job.pending]) for job in state.doomed.jobs)
    )
    yield from _chunks(
        "kept", (_kept_row(one, next(numbers)) for one in state.history.by_id.values())
    )
    return numbers


def _kept_row(one: Snapshot, number: int) -> _Row:
    return one.id, one.path, one.name, number, one.time_ms, one.op, one.cut, one.cut_size


_COUNTERS = (
    "op",
    "clock_ms",
    "elapsed_ms",
    "roster.lost_ms",
    "bytes_inline",
    "bytes_max",
    "roster.version",
    "_last_file",
    "sessions._last",
    "history.last",
    "tokens.version",
    "ledger.live_bytes",
    "ledger.payload_bytes",
    "ledger.stored_bytes",
)
"""Numbers of the state, in the order in which a snapshot carries them."""
_TIER = (
    "attached",
    "uri",
    "epoch",
    "number",
    "change",
    "horizon_change",
    "horizon_op",
    "horizon_time_ms",
    "horizon_file",
    "last_segment",
    "live_bytes",
    "options",
    "closed",
)
"""What a snapshot carries of the tier's state, in its order."""


def _read_counters(state: NamespaceState) -> list[int]:
    return [attrgetter(path)(state) for path in _COUNTERS]


def _write_counters(state: NamespaceState, values: Sequence[int]) -> None:
    for path, value in zip(_COUNTERS, values, strict=True):
        owner, _, name = path.rpartition(".")
        setattr(attrgetter(owner)(state) if owner else state, name, value)


def _record_bytes(row: _Row) -> int:
    record: FileRecord = row[0]
    return 60 + len(record.inline or b"") + 40 * len(record.extents)


def _token_bytes(row: _Row) -> int:
    token: Token = row[0]
    return 60 + len(token.name) + sum(map(len, token.paths))


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


class Restorer:
    """Fills an empty state with the chunks of a snapshot, in their order."""

    def __init__(self, state: NamespaceState) -> None:
        self._state = state
        state.tree.counts.clear()  # Its empty root goes.
        self._planter = forest.Planter(state.files, state.tree.counts)

    def take(self, chunk: bytes) -> None:
        section, raw = _CHUNK.decode(chunk)
        getattr(self, f"_{section}")(_DECODERS[section].decode(raw))

    def _counters(self, values: list[int]) -> None:
        _write_counters(self._state, values)

    def _agents(self, rows: list[tuple[AgentInfo]]) -> None:
        for (agent,) in rows:
            self._state.agents[agent.slot] = agent

    def _boots(self, rows: list[tuple[int, str, int]]) -> None:
        for slot, boot, incarnation in rows:
            self._state.roster.boots.setdefault(slot, {})[boot] = incarnation

    def _files(self, rows: list[tuple[FileRecord]]) -> None:
        # The leaves come later and are counted then; this keeps their order.
        for (record,) in rows:
            self._state.files[record.id] = File(record, 0)
            self._state.extents += len(record.extents)

    def _nodes(self, rows: list[forest.Row]) -> None:
        self._planter.take(rows)

    def _root(self, rows: list[tuple[int]]) -> None:
        self._state.tree.root = self._planter.directory(rows[0][0])

    def _doomed(self, rows: _Doomed) -> None:
        for files, numbers in rows:
            self._state.doomed.restore(Job([self._planter.thing(n) for n in numbers], files))

    def _kept(self, rows: _Kept) -> None:
        for row in rows:
            self._state.history.restore(self._snapshot(row))

    def _snapshot(self, row: _KeptRow) -> Snapshot:
        id_, path, name, number, time_ms, op, cut, cut_size = row
        root = self._planter.directory(number)
        return Snapshot(id_, path, name, root, time_ms, op, cut, cut_size)

    def _demotable(self, rows: list[tuple[int, int]]) -> None:
        self._state.demotable_ms.update(rows)

    def _stripes(self, rows: list[tuple[Stripe, int, list[tuple[int, int]]]]) -> None:
        state = self._state
        for stripe, live_bytes, files in rows:
            grades = [state.files[id_].record.grade for id_, _ in files]
            priority = max(map(priority_of, grades), default=PRIORITY_DEFAULT)
            state.ledger.restore(stripe, live_bytes, files, priority)
            for (id_, _), grade in zip(files, grades, strict=True):
                if parity_of(grade, state.parity_shards) > stripe.parity_shards:
                    state.thin[id_] = None

    def _freed(self, rows: list[tuple[str, int]]) -> None:
        ledger = self._state.ledger
        ledger.freed_ms.update(rows)
        ledger.freed_bytes += sum(stored_bytes(ledger.entries[id_].stripe) for id_, _ in rows)

    def _doubted(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, since_ms in rows:
            self._state.ledger.doubted_ms[slot, incarnation] = since_ms

    def _fences(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, below in rows:
            self._state.ledger.fences[slot, incarnation] = below

    def _reaped(self, rows: list[tuple[int, int, int]]) -> None:
        for slot, incarnation, counter in rows:
            self._state.ledger.reaped.setdefault((slot, incarnation), set()).add(counter)

    def _sessions(self, rows: list[_SessionRow]) -> None:
        for number, used_ms, newest, first, count, who, application in rows:
            known = _Session(used_ms, newest, first, count, who, application)
            self._state.sessions.add(number, known)

    def _leases(self, rows: list[_LeaseRow]) -> None:
        for path, application, since_ms, used_ms in rows:
            self._state.leases.restore(path, Lease(application, since_ms, used_ms))

    def _tokens(self, rows: list[tuple[Token]]) -> None:
        for (token,) in rows:
            self._state.tokens.add(token)

    def _policies(self, rows: list[tuple[str, str, str]]) -> None:
        self._state.policies.restore(rows)

    def _tier(self, values: list[Any]) -> None:
        tier = self._state.tier
        for name, value in zip(_TIER, values, strict=True):
            setattr(tier, name, value)
        tier.options = msgspec.convert(tier.options, TierOptions)

    def _drill(self, rows: list[tuple[DrillStatus]]) -> None:
        self._state.tier.drill = rows[0][0]

    def _segments(self, rows: list[tuple[int, Segment]]) -> None:
        for number, segment in rows:
            self._state.tier.restore_segment(number, segment)

    def _places(self, rows: list[tuple[int, bytes]]) -> None:
        for id_, packed in rows:
            self._state.tier.restore_place(id_, packed)

    def _cold(self, rows: list[tuple[int, int]]) -> None:
        for id_, size in rows:
            self._state.tier.cold.add(id_, size, priority_of(self._state.files[id_].record.grade))
            self._state.tier.cold_bytes += size

    def _evicted(self, rows: list[tuple[int, int]]) -> None:
        for id_, size in rows:
            self._state.tier.evicted[id_] = size
            self._state.tier.evicted_bytes += size

    def _plans(self, rows: list[tuple[str, int, bool]]) -> None:
        self._state.tier.plans.restore(rows)

    def _mark(self, values: list[int]) -> None:
        number, change, op, time_ms, last_file, last_snapshot, version, bytes_used = values
        root = self._planter.directory(number)
        held = Marked(change, op, time_ms, last_file, last_snapshot, version, root, {})
        held.bytes_used = bytes_used
        marked.hold(self._state, held)

    @property
    def _held(self) -> Marked:
        assert self._state.marked is not None
        return self._state.marked

    def _mark_policies(self, rows: list[tuple[str, str, str]]) -> None:
        for path, key, value in rows:
            self._held.policies.setdefault(path, {})[key] = value

    def _mark_kept(self, rows: _Kept) -> None:
        for row in rows:
            self._held.forgotten[row[0]] = self._snapshot(row)

    def _mark_names(self, rows: list[tuple[int, str]]) -> None:
        self._held.names.update(rows)

    def _mark_tokens(self, rows: list[tuple[str, Token | None]]) -> None:
        self._held.tokens.update(rows)

    def _answers(self, rows: _Answers) -> None:
        for number, sequence, answer in rows:
            self._state.sessions.record(number, sequence, answer)
