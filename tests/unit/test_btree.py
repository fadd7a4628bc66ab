"""The ordered tree by itself: against dictionaries that are copied whole where it shares."""

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from msgspec import Struct

from diskless.namespace import btree
from diskless.namespace.btree import Counts, Inner, Leaf, Node
from diskless.namespace.weights import name_bytes
from tests.unit.work import work_of

SMALL_FANOUT = {
    "LEAF_MAX": 4,
    "LEAF_MIN": 2,
    "LEAF_MERGED_MAX": 3,
    "INNER_MAX": 4,
    "INNER_MIN": 2,
    "INNER_MERGED_MAX": 3,
}
"""So that a few names make a tree of several levels."""


class Value(Struct, eq=False, gc=False):
    number: int
    refs: int = 1


class Holder:
    def __init__(self, node: Node) -> None:
        self.node = node


def nodes(node: Node) -> Iterator[Node]:
    """A node and all below it, each as often as it is reached."""
    yield node
    for child in node.children if isinstance(node, Inner) else ():
        yield from nodes(child)


def height(node: Node) -> int:
    """Of a tree whose leaves all lie alike deep."""
    if isinstance(node, Leaf):
        return 0
    (below,) = {height(child) for child in node.children}
    return below + 1


def recount(holders: list[Holder], counts: Counts) -> None:
    """Every count is what a walk from all holders says."""
    found = {id(node): node for holder in holders for node in nodes(holder.node)}
    refs: Counter[int] = Counter(id(holder.node) for holder in holders)
    values: dict[int, Value] = {}
    for node in found.values():
        for child in node.children if isinstance(node, Inner) else node.entries.values():
            refs[id(child)] += 1
            if isinstance(child, Value):
                values[id(child)] = child
    for thing in (*found.values(), *values.values()):
        assert thing.refs == refs[id(thing)]
    assert counts.nodes == len(found)
    assert counts.name_bytes == sum(map(btree.names_bytes, found.values()))


def check_shape(node: Node, least: str = "", beyond: str | None = None) -> None:
    """Names lie where their keys say, and no node is too large or without children."""
    if isinstance(node, Leaf):
        assert len(node.entries) <= btree.LEAF_MAX
        assert all(least <= name and (beyond is None or name < beyond) for name in node.entries)
        return
    assert 1 <= len(node.children) == len(node.keys) + 1 <= btree.INNER_MAX
    bounds = [least, *node.keys, beyond]
    for child, low, high in zip(node.children, bounds[:-1], bounds[1:], strict=True):
        check_shape(child, low or "", high)


def entries(node: Node) -> dict[str, int]:
    """As listed, in order."""
    return {name: value.number for name, value in btree.page(node, after="", limit=10**9)[0]}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL_FANOUT.items():
        monkeypatch.setattr(btree, name, value)


names = st.integers(0, 60).map(lambda n: f"{n:02}")


class SharedTrees(RuleBasedStateMachine):
    """Trees that share whatever they can, and a dictionary for each that shares nothing."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.usual = {name: getattr(btree, name) for name in SMALL_FANOUT}
        for name, value in SMALL_FANOUT.items():
            setattr(btree, name, value)
        self.counts = Counts()
        self.models: dict[Holder, dict[str, int]] = {}
        self.numbers = 0

    def teardown(self) -> None:
        for name, value in self.usual.items():
            setattr(btree, name, value)

    @rule(target=holders)
    def begin(self) -> Holder:
        holder = Holder(self.counts.empty_leaf())
        self.models[holder] = {}
        return holder

    @rule(target=holders, of=holders)
    def share(self, of: Holder) -> Holder:
        holder = Holder(of.node)
        of.node.refs += 1
        self.models[holder] = dict(self.models[of])
        return holder

    @rule(holder=holders, chosen=st.lists(names, max_size=12))
    def put(self, holder: Holder, chosen: list[str]) -> None:
        for name in chosen:
            self.numbers += 1
            if name in self.models[holder]:
                leaf = btree.own_leaf(holder, name, self.counts)
                leaf.entries[name].refs -= 1
                leaf.entries[name] = Value(self.numbers)
            else:
                btree.insert(holder, name, Value(self.numbers), self.counts)
            self.models[holder][name] = self.numbers

    @rule(holder=holders, data=st.data())
    def remove(self, holder: Holder, data: st.DataObject) -> None:
        model = self.models[holder]
        for name in (
            data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)) if model else ()
        ):
            value = btree.remove(holder, name, self.counts)
            value.refs -= 1
            assert value.number == model.pop(name)

    @rule(holder=holders, name=names)
    def look(self, holder: Holder, name: str) -> None:
        value = btree.find(holder.node, name)
        assert (value and value.number) == self.models[holder].get(name)

    @rule(holder=holders, after=names, limit=st.integers(1, 9))
    def list_a_page(self, holder: Holder, after: str, limit: int) -> None:
        found, more = btree.page(holder.node, after=after, limit=limit)
        beyond = sorted(name for name in self.models[holder] if name > after)
        assert [name for name, _ in found] == beyond[:limit]
        assert more == (len(beyond) > limit)

    @invariant()
    def every_tree_is_what_its_model_is(self) -> None:
        for holder, model in self.models.items():
            assert list(entries(holder.node).items()) == sorted(model.items())

    @invariant()
    def counts_and_shapes_hold(self) -> None:
        recount(list(self.models), self.counts)
        for holder in self.models:
            check_shape(holder.node)
            height(holder.node)


SharedTrees.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSharedTrees: Any = SharedTrees.TestCase


def filled(count: int) -> tuple[Holder, Counts]:
    counts = Counts()
    holder = Holder(counts.empty_leaf())
    for number in range(count):
        btree.insert(holder, f"{number:07}", Value(number), counts)
    return holder, counts


def test_space_stays_bounded_when_most_names_go() -> None:
    holder, counts = filled(20_000)
    for number in range(20_000):
        if number % 50:
            btree.remove(holder, f"{number:07}", counts)
    assert counts.nodes <= 2 * 400 / (btree.LEAF_MIN / 2)
    assert len(entries(holder.node)) == 400


def test_a_tree_that_has_been_emptied_is_one_leaf_again(small: None) -> None:
    holder, counts = filled(500)
    assert height(holder.node) >= 4
    for number in [*range(0, 500, 2), *range(499, 0, -2)]:
        btree.remove(holder, f"{number:07}", counts)
    assert isinstance(holder.node, Leaf)
    assert (counts.nodes, counts.name_bytes) == (1, 0)


def test_the_collector_of_cycles_looks_at_nothing_of_it() -> None:
    holder, _ = filled(5000)
    gc.collect()
    for node in nodes(holder.node):
        assert not gc.is_tracked(node)
        parts = (node.keys, node.children) if isinstance(node, Inner) else (node.entries,)
        assert not any(map(gc.is_tracked, parts))


@pytest.mark.parametrize("change", [btree.remove, btree.own_leaf], ids=lambda f: f.__name__)
def test_the_first_change_after_sharing_copies_a_path_and_the_next_nothing(change: Any) -> None:
    lines = []
    for count in (2000, 60_000):
        holder, counts = filled(count)
        other = Holder(holder.node)
        holder.node.refs += 1
        before = counts.nodes
        lines.append(work_of(lambda h=holder, n=counts: change(h, "0000500", n)).lines)
        assert counts.nodes - before == height(other.node) + 1
        btree.remove(holder, "0000501", counts)
        assert counts.nodes - before == height(other.node) + 1
    assert lines[1] <= lines[0] + 200, "a level of inner nodes more"


def test_names_are_charged_in_each_leaf_that_has_them() -> None:
    holder, counts = filled(3)
    other = Holder(holder.node)
    holder.node.refs += 1
    btree.own_leaf(other, "", counts)
    assert counts.name_bytes == 6 * name_bytes("0000000")
