"""A recursive delete: gone at once for all who look, taken apart by and by."""

import pytest

from diskless.errors import NotFound
from diskless.model import Extent
from diskless.namespace import commands as c
from diskless.namespace import snapshot as s
from diskless.namespace.state import NamespaceState
from tests.unit.test_namespace_world import (
    World,
    agent_up,
    check_counts,
    dump,
    file_in,
    inline_file,
)

AT_ONCE = 4
LARGE = b"x" * 5000


@pytest.fixture
def world() -> World:
    """A namespace that leaves all but the smallest deletes to sweeps."""
    world = World(agents=0)
    world.state = NamespaceState(sweep_at_once=AT_ONCE)
    for slot in range(4):
        world.do(agent_up(slot))
    world.session = world.do(c.OpenSession()).number
    return world


def fill(world: World, folder: str) -> None:
    """Directories in each other, with inline files and one in a stripe."""
    stripe = world.stripe()
    world.put_in(f"{folder}/a/packed", stripe)
    for n in range(6):
        world.put(f"{folder}/a/{n}", b"12")
        world.put(f"{folder}/a/b/c/{n}", LARGE)
    world.mkdirs(f"{folder}/a/empty/e")


def sweep_all(world: World, entries: int = 3) -> int:
    """How many commands it took."""
    count = 0
    while world.state.doomed:
        world.do(c.Sweep(entries))
        count += 1
        assert count < 1000
    return count


def test_it_is_gone_at_once_and_counts_no_more(world: World) -> None:
    world.put("/kept", b"123")
    fill(world, "/d")
    world.delete("/d", recursive=True)
    state = world.state
    for path in ("/d", "/d/a", "/d/a/b/c/3"):
        with pytest.raises(NotFound):
            state.stat(path)
    assert (state.tree.files, state.tree.directories, state.bytes_logical) == (1, 1, 3)
    assert state.summary("/").files == 1
    assert [entry.path for entry in state.page("/", after="", limit=9)[0]] == ["/kept"]
    assert state.doomed.files == 13


def test_memory_and_stripes_come_back_by_sweeps(world: World) -> None:
    fill(world, "/d")
    world.elapsed_ms = 5000
    world.delete("/d", recursive=True)
    state = world.state
    assert len(state.files) == 13
    assert state.bytes_inline == 6 * (2 + len(LARGE))
    assert (len(state.demotable_ms), state.ledger.freed_ms) == (6, {})
    world.elapsed_ms = 7000
    assert sweep_all(world) >= 13 / 3
    assert (len(state.files), state.bytes_inline, len(state.demotable_ms)) == (0, 0, 0)
    assert list(state.ledger.freed_ms.values()) == [7000], "readers get their time from now on"
    assert (state.doomed.files, state.doomed.jobs) == (0, [])


def test_each_sweep_takes_no_more_than_it_was_told(world: World) -> None:
    fill(world, "/d")
    world.delete("/d", recursive=True)
    before = len(world.state.files)
    while world.state.doomed:
        world.do(c.Sweep(2))
        assert before - 2 <= len(world.state.files) <= before
        before = len(world.state.files)
    assert before == 0


def test_the_path_can_be_used_again_at_once(world: World) -> None:
    fill(world, "/d")
    world.delete("/d", recursive=True)
    fill(world, "/other")
    world.put("/d/a/0", b"new")
    world.rename("/other", "/d/a/b")
    world.delete("/d/a/b/a", recursive=True)
    sweep_all(world)
    assert world.files() == {"/d/a/0": b"new"}
    assert world.directories() == {"/", "/d", "/d/a", "/d/a/b"}
    assert list(world.state.files) == [world.state.open("/d/a/0")[0].id]


def test_the_root_can_be_emptied(world: World) -> None:
    fill(world, "/d")
    world.delete("/", recursive=True)
    world.put("/d", b"a file now")
    assert world.state.tree.files == 1
    sweep_all(world)
    assert world.files() == {"/d": b"a file now"}


def test_little_is_taken_apart_at_once_also_while_more_waits(world: World) -> None:
    fill(world, "/d")
    world.delete("/d", recursive=True)
    waiting = world.state.doomed.files
    stripe = world.stripe()
    world.put_in("/little/a", stripe)
    world.put("/little/b")
    world.delete("/little", recursive=True)
    assert list(world.state.ledger.freed_ms) == [stripe.id]
    assert world.state.doomed.files <= waiting
    sweep_all(world)
    assert len(world.state.files) == 0


def test_a_file_that_is_repacked_before_it_is_swept_leaves_nothing_behind(world: World) -> None:
    """The leader may not know yet that it is deleted."""
    sparse, full = world.stripe(), world.stripe()
    ids = [world.put_in(f"/d/{n}", sparse, 10 * n, 10) for n in range(9)]
    world.delete("/d", recursive=True)
    move = c.Move(ids[0], 0, (Extent(full.id, 0, 10),))
    assert world.do(c.Relocate((full,), (move,))).number == 1
    sweep_all(world)
    assert set(world.state.ledger.freed_ms) == {sparse.id, full.id}
    assert (world.state.ledger.live_bytes, len(world.state.files)) == (0, 0)


def test_a_copy_of_the_state_goes_on_sweeping_where_the_original_does(world: World) -> None:
    for folder in ("/d", "/e"):
        fill(world, folder)
        world.delete(folder, recursive=True)
    world.put("/d/again", b"1")
    states = [world.state]
    step = 0
    while world.state.doomed:
        copy = NamespaceState(sweep_at_once=AT_ONCE)
        restorer = s.Restorer(copy)
        for chunk in s.snapshot(world.state):
            restorer.take(chunk)
        states.append(copy)
        step += 1
        for state in states:
            state.apply(c.Sweep(5), now_ms=1000 + step, elapsed_ms=1000 + step)
            assert dump(state) == dump(world.state)
    assert step > 5
    assert world.files() == {"/d/again": b"1"}


def test_a_snapshot_that_goes_is_taken_apart_by_and_by_and_only_what_nobody_else_has(
    world: World,
) -> None:
    fill(world, "/d")
    world.snapshot("/d", "s")
    world.delete("/d/a/b", recursive=True)
    world.put("/d/a/0", b"new", overwrite=True)
    state = world.state
    held = len(state.files)
    world.do(world.delete_snapshots_of("/d", "s"))
    assert state.doomed
    assert len(state.files) >= held - AT_ONCE
    sweep_all(world, entries=2)
    assert len(state.files) == len(world.files()) == 7
    assert state.doomed.files == 0
    assert world.state.ledger.freed_ms == {}
    check_counts(state)


def test_a_delete_that_is_repeated_deletes_nothing_else(world: World) -> None:
    fill(world, "/d")
    command = world.delete_of("/d", recursive=True)
    first = world.do(command)
    world.put("/d/new", b"1")
    assert world.do(command) == first
    assert world.files() == {"/d/new": b"1"}


def test_puts_and_deletes_in_between_do_not_disturb_a_sweep(world: World) -> None:
    stripe = world.stripe(90)
    files = [file_in(f"/d/{n}", Extent(stripe.id, 10 * n, 10)) for n in range(9)]
    world.do(world.commit_of(*files, inline_file("/kept"), stripes=[stripe]))
    world.rename("/d/8", "/kept-too")
    world.delete("/d", recursive=True)
    for n in range(6):
        world.do(c.Sweep(2))
        world.put(f"/d/{n}", b"1", overwrite=True)
        world.delete(f"/d/{n}")
    assert world.state.ledger.entries[stripe.id].live_bytes == 10
    assert world.state.ledger.freed_ms == {}
    assert world.files().keys() == {"/kept", "/kept-too"}
