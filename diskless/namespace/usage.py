"""Which bytes a directory has for itself, and which only snapshots hold.

What is shared is told by counts, from the root down: below something that is shared, all is. So
while a moment is marked (`marked.py`), what has not changed since counts as shared.
Both walk, so both do it in stretches.
"""

from collections.abc import Generator, Iterator
from typing import Any

from msgspec import Struct

from diskless import paths
from diskless.namespace.btree import Inner, Leaf, Node, in_order, on_the_way
from diskless.namespace.pages import resume
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File

STRETCH_STEPS = 2000


class UsagePage(Struct, frozen=True, array_like=True):
    """What was found of a path's own in one page; the sum over all pages is the answer."""

    own_files: int
    own_bytes: int
    cursor: str
    """Where the next page begins; empty after the last one."""


def usage_page(state: NamespaceState, path: str, *, cursor: str, limit: int) -> UsagePage:
    """Goes on for `limit` steps. Raises NotFound."""
    node = state.get(path)
    own = _descend_own(*_origin(state, path))
    if own is None:
        return UsagePage(0, 0, "")
    if isinstance(node, File):
        return UsagePage(1, node.record.size, "")
    position = resume(own, cursor, enter=_own_entries, child=_own_child)
    files = size = steps = 0
    while steps < limit and position.frames:
        step = position.next()
        if step is None:
            continue
        steps += 1
        name, node = step
        if node.refs > 1:
            continue
        if isinstance(node, Directory):
            position.push(name, node)
        else:
            files += 1
            size += node.record.size
    return UsagePage(files, size, position.cursor)


def _origin(state: NamespaceState, path: str) -> tuple[Directory | None, tuple[str, ...]]:
    """The root that a path begins at, and the parts that lead on from there."""
    parts = paths.split(path)
    if not paths.leads_to_snapshots(path):
        return state.tree.root, parts
    at = parts.index(paths.SNAPSHOTS)
    if len(parts) == at + 1:
        return None, ()
    return state.history.get(paths.join(parts[:at]), parts[at + 1]).root, parts[at + 2 :]


def _descend_own(top: Directory | None, parts: tuple[str, ...]) -> Any:
    """What is at a path if nothing on the way to it is shared, nor itself."""
    at: Any = top if top is not None and top.refs == 1 else None
    for part in parts:
        at = _own_child(at, part) if type(at) is Directory else None
    return at


def _own_child(directory: Directory, name: str) -> Any:
    nodes = list(on_the_way(directory.node, name))
    leaf = nodes[-1]
    assert isinstance(leaf, Leaf)
    child = leaf.entries.get(name)
    shared = child is None or child.refs > 1 or any(node.refs > 1 for node in nodes)
    return None if shared else child


def _own_entries(directory: Directory, after: str) -> Iterator[tuple[str, File | Directory]]:
    """The entries in leaves that nobody else has, in order, beyond a name."""
    pending: list[Node] = [directory.node]
    while pending:
        node = pending.pop()
        if node.refs > 1:
            continue
        if isinstance(node, Inner):
            pending.extend(reversed(node.children[node.index(after) if after else 0 :]))
            continue
        for name, value in list(in_order(node).items()):
            if name > after:
                yield name, value
        after = ""


def held_by_snapshots(state: NamespaceState) -> Generator[None, None, int]:
    """How many bytes are in files that snapshots show and no path outside of them leads to.

    Yields whenever it has done enough at a stretch. What is written meanwhile where a snapshot
    shares may be taken for the snapshot's alone: only the next count is right again.
    """
    kept = [snapshot.root for snapshot in state.history.by_id.values()]
    if not kept:
        return 0
    size = 0
    for steps, found in enumerate(_sizes_beside(state.tree.root, kept), start=1):
        size += found
        if steps % STRETCH_STEPS == 0:
            yield
    return size


def _sizes_beside(live: Directory, kept: list[Directory]) -> Iterator[int]:
    """The sizes of files below some directories and not below another; a 0 for all else."""
    seen: set[Any] = set()
    for _ in _once(live, seen):
        yield 0
    for root in kept:
        for thing in _once(root, seen):
            yield thing.record.size if type(thing) is File else 0


def _once(root: Directory, seen: set[Any]) -> Iterator[Any]:
    """A directory and all below it that has not been seen. Only what is shared can be met
    again, so only that is remembered."""
    pending: list[Any] = [root]
    while pending:
        thing = pending.pop()
        if thing.refs > 1:
            if thing in seen:
                continue
            seen.add(thing)
        yield thing
        if isinstance(thing, Leaf):
            pending += thing.entries.values()
        elif isinstance(thing, Inner):
            pending += thing.children
        elif isinstance(thing, Directory):
            pending.append(thing.node)
