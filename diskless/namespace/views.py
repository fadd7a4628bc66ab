"""What readers are told of a path."""

from msgspec import Struct
from msgspec.structs import replace

from diskless.model import FileRecord
from diskless.namespace.history import Snapshot
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
