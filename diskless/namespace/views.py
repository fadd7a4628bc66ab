"""What readers are told of a path."""

from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from diskless.model import FileRecord, TierOptions
from diskless.namespace.history import Snapshot
from diskless.namespace.tier import Kept, Tier
from diskless.namespace.tree import File, Node


class PathStatus(Struct, frozen=True, array_like=True):
    """What a path is: `record` is None for a directory (inline bytes left out)."""

    path: str
    mtime_ms: int
    record: FileRecord | None


class Summary(Struct, frozen=True, array_like=True):
    files: int
    directories: int
    bytes: int


class SnapshotStatus(Struct, frozen=True, array_like=True):
    """A snapshot: of which directory, since when, at which place in the log, and of what cut
    if it is of one. The sums are of what it shows, shared or not."""

    number: int
    path: str
    name: str
    time_ms: int
    op: int
    cut: str
    files: int
    directories: int
    bytes: int


class TierPlace(Struct, frozen=True, array_like=True):
    """Where the bytes of a file lie in the tier: in which of its objects, and where there."""

    segment: str
    offset: int
    stored_bytes: int
    flags: int
    start: int = 0
    size: int = 0
    """Of a part of a large file: the byte that it begins with, and its bytes."""

    def covers(self, at: int) -> bool:
        """Whether byte `at` of the file lies there."""
        return not self.size or self.start <= at < self.start + self.size


class TierPiece(Struct, frozen=True, array_like=True):
    """A part of a file, which the tier has too."""

    id: int
    size: int
    checksum: int
    """Of the whole file, as its record has them."""
    offset: int
    length: int
    place: TierPlace


class TierStatus(Struct, frozen=True, array_like=True):
    """How far the tier reaches, by number of changes, places in the log, and wall time; and
    what the state knows to be there."""

    attached: bool
    uri: str
    epoch: int
    number: int
    change: int
    horizon_change: int
    horizon_op: int
    horizon_time_ms: int
    files: int
    live_bytes: int
    segments: int
    cold_files: int
    cold_bytes: int
    options: TierOptions = TierOptions()
    closed: bool = False
    evicted_files: int = 0
    evicted_bytes: int = 0


def tier_place(tier: Tier, id_: int, at: int = 0) -> TierPlace | None:
    """Where byte `at` of a file lies."""
    kept = tier.place(id_, at)
    return None if kept is None else _tier_place(tier, kept)


def tier_places(tier: Tier, id_: int, at: int, *, limit: int) -> list[TierPlace]:
    """Where a file lies from byte `at` on, so many parts of it at most."""
    parts = (kept for kept in tier.parts(id_) if not kept.size or kept.start + kept.size > at)
    return [_tier_place(tier, kept) for kept in islice(parts, limit)]


def _tier_place(tier: Tier, kept: Kept) -> TierPlace:
    name = tier.segments[kept.segment].name
    return TierPlace(name, kept.offset, kept.stored_bytes, kept.flags, kept.start, kept.size)


def tier_status(tier: Tier) -> TierStatus:
    return TierStatus(
        tier.attached,
        tier.uri,
        tier.epoch,
        tier.number,
        tier.change,
        tier.horizon_change,
        tier.horizon_op,
        tier.horizon_time_ms,
        len(tier.places),
        tier.live_bytes,
        len(tier.segments),
        len(tier.cold),
        tier.cold_bytes,
        tier.options,
        tier.closed,
        len(tier.evicted),
        tier.evicted_bytes,
    )


def snapshot_status(snapshot: Snapshot) -> SnapshotStatus:
    root = snapshot.root
    return SnapshotStatus(
        snapshot.id,
        snapshot.path,
        snapshot.name,
        snapshot.time_ms,
        snapshot.op,
        snapshot.cut,
        root.files,
        root.directories,
        root.bytes,
    )


def status_of(node: Node, path: str) -> PathStatus:
    if type(node) is not File:
        return PathStatus(path, node.mtime_ms, None)  # type: ignore[union-attr]
    record = node.record
    bare = replace(record, inline=None, extents=()) if record.inline or record.extents else record
    return PathStatus(path, record.mtime_ms, bare)
