"""What readers are told of a path."""

from msgspec import Struct
from msgspec.structs import replace

from diskless.model import FileRecord, TierOptions
from diskless.namespace.history import Snapshot
from diskless.namespace.tier import Tier
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


def tier_place(tier: Tier, id_: int) -> TierPlace | None:
    kept = tier.place(id_)
    if kept is None:
        return None
    name = tier.segments[kept.segment].name
    return TierPlace(name, kept.offset, kept.stored_bytes, kept.flags)


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
