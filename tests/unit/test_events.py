"""The event log: what is noted of commands, the words for it, and its limits."""

import gc

import pytest

from diskless.errors import AlreadyExists
from diskless.model import Event, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace.events import EVENTS_MAX, PATHS_MAX, TEXT_CHARS_MAX, EventLog, Note
from diskless.namespace.lookback import Events, Look
from diskless.namespace.replication import NamespaceMachine

TAKEN = c.Refused.of(AlreadyExists("/a exists"))
STRIPE = Stripe("0-1-1", 1, 1, 1, ())
NAMES = {1: "q1", 2: "q2"}


def put(*paths: str, size: int = 3, session: int = 1) -> c.Put:
    return c.Put(session, 1, False, tuple(c.NewFile(path, size, 0, b"x" * size) for path in paths))


def commit(*puts: c.Put) -> c.Commit:
    return c.Commit((), puts)


def note(events: EventLog, op: int, command: c.Command, *results: c.Result, at_ms: int = 1) -> None:
    events.note(
        op,
        command,
        results or (c.Done(),),
        time_ms=at_ms,
        elapsed_ms=at_ms,
        who_of=NAMES.__getitem__,
    )


def found(events: EventLog, after: int = 0, limit: int = EVENTS_MAX) -> list[Event]:
    look = Look(Events(after, limit))
    look.take(events.newest_first())
    return look.result(place=None).events


def noted(command: c.Command, *results: c.Result) -> list[Event]:
    events = EventLog()
    note(events, 7, command, *results, at_ms=1000)
    return found(events)


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
            c.Evict(((1, 0), (2, 0))),
            c.Done(1),
            "evict",
            "left 1 of 2 files to the tier to make room",
        ),
        (
            c.Evict(((1, 0),), returns=True),
            c.Done(1),
            "evict",
            "left 1 of 1 file to the tier whose shards are lost",
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
        (
            c.Prune(1, 1, "/d", ("a", "b", "c")),
            c.Done(2),
            "delete",
            "delete 2 of 3 files below /d",
        ),
        (
            c.Replace(1, 1, (c.Swap("/d", "/e", "s"), c.Swap("/f", "/g", "s"))),
            c.Done(2),
            "replace",
            "replace /d and 1 more, before that is snapshot s",
        ),
        (c.Drain(2, True), c.Done(), "drain", "agent-2 drains"),
        (c.Drain(2, False), c.Done(), "drain", "agent-2 no longer drains"),
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
        (
            c.IssueToken("q1", ("/a", "/b"), True, 9),
            c.Done(),
            "token",
            "token q1 issued rw /a /b",
        ),
        (
            c.IssueToken("q1", ("/a",), False, 9),
            c.Done(changed=False),
            "token",
            "token q1 issued r /a, which was known",
        ),
        (
            c.SetPolicy("/a", "durability", "sync"),
            c.Done(),
            "policy",
            "policy of /a: durability=sync",
        ),
        (
            c.SetPolicy("/a", "durability", "sync"),
            c.Done(changed=False),
            "policy",
            "policy of /a: durability=sync, which it was",
        ),
        (
            c.RemovePolicy("/a", "durability"),
            c.Done(1),
            "policy",
            "policy of /a removed: durability",
        ),
        (c.RemovePolicy("/a", ""), c.Done(1), "policy", "policy of /a removed: all"),
        (
            c.RemovePolicy("/a", ""),
            c.Done(0, changed=False),
            "policy",
            "policy of /a removed: all, which it had not",
        ),
        (
            c.AttachTier("s3://b/p", 2, 7),
            c.Done(),
            "tier",
            "tier s3://b/p attached at manifest 7 of epoch 2",
        ),
        (
            c.AttachTier("s3://b/p", 2, 7),
            c.Done(changed=False),
            "tier",
            "tier s3://b/p attached, which it was",
        ),
        (c.DetachTier(), c.Done(5), "tier", "tier detached, 5 files left to forget"),
        (c.DetachTier(), c.Done(), "tier", "tier detached"),
        (c.RevokeToken("q1"), c.Done(), "token", "token q1 revoked"),
        (
            c.RevokeToken("q1"),
            c.Done(changed=False),
            "token",
            "token q1 revoked, which it was",
        ),
        (c.AgentSlow(2, 3, True), c.Done(), "slow", "agent-2 is slow"),
        (c.AgentSlow(2, 3, False), c.Done(), "slow", "agent-2 is no longer slow"),
        (c.AgentEnds(2, 3, "Ray 7", 29_700), c.Done(), "ends", "agent-2 ends in 30 s (Ray 7)"),
        (
            c.AgentEnds(2, 3, "Ray 7", 0),
            c.Done(),
            "ends",
            "agent-2 does not end after all (Ray 7)",
        ),
    ],
)
def test_a_command_is_told_in_words(
    command: c.Command, result: c.Result, kind: str, text: str
) -> None:
    (event,) = noted(command, result)
    assert (event.op, event.time_ms, event.kind, event.text) == (7, 1000, kind, text)


def test_each_put_of_a_commit_is_an_event_with_its_own_outcome() -> None:
    events = noted(commit(put("/a"), put("/b")), TAKEN, c.Done())
    assert [event.text for event in events] == ["put /a 3 B refused: /a exists", "put /b 3 B"]


def test_the_newest_are_told_oldest_first_and_old_ones_are_forgotten() -> None:
    events = EventLog()
    for op in range(1, EVENTS_MAX + 6):
        note(events, op, c.OpenSession(), c.Done(op), at_ms=op)
    everything = found(events, limit=EVENTS_MAX * 2)
    assert [event.op for event in everything] == list(range(6, EVENTS_MAX + 6))
    assert found(events, limit=2) == everything[-2:]
    assert found(events, EVENTS_MAX + 4, 10) == everything[-1:]
    assert found(events, EVENTS_MAX + 5, 10) == []
    assert found(events, limit=0) == found(events, limit=-1) == []


def test_long_paths_are_cut() -> None:
    (event,) = noted(commit(put("/" + "a" * 4000)))
    assert len(event.text) == TEXT_CHARS_MAX
    assert event.text.endswith("…")


def test_the_bytes_of_files_are_not_kept_alive() -> None:
    events = EventLog()
    command = commit(put("/a"))
    note(events, 1, command)
    file = command.puts[0].files[0]
    holders = [one for one in gc.get_referrers(file, command) if isinstance(one, tuple)]
    assert all(one is command.puts[0].files for one in holders)


def test_the_rate_is_counted_over_the_window_or_as_far_back_as_memory_reaches() -> None:
    events = EventLog()
    assert events.per_second(elapsed_ms=10_000, window_ms=5000) == 0
    for at in (1000, 6000, 7000, 8000):
        note(events, at, c.OpenSession(), at_ms=at)
    assert events.per_second(elapsed_ms=10_000, window_ms=5000) == 3 / 5
    for op in range(EVENTS_MAX):
        note(events, op, c.OpenSession(), at_ms=9000)
    assert events.per_second(elapsed_ms=10_000, window_ms=5000) == EVENTS_MAX


def test_a_machine_restored_from_a_snapshot_begins_anew() -> None:
    old, new = NamespaceMachine(), NamespaceMachine()
    old.apply(1, 5, 5, c.encode(c.OpenSession()))
    for chunk in old.snapshot():
        new.restore(chunk)
    assert [event.text for event in found(old.events)] == ["session 1 opened"]
    assert found(new.events) == []
    new.apply(2, 6, 6, c.encode(c.OpenSession()))
    assert [event.text for event in found(new.events)] == ["session 2 opened"]


@pytest.mark.parametrize(
    ("command", "who", "paths"),
    [
        (commit(put("/a/b")), "q1", ("/a/b",)),
        (commit(put("/a/1", "/b/2", "/b/3", "/c")), "q1", ("/a/1", "/b", "/")),
        (commit(put(*(f"/{n}/x" for n in range(50)))), "q1", ("/0/x", "/")),
        (c.Mkdirs(2, 1, "/d"), "q2", ("/d",)),
        (c.Rename(2, 1, "/x", "/y", False), "q2", ("/x", "/y")),
        (c.Delete(1, 1, "/x", True), "q1", ("/x",)),
        (c.CreateSnapshot(1, 1, ("/d", "/e", "/f"), "c", True), "q1", ("/d", "/e", "/f")),
        (c.DeleteSnapshots(1, 1, "/d", ("s",)), "q1", ("/d",)),
        (c.RenameSnapshot(1, 1, "/d", "s", "t"), "q1", ("/d",)),
        (c.Clone(2, 1, "/d", "/e"), "q2", ("/d", "/e")),
        (c.Rollback(1, 1, "/d", "s"), "q1", ("/d",)),
        (c.Rollback(1, 1, "", "c", True), "q1", ("/",)),
        (c.Prune(1, 1, "/d", ("a",)), "q1", ("/d",)),
        (c.Replace(1, 1, (c.Swap("/d", "/e", "s"),)), "q1", ("/d",)),
        (c.OpenSession("q7"), "q7", ()),
        (c.Drain(2, True, "admin"), "admin", ()),
        (c.IssueToken("q1", ("/a", "/b"), True, 9, "admin"), "admin", ("/a", "/b")),
        (c.RevokeToken("q1", "admin"), "admin", ()),
        (c.Reap(("a",)), "", ()),
    ],
)
def test_an_event_says_who_asked_for_it_and_what_it_is_about(
    command: c.Command, who: str, paths: tuple[str, ...]
) -> None:
    (event,) = noted(command)
    assert (event.who, event.paths) == (who, paths)
    assert len(event.paths) <= PATHS_MAX


def test_one_commit_holds_puts_of_several_clients() -> None:
    events = noted(commit(put("/a"), put("/b", session=2)), c.Done(), c.Done())
    assert [(event.who, event.op) for event in events] == [("q1", 7), ("q2", 7)]


@pytest.mark.parametrize(
    ("paths", "path", "expected"),
    [
        (("/a/b",), "/a", True),
        (("/a/b",), "/a/b", True),
        (("/a/b",), "/a/b/c", True),
        (("/a/b",), "/", True),
        (("/",), "/a", True),
        (("/ab",), "/a", False),
        (("/a",), "/ab", False),
        (("/x", "/a"), "/a/b", True),
        ((), "/", False),
    ],
)
def test_an_event_concerns_what_is_at_below_or_above(
    paths: tuple[str, ...], path: str, expected: bool
) -> None:
    assert Event(1, 1, "put", "", "", paths).concerns(path) == expected


class Heard:
    """An audit that only remembers."""

    def __init__(self) -> None:
        self.ops: list[int] = []
        self.gaps: list[int] = []

    def note(self, note: Note) -> None:
        self.ops.append(note.op)

    def gap(self, op: int) -> None:
        self.gaps.append(op)


def test_an_audit_hears_every_event_and_of_what_came_as_a_copy() -> None:
    old, heard = NamespaceMachine(), Heard()
    for op in (1, 2, 3):
        old.apply(op, 5, 5, c.encode(c.OpenSession("q1")))
    new = NamespaceMachine(heard)
    for chunk in old.snapshot():
        new.restore(chunk)
    assert heard.gaps == []
    for op in (4, 5):
        new.apply(op, 6, 6, c.encode(commit(put("/a", session=1), put("/b", session=2))))
    assert heard.ops == [4, 4, 5, 5]
    assert heard.gaps == [3]
    assert {event.who for event in found(new.events)} == {"q1"}


def test_what_the_drain_says_all_the_time_is_not_told() -> None:
    untold = (c.Keep(1, (), ()), c.Horizon(1, 1, 1, 1, 1, 1), c.Mark(), c.Unmark(), c.Sweep(1))
    assert [noted(command) for command in untold] == [[]] * 5


def test_a_policy_is_told_with_who_set_it_and_where() -> None:
    (event,) = noted(c.SetPolicy("/a/b", "durability", "async", "ann"))
    assert (event.who, event.paths) == ("ann", ("/a/b",))
    assert event.concerns("/a")
