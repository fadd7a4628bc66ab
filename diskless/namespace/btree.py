"""An ordered tree from names to values that several holders share and each may change.

A node counts how many parents or holders point to it. A change walks down from its holder:
what nobody else points to is changed in place, and anything else is copied first, node by
node along the path (Rodeh, "B-trees, shadowing and clones"). So to share a whole tree costs
one count, and the first change after it one path. Values are counted like nodes: `refs` is
the number of leaves that hold one.

A leaf is a small dictionary and not a pair of lists: Python's collector of cycles does not
look at a dictionary of strings and of objects that it does not track, nor at tuples of such.
With lists it would walk all names of a million files, for 50 ms. A leaf is sorted when it is
split or listed; its order at other times is not part of the state.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Protocol

from msgspec import Struct

from diskless.namespace.weights import name_bytes

LEAF_MAX = 84
"""Half of it fills one of Python's dictionaries to the brim."""
LEAF_MIN = 21
LEAF_MERGED_MAX = 63
INNER_MAX = 64
INNER_MIN = 16
INNER_MERGED_MAX = 48
"""A node below its least size is merged with a neighbour, if both together stay well under
the most: else the next insertion would split them again."""


class Leaf(Struct, eq=False, gc=False):
    entries: dict[str, Any]
    refs: int = 1


class Inner(Struct, eq=False, gc=False):
    """`keys[n]` is not above any name in `children[n + 1]`, and above all before it."""

    keys: tuple[str, ...]
    children: tuple["Leaf | Inner", ...]
    refs: int = 1

    def index(self, name: str) -> int:
        """Of the child that has a name, or would have it."""
        return bisect_right(self.keys, name)


Node = Leaf | Inner
_Path = list[tuple[Inner, int]]
"""Inner nodes from the top, each with the index of the child that was taken."""


class Holder(Protocol):
    """The owner of a tree."""

    node: Node


class Counts:
    """How much there is of what can be shared, each object counted once: what the account of
    memory is made of. A name counts in every leaf that has it."""

    __slots__ = ("directories", "name_bytes", "nodes")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.nodes = 0
        self.directories = 0
        self.name_bytes = 0

    def empty_leaf(self) -> Leaf:
        self.nodes += 1
        return Leaf({})


def find(node: Node, name: str) -> Any:
    """The value of a name, or None."""
    while type(node) is Inner:
        node = node.children[bisect_right(node.keys, name)]
    return node.entries.get(name)  # type: ignore[union-attr]


def on_the_way(node: Node, name: str) -> Iterator[Node]:
    """The nodes from the top to the leaf that has a name, or would have it."""
    yield node
    while isinstance(node, Inner):
        node = node.children[node.index(name)]
        yield node


def beside(node: Node, name: str) -> list[Node]:
    """The leaves that the leaf with a name may be merged with, once it has lost that name."""
    above, leaf = None, node
    while isinstance(leaf, Inner):
        above, leaf = leaf, leaf.children[leaf.index(name)]
    if above is None or len(leaf.entries) > LEAF_MIN:
        return []
    at = above.index(name)
    return [*above.children[max(at - 1, 0) : at], *above.children[at + 1 : at + 2]]


def names_bytes(node: Node) -> int:
    """What the names in one node weigh. Keys are names of leaves, so nearly always the same
    objects."""
    return sum(map(name_bytes, node.entries)) if isinstance(node, Leaf) else 0


def own_leaf(holder: Holder, name: str, counts: Counts) -> Leaf:
    """The leaf that has `name`, or would have it, free to be changed."""
    return _own(holder, name, counts)[0]


def insert(holder: Holder, name: str, value: Any, counts: Counts) -> None:
    """Adds a name that is not there; the value's count is the caller's business."""
    leaf, path = _own(holder, name, counts)
    leaf.entries[name] = value
    counts.name_bytes += name_bytes(name)
    if len(leaf.entries) > LEAF_MAX:
        _split(holder, path, leaf, counts)


def remove(holder: Holder, name: str, counts: Counts) -> Any:
    """Takes a name out that is there; its value's count is the caller's from now on."""
    leaf, path = _own(holder, name, counts)
    value = leaf.entries.pop(name)
    counts.name_bytes -= name_bytes(name)
    if len(leaf.entries) < LEAF_MIN and path:
        _shrink(path, leaf, counts)
        _lower(holder, counts)
    return value


def page(node: Node, *, after: str, limit: int) -> tuple[list[tuple[str, Any]], bool]:
    """Up to `limit` entries named beyond `after`, in order, and whether more follow."""
    found: list[tuple[str, Any]] = []
    for leaf in leaves(node, after):
        entries = in_order(leaf)
        if after:
            found += [entry for entry in entries.items() if entry[0] > after]
            after = ""
        else:
            found += entries.items()
        if len(found) > limit:
            return found[:limit], True
    return found, False


def numbers(node: Node, *, after: str, names_max: int) -> tuple[list[str], str]:
    """The names that are numbers, of those beyond `after`, in no order; and up to which name it
    has looked: empty if to the end. It looks at whole leaves, until it has seen `names_max`."""
    found: list[str] = []
    seen, last = 0, ""
    for leaf in leaves(node, after):
        if seen >= names_max:
            return found, last
        names = list(leaf.entries)
        if not last:  # the one that `after` is in
            names = [name for name in names if name > after]
        found += [name for name in names if name.isdecimal() and name.isascii()]
        seen += len(names)
        last = max(leaf.entries, default=after)
    return found, ""


def in_order(leaf: Leaf) -> dict[str, Any]:
    """A leaf's entries, sorted: they stay so until a name is added, so that the next one who
    wants them so finds them so. To everybody else their order means nothing."""
    entries = leaf.entries
    names = list(entries)
    ordered = sorted(names)
    if names != ordered:
        entries = leaf.entries = {name: entries[name] for name in ordered}
    return entries


def leaves(node: Node, after: str = "") -> Iterator[Leaf]:
    """In order, from the one that would have `after`."""
    pending = [node]
    while True:
        while isinstance(top := pending.pop(), Inner):
            first = top.index(after) if after else 0
            pending.extend(reversed(top.children[first:]))
        after = ""  # What follows lies beyond it.
        yield top
        if not pending:
            return


def copy(node: Node, counts: Counts) -> Node:
    """A node for one of those that share this one; what it points to has one parent more."""
    node.refs -= 1
    counts.nodes += 1
    counts.name_bytes += names_bytes(node)
    if isinstance(node, Inner):
        for child in node.children:
            child.refs += 1
        return Inner(node.keys, node.children)
    for value in node.entries.values():
        value.refs += 1
    return Leaf(node.entries.copy())


def _own(holder: Holder, name: str, counts: Counts) -> tuple[Leaf, _Path]:
    node = holder.node
    if node.refs > 1:
        node = holder.node = copy(node, counts)
    path: _Path = []
    while isinstance(node, Inner):
        at = node.index(name)
        child = node.children[at]
        if child.refs > 1:
            child = copy(child, counts)
            node.children = (*node.children[:at], child, *node.children[at + 1 :])
        path.append((node, at))
        node = child
    return node, path


def _split(holder: Holder, path: _Path, node: Node, counts: Counts) -> None:
    """Makes two of a node that is too large, and of those above it that become so."""
    while True:
        key, right = _halve(node)
        counts.nodes += 1
        if not path:
            counts.nodes += 1
            holder.node = Inner((key,), (node, right))
            return
        parent, at = path.pop()
        parent.keys = (*parent.keys[:at], key, *parent.keys[at:])
        parent.children = (*parent.children[: at + 1], right, *parent.children[at + 1 :])
        if len(parent.children) <= INNER_MAX:
            return
        node = parent


def _halve(node: Node) -> tuple[str, Node]:
    """The upper half of a node, which keeps the lower one, and the key between them."""
    middle = _size(node) // 2
    if isinstance(node, Inner):
        key = node.keys[middle - 1]
        right = Inner(node.keys[middle:], node.children[middle:])
        node.keys, node.children = node.keys[: middle - 1], node.children[:middle]
        return key, right
    entries = node.entries
    names = sorted(entries)
    node.entries = {name: entries[name] for name in names[:middle]}
    return names[middle], Leaf({name: entries[name] for name in names[middle:]})


def _size(node: Node) -> int:
    return len(node.children) if isinstance(node, Inner) else len(node.entries)


def _shrink(path: _Path, node: Node, counts: Counts) -> None:
    """Merges a node that has become small, and those above it that become so."""
    while path and _size(node) < (INNER_MIN if isinstance(node, Inner) else LEAF_MIN):
        parent, at = path.pop()
        if not _size(node):
            _drop(parent, at, counts)
        elif not _merge_with_neighbour(parent, at, counts):
            return
        node = parent


def _lower(holder: Holder, counts: Counts) -> None:
    """Takes off what is above an only child."""
    while isinstance(top := holder.node, Inner) and len(top.children) <= 1:
        counts.nodes -= 1
        holder.node = top.children[0] if top.children else counts.empty_leaf()


def _drop(parent: Inner, at: int, counts: Counts) -> None:
    """Takes an empty child out."""
    counts.nodes -= 1
    parent.children = (*parent.children[:at], *parent.children[at + 1 :])
    parent.keys = parent.keys[1:] if at == 0 else (*parent.keys[: at - 1], *parent.keys[at:])


def _merge_with_neighbour(parent: Inner, at: int, counts: Counts) -> bool:
    """Whether there was one that is small enough."""
    most = INNER_MERGED_MAX if isinstance(parent.children[at], Inner) else LEAF_MERGED_MAX
    for left in (at, at - 1):
        if 0 <= left < len(parent.keys):
            pair = parent.children[left : left + 2]
            if _size(pair[0]) + _size(pair[1]) <= most:
                _merge(parent, left, owned=at, counts=counts)
                return True
    return False


def _merge(parent: Inner, left: int, *, owned: int, counts: Counts) -> None:
    """Makes one of two neighbours: of the one that is free to be changed."""
    first, second = parent.children[left : left + 2]
    kept, other = (first, second) if owned == left else (second, first)
    if other.refs > 1:
        other = copy(other, counts)
    if isinstance(first, Inner) and isinstance(second, Inner):
        assert isinstance(kept, Inner)
        keys = (*first.keys, parent.keys[left], *second.keys)
        kept.keys, kept.children = keys, (*first.children, *second.children)
    else:
        assert isinstance(kept, Leaf)
        assert isinstance(other, Leaf)
        kept.entries.update(other.entries)
    counts.nodes -= 1
    parent.children = (*parent.children[:left], kept, *parent.children[left + 2 :])
    parent.keys = (*parent.keys[:left], *parent.keys[left + 1 :])
