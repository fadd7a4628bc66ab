"""A full namespace: growth is refused alike everywhere, and what makes room always works."""

from collections.abc import Callable

import pytest

from diskless.errors import CapacityExceeded
from diskless.model import Extent, Place
from diskless.namespace import commands as c
from diskless.namespace import snapshot as s
from diskless.namespace import weights
from diskless.namespace.sessions import ANSWERS_PER_SESSION
from diskless.namespace.state import SURE_PUT_BYTES, NamespaceState
from tests.unit.test_namespace_world import World, agent_up, dump, file_in, inline_file


@pytest.fixture
def full() -> World:
    """A namespace with some of everything, and room for nothing."""
    world = World()
    for number in range(20):
        world.put(f"/dir/{number}", b"x" * 5000)
    world.put_in("/striped", world.stripe())
    world.put_in("/dead", world.stripe())
    world.delete("/dead")
    world.mkdirs("/empty")
    world.do(c.Limit(world.state.bytes_used))
    return world


GROWS: dict[str, Callable[[World], c.Command]] = {
    "an empty file": lambda w: w.commit_of(inline_file("/new", b"")),
    "a file below new directories": lambda w: w.commit_of(inline_file("/a/b/c")),
    "many files": lambda w: w.commit_of(*(inline_file(f"/m/{n}") for n in range(50))),
    "an overwrite": lambda w: w.commit_of(inline_file("/dir/1", b"y" * 9000), overwrite=True),
    "a directory": lambda w: w.mkdirs_of("/new"),
    "a longer name": lambda w: w.rename_of("/dir/1", "/dir/" + "n" * 200),
}


@pytest.mark.parametrize("make", GROWS.values(), ids=GROWS)
def test_growth_is_refused_in_a_full_namespace_and_the_refusal_is_the_answer(
    full: World, make: Callable[[World], c.Command]
) -> None:
    command = make(full)
    (first,) = full.apply(command)
    assert isinstance(first, c.Refused)
    assert first.reason == "CapacityExceeded"
    assert "delete files" in first.message
    assert "--memory" in first.message
    full.do(c.Limit(2**40))  # There is room now, but the client has been told.
    (again,) = full.apply(command)
    assert isinstance(again, c.Refused)
    assert again.reason == "CapacityExceeded"
    assert "delete files" in again.message


def test_a_file_in_new_stripes_is_refused_and_its_stripes_stay_unknown(full: World) -> None:
    stripe = full.stripe()
    command = full.commit_of(file_in("/new", Extent(stripe.id, 0, 100)), stripes=[stripe])
    assert full.refusal(command) is CapacityExceeded
    assert stripe.id not in full.state.ledger.entries


WORKS: dict[str, Callable[[World], c.Command]] = {
    "a delete": lambda w: w.delete_of("/dir/1"),
    "a delete of much": lambda w: w.delete_of("/", recursive=True),
    "a delete of nothing": lambda w: w.delete_of("/missing"),
    "a directory that is there": lambda w: w.mkdirs_of("/empty"),
    "a shorter name": lambda w: w.rename_of("/empty", "/e"),
    "a rename that replaces": lambda w: w.rename_of("/dir/1", "/striped", overwrite=True),
    "a new session, to delete with": lambda w: c.OpenSession(),
    "a reap": lambda w: c.Reap(tuple(w.state.ledger.freed_ms)),
    "a fence": lambda w: c.Fence(0, 1, 2),
    "an agent down": lambda w: c.AgentDown(3, 1),
    "an agent up": lambda w: agent_up(3, "second"),
    "a draining agent": lambda w: c.Drain(3, True),
    "a repaired stripe": lambda w: c.MoveShards((c.ShardMove("0.1.1", 0, ((1, Place(3, 1)),)),)),
}


@pytest.mark.parametrize("make", WORKS.values(), ids=WORKS)
def test_what_frees_or_repairs_or_leads_works_in_a_full_namespace(
    full: World, make: Callable[[World], c.Command]
) -> None:
    full.do(make(full))


def test_files_move_into_stripes_in_a_full_namespace(full: World) -> None:
    stripe = full.stripe(5000)
    id_ = full.state.open("/dir/1")[0].id
    move = c.Move(id_, 0, (Extent(stripe.id, 0, 5000),))
    assert full.do(c.Relocate((stripe,), (move,))).number == 1


def test_there_is_room_again_after_deletes(full: World) -> None:
    full.delete("/dir", recursive=True)
    full.put("/new", b"x" * 50_000)


def test_without_a_limit_nothing_is_refused() -> None:
    world = World()
    world.put("/a", b"x" * 10**6)
    assert world.state.bytes_max == 0


def test_sessions_end_soon_after_the_limit_and_all_that_are_open_go_on(full: World) -> None:
    opened = 0
    while True:
        (result,) = full.apply(c.OpenSession())
        if isinstance(result, c.Refused):
            break
        opened += 1
    assert result.reason == "CapacityExceeded"
    assert "delete files" in result.message
    assert opened * weights.SESSION_BYTES <= full.state.bytes_max // 8
    full.delete("/dir", recursive=True)  # by a session that was open
    full.do(c.OpenSession())


def test_a_put_is_never_larger_than_what_was_checked_for_it() -> None:
    """The check counts directories that may be there already, so it is on the safe side."""
    world = World()
    for files in [
        [inline_file("/a/b/c/d", b"x" * 700)],
        [inline_file(f"/many/{n % 7}/{n}") for n in range(100)],
        [inline_file("/" + "я" * 50 + "/ab" * 200)],
    ]:
        before = world.state.bytes_used
        answers = world.state.sessions.bytes_used
        world.do(world.commit_of(*files))
        grown = world.state.bytes_used - before - (world.state.sessions.bytes_used - answers)
        assert grown <= weights.put_bytes(files, [])
    stripe = world.stripe()
    before = world.state.bytes_used
    files = [file_in("/s", Extent(stripe.id, 0, 60)), file_in("/t", Extent(stripe.id, 60, 40))]
    world.do(world.commit_of(*files, stripes=[stripe]))
    assert world.state.bytes_used - before <= weights.put_bytes(files, [stripe]) + 100


def test_a_copy_of_a_full_namespace_refuses_exactly_what_the_original_does(full: World) -> None:
    for sequence in (700, 300, 705):  # late and skipped numbers weigh something too
        full.apply(c.Mkdirs(full.session, sequence, f"/no/{sequence}"))
    full._sequence = 1000
    full.do(c.Limit(full.state.bytes_used + 9000))
    copy = NamespaceState()
    restorer = s.Restorer(copy)
    for chunk in s.snapshot(full.state):
        restorer.take(chunk)
    assert copy.bytes_used == full.state.bytes_used
    refused = 0
    for number in range(200):
        command = full.mkdirs_of(f"/after/{number}")
        results = full.apply(command)
        assert copy.apply(command, now_ms=full.now_ms, elapsed_ms=full.elapsed_ms) == results
        refused += isinstance(results[0], c.Refused)
    assert 0 < refused < 200
    assert dump(copy) == dump(full.state)


@pytest.mark.parametrize("size", [0, 3000, 40_000])
@pytest.mark.parametrize("every", [1, 7])
def test_a_replica_that_adds_up_the_sum_each_time_refuses_the_same(size: int, every: int) -> None:
    """Many small puts are let in on one look at the sum; one that was just restored looks anew."""
    world, other = World(), World()
    for one in (world, other):
        one.do(c.Limit(one.state.bytes_used + 3_000_000))
    refused = 0
    for number in range(2000):
        name = f"/{'d' * (number % 150)}/{number}" if number % 11 else "/same"
        command = world.commit_of(inline_file(name, bytes(size)), overwrite=number % 22 == 0)
        found = world.apply(command)
        if number % every == 0:
            other.state._sure_puts = 0
        assert other.apply(command) == found
        refused += isinstance(found[0], c.Refused) and found[0].reason == "CapacityExceeded"
        if refused > 20:
            break
    assert refused or size == 0
    assert dump(other.state) == dump(world.state)


def test_answers_to_puts_of_nothing_take_room_that_no_put_is_sure_of() -> None:
    world, other = World(), World()
    for one in (world, other):
        sessions = [one.do(c.OpenSession()).number for _ in range(40)]
        one.do(c.Limit(one.state.bytes_used + 3 * SURE_PUT_BYTES // 2))
    commands = [world.commit_of(inline_file("/x"))]
    commands += [
        c.Commit((), (c.Put(session, sequence, False, ()),))
        for session in sessions
        for sequence in (1, ANSWERS_PER_SESSION)
    ]
    for command in (*commands, world.commit_of(inline_file("/y"))):
        found = world.apply(command)
        other.state._sure_puts = 0
        assert other.apply(command) == found
    assert isinstance(found[0], c.Refused)
