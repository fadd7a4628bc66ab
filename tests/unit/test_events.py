"""The event log: what is noted of commands, the words for it, and its limits."""

import gc

import pytest

from diskless.errors import AlreadyExists
from diskless.model import Event, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace.events import EVENTS_MAX, TEXT_CHARS_MAX, EventLog
from diskless.namespace.replication import NamespaceMachine

TAKEN = c.Refused.of(AlreadyExists("/a exists"))
STRIPE = Stripe("0-1-1", 1, 1, 1, ())


def put(*paths: str, size: int = 3) -> c.Put:
    return c.Put(1, 1, False, tuple(c.NewFile(path, size, 0, b"x" * size) for path in paths))


def commit(*puts: c.Put) -> c.Commit:
    return c.Commit((), puts)


def noted(command: c.Command, *results: c.Result) -> list[Event]:
    events = EventLog()
    events.note(7, command, results or (c.Done(),), time_ms=1000, elapsed_ms=3)
    return events.after(0, limit=EVENTS_MAX)


@pytest.mark.parametrize(
    ("command", "result", "kind", "text"),
    [
        (commit(put("/a/b", size=12 * 1024)), c.Done(), "put", "put /a/b 12.0 KiB"),
        (commit(put("/a", "/b", "/c")), c.Done(), "put", "put /a and 2 more 9 B"),
        (commit(put("/a")), TAKEN, "put", "put /a 3 B refused: /a exists"),
        (c.OpenSession(), c.Done(4), "session", "session 4 opened"),
        (c.Mkdirs(1, 1, "/d"), c.Done(), "mkdir", "mkdir /d"),
        (c.Mkdirs(1, 1, "/d"), c.Done(changed=False), "mkdir", "mkdir /d, which was there"),
        (c.Rename(1, 1, "/x", "/y", False), c.Done(), "rename", "rename /x to /y"),
        (c.Delete(1, 1, "/x", False), c.Done(), "delete", "delete /x"),
        (c.Delete(1, 1, "/x", True), c.Done(), "delete", "delete /x and all below"),
        (
            c.Delete(1, 1, "/x", False),
            c.Done(changed=False),
            "delete",
            "delete /x, which was not there",
        ),
        (
            c.Relocate((STRIPE,), tuple(c.Move(n, 0, ()) for n in range(12))),
            c.Done(),
            "move",
            "moved 12 files into 1 stripe",
        ),
        (
            c.MoveShards((c.ShardMove("a", 0, ((1, Place(2, 3)), (4, Place(5, 1)))),)),
            c.Done(1),
            "repair",
            "moved 2 shards of 1 stripe",
        ),
        (
            c.MoveShards((c.ShardMove("a", 0, ()), c.ShardMove("b", 0, ()))),
            c.Done(1),
            "repair",
            "moved 0 shards of 2 stripes, 1 refused",
        ),
        (
            c.Delete(1, 1, "/x", True, True),
            c.Done(),
            "delete",
            "delete /x and all below with snapshots",
        ),
        (c.CreateSnapshot(1, 1, ("/d",), "s"), c.Done(4), "snapshot", "snapshot s of /d"),
        (c.CreateSnapshot(1, 1, ("/d",), ""), c.Done(4), "snapshot", "snapshot number 4 of /d"),
        (
            c.CreateSnapshot(1, 1, ("/d", "/e", "/f"), "c", True),
            c.Done(4),
            "snapshot",
            "cut c of /d and 2 more",
        ),
        (
            c.CreateSnapshot(1, 1, (), "s"),
            TAKEN,
            "snapshot",
            "snapshot s of nothing refused: /a exists",
        ),
        (
            c.RenameSnapshot(1, 1, "/d", "s", "t"),
            c.Done(),
            "snapshot",
            "rename snapshot s of /d to t",
        ),
        (
            c.DeleteSnapshots(1, 1, "/d", ("s", "t")),
            c.Done(2),
            "snapshot",
            "delete snapshot s and 1 more of /d",
        ),
        (c.Clone(1, 1, "/d", "/e"), c.Done(), "clone", "clone /d to /e"),
        (
            c.Rollback(1, 1, "/d", "s"),
            c.Done(7),
            "rollback",
            "roll back /d to s, before that is snapshot number 7",
        ),
        (c.Rollback(1, 1, "", "c", True), c.Done(0), "rollback", "roll back cut c"),
        (c.Drain(2, True), c.Done(), "drain", "agent-2 drains"),
        (c.Drain(2, False), c.Done(), "drain", "agent-2 drains no more"),
        (c.Reap(("a", "b", "c")), c.Done(), "reap", "reaped 3 stripes"),
        (
            c.Doubt(((2, 3), (4, 1))),
            c.Done(),
            "doubt",
            "unfinished stripes of 2 writers found",
        ),
        (c.Fence(2, 3, 40), c.Done(), "fence", "fence agent-2 incarnation 3 below stripe 40"),
        (
            c.AgentUp(2, "boot", "a", "g", "s", "h", "n", 1),
            c.Done(3),
            "up",
            "agent-2 up incarnation 3",
        ),
        (c.AgentDown(2, 3), c.Done(), "down", "agent-2 down incarnation 3"),
        (c.AgentSlow(2, 3, True), c.Done(), "slow", "agent-2 is slow"),
        (c.AgentSlow(2, 3, False), c.Done(), "slow", "agent-2 is slow no more"),
    ],
)
def test_a_command_is_told_in_words(
    command: c.Command, result: c.Result, kind: str, text: str
) -> None:
    assert noted(command, result) == [Event(7, 1000, kind, text)]


def test_each_put_of_a_commit_is_an_event_with_its_own_outcome() -> None:
    events = noted(commit(put("/a"), put("/b")), TAKEN, c.Done())
    assert [event.text for event in events] == ["put /a 3 B refused: /a exists", "put /b 3 B"]


def test_the_newest_are_told_oldest_first_and_old_ones_are_forgotten() -> None:
    events = EventLog()
    for op in range(1, EVENTS_MAX + 6):
        events.note(op, c.OpenSession(), (c.Done(op),), time_ms=op, elapsed_ms=op)
    everything = events.after(0, limit=EVENTS_MAX * 2)
    assert [event.op for event in everything] == list(range(6, EVENTS_MAX + 6))
    assert events.after(0, limit=2) == everything[-2:]
    assert events.after(EVENTS_MAX + 4, limit=10) == everything[-1:]
    assert events.after(EVENTS_MAX + 5, limit=10) == []
    assert events.after(0, limit=0) == events.after(0, limit=-1) == []


def test_long_paths_are_cut() -> None:
    (event,) = noted(commit(put("/" + "a" * 4000)))
    assert len(event.text) == TEXT_CHARS_MAX
    assert event.text.endswith("…")


def test_the_bytes_of_files_are_not_kept_alive() -> None:
    events = EventLog()
    command = commit(put("/a"))
    events.note(1, command, (c.Done(),), time_ms=1, elapsed_ms=1)
    file = command.puts[0].files[0]
    holders = [one for one in gc.get_referrers(file, command) if isinstance(one, tuple)]
    assert all(one is command.puts[0].files for one in holders)


def test_the_rate_is_counted_over_the_window_or_as_far_back_as_memory_reaches() -> None:
    events = EventLog()
    assert events.per_second(elapsed_ms=10_000, window_ms=5000) == 0
    for at in (1000, 6000, 7000, 8000):
        events.note(at, c.OpenSession(), (c.Done(),), time_ms=1, elapsed_ms=at)
    assert events.per_second(elapsed_ms=10_000, window_ms=5000) == 3 / 5
    for op in range(EVENTS_MAX):
        events.note(op, c.OpenSession(), (c.Done(),), time_ms=1, elapsed_ms=9000)
    assert events.per_second(elapsed_ms=10_000, window_ms=5000) == EVENTS_MAX


def test_a_machine_restored_from_a_snapshot_begins_anew() -> None:
    old, new = NamespaceMachine(), NamespaceMachine()
    old.apply(1, 5, 5, c.encode(c.OpenSession()))
    for chunk in old.snapshot():
        new.restore(chunk)
    assert [event.text for event in old.events.after(0, limit=9)] == ["session 1 opened"]
    assert new.events.after(0, limit=9) == []
    new.apply(2, 6, 6, c.encode(c.OpenSession()))
    assert [event.text for event in new.events.after(0, limit=9)] == ["session 2 opened"]
