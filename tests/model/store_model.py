"""What the store should do: a dict of paths, and a copy of it for each snapshot."""

from collections.abc import Iterator

from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    HasSnapshots,
    NotFound,
    PathIsDirectory,
    PathIsFile,
    ReadOnly,
)

SNAPSHOTS = "/.snapshot"


class Stored(bytes):
    """Bytes of one file: others may be equal, but are not the same."""


Nodes = dict[str, Stored | None]
"""None is a directory."""
Key = tuple[str, str]
"""A snapshot's directory and name."""
Changed = tuple[str, str, bool, int, int]


class Model:
    """Paths and what they hold. Every method is one of the client's.

    It either does what the client should, or raises the class that the client should.
    """

    def __init__(self) -> None:
        self.nodes: Nodes = {"/": None}
        self.kept: dict[Key, Nodes] = {}
        """Snapshots, the oldest first; paths in them begin with that of the snapshot."""
        self.cuts: dict[Key, tuple[str, int]] = {}
        """The cuts that snapshots are of, and of how many directories those were."""

    def write_many(self, files: dict[str, bytes], *, overwrite: bool) -> None:
        if any(at in files for path in files for at in above(path)):
            raise BadRequest
        for path in files:
            check_writable(path)
            self._check_write(path, overwrite=overwrite)
        for path, data in files.items():
            self._make(parent(path))
            self.nodes[path] = Stored(data)

    def _check_write(self, path: str, *, overwrite: bool) -> None:
        if self._blocked(path):
            raise PathIsFile
        if path in self.nodes:
            if self.nodes[path] is None:
                raise PathIsDirectory
            if not overwrite:
                raise AlreadyExists

    def read(self, path: str) -> Stored:
        data = self._nodes_at(path)[path]
        if data is None:
            raise PathIsDirectory
        return data

    def entries(self, path: str) -> list[tuple[str, bool, int]]:
        nodes = self._nodes_at(path)
        below = [path] if nodes[path] is not None else children(nodes, path)
        return [(at, nodes[at] is None, len(nodes[at] or b"")) for at in sorted(below)]

    def _nodes_at(self, path: str) -> Nodes:
        """What a path, which is there, belongs to: the present, or a snapshot."""
        nodes = self.nodes
        directory, mark, rest = path.partition(SNAPSHOTS)
        if mark:
            key = (directory or "/", rest[1:].partition("/")[0])
            nodes = self.kept.get(key, {}) if rest else self._table(directory or "/")
        if path not in nodes:
            raise NotFound
        return nodes

    def _table(self, directory: str) -> Nodes:
        names = [name for at, name in self.kept if at == directory]
        if not names and (directory not in self.nodes or self.nodes[directory] is not None):
            raise NotFound
        top = below(directory, SNAPSHOTS)
        return {top: None, **{f"{top}/{name}": None for name in names}}

    def mkdirs(self, path: str, *, parents: bool) -> bool:
        check_writable(path)
        if self.nodes.get(path) is not None:
            raise AlreadyExists
        if self._blocked(path):
            raise PathIsFile
        if not parents and any(at not in self.nodes for at in above(path)):
            raise NotFound
        made = path not in self.nodes
        self._make(path)
        return made

    def delete(self, path: str, *, recursive: bool, with_snapshots: bool = False) -> bool:
        check_writable(path)
        kept = self._kept_at_or_below(path)
        if kept and not with_snapshots and self._is_directory(path):
            raise HasSnapshots
        if children(self.nodes, path) and not recursive:
            raise DirectoryNotEmpty
        gone = self._take(path)
        self.nodes["/"] = None
        for key in kept if with_snapshots else ():
            self._forget(key)
        return bool(gone or (kept and with_snapshots))

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        check_writable(source)
        check_writable(target)
        if source not in self.nodes:
            raise NotFound
        if source == "/":
            raise BadRequest
        if source == target and not overwrite:
            raise AlreadyExists
        if target.startswith(source + "/"):
            raise BadRequest
        if source != target:
            self._check_rename(self.nodes[source], target, overwrite=overwrite)
        for path in (source, target):
            if self._is_directory(path) and self._kept_at_or_below(path):
                raise HasSnapshots
        if source == target:
            return
        self.nodes.pop(target, None)
        self.nodes |= moved(self._take(source), source, target)

    def _check_rename(self, node: Stored | None, target: str, *, overwrite: bool) -> None:
        self._check_place(target)
        if target not in self.nodes:
            return
        if not overwrite:
            raise AlreadyExists
        if self.nodes[target] is not None and node is None:
            raise PathIsFile
        if self.nodes[target] is None and node is not None:
            raise PathIsDirectory
        if children(self.nodes, target):
            raise DirectoryNotEmpty

    def _check_place(self, path: str) -> None:
        if path == "/":
            raise AlreadyExists
        if parent(path) not in self.nodes:
            raise NotFound
        if self.nodes[parent(path)] is not None:
            raise PathIsFile

    # The past.

    def snapshot(self, paths: list[str], name: str, *, cut: bool) -> str:
        for path in paths:
            check_writable(path)
        if any(is_within(a, b) for a in paths for b in paths if a is not b):
            raise BadRequest
        for path in paths:
            if path not in self.nodes:
                raise NotFound
            if self.nodes[path] is not None:
                raise PathIsFile
        if any((path, name) in self.kept for path in paths) or (cut and self._cut(name)):
            raise AlreadyExists
        for path in paths:
            self._keep(
                (path, name), tree(self.nodes, path), cut=(name, len(paths)) if cut else None
            )
        return name

    def rename_snapshot(self, path: str, old: str, new: str) -> None:
        self._check_kept(path, old)
        if new == old:
            return
        if (path, new) in self.kept:
            raise AlreadyExists
        names = {(path, old): (path, new)}
        kept = moved(self.kept[path, old], shown(path, old), shown(path, new))
        self.kept = {names.get(key, key): nodes for key, nodes in self.kept.items()}
        self.kept[path, new] = kept
        self.cuts = {names.get(key, key): cut for key, cut in self.cuts.items()}

    def delete_snapshots(self, path: str, names: list[str]) -> None:
        for name in names:
            self._check_kept(path, name)
        for name in dict.fromkeys(names):
            self._forget((path, name))

    def clone(self, source: str, target: str) -> None:
        nodes = self._nodes_at(source)
        if source.endswith(SNAPSHOTS):
            raise BadRequest
        check_writable(target)
        if is_within(target, source):
            raise BadRequest
        self._check_place(target)
        if target in self.nodes:
            raise AlreadyExists
        self.nodes |= moved(tree(nodes, source), source, target)

    def rollback(self, path: str, name: str) -> str:
        self._check_kept(path, name)
        return self._roll_back([(path, name)], name, cut=False)

    def rollback_cut(self, name: str) -> str:
        keys = self._cut(name)
        if not keys or len(keys) < self.cuts[keys[0]][1]:
            raise NotFound
        return self._roll_back(keys, name, cut=True)

    def _roll_back(self, keys: list[Key], name: str, *, cut: bool) -> str:
        for path, _ in keys:
            if path not in self.nodes:
                self._check_place(path)
            elif self.nodes[path] is not None:
                raise PathIsFile
        before = self._free_name(f"before-{name}", [path for path, _ in keys], cut=cut)
        there = sum(path in self.nodes for path, _ in keys)
        for path, old in keys:
            kept = self.kept[path, old]
            gone = self._take(path)
            self.nodes |= moved(kept, shown(path, old), path)
            if gone:
                self._keep((path, before), gone, cut=(before, there) if cut else None)
        return before if there else ""

    def _free_name(self, base: str, paths: list[str], *, cut: bool) -> str:
        name, number = base, 1
        while any((path, name) in self.kept for path in paths) or (cut and self._cut(name)):
            number += 1
            name = f"{base}-{number}"
        return name

    def diff(self, path: str, a: str, b: str) -> list[Changed]:
        for name in filter(None, (a, b)):
            self._check_kept(path, name)
        old = moved(self.kept[path, a], shown(path, a), "/")
        if b:
            return differences(old, moved(self.kept[path, b], shown(path, b), "/"))
        if path not in self.nodes:
            raise NotFound
        if self.nodes[path] is not None:
            raise PathIsFile
        return differences(old, moved(tree(self.nodes, path), path, "/"))

    def own_bytes(self, path: str) -> int:
        """Of files that have one name in all, and that is at or below the path."""
        nodes = self._nodes_at(path)
        names: dict[int, int] = {}
        for known in (self.nodes, *self.kept.values()):
            for data in known.values():
                names[id(data)] = names.get(id(data), 0) + 1
        found = tree(nodes, path).values()
        return sum(len(data) for data in found if data is not None and names[id(data)] == 1)

    def snapshots(self) -> list[tuple[str, str, str]]:
        return [(*key, self.cuts.get(key, ("", 0))[0]) for key in self.kept]

    def _keep(self, key: Key, nodes: Nodes, *, cut: tuple[str, int] | None) -> None:
        self.kept[key] = moved(nodes, key[0], shown(*key))
        if cut:
            self.cuts[key] = cut

    def _forget(self, key: Key) -> None:
        del self.kept[key]
        self.cuts.pop(key, None)

    def _check_kept(self, path: str, name: str) -> None:
        if (path, name) not in self.kept:
            raise NotFound

    def _cut(self, name: str) -> list[Key]:
        return [key for key in self.kept if self.cuts.get(key, ("", 0))[0] == name]

    def _kept_at_or_below(self, path: str) -> list[Key]:
        return [key for key in self.kept if is_within(key[0], path)]

    # Parts of them.

    def _is_directory(self, path: str) -> bool:
        return path in self.nodes and self.nodes[path] is None

    def _take(self, path: str) -> Nodes:
        return {at: self.nodes.pop(at) for at in tree(self.nodes, path)}

    def _blocked(self, path: str) -> bool:
        """Whether a file is where a directory above `path` should be."""
        return any(self.nodes.get(at) is not None for at in above(path))

    def _make(self, path: str) -> None:
        for at in (*above(path), path):
            self.nodes.setdefault(at, None)


def differences(old: Nodes, new: Nodes) -> list[Changed]:
    found: list[Changed] = []
    told: list[str] = []
    for path in sorted((old.keys() | new.keys()) - {"/"}, key=lambda path: path.split("/")):
        if any(is_within(path, at) for at in told):
            continue
        was, now = old.get(path), new.get(path)
        if path in old and path in new and (was is None) == (now is None):
            if was is not now:
                found.append(("M", path[1:], False, len(was or b""), len(now or b"")))
            continue
        told.append(path)
        if path in old:
            found.append(("-", path[1:], was is None, size(old, path), 0))
        if path in new:
            found.append(("+", path[1:], now is None, 0, size(new, path)))
    return found


def size(nodes: Nodes, path: str) -> int:
    return sum(len(data or b"") for data in tree(nodes, path).values())


def tree(nodes: Nodes, path: str) -> Nodes:
    """What is at a path and below it."""
    return {at: data for at, data in nodes.items() if is_within(at, path)}


def moved(nodes: Nodes, source: str, target: str) -> Nodes:
    """The same, below another path."""
    return {below(target, at[len(source.rstrip("/")) :]): data for at, data in nodes.items()}


def children(nodes: Nodes, path: str) -> list[str]:
    return [at for at in nodes if at != "/" and parent(at) == path]


def is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(other.rstrip("/") + "/")


def shown(path: str, name: str) -> str:
    """Where a snapshot is read."""
    return below(path, f"{SNAPSHOTS}/{name}")


def below(path: str, rest: str) -> str:
    return path.rstrip("/") + rest.rstrip("/") or "/"


def check_writable(path: str) -> None:
    if SNAPSHOTS in path:
        raise ReadOnly


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def above(path: str) -> Iterator[str]:
    while path != "/":
        path = parent(path)
        yield path
