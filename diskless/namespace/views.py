"""What readers are told of a path."""

from msgspec import Struct
from msgspec.structs import replace

from diskless.model import FileRecord
from diskless.namespace.tree import Directory, Node


class PathStatus(Struct, frozen=True, array_like=True):
    """What a path is: `record` is None for a directory (inline bytes left out)."""

    path: str
    mtime_ms: int
    record: FileRecord | None


class Summary(Struct, frozen=True, array_like=True):
    files: int
    directories: int
    bytes: int


def status_of(node: Node, path: str) -> PathStatus:
    if isinstance(node, Directory):
        return PathStatus(path, node.mtime_ms, None)
    record = node.record
    bare = replace(record, inline=None, extents=()) if record.inline or record.extents else record
    return PathStatus(path, record.mtime_ms, bare)
