"""What differs between two versions of a directory, at the cost of what differs.

Two trees that come from one share nodes: where both are at the same node, all below it is
equal and is not looked at. A comparison is made in pages: each ends after a bounded number of
steps and says where the next one continues.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from diskless.namespace import btree
from diskless.namespace.btree import Inner, Node, in_order
from diskless.namespace.pages import resume
from diskless.namespace.tree import Directory, File

ADDED, REMOVED, CHANGED = "+", "-", "M"


class Change(Struct, frozen=True, array_like=True):
    """An entry that is in one version alone, or has other bytes. Of a directory that is there
    once, nothing below it is told."""

    kind: str
    path: str
    """Below the directory."""
    is_directory: bool
    bytes_before: int
    bytes_after: int


class DiffPage(Struct, frozen=True, array_like=True):
    changes: list[Change]
    cursor: str
    """Where the next page begins; empty after the last one."""


Difference = tuple[str, Any, Any]
"""A name and what it is on both sides; None on both only says that all up to it is compared."""


def diff_page(
    before: Directory, after: Directory, *, cursor: str, limit: int, chars_max: int
) -> DiffPage:
    """The next changes: as many as are found in `limit` steps, and about so many characters."""

    def enter(pair: tuple[Directory, Directory], after: str) -> Iterator[Difference]:
        return differences(pair[0].node, pair[1].node, after)

    def child(pair: tuple[Directory, Directory], name: str) -> Any:
        found = (btree.find(pair[0].node, name), btree.find(pair[1].node, name))
        return found if all(type(node) is Directory for node in found) else None

    position = resume((before, after), cursor, enter=enter, child=child)
    changes: list[Change] = []
    steps = chars = 0
    while steps < limit and chars < chars_max and position.frames:
        step = position.next()
        if step is None:
            continue
        steps += 1
        name, old, new = step
        if type(old) is Directory and type(new) is Directory:
            position.push(name, (old, new))
            continue
        path = position.path(name)
        changes += _changes(path, old, new)
        chars += len(path)
    return DiffPage(changes, position.cursor)


def _changes(path: str, old: Any, new: Any) -> list[Change]:
    if type(old) is File and type(new) is File:
        return [Change(CHANGED, path, False, old.record.size, new.record.size)]
    found = []
    if old is not None:
        found.append(Change(REMOVED, path, type(old) is Directory, _size(old), 0))
    if new is not None:
        found.append(Change(ADDED, path, type(new) is Directory, 0, _size(new)))
    return found


def _size(node: File | Directory) -> int:
    return node.record.size if isinstance(node, File) else node.bytes


class _Side:
    """One of two trees on its way: nodes not looked at yet, and entries not compared yet."""

    def __init__(self, node: Node, after: str) -> None:
        self.nodes = [node]
        self.run: dict[str, Any] = {}
        if after:
            while isinstance(self.nodes[-1], Inner):
                self.expand(after)
            self.load()
            self.run = {name: value for name, value in self.run.items() if name > after}

    def expand(self, after: str = "") -> None:
        top = self.nodes.pop()
        assert isinstance(top, Inner)
        first = top.index(after) if after else 0
        self.nodes += reversed(top.children[first:])

    def load(self) -> None:
        """Takes the entries of the next leaf, if there is one."""
        while self.nodes and isinstance(self.nodes[-1], Inner):
            self.expand()
        if self.nodes:
            self.run = dict(in_order(self.nodes.pop()))  # type: ignore[arg-type]

    @property
    def bound(self) -> str | None:
        """The name up to which all that is left is in the run."""
        return next(reversed(self.run)) if self.nodes else None

    def take(self, bound: str | None) -> dict[str, Any]:
        """Entries up to a name."""
        if bound is None or not self.run or next(reversed(self.run)) <= bound:
            taken, self.run = self.run, {}
            return taken
        taken = {name: value for name, value in self.run.items() if name <= bound}
        self.run = {name: value for name, value in self.run.items() if name > bound}
        return taken


def differences(one: Node, two: Node, after: str = "") -> Iterator[Difference]:
    """Names beyond `after` that are not the same on both sides, in order."""
    old, new = _Side(one, after), _Side(two, after)
    while True:
        _align(old, new)
        if not (old.run or new.run):
            if not (old.nodes or new.nodes):
                return
            continue  # Empty leaves were loaded.
        bounds = [side.bound for side in (old, new) if side.run]
        known = [bound for bound in bounds if bound is not None]
        bound = min(known) if known else None
        before, now = old.take(bound), new.take(bound)
        last = bound or max([*before, *now])
        for name in sorted(before.keys() | now.keys()):
            was, is_ = before.get(name), now.get(name)
            if was is not is_:
                yield name, was, is_
        yield last, None, None


def _align(old: _Side, new: _Side) -> None:
    """Skips what both share, and sees to it that a side without entries has none left or the
    next ones."""
    while old.nodes and new.nodes and not (old.run and new.run):
        one, two = old.nodes[-1], new.nodes[-1]
        if one is two:  # What waits to be compared has nothing to do with it.
            old.nodes.pop()
            new.nodes.pop()
            continue
        high, low = _height(one), _height(two)
        if high == low == 0:
            break
        if high >= low:
            old.expand()
        if low >= high:
            new.expand()
    for side in (old, new):
        if not side.run:
            side.load()


def _height(node: Node) -> int:
    height = 0
    while isinstance(node, Inner):
        node = node.children[0]
        height += 1
    return height
