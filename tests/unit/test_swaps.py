"""Directories that are pruned and put in the place of others: what is checked, what is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.errors import (
    BadRequest,
    CheckpointInUse,
    HasSnapshots,
    NotFound,
    PathIsFile,
    ReadOnly,
)
from diskless.namespace import commands as c
from diskless.namespace import journal as j
from diskless.namespace.replay import Replayer
from diskless.namespace.snapshot import Restorer, snapshot
from diskless.namespace.state import NamespaceState
from diskless.namespace.swaps import PRUNED_MAX, SWAPS_MAX
from tests.unit.test_namespace_world import World, check_counts, dump_tree


@pytest.fixture
def world() -> World:
    """/d, its snapshot s, and a clone of it beside it."""
    world = World()
    for name in ("a", "sub/b", "sub/c"):
        world.put(f"/d/{name}", name.encode())
    world.put("/other", b"x")
    world.snapshot("/d", "s")
    world.clone("/d/.snapshot/s", "/draft")
    return world


def prune(world: World, path: str, *names: str) -> c.Prune:
    return c.Prune(world.session, world.next_sequence(), path, names)


def replace(world: World, *swaps: tuple[str, str, str]) -> c.Replace:
    found = tuple(c.Swap(*swap) for swap in swaps)
    return c.Replace(world.session, world.next_sequence(), found)


def paths_below(world: World, top: str) -> set[str]:
    return {path for path in dump_tree(world.state) if path.startswith(f"{top}/")}


def test_a_directory_takes_the_place_of_another_whose_snapshot_keeps_what_was_there(
    world: World,
) -> None:
    assert world.do(prune(world, "/draft", "sub/b", "never-there")).number == 1
    world.do(replace(world, ("/d", "/draft", "s")))
    assert paths_below(world, "/d") == {"/d/a", "/d/sub", "/d/sub/c"}
    assert world.state.tree.find("/draft") is None
    assert world.state.open("/d/.snapshot/s/sub/b")[0].inline == b"sub/b"
    world.rollback("/d", "s")
    assert paths_below(world, "/d") == {"/d/a", "/d/sub", "/d/sub/b", "/d/sub/c"}
    check_counts(world.state)


@pytest.mark.parametrize("change", ["put", "delete", "mkdir", "there and back"])
def test_nothing_is_replaced_that_was_changed_since_its_snapshot(world: World, change: str) -> None:
    if change == "put":
        world.put("/d/sub/new")
    elif change == "delete":
        world.delete("/d/a")
    elif change == "mkdir":
        world.mkdirs("/d/e")
    else:
        world.put("/d/new")
        world.delete("/d/new")
    assert world.refusal(replace(world, ("/d", "/draft", "s"))) is CheckpointInUse


def test_what_is_changed_elsewhere_does_not_matter(world: World) -> None:
    world.put("/other2")
    world.delete("/draft/a")
    world.put("/e/x")
    world.do(replace(world, ("/d", "/draft", "s")))
    assert paths_below(world, "/d") == {"/d/sub", "/d/sub/b", "/d/sub/c"}


def test_several_are_replaced_together_or_not_at_all(world: World) -> None:
    world.put("/e/x")
    world.snapshot("/e", "t")
    world.clone("/e", "/draft2")
    world.put("/draft2/y")
    world.put("/d/late")
    both = ("/d", "/draft", "s"), ("/e", "/draft2", "t")
    assert world.refusal(replace(world, *both)) is CheckpointInUse
    world.rollback("/d", "s")
    world.do(replace(world, *both))
    assert paths_below(world, "/e") == {"/e/x", "/e/y"}
    check_counts(world.state)


def test_what_cannot_be_swapped_is_refused(world: World) -> None:
    world.snapshot("/draft", "own")
    assert world.refusal(replace(world, ("/d", "/draft", "s"))) is HasSnapshots
    assert world.refusal(replace(world, ("/d", "/none", "s"))) is NotFound
    assert world.refusal(replace(world, ("/d", "/other", "s"))) is PathIsFile
    assert world.refusal(replace(world, ("/d", "/draft", "none"))) is NotFound
    assert world.refusal(replace(world, ("/d", "/d/sub", "s"))) is BadRequest
    assert world.refusal(replace(world, ("/d", "/d/.snapshot/s", "s"))) is BadRequest
    assert world.refusal(replace(world, ("/", "/draft", "s"))) is BadRequest
    assert world.refusal(replace(world)) is BadRequest
    many = [(f"/p{n}", f"/q{n}", "s") for n in range(SWAPS_MAX + 1)]
    assert world.refusal(replace(world, *many)) is BadRequest


def test_only_files_are_pruned_and_never_from_a_snapshot(world: World) -> None:
    assert world.refusal(prune(world, "/draft", "a", "sub")) is BadRequest
    assert world.refusal(prune(world, "/d/.snapshot/s", "a")) is ReadOnly
    assert world.refusal(prune(world, "/draft", "../d/a")) is BadRequest
    assert world.refusal(prune(world, "/draft", *("a",) * (PRUNED_MAX + 1))) is BadRequest
    done = world.do(prune(world, "/draft", "none"))
    assert (done.number, done.changed) == (0, False)


def test_a_voter_that_got_its_state_by_transfer_judges_alike(world: World) -> None:
    """The same object is the same content: what is shared must be shared in the copy too."""
    copy = NamespaceState()
    restorer = Restorer(copy)
    for chunk in snapshot(world.state):
        restorer.take(chunk)
    command = replace(world, ("/d", "/draft", "s"))
    for state in (world.state, copy):
        (result,) = state.apply(command, now_ms=5, elapsed_ms=5)
        assert isinstance(result, c.Done)
    assert dump_tree(copy) == dump_tree(world.state)


@given(st.sets(st.sampled_from([f"s{n % 3}/{n}" for n in range(40)])))
def test_a_journal_makes_the_same_again(pruned: set[str]) -> None:
    world = World()
    world.do(c.AttachTier("file:///t", 1, 0))
    world.state.journal = j.Journal()
    base = world.state.tier.change
    world.state.journal.restart(base)
    for number in range(40):
        world.put(f"/d/s{number % 3}/{number}")
    world.snapshot("/d", "s")
    world.clone("/d", "/draft")
    world.do(prune(world, "/draft", *sorted(pruned)))
    world.do(replace(world, ("/d", "/draft", "s")))
    again = Replayer(NamespaceState())
    again.state.tier.change = base
    for data in world.state.journal.after(base, upto=world.state.tier.change, limit=1000):
        again.apply(j.decode(data))
    assert set(dump_tree(again.state)) == set(dump_tree(world.state))
    check_counts(world.state)
    check_counts(again.state)
