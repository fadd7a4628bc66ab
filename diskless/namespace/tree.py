"""The tree of paths: directories, files, and what a move or removal does to them.

Every method either does the whole change or raises and changes nothing, in a number of steps
that depends on the path's depth and not on what is below it: directories keep sums. The tree
knows nothing of stripes: it hands back what a change let go of.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

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
from diskless.namespace.weights import name_bytes


class File(Struct, eq=False, gc=False):
    """A name for a record. It knows nothing of where it is, so it is part of no cycle and
    the collector of cycles need not look at each: it would stop everything else for as long.
    """

    name: str
    record: FileRecord


class Directory:
    """A directory, with sums over all that is below it."""

    __slots__ = (
        "_names",
        "bytes",
        "children",
        "directories",
        "files",
        "mtime_ms",
        "name",
        "name_bytes",
        "parent",
    )

    def __init__(self, name: str, mtime_ms: int) -> None:
        self.name = name
        self.parent: Directory | None = None
        self.mtime_ms = mtime_ms
        self.children: dict[str, Directory | File] = {}
        self._names: list[str] | None = None
        self.files = 0
        self.directories = 1  # itself
        self.bytes = 0
        self.name_bytes = 0  # of all below it, not its own

    def attach(self, node: "Node", *, now_ms: int) -> None:
        """Adds an entry under its name, which must be free."""
        assert node.name not in self.children
        self._names = None
        self.children[node.name] = node
        if isinstance(node, Directory):
            node.parent = self
        self.mtime_ms = now_ms
        self._count(node, 1)

    def detach(self, node: "Node", *, now_ms: int) -> None:
        del self.children[node.name]
        self._names = None
        if isinstance(node, Directory):
            node.parent = None
        self.mtime_ms = now_ms
        self._count(node, -1)

    def pop(self) -> "Node":
        """Takes the newest entry off; there must be one."""
        _, node = self.children.popitem()
        self._names = None
        if isinstance(node, Directory):
            node.parent = None
        self._count(node, -1)
        return node

    def replace(self, old: "File", new: "File", *, now_ms: int) -> None:
        """Puts a file in another's place, among its siblings too."""
        assert new.name == old.name
        self.children[new.name] = new
        self.mtime_ms = now_ms
        self._grow(0, 0, new.record.size - old.record.size, 0)

    def _count(self, node: "Node", sign: int) -> None:
        if isinstance(node, File):
            self._grow(sign, 0, sign * node.record.size, sign * name_bytes(node.name))
        else:
            names = node.name_bytes + name_bytes(node.name)
            self._grow(sign * node.files, sign * node.directories, sign * node.bytes, sign * names)

    def _grow(self, files: int, directories: int, size: int, names: int) -> None:
        at: Directory | None = self
        while at is not None:
            at.files += files
            at.directories += directories
            at.bytes += size
            at.name_bytes += names
            at = at.parent

    def names(self) -> list[str]:
        """Sorted, and kept until the next change, because a listing comes in pages."""
        if self._names is None:
            self._names = sorted(self.children)
        return self._names


Node = File | Directory


def rename_bytes(node: Node, name: str) -> int:
    """How much more a node's name weighs when it is called `name`."""
    return name_bytes(name) - name_bytes(node.name)


class Tree:
    def __init__(self) -> None:
        self.root = Directory("", 0)

    @property
    def files(self) -> int:
        return self.root.files

    @property
    def directories(self) -> int:
        """How many there are, the root included."""
        return self.root.directories

    @property
    def name_bytes(self) -> int:
        """What the names of all files and directories weigh."""
        return self.root.name_bytes

    def find(self, path: str) -> Node | None:
        node, missing = self._deepest(paths.split(path))
        return None if missing else node

    def get(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            raise NotFound(f"{path}: no such file or directory")
        return node

    def get_file(self, path: str) -> File:
        node = self.get(path)
        if isinstance(node, Directory):
            raise PathIsDirectory(f"{path} is a directory")
        return node

    def check_put(self, path: str, *, overwrite: bool) -> None:
        """Raises what keeps a file from being put at `path`; changes nothing."""
        parts = paths.split(path)
        if not parts:
            raise PathIsDirectory("/ is a directory")
        node, missing = self._deepest(parts)
        if missing:
            if isinstance(node, File):
                raise _below_a_file(path, parts, missing)
        elif isinstance(node, Directory):
            raise PathIsDirectory(f"{path} is a directory")
        elif not overwrite:
            raise AlreadyExists(f"{path} exists already")

    def put(self, path: str, record: FileRecord, *, now_ms: int) -> tuple[File, FileRecord | None]:
        """Puts a record where `check_put` allowed it; returns what it replaced."""
        *above, name = paths.split(path)
        parent = self._make(above, now_ms=now_ms)
        old = parent.children.get(name)
        assert not isinstance(old, Directory)
        file = File(name, record)
        if old is None:
            parent.attach(file, now_ms=now_ms)
            return file, None
        parent.replace(old, file, now_ms=now_ms)
        return file, old.record

    def mkdirs(self, path: str, *, now_ms: int) -> bool:
        """Makes a directory and those above it; False if it was there."""
        parts = paths.split(path)
        node, missing = self._deepest(parts)
        if isinstance(node, File):
            if not missing:
                raise AlreadyExists(f"{path} is a file")
            raise _below_a_file(path, parts, missing)
        self._make(parts, now_ms=now_ms)
        return missing > 0

    def rename(
        self, source: str, target: str, *, overwrite: bool, now_ms: int
    ) -> FileRecord | None:
        """Moves a file or a directory in one step; returns a record it replaced.

        The target's parent must exist. With `overwrite`, a file may replace a file
        and a directory an empty directory.
        """
        node = self.get(source)
        if node is self.root:
            raise BadRequest("/ cannot be renamed")
        if target == source:
            if overwrite:
                return None
            raise AlreadyExists(f"{target} exists already")
        if target.startswith(source + "/"):
            raise BadRequest(f"{source} cannot be moved below itself, to {target}")
        parent, name = self._target_parent(target)
        old = parent.children.get(name)
        self._check_replace(node, old, target, overwrite)
        self._parent_of(source).detach(node, now_ms=now_ms)
        if old is not None:
            parent.detach(old, now_ms=now_ms)
        node.name = name
        parent.attach(node, now_ms=now_ms)
        return old.record if isinstance(old, File) else None

    def _target_parent(self, target: str) -> tuple[Directory, str]:
        parts = paths.split(target)
        if not parts:
            raise AlreadyExists("/ exists already")
        above = paths.join(parts[:-1])
        parent = self.find(above)
        if parent is None:
            raise NotFound(f"{above}: no such directory, so nothing can be moved into it")
        if isinstance(parent, File):
            raise PathIsFile(f"{above} is a file")
        return parent, parts[-1]

    def _check_replace(self, node: Node, old: Node | None, target: str, overwrite: bool) -> None:
        if old is None:
            return
        if not overwrite:
            raise AlreadyExists(f"{target} exists already")
        if isinstance(old, File):
            if isinstance(node, Directory):
                raise PathIsFile(f"{target} is a file: a directory cannot replace it")
        elif isinstance(node, File):
            raise PathIsDirectory(f"{target} is a directory: a file cannot replace it")
        elif old.children:
            raise DirectoryNotEmpty(f"{target} is a directory with {len(old.children)} entries")

    def delete(self, path: str, *, recursive: bool, now_ms: int) -> Node | None:
        """Detaches a path in one step; returns what was there, with all that is below it.

        Deleting the root leaves an empty one.
        """
        node = self.find(path)
        if node is None:
            return None
        if isinstance(node, Directory) and node.children and not recursive:
            raise DirectoryNotEmpty(f"{path} is a directory with {len(node.children)} entries")
        if node is self.root:
            self.root = Directory("", now_ms)
        else:
            self._parent_of(path).detach(node, now_ms=now_ms)
        return node

    def page(self, path: str, *, after: str, limit: int) -> tuple[list[Node], bool]:
        """Up to `limit` entries named beyond `after`, in order, and whether more follow.

        A file is its own only entry.
        """
        node = self.get(path)
        if isinstance(node, File):
            return [node], False
        names = node.names()
        start = bisect_right(names, after) if after else 0
        chosen = names[start : start + limit]
        return [node.children[name] for name in chosen], start + limit < len(names)

    def _parent_of(self, path: str) -> Directory:
        """Of a path that exists and is not the root."""
        parent, _ = self._deepest(paths.split(path)[:-1])
        assert isinstance(parent, Directory)
        return parent

    def _deepest(self, parts: Sequence[str]) -> tuple[Node, int]:
        """The last node of a path that exists, and how many parts of it do not."""
        at: Node = self.root
        for depth, part in enumerate(parts):
            child = at.children.get(part) if isinstance(at, Directory) else None
            if child is None:
                return at, len(parts) - depth
            at = child
        return at, 0

    def _make(self, parts: Iterable[str], *, now_ms: int) -> Directory:
        at = self.root
        for part in parts:
            child = at.children.get(part)
            if child is None:
                child = Directory(part, now_ms)
                at.attach(child, now_ms=now_ms)
            assert isinstance(child, Directory)
            at = child
        return at


def _below_a_file(path: str, parts: Sequence[str], missing: int) -> PathIsFile:
    file = paths.join(list(parts[: len(parts) - missing]))
    return PathIsFile(f"{path}: {file} is a file")
