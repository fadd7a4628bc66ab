"""The table of answers: a repeat is answered and not run, and what is forgotten never runs."""

import random
from collections.abc import Callable

import pytest

from diskless.config import KIB
from diskless.errors import AlreadyExists, NotFound, SessionExpired, StaleShards, UploadLost
from diskless.model import Extent
from diskless.namespace import commands as c
from diskless.namespace.sessions import ANSWERS_PER_SESSION, SESSION_IDLE_S, Sessions
from tests.unit.test_namespace_world import World, agent_up, dump, file_in, inline_file


@pytest.fixture
def world() -> World:
    return World()


Make = Callable[[World], c.Command]

SUCCESSES: dict[str, Make] = {
    "put": lambda w: w.commit_of(inline_file("/new", b"1")),
    "put of several": lambda w: w.commit_of(inline_file("/new/1"), inline_file("/new/2")),
    "overwrite": lambda w: w.commit_of(inline_file("/file", b"other"), overwrite=True),
    "mkdirs": lambda w: w.mkdirs_of("/new/dir"),
    "rename": lambda w: w.rename_of("/file", "/new"),
    "delete": lambda w: w.delete_of("/dir", recursive=True),
    "delete of nothing": lambda w: w.delete_of("/missing"),
}
REFUSALS: dict[str, Make] = {
    "put": lambda w: w.commit_of(inline_file("/file")),
    "mkdirs": lambda w: w.mkdirs_of("/file"),
    "rename": lambda w: w.rename_of("/file", "/dir"),
    "delete": lambda w: w.delete_of("/dir"),
    "bad request": lambda w: w.rename_of("/dir", "/dir/below"),
}


def furnish(world: World) -> None:
    world.put("/file")
    world.put("/dir/1")


@pytest.mark.parametrize("make", SUCCESSES.values(), ids=SUCCESSES)
def test_a_repeat_gets_the_first_answer_and_changes_nothing(world: World, make: Make) -> None:
    furnish(world)
    command = make(world)
    (first,) = world.apply(command)
    assert isinstance(first, c.Done)
    after = dump(world.state)
    assert [world.apply(command) for _ in range(3)] == [(first,)] * 3
    assert dump(world.state) == after


@pytest.mark.parametrize("make", SUCCESSES.values(), ids=SUCCESSES)
def test_a_repeat_does_not_undo_what_others_did_meanwhile(world: World, make: Make) -> None:
    furnish(world)
    command = make(world)
    first = world.apply(command)
    world.delete("/", recursive=True)
    world.put("/file", b"of another")
    before = dump(world.state, sessions=False)
    world.now_ms += 10_000
    assert world.apply(command) == first
    assert dump(world.state, sessions=False) == before | {"clock_ms": world.now_ms}


@pytest.mark.parametrize("make", REFUSALS.values(), ids=REFUSALS)
def test_a_repeat_of_a_refused_command_is_refused_even_if_it_could_run_now(
    world: World, make: Make
) -> None:
    furnish(world)
    command = make(world)
    (first,) = world.apply(command)
    assert isinstance(first, c.Refused)
    world.delete("/", recursive=True)
    before = dump(world.state, sessions=False)
    (again,) = world.apply(command)
    assert isinstance(again, c.Refused)
    assert again.reason == first.reason
    assert any(path in again.message for path in ("/file", "/dir"))  # what it was about
    assert dump(world.state, sessions=False) == before


def test_a_repeated_put_without_overwrite_does_not_find_its_own_file_in_the_way(
    world: World,
) -> None:
    command = world.commit_of(inline_file("/a", b"1"))
    first = world.do(command)
    assert world.do(command) == first
    assert world.refusal(world.commit_of(inline_file("/a", b"2"))) is AlreadyExists


def test_a_put_that_is_twice_in_one_commit_runs_once(world: World) -> None:
    put = world.put_of(inline_file("/a"))
    first, second = world.apply(c.Commit((), (put, put)))
    assert first == second
    assert isinstance(first, c.Done)
    assert len(world.state.files) == 1


def test_each_put_of_a_commit_has_its_own_answer_in_a_repeat_too(world: World) -> None:
    world.put("/taken")
    puts = tuple(world.put_of(inline_file(path)) for path in ["/a", "/taken", "/b"])
    results = world.apply(c.Commit((), puts))
    assert [type(result) for result in results] == [c.Done, c.Refused, c.Done]
    again = world.apply(c.Commit((), puts[::-1]))
    assert (again[0], again[2]) == (results[2], results[0])
    assert again[1] == c.Refused("AlreadyExists", "/taken exists already")


# Refusals that new shards may overcome


def test_a_put_refused_for_lost_shards_runs_when_it_is_repeated_with_new_ones(
    world: World,
) -> None:
    stale = world.stripe()
    world.do(agent_up(1, "second"))
    put = world.put_of(file_in("/a", Extent(stale.id, 0, 100)))
    assert world.refusal(c.Commit((stale,), (put,))) is StaleShards
    assert world.refusal(c.Commit((stale,), (put,))) is StaleShards
    fresh = world.stripe()
    again = c.Put(put.session, put.sequence, False, (file_in("/a", Extent(fresh.id, 0, 100)),))
    first = world.do(c.Commit((fresh,), (again,)))
    assert world.do(c.Commit((stale,), (put,))) == first


def test_a_put_refused_for_a_fence_runs_when_it_is_repeated_with_new_stripes(
    world: World,
) -> None:
    """A client begins a lost upload again under the same number."""
    lost, fresh = world.stripe(), world.stripe()
    world.do(c.Fence(0, 1, 2))
    put = world.put_of(file_in("/a", Extent(lost.id, 0, 100)))
    assert world.refusal(c.Commit((lost,), (put,))) is UploadLost
    again = c.Put(put.session, put.sequence, False, (file_in("/a", Extent(fresh.id, 0, 100)),))
    first = world.do(c.Commit((fresh,), (again,)))
    assert world.do(c.Commit((lost,), (put,))) == first
    assert world.files() == {"/a": (Extent(fresh.id, 0, 100),)}


# What is forgotten


def test_sessions_are_numbered_and_a_repeated_opening_is_another_session(world: World) -> None:
    numbers = [world.do(c.OpenSession()).number for _ in range(3)]
    assert numbers == [world.session + 1, world.session + 2, world.session + 3]


@pytest.mark.parametrize("session", [-1, 0, 2, 99])
def test_a_session_that_was_never_opened_counts_as_expired(world: World, session: int) -> None:
    assert world.refusal(c.Mkdirs(session, 1, "/a")) is SessionExpired
    put = c.Put(session, 1, True, (inline_file("/a"),))
    assert world.refusal(c.Commit((), (put,))) is SessionExpired


def test_answers_are_kept_for_the_window_and_older_numbers_never_run(world: World) -> None:
    first = c.Mkdirs(world.session, 1, "/first")
    done = world.do(first)
    world.do(c.Mkdirs(world.session, ANSWERS_PER_SESSION, "/last-in-window"))
    assert world.do(first) == done
    world.do(c.Mkdirs(world.session, ANSWERS_PER_SESSION + 1, "/beyond"))
    assert world.refusal(first) is SessionExpired
    assert world.refusal(c.Delete(world.session, 0, "/first", False)) is SessionExpired


def test_a_number_within_the_window_that_was_skipped_runs_late(world: World) -> None:
    world.do(c.Mkdirs(world.session, ANSWERS_PER_SESSION, "/fast"))
    assert world.do(c.Mkdirs(world.session, 1, "/slow")).changed
    world.do(c.Mkdirs(world.session, ANSWERS_PER_SESSION + 2, "/faster"))
    assert world.refusal(c.Mkdirs(world.session, 2, "/too/slow")) is SessionExpired
    assert world.do(c.Mkdirs(world.session, 3, "/just/in/time")).changed


def test_a_late_number_does_not_move_the_window_back(world: World) -> None:
    world.do(c.Mkdirs(world.session, 2 * ANSWERS_PER_SESSION, "/fast"))
    world.do(c.Mkdirs(world.session, ANSWERS_PER_SESSION + 1, "/slow"))
    assert world.refusal(c.Mkdirs(world.session, ANSWERS_PER_SESSION, "/x")) is SessionExpired


def test_a_refused_repeat_does_not_move_the_window(world: World) -> None:
    stale = world.stripe()
    world.do(agent_up(1, "second"))
    far = 10 * ANSWERS_PER_SESSION
    put = c.Put(world.session, far, False, (file_in("/a", Extent(stale.id, 0, 100)),))
    assert world.refusal(c.Commit((stale,), (put,))) is StaleShards
    assert world.do(c.Mkdirs(world.session, 1, "/b")).changed


def test_a_session_remembers_a_bounded_number_of_answers() -> None:
    sessions = Sessions()
    number = sessions.open(elapsed_ms=0)
    most_bytes = 0
    for sequence in range(1, 5 * ANSWERS_PER_SESSION):
        assert sessions.answer(number, sequence, elapsed_ms=0) is None
        sessions.record(number, sequence, c.Done(sequence))
        most_bytes = max(most_bytes, sessions.bytes_used)
        oldest = max(1, sequence - ANSWERS_PER_SESSION + 1)
        assert sessions.answer(number, oldest, elapsed_ms=0) == c.Done(oldest)
    assert most_bytes < 40 * KIB
    newest = 5 * ANSWERS_PER_SESSION - 1
    for sequence in range(newest - ANSWERS_PER_SESSION + 1, newest + 1):
        assert sessions.answer(number, sequence, elapsed_ms=0) == c.Done(sequence)
    with pytest.raises(SessionExpired, match="too old"):
        sessions.answer(number, newest - ANSWERS_PER_SESSION, elapsed_ms=0)


@pytest.mark.parametrize("seed", range(20))
def test_a_session_answers_as_a_plain_table_would_in_any_order(seed: int) -> None:
    """Numbers come late, are skipped, jump ahead; some are refused."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    sessions, plain, newest = Sessions(), dict[int, c.Result](), 0
    number = sessions.open(elapsed_ms=0)
    for turn in range(3000):
        jump = rng.choice([1, 1, 1, 2, 40, 700, 10**9 if turn % 500 == 0 else 1])
        sequence = newest + jump if rng.random() < 0.7 else newest - rng.randrange(600)
        if sequence <= newest - ANSWERS_PER_SESSION:
            with pytest.raises(SessionExpired):
                sessions.answer(number, sequence, elapsed_ms=0)
            continue
        found = sessions.answer(number, sequence, elapsed_ms=0)
        assert found == plain.get(sequence)
        if found is None:
            done = c.Done(rng.randrange(2**40), rng.randrange(2**44), rng.random() < 0.5)
            result: c.Result = c.Refused("NotFound", "") if rng.random() < 0.2 else done
            sessions.record(number, sequence, result)
            plain[sequence] = result
            newest = max(newest, sequence)
        (session,) = sessions._sessions.values()
        assert sessions.bytes_used == session.bytes_used
    kept = dict(session.items())
    assert kept == {n: plain[n] for n in kept}


def test_however_many_come_nobody_who_waits_is_expired() -> None:
    sessions = Sessions()
    numbers = [sessions.open(elapsed_ms=0) for _ in range(5000)]
    assert len(sessions) == 5000
    for number in numbers:
        assert sessions.answer(number, 1, elapsed_ms=1000 * SESSION_IDLE_S - 1) is None


def test_a_session_that_is_not_used_for_long_ends_and_one_that_is_does_not() -> None:
    sessions = Sessions()
    idle, used = sessions.open(elapsed_ms=0), sessions.open(elapsed_ms=0)
    late_ms = 1000 * SESSION_IDLE_S
    assert sessions.answer(used, 1, elapsed_ms=late_ms - 1) is None
    sessions.open(elapsed_ms=late_ms)
    assert sessions.answer(used, 1, elapsed_ms=late_ms) is None
    with pytest.raises(SessionExpired, match="reconnect"):
        sessions.answer(idle, 1, elapsed_ms=late_ms)
    assert len(sessions) == 2


def test_what_sessions_weigh_is_given_back_with_them() -> None:
    sessions = Sessions()
    for _ in range(100):
        number = sessions.open(elapsed_ms=0)
        sessions.record(number, 1, c.Refused("NotFound", "x" * 4096))
    late_ms = 1000 * SESSION_IDLE_S
    for _ in range(100):
        sessions.open(elapsed_ms=late_ms)
    fresh = Sessions()
    for _ in range(100):
        fresh.open(elapsed_ms=0)
    assert (len(sessions), sessions.bytes_used) == (100, fresh.bytes_used)


def test_a_refusal_is_remembered_in_a_few_bytes_however_long_its_path(world: World) -> None:
    before = world.state.sessions.bytes_used
    path = "/" + "x" * 4000
    assert world.refusal(world.rename_of(path, "/a")) is NotFound
    assert world.state.sessions.bytes_used - before < 200


def test_an_expired_session_never_runs_again_and_its_number_is_not_given_out(
    world: World,
) -> None:
    command = world.commit_of(inline_file("/a"), overwrite=True)
    world.do(command)
    world.elapsed_ms += 1000 * SESSION_IDLE_S
    opened = {world.do(c.OpenSession()).number for _ in range(10)}
    assert world.session not in opened
    world.session = max(opened)
    world.put("/a", b"newer", overwrite=True)
    assert world.refusal(command) is SessionExpired
    assert world.files() == {"/a": b"newer"}


def test_one_expired_put_does_not_keep_the_others_of_a_commit_from_running(world: World) -> None:
    expired = c.Put(999, 1, False, (inline_file("/a"),))
    refused, done = world.apply(c.Commit((), (expired, world.put_of(inline_file("/b")))))
    assert isinstance(refused, c.Refused)
    assert refused.reason == "SessionExpired"
    assert isinstance(done, c.Done)
    assert world.files() == {"/b": b"x"}


# Results on the wire


def test_results_survive_the_wire_as_what_they_are() -> None:
    results = (c.Done(7, 1000, False), c.Done(), c.Refused.of(AlreadyExists("/a exists already")))
    assert c.decode_results(c.encode(results)) == results
    error = c.decode_results(c.encode(results))[2]
    assert isinstance(error, c.Refused)
    assert isinstance(error.error(), AlreadyExists)
    assert str(error.error()) == "/a exists already"
    assert not error.error().retryable
    assert c.Refused.of(StaleShards("gone")).error().retryable


def test_a_refusal_of_a_newer_version_is_not_retryable_and_keeps_its_reason() -> None:
    refused = c.Refused("FromTheFuture", "a message")
    assert not refused.error().retryable
    assert str(refused.error()) == "FromTheFuture: a message"
