"""The table of snapshots: which directories have been kept as they were, and under what name.

A snapshot points to the root of a subtree as it was; the counts of `btree.py` keep all of it
from being changed. The table is keyed by path: a directory that has snapshots, or has some
below it, is neither renamed nor deleted, so a snapshot's path never changes. A rollback of a
directory above may take the directory itself away: its snapshots can still be read by path.
A cut is several directories' snapshots of one moment, which only go back together.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from msgspec import Struct

from diskless import paths
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    CapacityExceeded,
    HasSnapshots,
    NotFound,
)
from diskless.namespace.btree import Leaf
from diskless.namespace.tree import Directory, Node, Tree, descend
from diskless.namespace.weights import snapshot_bytes

SNAPSHOTS_MAX = 16_384
"""In all: so many are taken off the table in one step when what they are of is deleted."""
NAME_CHARS_MAX = 255
HELD_PATHS_MAX = 2048
"""Paths whose sums over snapshots are remembered: no fewer than may have policies."""
NAMED_MAX = 3
"""Snapshots that an error names."""
BY_POLICY = "history-"
"""How the names begin of those that a leader takes by policy, and deletes."""
_BY_POLICY = re.compile(rf"{BY_POLICY}[0-9][0-9.-]*-batch-[0-9]+")
"""All of such a name: somebody may have chosen one that only begins like it."""
_LATEST_S = 253_402_300_799
"""The end of the year 9999, the last that has a date."""


class Snapshot(Struct, eq=False, gc=False):
    id: int
    path: str
    name: str
    root: Directory
    time_ms: int
    op: int
    cut: str = ""
    cut_size: int = 0
    """Of how many directories the cut was."""

    @property
    def bytes_used(self) -> int:
        return snapshot_bytes(self.path, self.name, self.cut)

    @property
    def by_policy(self) -> bool:
        return not self.cut and _BY_POLICY.fullmatch(self.name) is not None


class History:
    def __init__(self) -> None:
        self.by_id: dict[int, Snapshot] = {}  # the oldest first
        self.bytes_used = 0
        self._by_path: dict[str, dict[str, Snapshot]] = {}
        self._paths: list[str] = []  # sorted
        self._cuts: dict[str, dict[int, None]] = {}
        self._held: dict[str, int] = {}  # by paths that were asked about
        self.last = 0
        """The number of the newest that there ever was."""

    def __len__(self) -> int:
        return len(self.by_id)

    # -- looking ------------------------------------------------------------------

    def at(self, path: str) -> dict[str, Snapshot]:
        """The snapshots of a directory by name."""
        return self._by_path.get(path, {})

    def get(self, path: str, name: str) -> Snapshot:
        found = self.at(path).get(name)
        if found is None:
            known = self.at(path)
            has = f"it has {_some(iter(known), len(known))}" if known else "it has none"
            raise NotFound(f"{path} has no snapshot {name!r}: {has}")
        return found

    def numbered(self, number: int) -> Snapshot:
        found = self.by_id.get(number)
        if found is None:
            raise NotFound(f"snapshot number {number} is not there any more")
        return found

    def of_cut(self, cut: str) -> list[Snapshot]:
        """All snapshots of a cut. Raises NotFound, also if some of them are gone."""
        found = [self.by_id[id_] for id_ in self._cuts.get(cut, ())]
        if not found:
            known = f"there are {_some(iter(self._cuts), len(self._cuts))}" if self._cuts else ""
            raise NotFound(f"no cut {cut!r}: {known or 'there is none'}")
        if len(found) < found[0].cut_size:
            raise NotFound(
                f"cut {cut!r}: {len(found)} of its {found[0].cut_size} snapshots are left: "
                "roll these directories back one by one"
            )
        return found

    def at_or_below(self, path: str) -> Iterator[Snapshot]:
        yield from self.at(path).values()
        above = path if path == paths.ROOT else path + "/"
        for index in range(bisect_left(self._paths, above), len(self._paths)):
            other = self._paths[index]
            if not other.startswith(above):
                return
            if other != path:
                yield from self._by_path[other].values()

    def bytes_held(self, path: str) -> int:
        """What the snapshots of a directory, and of those below it, show, each in full. Counted
        once for each path, by going through them; kept up to date from then on."""
        if not self.by_id:
            return 0
        held = self._held.get(path)
        if held is None:
            if len(self._held) >= HELD_PATHS_MAX:
                self._held.clear()
            held = self._held[path] = sum(one.root.bytes for one in self.at_or_below(path))
        return held

    def count_again(self) -> None:
        """Snapshots show less than they did."""
        self._held.clear()

    def _note_held(self, snapshot: Snapshot, sign: int) -> None:
        if self._held:
            for path in {snapshot.path, *paths.above([snapshot.path]), paths.ROOT}:
                if path in self._held:
                    self._held[path] += sign * snapshot.root.bytes

    def check_none(self, path: str, *, verb: str) -> None:
        """Raises HasSnapshots for a directory that has some, or has some below it."""
        first = next(self.at_or_below(path), None)
        if first is not None:
            count = sum(1 for _ in self.at_or_below(path))
            named = (f"{one.path.rstrip('/')}/{paths.SNAPSHOTS}/{one.name}"
                     for one in self.at_or_below(path))  # fmt: skip
            advice = ", or along with it (rm --with-snapshots)" if verb == "deleted" else ""
            raise HasSnapshots(
                f"{path} cannot be {verb}: it has snapshots at or below it: "
                f"{_some(named, count)}: delete those first{advice}"
            )

    def find(self, tree: Tree, path: str) -> Node | None:
        """What is at a path at or below `.snapshot`; a picture of the table is made for it."""
        parts = paths.split(path)
        at = parts.index(paths.SNAPSHOTS)
        above, below = paths.join(parts[:at]), parts[at + 1 :]
        if not below:
            return self._listing(tree.find(above), above)
        snapshot = self.at(above).get(below[0])
        if snapshot is None or paths.SNAPSHOTS in below:
            return None
        return descend(snapshot.root, below[1:]) if len(below) > 1 else _dated(snapshot)

    def _listing(self, of: Node | None, path: str) -> Directory | None:
        known = self.at(path)
        if not known and not isinstance(of, Directory):
            return None
        shown = {name: _dated(snapshot) for name, snapshot in known.items()}
        mtime_ms = max([one.mtime_ms for one in shown.values()], default=0)
        listing = Directory(mtime_ms, Leaf(shown), len(shown))
        for one in shown.values():
            listing.count(one, 1)
        return listing

    # -- changing -----------------------------------------------------------------

    def check_new(self, path: str, name: str) -> None:
        """Raises why a snapshot of a directory cannot have this name."""
        check_name(name)
        if name in self.at(path):
            raise AlreadyExists(f"{path} has a snapshot {name!r} already")

    def check_count(self, more: int) -> None:
        if len(self.by_id) + more > SNAPSHOTS_MAX:
            raise CapacityExceeded(
                f"there are {len(self.by_id)} snapshots and may be {SNAPSHOTS_MAX}: delete some"
            )

    def check_cut(self, cut: str) -> None:
        if cut in self._cuts:
            raise AlreadyExists(f"there is a cut {cut!r} already")

    def free_name(self, base: str, at: list[str], *, cut: bool) -> str:
        """`base`, or with a number after it, that is new at all these paths."""
        name, number = base[:NAME_CHARS_MAX], 1
        while any(name in self.at(path) for path in at) or (cut and name in self._cuts):
            number += 1
            end = f"-{number}"
            name = base[: NAME_CHARS_MAX - len(end)] + end
        return name

    def add(self, snapshot: Snapshot) -> None:
        """One of its root's references is the table's from now on."""
        assert snapshot.id > self.last
        self.last = snapshot.id
        self.restore(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """As `add`, for the next one of a copy of the table."""
        self.by_id[snapshot.id] = snapshot
        self.bytes_used += snapshot.bytes_used
        self._note_held(snapshot, 1)
        if snapshot.path not in self._by_path:
            self._by_path[snapshot.path] = {}
            insort(self._paths, snapshot.path)
        self._by_path[snapshot.path][snapshot.name] = snapshot
        if snapshot.cut:
            self._cuts.setdefault(snapshot.cut, {})[snapshot.id] = None

    def rename(self, snapshot: Snapshot, name: str) -> None:
        known = self._by_path[snapshot.path]
        self.bytes_used -= snapshot.bytes_used
        snapshot.name = name
        self.bytes_used += snapshot.bytes_used
        self._by_path[snapshot.path] = {one.name: one for one in known.values()}

    def remove(self, snapshot: Snapshot) -> Directory:
        """Its root, of which the table's reference is the caller's from now on."""
        del self.by_id[snapshot.id]
        self.bytes_used -= snapshot.bytes_used
        self._note_held(snapshot, -1)
        known = self._by_path[snapshot.path]
        del known[snapshot.name]
        if not known:
            del self._by_path[snapshot.path]
            del self._paths[bisect_left(self._paths, snapshot.path)]
        if snapshot.cut:
            del self._cuts[snapshot.cut][snapshot.id]
            if not self._cuts[snapshot.cut]:
                del self._cuts[snapshot.cut]
        return snapshot.root


def check_name(name: str) -> None:
    """Raises BadRequest for what cannot be the name of a snapshot."""
    if not 1 <= len(name) <= NAME_CHARS_MAX or name[0] == "." or "/" in name or "\0" in name:
        raise BadRequest(
            f"{name!r} is no name for a snapshot: 1 to {NAME_CHARS_MAX} characters, "
            "no '/', and no '.' at the beginning"
        )


def name_of(time_ms: int) -> str:
    """The name that a snapshot gets if nobody chose one, as HDFS does."""
    return f"s{as_utc(time_ms):%Y%m%d-%H%M%S}.{time_ms % 1000:03}"


def as_utc(time_ms: int) -> datetime:
    """The same on every voter, whatever its time zone, and for whatever a clock has said."""
    return datetime.fromtimestamp(min(max(time_ms, 0) // 1000, _LATEST_S), UTC)


def _dated(snapshot: Snapshot) -> Directory:
    """A snapshot's root as it is shown: it shares all that is below it, and counts nowhere."""
    root = snapshot.root
    return Directory(
        snapshot.time_ms, root.node, root.entries, root.files, root.directories, root.bytes
    )


def _some(names: Iterator[str], count: int) -> str:
    """A few of so many names, and how many more there are."""
    shown = ", ".join(islice(names, NAMED_MAX))
    return f"{shown} and {count - NAMED_MAX} more" if count > NAMED_MAX else shown
