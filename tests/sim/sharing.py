"""What directories share, broken on purpose: parts of the namespace, each to be put in the place
of the right one while a schedule runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from diskless.agent.leading.backlog import Backlog
from diskless.namespace import btree, forest, marked, past, plans, snapshot, swaps
from diskless.namespace import commands as c
from diskless.namespace.btree import Counts, Leaf, Node
from diskless.namespace.doomed import Doomed
from diskless.namespace.leases import Leases
from diskless.namespace.plans import Plans
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Tier
from diskless.namespace.tree import Directory

FANOUT = {"LEAF_MAX": 2, "LEAF_MIN": 2, "LEAF_MERGED_MAX": 2,
          "INNER_MAX": 2, "INNER_MIN": 2, "INNER_MERGED_MAX": 2}  # fmt: skip
"""So small that a handful of names makes a tree of several levels."""
PLANS_MAX = 2
"""So few that a handful of paths is more than can be told apart."""


@dataclass(frozen=True)
class Part:
    """An attribute of a module or a class, and what it is to be."""

    owner: Any
    name: str
    value: Any


@contextmanager
def replaced(parts: list[Part]) -> Iterator[None]:
    before = [Part(part.owner, part.name, getattr(part.owner, part.name)) for part in parts]
    try:
        for part in parts:
            setattr(part.owner, part.name, part.value)
        yield
    finally:
        for part in before:
            setattr(part.owner, part.name, part.value)


def small_sizes() -> list[Part]:
    fanout = [Part(btree, name, size) for name, size in FANOUT.items()]
    return [*fanout, Part(plans, "ENTRIES_MAX", PLANS_MAX)]


class ForgetsSnapshots(snapshot.Restorer):
    """A voter that gets the state by transfer gets no snapshots."""

    def _kept(self, rows: Any) -> None:
        pass


class ForgetsTheSwept(snapshot.Restorer):
    """A voter that gets the state by transfer takes what is half swept for gone."""

    def _doomed(self, rows: Any) -> None:
        pass


class ForgetsPlaces(snapshot.Restorer):
    """A voter that gets the state by transfer does not know what is in the tier."""

    def _places(self, rows: Any) -> None:
        pass


class ForgetsLeases(snapshot.Restorer):
    """A voter that gets the state by transfer does not know who writes where."""

    def _leases(self, rows: Any) -> None:
        pass


class ForgetsPlans(snapshot.Restorer):
    """A voter that gets the state by transfer does not know what was planned lately."""

    def _plans(self, rows: Any) -> None:
        pass


class ForgetsWhatAMarkHolds(snapshot.Restorer):
    """A voter that gets the state by transfer gets no snapshots that only a mark holds."""

    def _mark_kept(self, rows: Any) -> None:
        pass


class SendsTwice(forest.Feller):
    """What the tree and a snapshot share is sent with each of them."""

    def rows(self, root: forest.Thing) -> Iterator[forest.Row]:
        self._shared.clear()
        return super().rows(root)


class OneReference(forest.Planter):
    """What several share comes out of a transfer with one reference."""

    def thing(self, number: int) -> forest.Thing:
        thing = super().thing(number)
        thing.refs = 1
        return thing


def write_in_place(node: Node, counts: Counts) -> Node:
    """In the place of a copy of what is shared: the thing itself."""
    return node


def copy_uncounted(node: Node, counts: Counts) -> Node:
    """A copy of a node that does not count what it points to once more."""
    copied = _copy(node, counts)
    for below in copied.entries.values() if isinstance(copied, Leaf) else copied.children:
        below.refs -= 1
    return copied


def create_uncounted(state: NamespaceState, command: c.CreateSnapshot) -> c.Done:
    """A snapshot whose reference to its root is not counted."""
    done = _create(state, command)
    for number in range(len(command.paths)):
        state.history.numbered(done.number + number).root.refs -= 1
    return done


def clone_uncounted(state: NamespaceState, command: c.Clone) -> c.Done:
    """A clone whose reference is not counted."""
    done = _clone(state, command)
    state.tree.get(command.target).refs -= 1
    return done


def mark_uncounted(state: NamespaceState) -> None:
    """A mark whose reference to the root is not counted."""
    _mark(state)
    state.tree.root.refs -= 1


def note_repeats(self: NamespaceState, command: Any, run: Any, *args: Any) -> c.Result:
    """Answers of repeated mutations are written down like those of first ones."""
    before = self.tier.change
    result = _once(self, command, run, *args)
    done = isinstance(result, c.Done) and result.changed
    if done and self.tier.attached and self.tier.change == before:
        self.note(command, result)
    return result


def bar_nobody(*_: object) -> None:
    """An application that was silent goes on where its batches were taken back."""


def let_everybody_write(self: Leases, state: NamespaceState, root: str, application: str) -> None:
    """In the place of a look at who has the lease."""


def wait_for_no_plan(self: Plans, path: str) -> int:
    """State is acknowledged before the plan that it comes from is durable."""
    return 0


def open_at_once(self: Backlog, path: str) -> int:
    """A query that starts again runs a plan which could still be lost."""
    return 0


def evict_beyond(self: Tier, id_: int) -> bool:
    """What is not in the tier for certain counts as safe there."""
    return self.attached


def swap_whatever(state: NamespaceState, swap: c.Swap, *, checked: bool) -> None:
    """A directory is replaced although something was written there since its snapshot."""
    _check_swap(state, swap, checked=False)


def own_and_forget(self: Doomed, directory: Directory) -> bool:
    """A delete that sweeps what others share, too."""
    directory.refs = 1
    return _add(self, directory)


_copy, _create, _clone, _add = btree.copy, past.create, past.clone, Doomed.add
_mark, _once, _check_swap = marked.mark, NamespaceState._once, swaps._check
