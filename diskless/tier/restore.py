"""Reading a tier back: what one can return to, which manifest that means, and its content.

Everything is verified before it is handed out. Damage is named (DamagedTier), with the newest
manifest that does not need what is damaged; nothing is skipped or made up.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from diskless.errors import DamagedTier, NotFound
from diskless.tier import form, read
from diskless.tier.chain import Chain, Resume
from diskless.tier.manifest import FileRow, Manifest, Part, Point, SegmentRow, Stream


@dataclass(frozen=True)
class At:
    """A position in the log, or a moment; of neither, the newest."""

    op: int | None = None
    time_ms: int | None = None

    def covers(self, point: Point) -> bool:
        return (self.op is None or point.op <= self.op) and (
            self.time_ms is None or point.time_ms <= self.time_ms
        )

    def __str__(self) -> str:
        if self.op is not None:
            return f"position {self.op}"
        return f"time {self.time_ms} ms" if self.time_ms is not None else "the newest"


NEWEST = At()
ReadManifest = Callable[[int], Awaitable[Manifest]]
TRIED_MAX = 64
"""How many numbers before a damaged manifest are tried one by one."""


@dataclass(frozen=True)
class Step:
    """A piece of a restore, in order: of each manifest its segments, its picture if it is whole,
    its journal, and then where files lie that it wrote."""

    manifest: Manifest
    picture: bytes | None = None
    journal: bytes | None = None
    rows: list[FileRow] | None = None
    segments: tuple[SegmentRow, ...] | None = None
    done: float = 0.0
    """The part of all bytes that has come with it."""


async def points_of(
    chain: Chain, newest: Manifest, *, read_manifest: ReadManifest | None = None
) -> tuple[Point, ...]:
    """All that one can return to, from the oldest to `newest`."""
    get = read_manifest or chain.read
    manifest = newest
    points = {manifest.number: manifest.point}
    while manifest.points is None and manifest.previous:
        manifest = await get(manifest.previous)
        points[manifest.number] = manifest.point
    points.update((point.number, point) for point in manifest.points or ())
    return tuple(points[number] for number in sorted(points))


def choose(points: tuple[Point, ...], at: At) -> Point:
    """The newest point at or before that. Raises NotFound.

    After a return to the past two manifests may have one position: then it is the later one.
    """
    covered = [point for point in points if at.covers(point)]
    if not covered:
        oldest = f"the oldest is position {points[0].op}" if points else "it holds none"
        raise NotFound(f"the tier holds no manifest at or before {at}: {oldest}")
    if at.op is not None:
        return max(covered, key=lambda point: (point.op, point.number))
    if at.time_ms is not None:
        return max(covered, key=lambda point: (point.time_ms, point.number))
    return covered[-1]


def resuming(chain: Chain, at: At = NEWEST) -> Resume:
    """For `Chain.take_over`: continue from the newest manifest at or before that."""
    known: dict[int, Manifest] = {}

    async def remembered(number: int) -> Manifest:
        """While an old cluster continues, a second look must not take as long as the first."""
        if number not in known:
            known[number] = await chain.read(number)
        return known[number]

    async def resume(newest: Manifest) -> tuple[Manifest, tuple[Point, ...] | None]:
        if at == NEWEST:
            return newest, None
        points = await points_of(chain, newest, read_manifest=remembered)
        point = choose(points, at)
        resumed = newest if point.number == newest.number else await remembered(point.number)
        await run_of(chain, resumed, read_manifest=remembered)  # All of it must be there.
        return resumed, points

    return resume


async def run_of(
    chain: Chain, manifest: Manifest, *, read_manifest: ReadManifest | None = None
) -> list[Manifest]:
    """The manifests whose contents together are the state at `manifest`, the whole one first."""
    run = [manifest]
    while not run[-1].whole and run[-1].previous:
        later = run[-1]
        try:
            earlier = await (read_manifest or chain.read)(later.previous)
        except DamagedTier as error:
            error.before = await _readable_before(chain, later.previous, manifest)
            raise
        if earlier.round_id != later.previous_id:
            raise form.damaged(
                earlier.object_name, f"manifest {later.number} builds on another of that number"
            )
        run.append(earlier)
    return run[::-1]


async def contents(chain: Chain, manifest: Manifest) -> AsyncIterator[Step]:
    """All that makes the state at `manifest`, but for files' bytes. Raises DamagedTier."""
    names: dict[int, str] = {}
    run = await run_of(chain, manifest)
    total, done = sum(map(_content_bytes, run)), 0
    for each in run:
        names.update((row.number, row.name) for row in each.rows)
        yield Step(each, segments=each.rows)
        try:
            async for part, step in _content(chain, each, names):
                done += part.size
                yield replace(step, done=done / max(total, 1))
        except DamagedTier as error:
            error.before = await _readable_before(chain, each.number, manifest)
            raise
        for number in each.dropped:
            names.pop(number, None)


def _content_bytes(manifest: Manifest) -> int:
    parts = (*(manifest.picture if manifest.whole else ()), *manifest.journal, *manifest.tables)
    return sum(part.size for part in parts)


async def _content(
    chain: Chain, manifest: Manifest, names: dict[int, str]
) -> AsyncIterator[tuple[Part, Step]]:
    if manifest.whole:
        picture = _stream(chain, manifest, Stream.PICTURE, manifest.picture, names)
        async for part, _, data in picture:
            yield part, Step(manifest, picture=data)
    async for part, _, data in _stream(chain, manifest, Stream.JOURNAL, manifest.journal, names):
        yield part, Step(manifest, journal=data)
    async for part, name, data in _stream(chain, manifest, Stream.TABLE, manifest.tables, names):
        yield part, Step(manifest, rows=read.rows_of(data, name=name))


async def _stream(
    chain: Chain,
    manifest: Manifest,
    stream: Stream,
    parts: tuple[Part, ...],
    names: dict[int, str],
) -> AsyncIterator[tuple[Part, str, bytes]]:
    for index, part in enumerate(parts):
        name = names.get(part.segment)
        if name is None:
            raise form.damaged(manifest.object_name, f"it names no segment {part.segment}")
        yield (
            part,
            name,
            await read.read_stream(chain.store, name, stream, index, part, cipher=chain.cipher),
        )


async def tables(chain: Chain, manifest: Manifest) -> AsyncIterator[list[FileRow]]:
    """Where files lie that this one manifest wrote: what a leader needs to adopt it."""
    names = {row.number: row.name for row in manifest.rows}
    async for _, name, data in _stream(chain, manifest, Stream.TABLE, manifest.tables, names):
        yield read.rows_of(data, name=name)


async def _readable_before(chain: Chain, number: int, newest: Manifest) -> int:
    """The number of the newest manifest before `number` that can be read with all it needs.

    The damaged one may be what leads to the others, so numbers are tried, and then what the
    readable ones of the newest run know.
    """
    known: tuple[Point, ...] = newest.points or ()
    if newest.base != number:
        with suppress(DamagedTier):
            known = (await chain.read(newest.base)).points or known
    tried = range(number - 1, max(0, number - 1 - TRIED_MAX), -1)
    candidates = list(tried)
    candidates += [point.number for point in reversed(known) if point.number < number - TRIED_MAX]
    for candidate in candidates:
        try:
            manifest = await chain.read(candidate)
            while not manifest.whole and manifest.previous:
                manifest = await chain.read(manifest.previous)
        except DamagedTier:
            continue
        return candidate
    return 0
