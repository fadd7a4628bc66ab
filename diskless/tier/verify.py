"""Whether the newest manifest can be restored, told without restoring it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from diskless.errors import DamagedTier
from diskless.tier import form, restore
from diskless.tier.chain import Chain
from diskless.tier.manifest import FileRow, SegmentRow, decode, number_of
from diskless.tier.store import Missing
from diskless.tier.work import aside

_Rows = dict[int, list[FileRow]]
"""Of each file, one for each of its parts."""


@dataclass
class Report:
    """What was looked at, and one line for each thing that is wrong."""

    number: int = 0
    op: int = 0
    manifests: int = 0
    segments: int = 0
    segments_total: int = 0
    files: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems


async def verify(
    chain: Chain,
    *,
    hint: int = 0,
    full: bool = False,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Reads all manifests that the newest one needs with their streams, and finds every segment;
    with `full`, reads every byte. Raises StoreDown, StoreDenied, WrongKey."""
    report = Report()
    newest = await chain.newest(hint)
    if newest is None:
        report.problems.append(f"{chain.store.uri} holds no tier")
        return report
    report.number, report.op = newest.number, newest.op
    segments: dict[int, SegmentRow] = {}
    rows: _Rows = {}
    try:
        async for step in restore.contents(chain, newest):
            _note(step, segments, rows, report)
            progress(report)
    except DamagedTier as error:
        offer = f"; manifest {error.before} before it is readable" if error.before else ""
        report.problems.append(f"{error}{offer}")
        return report
    report.files, report.segments_total = len(rows), len(segments)
    by_segment: dict[int, list[FileRow]] = {}
    for parts in rows.values():
        report.problems += _gaps(parts)
        for row in parts:
            by_segment.setdefault(row.segment, []).append(row)
    for segment in segments.values():
        try:
            await _check(chain, segment, by_segment.get(segment.number, []), report, full=full)
        except DamagedTier as error:
            report.problems.append(str(error))
        report.segments += 1
        progress(report)
    return report


def _note(step: restore.Step, segments: dict[int, SegmentRow], rows: _Rows, report: Report) -> None:
    manifest = step.manifest
    if step.segments is not None:
        report.manifests += 1
        if manifest.whole:
            segments.clear()
            rows.clear()
        segments.update((row.number, row) for row in step.segments)
        for number in manifest.dropped:
            segments.pop(number, None)
    for id_, own in groupby(step.rows or (), key=lambda row: row.id):
        rows[id_] = list(own)


def _gaps(parts: list[FileRow]) -> Iterator[str]:
    """What is wrong with the parts of a file: each but the last says that another follows it."""
    at = 0
    for row in parts:
        if row.start != at:
            yield f"file {row.id}: its part at byte {row.start} follows byte {at}"
            return
        at += row.size
        if bool(row.flags & form.MORE) is (row is parts[-1]):
            yield f"file {row.id}: a part of it is named nowhere after byte {at}"
            return


async def _check(
    chain: Chain, segment: SegmentRow, rows: list[FileRow], report: Report, *, full: bool
) -> None:
    name, manifest = segment.name, number_of(segment.name)
    try:
        data = await chain.store.get(name) if full else b""
        size = len(data) if full else await chain.store.size(name)
    except Missing:
        raise DamagedTier(f"{name} is gone from {chain.store.uri}", name=name) from None
    if size < segment.bytes or (manifest is None and size != segment.bytes):
        raise form.damaged(name, f"it has {size} bytes, not {segment.bytes}")
    if any(row.offset + row.stored_bytes > segment.bytes for row in rows):
        raise form.damaged(name, "a file lies beyond its end")
    if not full:
        return
    report.bytes += size
    if manifest is not None:
        await aside(size, decode, data, manifest, chain.cipher)
        return
    held = await aside(
        size, form.open_object, data, form.SEGMENT, list[form.Held], name=name, cipher=chain.cipher
    )
    named = {
        form.Held(row.id, row.offset, row.stored_bytes, row.flags, row.start, row.size)
        for row in rows
    }
    missing = named.difference(held)
    if missing:
        raise form.damaged(name, f"{len(missing)} files are not where they should be")
