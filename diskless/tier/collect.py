"""What of the tier is garbage, and which segments are to be rewritten. Pure.

The ledger knows every manifest that is kept and what it names. An object is garbage once no
manifest that one can return to needs it: then the next manifest says that it is doomed, and only
when that manifest is there is it deleted. A listing may add what no manifest ever named (rounds
that failed); by its name such a segment tells which manifest it was made for, and it is garbage
only when that number has gone to another. The newest two runs, back to the whole manifest before
the last, are always kept, so that one damaged object never is the end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from diskless.tier.manifest import (
    Manifest,
    Point,
    SegmentRow,
    chain_name,
    intent_of,
    number_of,
)
from diskless.tier.retention import Rule, thin

CHUNK_ROWS_MAX = 1000
RUN_MANIFESTS_MAX = 256
RUN_BYTES_MIN = 16 * 1024 * 1024
"""A run is not cut for being long in bytes while it is shorter than this."""
REWRITE_BYTES_MAX = 32 * 1024 * 1024
DOOMED_MAX = 10_000
"""How many objects one manifest condemns."""


class Known(Struct, frozen=True, array_like=True):
    """What the ledger keeps of a manifest."""

    number: int
    previous: int
    whole: bool
    op: int
    time_ms: int
    segments: tuple[SegmentRow, ...]
    dropped: tuple[int, ...] = ()
    streams: tuple[str, ...] = ()
    """Objects with pieces of its streams: needed as long as the manifest is."""

    @property
    def point(self) -> Point:
        return Point(self.number, self.op, self.time_ms)


class Plan(Struct, frozen=True, kw_only=True):
    """What the next manifest says of the past."""

    points: tuple[Point, ...]
    """All that one can return to before the manifest that says so."""
    doomed: tuple[str, ...]
    rewrite: tuple[int, ...] = ()
    """Segments whose living files should be written again, after which they can be dropped."""
    whole: bool = False
    """Whether a whole manifest is due: the run is long, or holds more than it is worth."""
    stored_bytes: int = 0
    live_bytes: int = 0
    """What the newest manifest's segments take, and how much of it lives."""


@dataclass
class Ledger:
    """The kept past of a chain. `add` every manifest as it is appended or adopted."""

    manifests: dict[int, Known] = field(default_factory=dict)
    points: set[int] = field(default_factory=set)
    """What one can return to. Whatever is no such point any more never is one again: what it
    needs may be gone, though the manifest itself is there for the files in it."""
    takeovers: set[int] = field(default_factory=set)
    newest: int = 0
    gone: set[str] = field(default_factory=set)
    """Doomed, though a manifest that is kept still has a row of it."""
    unreadable: set[int] = field(default_factory=set)
    """What was such a point, and could not be read."""

    def know(self, manifest: Manifest) -> None:
        """One of the past, which says nothing new of what is kept."""
        self.manifests[manifest.number] = Known(
            manifest.number,
            manifest.previous,
            manifest.whole or not manifest.previous,
            manifest.op,
            manifest.time_ms,
            manifest.rows,
            manifest.dropped,
            manifest.stream_names,
        )

    def add(self, manifest: Manifest) -> None:
        """The manifest after the newest."""
        self.know(manifest)
        self.takeovers.update(manifest.takeovers)
        self.newest = max(self.newest, manifest.number)
        if manifest.points is not None:
            self.points = {point.number for point in manifest.points}
        self.points.add(manifest.number)
        self.gone.update(manifest.doomed)
        for name in manifest.doomed:
            self.manifests.pop(number_of(name) or 0, None)
        self.gone &= {row.name for known in self.manifests.values() for row in known.segments}

    def run(self, number: int) -> list[Known]:
        """The manifests that the one of that number needs, back to the whole one, which is last.

        Empty if one of them is not known.
        """
        found = []
        while known := self.manifests.get(number):
            found.append(known)
            if known.whole:
                return found
            number = known.previous
        return []

    def recent(self) -> set[int]:
        """The points of the newest two runs. Not every manifest of a run is one: a return to the
        past may have continued from one that was kept alone."""
        newest = self.run(self.newest)
        before = self.run(newest[-1].previous) if newest else []
        return self.points & {known.number for known in (*newest, *before)}

    def pinned(self) -> set[str]:
        """What the newest run needs whether or not files lie there."""
        run = self.run(self.newest)
        return {name for known in run for name in (chain_name(known.number), *known.streams)}

    def named(self, points: Iterable[int]) -> tuple[set[str], dict[int, SegmentRow]]:
        """All objects that these manifests need; and the segments of the newest one."""
        names: set[str] = set()
        wanted = set(points)
        seen: set[int] = set()
        last: dict[int, SegmentRow] = {}
        for tip in sorted(wanted, reverse=True):
            if tip in seen:
                continue
            held: dict[int, SegmentRow] = {}
            fresh: dict[int, SegmentRow] = {}  # of these, what no point of the run has named yet
            for known in reversed(self.run(tip)):
                seen.add(known.number)
                names.update((chain_name(known.number), *known.streams))
                rows = {row.number: row for row in known.segments}
                held.update(rows)
                fresh.update(rows)
                for number in known.dropped:
                    held.pop(number, None)
                    fresh.pop(number, None)
                if known.number in wanted:
                    names.update(row.name for row in fresh.values())
                    fresh.clear()
            if tip == self.newest:
                last = held
        return names, last

    def encode(self) -> Iterator[bytes]:
        """In pieces, for a whole manifest's LEDGER stream."""
        rows = list(self.manifests.values())
        for at in range(0, len(rows), CHUNK_ROWS_MAX):
            yield msgspec.msgpack.encode((rows[at : at + CHUNK_ROWS_MAX], sorted(self.gone)))

    def load(self, piece: bytes) -> None:
        """A piece of what `encode` gave. Raises msgspec.DecodeError."""
        rows, gone = msgspec.msgpack.decode(piece, type=tuple[list[Known], list[str]])
        self.manifests.update((known.number, known) for known in rows)
        self.gone.update(gone)
        self.newest = max(self.newest, *self.manifests, 0)


def plan(
    ledger: Ledger,
    rules: Sequence[Rule] = (),
    *,
    live_bytes: Mapping[int, int] | None = None,
    listed: Iterable[str] = (),
) -> Plan:
    """What the manifest after the ledger's newest should keep, condemn and rewrite.

    `live_bytes` says how much of each segment the newest state still needs; `listed` are names
    that a listing gave, or none.
    """
    recent = ledger.recent()
    known = ledger.manifests
    whole = frozenset(number for number, found in known.items() if found.whole)
    now_ms = known[ledger.newest].time_ms
    returnable = [known[number].point for number in ledger.points]
    kept = recent | thin(returnable, rules, now_ms=now_ms, whole=whole)
    names, segments = ledger.named(kept)
    names |= _epoch_marks(ledger.takeovers)
    floor = _floor(ledger, names)
    garbage = (
        name
        for name in {*_objects(ledger), *listed} - names - ledger.gone
        if _condemned(name, floor=floor, newest=ledger.newest)
    )
    doomed = sorted(garbage)[:DOOMED_MAX]
    own_run = {found.number for found in ledger.run(ledger.newest)}
    points = sorted((known[number].point for number in kept), key=lambda point: point.number)
    live = live_bytes or {}
    alive = sum(live.get(number, 0) for number in segments)
    pinned = ledger.pinned()
    held = sum(row.bytes for row in segments.values() if row.name in pinned)
    loose = [row for row in segments.values() if row.name not in pinned]
    return Plan(
        points=tuple(points),
        doomed=tuple(doomed),
        rewrite=_rewrite(loose, live) if live_bytes is not None else (),
        whole=len(own_run) >= RUN_MANIFESTS_MAX or held > max(RUN_BYTES_MIN, alive),
        stored_bytes=sum(row.bytes for row in segments.values()),
        live_bytes=alive,
    )


def strays(ledger: Ledger, *, listed: Iterable[str], floor: int) -> list[str]:
    """Of what was listed, all that may go at once: what no manifest has named, nor ever will (its
    number has gone to another), and what manifests have doomed that was left over.

    Whatever any manifest names that is kept is none of it, doomed things aside: a listing only
    says what to look at. `floor` is the chain's own: numbers from there on are never free. Empty
    where the past is not known in full.
    """
    if ledger.unreadable:
        return []
    named = {*_objects(ledger), *_epoch_marks(ledger.takeovers)} - ledger.gone
    return sorted(
        name for name in set(listed) - named if _condemned(name, floor=floor, newest=ledger.newest)
    )


def _epoch_marks(takeovers: Iterable[int]) -> set[str]:
    """A manifest that began an epoch and the one before it are never deleted: whoever led the
    epoch before tries one of the two numbers next, and must find that it is taken."""
    return {chain_name(number) for takeover in takeovers for number in (takeover - 1, takeover)}


def _floor(ledger: Ledger, names: set[str]) -> int:
    """The lowest number from which on all are kept."""
    number = ledger.newest
    while chain_name(number - 1) in names:
        number -= 1
    return number


def _objects(ledger: Ledger) -> Iterator[str]:
    for known in ledger.manifests.values():
        yield chain_name(known.number)
        yield from (row.name for row in known.segments)
        yield from known.streams


def _condemned(name: str, *, floor: int, newest: int) -> bool:
    """Whether an object that nobody needs may go: not while it could still be named."""
    number, intent = number_of(name), intent_of(name)
    if number is not None:
        return number < floor
    return intent is not None and intent <= newest


def _rewrite(segments: Iterable[SegmentRow], live: Mapping[int, int]) -> tuple[int, ...]:
    """Segments that are more than half dead, the emptiest first, within what a round can do.

    Those of the newest run stay whatever lies in them, until a whole manifest ends the run.
    """
    chosen = []
    room = REWRITE_BYTES_MAX
    for row in sorted(segments, key=lambda row: live.get(row.number, 0) / row.bytes):
        room -= live.get(row.number, 0)
        if 2 * live.get(row.number, 0) >= row.bytes or room < 0:
            break
        chosen.append(row.number)
    return tuple(chosen)
