"""The tree of paths: directories, files, and what a move or removal does to them.

Every method either does the whole change or raises and changes nothing. The tree
knows nothing of stripes: it hands back the records that a change let go of.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

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


class File:
    __slots__ = ("name", "parent", "record")

    def __init__(self, name: str, parent: "Directory", record: FileRecord) -> None:
        self.name = name
        self.parent = parent
        self.record = record


class Directory:
    __slots__ = ("_names", "children", "mtime_ms", "name", "parent")

    def __init__(self, name: str, parent: "Directory | None", mtime_ms: int) -> None:
        self.name = name
        self.parent = parent
        self.mtime_ms = mtime_ms
        self.children: dict[str, Directory | File] = {}
        self._names: list[str] | None = None

    def attach(self, node: "Node", *, now_ms: int) -> None:
        if node.name not in self.children:
            self._names = None
        self.children[node.name] = node
        node.parent = self
        self.mtime_ms = now_ms

    def detach(self, name: str, *, now_ms: int) -> None:
        del self.children[name]
        self._names = None
        self.mtime_ms = now_ms

    def names(self) -> list[str]:
        """Sorted, and kept until the next change, because a listing comes in pages."""
        if self._names is None:
            self._names = sorted(self.children)
        return self._names


Node = File | Directory


def path_of(node: Node) -> str:
    parts: list[str] = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        parts.append(at.name)
        at = at.parent
    return paths.join(parts[::-1])


def nodes_under(node: Node) -> Iterator[Node]:
    """The node itself and all below it."""
    pending = [node]
    while pending:
        at = pending.pop()
        yield at
        if isinstance(at, Directory):
            pending.extend(at.children.values())


def files_under(node: Node) -> Iterator[File]:
    return (at for at in nodes_under(node) if isinstance(at, File))


def rename_bytes(node: Node, name: str, old: Node | None) -> int:
    """How much more the names weigh when `node` is called `name`, in place of `old`."""
    weight = name_bytes(name) - name_bytes(node.name)
    return weight if old is None else weight - name_bytes(old.name)


class Tree:
    def __init__(self) -> None:
        self.root = Directory("", None, 0)
        self.directories = 1
        self.name_bytes = 0  # what the names of all files and directories weigh

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
                raise PathIsFile(f"{path}: {path_of(node)} is a file")
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
        file = File(name, parent, record)
        if old is None:
            self.name_bytes += name_bytes(name)
        parent.attach(file, now_ms=now_ms)
        return file, old.record if old else None

    def mkdirs(self, path: str, *, now_ms: int) -> bool:
        """Makes a directory and those above it; False if it was there."""
        parts = paths.split(path)
        node, missing = self._deepest(parts)
        if isinstance(node, File):
            if not missing:
                raise AlreadyExists(f"{path} is a file")
            raise PathIsFile(f"{path}: {path_of(node)} is a file")
        before = self.directories
        self._make(parts, now_ms=now_ms)
        return self.directories > before

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
        replaced = self._check_replace(node, old, target, overwrite)
        self.name_bytes += rename_bytes(node, name, old)
        assert node.parent is not None
        node.parent.detach(node.name, now_ms=now_ms)
        node.name = name
        parent.attach(node, now_ms=now_ms)
        return replaced

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

    def _check_replace(
        self, node: Node, old: Node | None, target: str, overwrite: bool
    ) -> FileRecord | None:
        if old is None:
            return None
        if not overwrite:
            raise AlreadyExists(f"{target} exists already")
        if isinstance(old, File):
            if isinstance(node, Directory):
                raise PathIsFile(f"{target} is a file: a directory cannot replace it")
            return old.record
        if isinstance(node, File):
            raise PathIsDirectory(f"{target} is a directory: a file cannot replace it")
        if old.children:
            raise DirectoryNotEmpty(f"{target} is a directory with {len(old.children)} entries")
        self.directories -= 1
        return None

    def delete(self, path: str, *, recursive: bool, now_ms: int) -> list[FileRecord] | None:
        """Removes a path; returns the records let go of, or None if there was nothing.

        Deleting the root empties it.
        """
        node = self.find(path)
        if node is None:
            return None
        if isinstance(node, Directory) and node.children and not recursive:
            raise DirectoryNotEmpty(f"{path} is a directory with {len(node.children)} entries")
        if isinstance(node, Directory):
            self.directories -= self.count_directories(node)
        self.name_bytes -= sum(name_bytes(each.name) for each in nodes_under(node))
        gone = [file.record for file in files_under(node)]
        if node.parent is None:
            self.root = Directory("", None, now_ms)
            self.directories = 1
            self.name_bytes = 0
        else:
            node.parent.detach(node.name, now_ms=now_ms)
        return gone

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

    @staticmethod
    def count_directories(node: Node) -> int:
        count, pending = 0, [node]
        while pending:
            at = pending.pop()
            if isinstance(at, Directory):
                count += 1
                pending.extend(at.children.values())
        return count

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
                child = Directory(part, at, now_ms)
                at.attach(child, now_ms=now_ms)
                self.directories += 1
                self.name_bytes += name_bytes(part)
            assert isinstance(child, Directory)
            at = child
        return at
