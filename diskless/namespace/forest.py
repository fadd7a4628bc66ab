"""Directories and their nodes as rows, each once however many share it, and back again.

A row comes after those of all that it points to, and is known by its number. So a reader that takes
the rows in can count for each thing who points to it as the rows come.
"""

from collections.abc import Iterator

from diskless.namespace.btree import Counts, Inner, Leaf, in_order
from diskless.namespace.paged import Paged
from diskless.namespace.tree import Directory, File
from diskless.namespace.weights import name_bytes

_LEAF, _INNER, _DIRECTORY = range(3)

Row = tuple[int, list[str], list[int], list[int]]
"""A kind, names or keys, what they are, and a directory's sums. A file is its id; a node or a
directory its number, below zero where both may stand."""
Thing = Directory | Leaf | Inner


class _Frame:
    """A thing whose row waits for those of what it points to."""

    __slots__ = ("left", "numbers", "thing")

    def __init__(self, thing: Thing) -> None:
        self.thing = thing
        self.left = _below(thing)
        self.numbers: list[int] = []


def _below(thing: Thing) -> Iterator[Thing]:
    if isinstance(thing, Inner):
        return iter(thing.children)
    if isinstance(thing, Directory):
        return iter((thing.node,))
    return iter([node for node in in_order(thing).values() if type(node) is Directory])


class Feller:
    """Makes rows. Nothing may change until the last of them is made."""

    def __init__(self) -> None:
        self.number = 0
        """Of the thing whose rows were made last."""
        self._shared: dict[int, int] = {}  # identity -> number
        self._last = 0

    def rows(self, root: Thing) -> Iterator[Row]:
        """Of a thing and all below it that has none yet."""
        self.number = self._shared.get(id(root), 0)
        stack = [] if self.number else [_Frame(root)]
        while stack:
            frame = stack[-1]
            thing = next(frame.left, None)
            if thing is not None:
                number = self._shared.get(id(thing)) if thing.refs > 1 else None
                if number is None:
                    stack.append(_Frame(thing))
                else:
                    frame.numbers.append(number)
                continue
            stack.pop()
            self._last += 1
            if frame.thing.refs > 1:
                self._shared[id(frame.thing)] = self._last
            yield _row(frame)
            if stack:
                stack[-1].numbers.append(self._last)
            else:
                self.number = self._last


def _row(frame: _Frame) -> Row:
    thing = frame.thing
    if isinstance(thing, Inner):
        return _INNER, list(thing.keys), frame.numbers, []
    if isinstance(thing, Directory):
        sums = [thing.mtime_ms, thing.entries, thing.files, thing.directories, thing.bytes]
        return _DIRECTORY, [], frame.numbers, sums
    numbers = iter(frame.numbers)
    entries = in_order(thing)
    values = [node.record.id if type(node) is File else -next(numbers) for node in entries.values()]
    return _LEAF, list(entries), values, []


def files_of(row: Row) -> list[int]:
    """The ids of the files that a row points to."""
    return [number for number in row[2] if number > 0] if row[0] == _LEAF else []


def row_bytes(row: Row) -> int:
    """More than it takes on the wire, for what it takes to make it."""
    return 30 + 50 * len(row[1]) + sum(map(len, row[1]))


class Planter:
    """Builds things from their rows, and counts them."""

    def __init__(self, files: Paged[File], counts: Counts) -> None:
        """Files come with no reference, one for each leaf is added."""
        self._files = files
        self._counts = counts
        self._things: list[Thing] = []

    def take(self, rows: list[Row]) -> None:
        for kind, names, numbers, sums in rows:
            if kind == _LEAF:
                self._things.append(self._leaf(names, numbers))
            elif kind == _INNER:
                children = tuple(self._node(number) for number in numbers)
                self._counts.nodes += 1
                self._things.append(Inner(tuple(names), children, 0))
            else:
                mtime_ms, *rest = sums
                self._counts.directories += 1
                directory = Directory(mtime_ms, self._node(numbers[0]), *rest)
                directory.refs = 0
                self._things.append(directory)

    def _leaf(self, names: list[str], numbers: list[int]) -> Leaf:
        entries: dict[str, File | Directory] = {}
        for name, number in zip(names, numbers, strict=True):
            node = self._files[number] if number > 0 else self.directory(-number)
            if number > 0:
                node.refs += 1
            entries[name] = node
        self._counts.nodes += 1
        self._counts.name_bytes += sum(map(name_bytes, names))
        return Leaf(entries, 0)

    def thing(self, number: int) -> Thing:
        """The thing of a number, with one reference more."""
        thing = self._things[number - 1]
        thing.refs += 1
        return thing

    def directory(self, number: int) -> Directory:
        thing = self.thing(number)
        assert isinstance(thing, Directory)
        return thing

    def _node(self, number: int) -> Leaf | Inner:
        thing = self.thing(number)
        assert not isinstance(thing, Directory)
        return thing
