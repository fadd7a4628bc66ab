"""What recursive deletes have detached and nobody has taken apart yet.

A delete takes a directory out of the tree in one step, and from then on no path leads to
what was below it. Its files still hold memory and stripes, and giving up a million of them
takes seconds; so they wait here, and `sweep` takes apart a bounded number at a time. All of
it is replicated: the same commands sweep the same files everywhere.
"""

from diskless.model import FileRecord
from diskless.namespace.tree import Directory, File
from diskless.namespace.weights import name_bytes


class Doomed:
    def __init__(self) -> None:
        self.roots: list[Directory] = []
        """The last one is taken apart first, and it has nothing left above it."""
        self.files = 0
        self.directories = 0
        self.name_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.roots)

    def add(self, directory: Directory) -> None:
        """Takes a directory that has been detached."""
        assert directory.parent is None
        self.roots.append(directory)
        self.files += directory.files
        self.directories += directory.directories
        self.name_bytes += directory.name_bytes + name_bytes(directory.name)

    def sweep(self, limit: int) -> list[FileRecord]:
        """Takes `limit` entries apart, or all that are left; returns the files' records."""
        gone: list[FileRecord] = []
        while self.roots and limit > 0:
            limit -= 1
            directory = self.roots[-1]
            if not directory.children:
                self.roots.pop()
                self.directories -= 1
                self.name_bytes -= name_bytes(directory.name)
                continue
            node = directory.pop()
            if isinstance(node, File):
                gone.append(node.record)
                self.name_bytes -= name_bytes(node.name)
            else:
                self.roots.append(node)
        self.files -= len(gone)
        return gone
