"""The tree of paths: directories, files, and what a move or removal does to them.

Every method either does the whole change or raises and changes nothing, in a number of steps
that depends on the path's depth and not on what is below it: directories keep sums. The tree
knows nothing of stripes: it hands back what a change let go of.

Directories and files are counted like the nodes that hold them (`btree.py`): `refs` is the
number of leaves, and for a directory also of roots, that point to it. They know neither their
name nor where they are, so a subtree can be in several places at once. A change first makes
every directory on its way its own, by copies of what is shared; so nobody else sees it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from diskless import paths
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    NotFound,
    PathIsDirectory,
    PathIsFile,
)
from diskless.model import FileRecord
from diskless.namespace import btree, weights
from diskless.namespace.btree import Counts, Inner, Leaf
from diskless.namespace.weights import name_bytes


class File(Struct, eq=False, gc=False):
    """A record that can be replaced by one of the same bytes elsewhere, for all its names. It
    is part of no cycle and the collector of cycles need not look at each: it would stop
    everything else for as long. So it is with directories and nodes.
    """

    record: FileRecord
    refs: int = 1


class Directory(Struct, eq=False, gc=False):
    """A directory, with sums over all that is below it."""

    mtime_ms: int
    node: btree.Node
    entries: int = 0  # of its own
    files: int = 0
    directories: int = 1  # itself
    bytes: int = 0
    refs: int = 1

    def count(self, node: "Node", sign: int) -> None:
        if isinstance(node, File):
            self.files += sign
            self.bytes += sign * node.record.size
        else:
            self.files += sign * node.files
            self.directories += sign * node.directories
            self.bytes += sign * node.bytes


Node = File | Directory


def size_of(node: Node) -> int:
    """The bytes of a file, or of all below a directory."""
    return node.record.size if isinstance(node, File) else node.bytes


class Spot(Struct, gc=False):
    """Where a file is to go: found by one walk, good until the tree has another shape."""

    parts: tuple[str, ...]
    trail: list[Directory]
    """The directories of the path that exist, the root first."""
    leaf: Leaf
    """Of the last of them, where the next part belongs."""
    old: File | None
    shared: bool
    """Whether something on the way must be copied before it is changed."""

    def is_beside(self, parts: tuple[str, ...]) -> bool:
        """Whether that path is in the same directory, and this exists."""
        here = self.parts
        return len(parts) == len(here) == len(self.trail) and parts[:-1] == here[:-1]

    def require_parent(self) -> None:
        """Raises NotFound unless the directory that holds the path exists."""
        if len(self.trail) < len(self.parts):
            raise NotFound(f"{paths.join(self.parts)}: the directory above it is not there")


class Tree:
    def __init__(self) -> None:
        self.counts = Counts()
        self.root = self._new_directory(0)
        self.shape = 0
        """Changes with every put that does more than set its own entry in a leaf. Other changes
        need not tell: nobody keeps a spot beyond a put."""

    @classmethod
    def over(cls, root: Directory, counts: Counts) -> "Tree":
        """A tree that another root begins, with one of its references."""
        tree = cls.__new__(cls)
        tree.counts, tree.root, tree.shape = counts, root, 0
        return tree

    @property
    def files(self) -> int:
        return self.root.files

    @property
    def directories(self) -> int:
        """How many there are, the root included."""
        return self.root.directories

    # -- looking ------------------------------------------------------------------

    def find(self, path: str) -> Node | None:
        return descend(self.root, paths.split(path))

    def get(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            raise NotFound(f"{path}: no such file or directory")
        return node

    def spot(self, path: str, *, overwrite: bool, beside: Spot | None = None) -> Spot:
        """Where a put of `path` would go. Raises what keeps a file from being put there.
        `beside` is another's, found since the last change: in the same directory it has walked
        most of the way already."""
        if paths.BELOW in path:
            paths.check_writable(path)
        parts = paths.split(path)
        trail = [self.root]
        if beside is not None and not beside.shared and beside.is_beside(parts):
            trail = beside.trail
        shared = False
        for part in parts[len(trail) - 1 :]:
            at = trail[-1]
            node: Any = at.node
            if at.refs > 1 or node.refs > 1:
                shared = True
            while type(node) is Inner:
                node = node.children[bisect_right(node.keys, part)]
                if node.refs > 1:
                    shared = True
            child = node.entries.get(part)
            if child is None:
                return Spot(parts, trail, node, None, shared)
            if type(child) is File:
                if len(trail) < len(parts):
                    raise _below_a_file(path, parts[: len(trail)])
                if not overwrite:
                    raise AlreadyExists(f"{path} exists already")
                return Spot(parts, trail, node, child, shared)
            if len(trail) < len(parts):
                trail.append(child)
        raise PathIsDirectory(f"{path} is a directory")

    def copy_bytes(self, parts: Sequence[str], seen: set[int], *, takes: bool = False) -> int:
        """The most that a change at a path must copy first, beside what is in `seen`, to which
        it is added: identities, good until the next change. `takes` says that the path's last
        name is taken out, so that its leaf may be merged with one that is shared."""
        size = 0
        at: Node | None = self.root
        shared = False
        for depth, part in enumerate(parts, 1):
            if not isinstance(at, Directory):
                break
            shared = shared or at.refs > 1
            if shared and id(at) not in seen:
                seen.add(id(at))
                size += weights.DIRECTORY_BYTES
            nodes = list(btree.on_the_way(at.node, part))
            if takes and depth == len(parts):
                nodes += btree.beside(at.node, part)
            for node in nodes:
                shared = shared or node.refs > 1
                if shared and id(node) not in seen:
                    seen.add(id(node))
                    size += weights.NODE_BYTES + btree.names_bytes(node)
            at = btree.find(at.node, part)
        return size

    # -- changing -----------------------------------------------------------------

    def put(self, spot: Spot, record: FileRecord, *, now_ms: int) -> tuple[File, File | None]:
        """Puts a record where `spot` found room for it; returns what it replaced, which has
        one name less."""
        parts, trail, leaf = spot.parts, spot.trail, spot.leaf
        file = File(record)
        size = record.size
        if spot.shared:
            self.shape += 1
            at = len(trail) - 1
            trail = self._own(parts[:at])
            leaf = btree.own_leaf(trail[-1], parts[at], self.counts)
        if spot.old is not None:
            size -= spot.old.record.size
            spot.old.refs -= 1
            leaf.entries[parts[-1]] = file
            trail[-1].mtime_ms = now_ms
            if size:
                for directory in trail:
                    directory.bytes += size
            return file, spot.old
        if len(trail) < len(parts):
            self.shape += 1
            made = self._chain(parts[len(trail) :], file, now_ms=now_ms)
            self._attach(trail, parts[len(trail) - 1], leaf, made, now_ms=now_ms)
            return file, None
        self._place(trail[-1], parts[-1], leaf, file, now_ms=now_ms)
        for directory in trail:
            directory.files += 1
            directory.bytes += size
        return file, None

    def mkdirs(self, path: str, *, now_ms: int) -> bool:
        """Makes a directory and those above it; False if it was there."""
        parts = paths.split(path)
        node = self.find(path)
        if isinstance(node, Directory):
            return False
        if node is not None:
            raise AlreadyExists(f"{path} is a file")
        spot = self.spot(path, overwrite=False)
        there = len(spot.trail) - 1
        trail = self._own(parts[:there])
        leaf = btree.own_leaf(trail[-1], parts[there], self.counts)
        made = self._chain(parts[there + 1 :], self._new_directory(now_ms), now_ms=now_ms)
        self._attach(trail, parts[there], leaf, made, now_ms=now_ms)
        return True

    def check_rename(
        self, source: str, target: str, *, overwrite: bool
    ) -> tuple[Node, Node | None]:
        """What a rename would move, and what is at its target. Raises what keeps it from that.

        The target's parent must exist. With `overwrite`, a file may replace a file
        and a directory an empty directory.
        """
        node = self.get(source)
        if node is self.root:
            raise BadRequest("/ cannot be renamed")
        if target == source:
            if overwrite:
                return node, node
            raise AlreadyExists(f"{target} exists already")
        if target.startswith(source + "/"):
            raise BadRequest(f"{source} cannot be moved below itself, to {target}")
        self.check_parent(target, verb="moved")
        old = self.find(target)
        _check_replace(node, old, target, overwrite)
        return node, old

    def rename(self, source: str, target: str, *, overwrite: bool, now_ms: int) -> Node | None:
        """Moves a file or a directory in one step; returns what it replaced, which is the
        caller's to give up. Raises what `check_rename` does."""
        node, old = self.check_rename(source, target, overwrite=overwrite)
        if target == source:
            return None
        self._take(paths.split(source), now_ms=now_ms)
        if old is not None:
            self._take(paths.split(target), now_ms=now_ms)
        self.attach(target, node, now_ms=now_ms)
        return old

    def delete(self, path: str, *, recursive: bool, now_ms: int) -> Node | None:
        """Detaches a path in one step; returns what was there, with all that is below it,
        which is the caller's to give up.

        Deleting the root leaves an empty one.
        """
        node = self.find(path)
        if node is None:
            return None
        if isinstance(node, Directory) and node.entries and not recursive:
            raise DirectoryNotEmpty(f"{path} is a directory with {node.entries} entries")
        if node is self.root:
            self.root = self._new_directory(now_ms)
            return node
        return self._take(paths.split(path), now_ms=now_ms)

    def check_parent(self, path: str, *, verb: str) -> None:
        """Raises why nothing can be put at a path whose directory must be there."""
        parts = paths.split(path)
        if not parts:
            raise AlreadyExists("/ exists already")
        above = paths.join(parts[:-1])
        parent = self.find(above)
        if parent is None:
            raise NotFound(f"{above}: no such directory, so nothing can be {verb} into it")
        if isinstance(parent, File):
            raise PathIsFile(f"{above} is a file")

    def attach(self, path: str, node: Node, *, now_ms: int) -> None:
        """Puts a node at a path that is free, in a directory that is there. One of the
        node's references is the tree's from now on."""
        parts = paths.split(path)
        trail = self._own(parts[:-1])
        leaf = btree.own_leaf(trail[-1], parts[-1], self.counts)
        self._attach(trail, parts[-1], leaf, node, now_ms=now_ms)

    def exchange(self, path: str, new: Directory, *, now_ms: int) -> Node | None:
        """Puts a directory in the place of what is at a path, if anything; returns that. The
        references of both change hands."""
        if path == paths.ROOT:
            old, self.root = self.root, new
            return old
        gone = None if self.find(path) is None else self._take(paths.split(path), now_ms=now_ms)
        self.attach(path, new, now_ms=now_ms)
        return gone

    # -- parts of changes -----------------------------------------------------------

    def _new_directory(self, mtime_ms: int) -> Directory:
        self.counts.directories += 1
        return Directory(mtime_ms, self.counts.empty_leaf())

    def _copy(self, directory: Directory) -> Directory:
        directory.refs -= 1
        directory.node.refs += 1
        self.counts.directories += 1
        return Directory(
            directory.mtime_ms,
            directory.node,
            directory.entries,
            directory.files,
            directory.directories,
            directory.bytes,
        )

    def _own(self, parts: Sequence[str]) -> list[Directory]:
        """The directories of a path that is there, the root first, free to be changed."""
        if self.root.refs > 1:
            self.root = self._copy(self.root)
        at = self.root
        trail = [at]
        for part in parts:
            leaf = btree.own_leaf(at, part, self.counts)
            child: Directory = leaf.entries[part]
            if child.refs > 1:
                child = leaf.entries[part] = self._copy(child)
            at = child
            trail.append(at)
        return trail

    def _take(self, parts: Sequence[str], *, now_ms: int) -> Node:
        """Detaches what is at a path, which is not the root."""
        trail = self._own(parts[:-1])
        parent = trail[-1]
        node: Node = btree.remove(parent, parts[-1], self.counts)
        parent.entries -= 1
        parent.mtime_ms = now_ms
        for directory in trail:
            directory.count(node, -1)
        return node

    def _attach(
        self, trail: list[Directory], name: str, leaf: Leaf, node: Node, *, now_ms: int
    ) -> None:
        self._place(trail[-1], name, leaf, node, now_ms=now_ms)
        for directory in trail:
            directory.count(node, 1)

    def _place(self, parent: Directory, name: str, leaf: Leaf, node: Node, *, now_ms: int) -> None:
        """Adds a name to a directory's leaf, both free to be changed; sums are not touched."""
        parent.entries += 1
        parent.mtime_ms = now_ms
        if len(leaf.entries) < btree.LEAF_MAX:
            leaf.entries[name] = node
            self.counts.name_bytes += name_bytes(name)
        else:
            self.shape += 1
            btree.insert(parent, name, node, self.counts)

    def _chain(self, parts: Sequence[str], node: Node, *, now_ms: int) -> Node:
        """New directories in each other, with a node in the innermost."""
        for part in reversed(parts):
            directory = self._new_directory(now_ms)
            assert type(directory.node) is Leaf
            self._attach([directory], part, directory.node, node, now_ms=now_ms)
            node = directory
        return node


def descend(top: Node, parts: Sequence[str]) -> Node | None:
    at: Any = top
    for part in parts:
        if type(at) is not Directory:
            return None
        node: Any = at.node
        while type(node) is Inner:
            node = node.children[bisect_right(node.keys, part)]
        at = node.entries.get(part)
    return at  # type: ignore[no-any-return]


def _check_replace(node: Node, old: Node | None, target: str, overwrite: bool) -> None:
    if old is None:
        return
    if not overwrite:
        raise AlreadyExists(f"{target} exists already")
    if isinstance(old, File):
        if isinstance(node, Directory):
            raise PathIsFile(f"{target} is a file: a directory cannot replace it")
    elif isinstance(node, File):
        raise PathIsDirectory(f"{target} is a directory: a file cannot replace it")
    elif old.entries:
        raise DirectoryNotEmpty(f"{target} is a directory with {old.entries} entries")


def _below_a_file(path: str, above: Sequence[str]) -> PathIsFile:
    return PathIsFile(f"{path}: {paths.join(list(above))} is a file")
