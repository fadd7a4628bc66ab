"""What clients ask about the past: snapshots, clones, rollbacks, and what has changed."""

from msgspec import Struct

from diskless.protocol.messages import Natural


class Snapshot(Struct, kw_only=True):
    """Keeps directories as they are now. Several are one cut, at one moment; the name is made
    up if it is empty."""

    session: Natural
    sequence: Natural
    paths: list[str]
    name: str = ""
    cut: bool = False


class Snapshotted(Struct):
    """The name that the snapshot got; empty if it has been deleted since."""

    name: str


class Snapshots(Struct):
    """Those of a directory, or all if the path is empty; the oldest first, from beyond the
    number `after` on."""

    path: str = ""
    after: Natural = 0
    limit: int = 1000


class SnapshotInfo(Struct, frozen=True):
    path: str
    name: str
    time_ms: int
    op: int
    """The position in the log that it shows."""
    cut: str
    files: int
    directories: int
    bytes: int
    id: int


class SnapshotList(Struct):
    snapshots: list[SnapshotInfo]
    more: bool


class RenameSnapshot(Struct):
    session: Natural
    sequence: Natural
    path: str
    old: str
    new: str


class DeleteSnapshots(Struct):
    session: Natural
    sequence: Natural
    path: str
    names: list[str]


class Clone(Struct):
    session: Natural
    sequence: Natural
    source: str
    target: str


class Rollback(Struct, kw_only=True):
    """Brings a directory back to a snapshot of it, or with `cut` all directories of a cut."""

    session: Natural
    sequence: Natural
    path: str = ""
    name: str
    cut: bool = False
    guarded: bool = False
    """Whether it is refused while an application has a lease there."""


class RolledBack(Struct):
    """The snapshot of what was there before; empty if nothing was, or it is gone by now."""

    before: str


class Prune(Struct):
    """Deletes files below a directory, each by its path from there, that are there."""

    session: Natural
    sequence: Natural
    path: str
    names: list[str]


class Pruned(Struct):
    deleted: int


class Swap(Struct, frozen=True):
    """`path` becomes what `source` is, if it is still what its snapshot `since` shows."""

    path: str
    source: str
    since: str


class Replace(Struct):
    """All of these, or none."""

    session: Natural
    sequence: Natural
    swaps: list[Swap]
    force: bool = False


class Diff(Struct):
    """What is other in `b`, or in the directory as it is now, than in `a`."""

    path: str
    a: str
    b: str = ""
    after: str = ""
    limit: int = 1000


class Change(Struct, frozen=True):
    """Of a directory that is new or gone nothing below it is told."""

    kind: str
    """`+` for what is new, `-` for what is gone, `M` for a file with other bytes."""
    path: str
    """Below the directory."""
    directory: bool
    bytes_before: int
    bytes_after: int


class Changes(Struct):
    changes: list[Change]
    after: str
    """Where to continue; empty at the end."""


class Usage(Struct):
    """How many bytes at and below a path nothing else names."""

    path: str
    after: str = ""


class Used(Struct):
    own_bytes: int
    after: str
    """Where to continue, as in `Changes`: the sum of all pages counts."""
