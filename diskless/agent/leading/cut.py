"""What a round has: one moment of the namespace, and the files whose bytes the tier lacks then.

Reads the state and changes nothing. Between two steps the state goes on; the moment itself is
taken in one step that waits for nothing, so it is a prefix of the log.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from diskless import paths, policy
from diskless.agent.ports import FileRow, Uploaded
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace import journal as journals
from diskless.namespace import picture
from diskless.namespace.journal import Journal, Written
from diskless.namespace.state import NamespaceState

SLICE_FILES = 2000
"""Looked at before others have their turn."""
_EVERYTHING = 1 << 62


class Moment(Struct, frozen=True, kw_only=True):
    """Where in the log a round ends."""

    change: int
    op: int
    time_ms: int
    last_file: int


class Increment(Struct, frozen=True, kw_only=True):
    moment: Moment
    entries: Sequence[bytes]
    records: Sequence[FileRecord]
    """Files that are new, alive at that moment, and to be brought into the tier."""


async def increment(state: NamespaceState, journal: Journal) -> Increment | None:
    """What was done since the horizon; None if only a whole picture can tell."""
    tier = state.tier
    found: dict[int, FileRecord] = {}
    at = tier.horizon_file
    while True:
        upto = min(at + SLICE_FILES, state.last_file)
        for id_ in range(at + 1, upto + 1):
            file = state.files.get(id_)
            if file is not None and file.record.size and id_ not in tier.places:
                found[id_] = file.record
        at = upto
        if at >= state.last_file:
            break
        await asyncio.sleep(0)
    # From here on nothing waits: what lives now is what the entries up to now have made.
    if not journal.covers(tier.horizon_change):
        return None
    moment = Moment(
        change=tier.change, op=state.op, time_ms=state.clock_ms, last_file=state.last_file
    )
    alive = [state.files[id_].record for id_ in found if id_ in state.files]
    entries = journal.after(tier.horizon_change, upto=moment.change, limit=_EVERYTHING)
    if not state.policies.asks_for_memory(default=tier.default_durability):
        return Increment(moment=moment, entries=entries, records=alive)
    fleeting = _fleeting(state, entries)
    if fleeting is None:
        return None
    kept = [record for record in alive if record.id not in fleeting]
    return Increment(moment=moment, entries=entries, records=kept)


def _fleeting(state: NamespaceState, entries: Iterable[bytes]) -> set[int] | None:
    """New files below paths that ask for `memory`; None if others than new ones may have come
    to where they are to be kept."""
    table, found = state.policies.table, set[int]()
    default = state.tier.default_durability

    def is_memory(path: str) -> bool:
        return state.policies.durability(path, default=default) == policy.MEMORY

    def has_memory(path: str) -> bool:
        below = path.rstrip("/") + "/"
        return is_memory(path) or any(
            other.startswith(below) and own.get(policy.DURABILITY) == policy.MEMORY
            for other, own in table.items()
        )

    for entry in entries:
        match journals.decode(entry).what:
            case Written(first=first, files=files):
                found.update(first + n for n, (path, _, _) in enumerate(files) if is_memory(path))
            case c.Clone(source=source) if paths.leads_to_snapshots(source):
                return None  # A snapshot of a directory above shows what asks for memory.
            case c.Rename(source=source, target=target) | c.Clone(source=source, target=target):
                if has_memory(source) and not is_memory(target):
                    return None
            case c.Rollback() | c.SetPolicy() | c.RemovePolicy():
                return None
    return found


class Whole(Struct, kw_only=True):
    """Of a whole picture, what was found on the way."""

    moment: Moment
    rows: list[FileRow] = []
    records: list[FileRecord] = []
    """Files that the tier lacks."""

    def segments(self, state: NamespaceState) -> Iterator[Uploaded]:
        """The segments that `rows` name, each with its own."""
        held: dict[int, list[FileRow]] = {}
        for row in self.rows:
            held.setdefault(row[1], []).append(row)
        for number, rows in held.items():
            segment = state.tier.segments[number]
            yield Uploaded(number, segment.name, segment.bytes, tuple(rows))


async def durable_ids(state: NamespaceState) -> set[int] | None:
    """The files of the marked moment that the tier is to have; None: all."""
    if not picture.has_memory(state):
        return None
    found: set[int] = set()
    for ids in picture.durable_files(state):
        found.update(ids)
        await asyncio.sleep(0)
    return found


def sort_files(state: NamespaceState, chunk: bytes, wanted: set[int] | None, whole: Whole) -> None:
    """Notes the files of a picture's chunk: where they lie, or that they are to be brought."""
    for id_, size, _, _ in picture.files_of(chunk):
        if not size or (wanted is not None and id_ not in wanted):
            continue
        place = state.tier.place(id_)
        if place is None:
            whole.records.append(state.files[id_].record)
        else:
            whole.rows.append((id_, place.segment, place.offset, place.stored_bytes, place.flags))
