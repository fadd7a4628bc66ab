"""Snapshots of the namespace: chunks that add up to the same state, order included."""

import random

from diskless.model import Extent, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace import snapshot as s
from diskless.namespace.state import NamespaceState
from tests.sim.dump import dump
from tests.unit.test_namespace_world import check_counts
from tests.unit.test_namespace_world import dump as dump_all

SEED = 7


def busy_state(commands: int) -> NamespaceState:
    """A state with a bit of everything: stripes freed and half dead, fences, refusals."""
    rng = random.Random(SEED)
    state = NamespaceState()
    for slot in range(4):
        agent = c.AgentUp(slot, f"boot-{slot}", "a", "g", "s", "h", "n", 1)
        state.apply(agent, now_ms=1, elapsed_ms=1)
    state.apply(c.AgentDown(2, 1), now_ms=2, elapsed_ms=1)
    sessions = [
        state.apply(c.OpenSession(f"q{n}"), now_ms=3, elapsed_ms=2)[0].number for n in range(3)
    ]
    places = (Place(0, 1), Place(1, 1), Place(3, 1))
    for number in range(1, commands):
        session, path = rng.choice(sessions), f"/d{rng.randrange(9)}/f{rng.randrange(40)}"
        luck = rng.random()
        command: c.Command
        if luck < 0.4:
            stripe = Stripe(f"0.1.{number}", 2, 1, 200, places)
            file = c.NewFile(path, 150, number, None, (Extent(stripe.id, 0, 150),))
            other = c.NewFile(path + "x", 50, number, None, (Extent(stripe.id, 150, 50),))
            puts = (c.Put(session, number, luck < 0.3, (file, other)),)
            command = c.Commit((stripe,), puts)
        elif luck < 0.6:
            size = rng.choice((0, 100, 5000))
            put = c.Put(session, number, True, (c.NewFile(path, size, number, b"x" * size),))
            command = c.Commit((), (put,))
        elif luck < 0.75:
            command = c.Delete(session, number, path, True)
        elif luck < 0.85:
            command = c.Rename(session, number, path, f"/d{rng.randrange(9)}/g{number}", False)
        elif luck < 0.95:
            command = c.Mkdirs(session, number, f"/d{rng.randrange(9)}/e{number}")
        elif luck < 0.97 and state.ledger.entries:
            stripe = rng.choice(list(state.ledger.entries.values())).stripe
            command = c.MoveShards((c.ShardMove(stripe.id, stripe.version, ()),))
        elif luck < 0.975:
            command = c.Drain(rng.randrange(4), rng.random() < 0.5)
        elif luck < 0.98:
            command = c.IssueToken(f"q{rng.randrange(40)}", ("/a",), luck < 0.9775, number % 3)
        elif luck < 0.985:
            command = c.RevokeToken(f"q{rng.randrange(40)}")
        elif state.ledger.freed_ms:
            command = c.Reap((next(iter(state.ledger.freed_ms)),))
        else:
            command = rng.choice((c.Fence(3, 1, number), c.Doubt(((3, 0), (2, number)))))
        state.apply(command, now_ms=10 + number, elapsed_ms=5 * number)
    return state


def restore(chunks: list[bytes]) -> NamespaceState:
    state = NamespaceState()
    restorer = s.Restorer(state)
    for chunk in chunks:
        restorer.take(chunk)
    return state


def test_a_restored_state_is_the_same_to_the_order_of_its_parts() -> None:
    state = busy_state(900)
    assert dump(restore(list(s.snapshot(state)))) == dump(state)


def with_history(state: NamespaceState) -> None:
    """Snapshots, clones and rollbacks over what a busy state has, and deletes half swept."""
    number = state.apply(c.OpenSession(), now_ms=8000, elapsed_ms=8000)[0].number
    commands: list[c.Command] = [
        c.CreateSnapshot(number, 1, ("/d1",), "s"),
        c.CreateSnapshot(number, 2, ("/d2", "/d3"), "cut", True),
        c.CreateSnapshot(number, 3, ("/",), ""),
        c.Clone(number, 4, "/d1", "/d4/clone"),
        c.Clone(number, 5, "/d4/clone", "/again"),
        c.Delete(number, 6, "/d5", True),
        c.Rollback(number, 7, "", "cut", True),
        c.RenameSnapshot(number, 8, "/d1", "s", "t"),
        c.Mkdirs(number, 9, "/again/new"),
        c.DeleteSnapshots(number, 10, "/d2", ("cut",)),
        c.Sweep(5),
    ]
    for op, command in enumerate(commands):
        results = state.apply(command, now_ms=8001, elapsed_ms=8001, op=op)
        if not isinstance(command, c.Delete):
            assert isinstance(results[0], c.Done), (command, results)


def test_what_is_shared_goes_once_and_is_shared_again() -> None:
    state = busy_state(900)
    plain = sum(map(len, s.snapshot(state)))
    with_history(state)
    chunks = list(s.snapshot(state))
    assert sum(map(len, chunks)) < 1.3 * plain
    copy = restore(chunks)
    check_counts(copy)
    assert dump(copy) == dump(state)
    assert dump_all(copy) == dump_all(state)


def test_both_go_on_alike_with_a_history() -> None:
    state = busy_state(400)
    with_history(state)
    copy = restore(list(s.snapshot(state)))
    times = {"now_ms": 9001, "elapsed_ms": 9001}
    number = state.apply(c.OpenSession(), **times)[0].number
    copy.apply(c.OpenSession(), **times)
    for command in (
        c.Rollback(number, 1, "/d1", "t"),
        c.Delete(number, 2, "/", True, True),
        c.Sweep(30),
        c.CreateSnapshot(number, 3, ("/",), ""),
        c.Sweep(10**6),
    ):
        assert state.apply(command, **times) == copy.apply(command, **times)
        assert dump_all(copy) == dump_all(state)
    assert len(copy.files) == 0


def test_an_empty_state_can_be_copied() -> None:
    assert dump(restore(list(s.snapshot(NamespaceState())))) == dump(NamespaceState())


def test_both_go_on_alike_after_the_copy() -> None:
    state = busy_state(400)
    copy = restore(list(s.snapshot(state)))
    session = state.apply(c.OpenSession(), now_ms=9000, elapsed_ms=8000)
    assert copy.apply(c.OpenSession(), now_ms=9000, elapsed_ms=8000) == session
    number = session[0].number
    for command in (
        c.Delete(number, 1, "/d1", True),
        c.Rename(number, 2, "/d2", "/d3/moved", False),
        c.Delete(number, 3, "/", True),
    ):
        times = {"now_ms": 9001, "elapsed_ms": 8001}
        assert state.apply(command, **times) == copy.apply(command, **times)
    assert dump(copy) == dump(state)


def test_chunks_are_small_and_many() -> None:
    state = busy_state(1200)
    chunks = list(s.snapshot(state))
    assert len(chunks) >= len(state.files) // s.CHUNK_ROWS_MAX + len(s._SECTIONS) // 2
    largest_row = 64 * 1024
    assert max(map(len, chunks)) <= s.CHUNK_BYTES_MAX + largest_row
