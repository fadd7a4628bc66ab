"""The content of a round: one moment of the namespace, and the files whose bytes the tier lacks.

Reads the state and changes nothing. The state may change between two steps. The moment itself is
taken in one step without an await, so it is a prefix of the log.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from diskless import paths, policy
from diskless.agent.ports import FileRow, Uploaded
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace import journal as journals
from diskless.namespace import picture
from diskless.namespace.journal import Journal, Written
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import row_of

SLICE_FILES = 2000
"""Files, or entries of the journal, looked at before other tasks run."""
SLICE_PATHS = 1000
"""Paths compared with the policies before other tasks run."""
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
    """New files to upload to the tier. Nearly all of them exist at that moment."""
    stripes: frozenset[str]
    """Where their bytes are in memory."""


async def increment(state: NamespaceState, journal: Journal) -> Increment | None:
    """The changes since the horizon; None if the round needs a whole picture."""
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
        _prune(state, found)
    # No await from here: the files that exist now are those that the entries up to now created.
    if not journal.covers(tier.horizon_change):
        return None
    moment = Moment(
        change=tier.change, op=state.op, time_ms=state.clock_ms, last_file=state.last_file
    )
    entries = journal.after(tier.horizon_change, upto=moment.change, limit=_EVERYTHING)
    records = list(found.values())
    table, default = state.policies.table, tier.default_durability
    # The moment is taken. The rest reads copies, so other tasks may run.
    asks_for_memory = state.policies.asks_for_memory(default=default)
    for first in range(0, len(entries), SLICE_FILES):
        if _policies_changed(entries[first : first + SLICE_FILES]):
            return None  # Files that were only in memory may have to be in the tier now.
        await asyncio.sleep(0)
    fleeting = await _fleeting(table, default, entries) if asks_for_memory else set()
    if fleeting is None:
        return None
    kept: list[FileRecord] = []
    stripes: set[str] = set()
    for first in range(0, len(records), SLICE_FILES):
        some = [one for one in records[first : first + SLICE_FILES] if one.id not in fleeting]
        kept += some
        stripes.update(extent.stripe for record in some for extent in record.extents)
        await asyncio.sleep(0)
    return Increment(moment=moment, entries=entries, records=kept, stripes=frozenset(stripes))


def _prune(state: NamespaceState, found: dict[int, FileRecord]) -> None:
    """Removes the last found files that are deleted by now. If a file is deleted later, its bytes
    are uploaded in vain, which does no harm."""
    for id_ in list(islice(reversed(found), SLICE_FILES)):
        if id_ not in state.files:
            del found[id_]


def _policies_changed(entries: Iterable[bytes]) -> bool:
    """Decodes few entries: the names of such commands appear verbatim in the encoded entries."""
    return any(
        isinstance(journals.decode(entry).what, c.SetPolicy | c.RemovePolicy)
        for entry in entries
        if b"Policy" in entry
    )


async def _fleeting(table: policy.Table, default: str, entries: Iterable[bytes]) -> set[int] | None:
    """New files below `memory` paths; None if older files may have been moved from such a path to
    one that must be in the tier."""
    found: set[int] = set()

    def is_memory(path: str) -> bool:
        asked = policy.effective(table, path, policy.DURABILITY, default=default)
        return asked.value == policy.MEMORY

    def has_memory(path: str) -> bool:
        below = path.rstrip("/") + "/"
        return is_memory(path) or any(
            other.startswith(below) and own.get(policy.DURABILITY) == policy.MEMORY
            for other, own in table.items()
        )

    looked_at = 0

    async def rest_after(paths_looked_at: int) -> None:
        nonlocal looked_at
        looked_at += paths_looked_at
        if looked_at >= SLICE_PATHS:
            looked_at = 0
            await asyncio.sleep(0)

    for entry in entries:
        await rest_after(1)
        match journals.decode(entry).what:
            case Written(first=first, files=files):
                for at in range(0, len(files), SLICE_PATHS):
                    part = files[at : at + SLICE_PATHS]
                    found.update(
                        id_ for id_, (path, _, _) in enumerate(part, first + at) if is_memory(path)
                    )
                    await rest_after(len(part))
            case c.Clone(source=source) if paths.leads_to_snapshots(source):
                return None  # A snapshot of a parent may contain `memory` paths.
            case c.Rename(source=source, target=target) | c.Clone(source=source, target=target):
                await rest_after(len(table))
                if has_memory(source) and not is_memory(target):
                    return None
            case c.Rollback() | c.Replace():
                return None
    return found


class Whole(Struct, kw_only=True):
    """What was found while a whole picture was made."""

    moment: Moment
    rewrite: frozenset[int] = frozenset()
    """Segments whose files must be uploaded again."""
    rows: dict[int, list[FileRow]] = {}
    """Rows of files that the tier has, by segment."""
    records: list[FileRecord] = []
    """Files that the tier lacks."""

    def segments(self, state: NamespaceState) -> Iterator[Uploaded]:
        """The segments in `rows`, each with its rows."""
        for number, rows in self.rows.items():
            segment = state.tier.segments[number]
            yield Uploaded(number, segment.name, segment.bytes, tuple(rows))


async def durable_ids(state: NamespaceState) -> set[int] | None:
    """The files of the marked moment that the tier should have; None: all."""
    if not picture.has_memory(state):
        return None
    found: set[int] = set()
    for ids in picture.durable_files(state):
        found.update(ids)
        await asyncio.sleep(0)
    return found


def sort_files(state: NamespaceState, chunk: bytes, wanted: set[int] | None, whole: Whole) -> None:
    """Notes for each file of a picture's chunk where it is, or that it must be uploaded.

    A file that is in the tier stays named, wanted or not. Otherwise it would become garbage while
    the namespace still counts on it.
    """
    for id_, size, _, _ in picture.files_of(chunk):
        if not size:
            continue
        parts = state.tier.parts(id_)
        if parts and not any(part.segment in whole.rewrite for part in parts):
            for part in parts:
                whole.rows.setdefault(part.segment, []).append((id_, *row_of(part)))
        elif parts or wanted is None or id_ in wanted:
            whole.records.append(state.files[id_].record)
