"""Snapshots, clones and rollbacks: what they keep, what they refuse, and what they cost."""

from collections.abc import Callable
from typing import Any

import pytest

from diskless.errors import (
    AlreadyExists,
    BadRequest,
    CapacityExceeded,
    DisklessError,
    HasSnapshots,
    NotFound,
    PathIsDirectory,
    PathIsFile,
    ReadOnly,
)
from diskless.namespace import answers, btree, history, past, weights
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory
from diskless.namespace.usage import held_by_snapshots
from tests.unit.test_namespace_world import World, check_counts, inline_file


@pytest.fixture
def world() -> World:
    """/d with a file, a directory with two, and one that is empty; /f is a file."""
    world = World()
    world.put("/d/a", b"first")
    world.put("/d/sub/b", b"second")
    world.put("/d/sub/c", b"third")
    world.mkdirs("/d/empty")
    world.put("/f", b"file")
    return world


def ask(world: World, query: q.Query) -> Any:
    """Its answer, by way of the wire."""
    answer = answers.answer(world.state, q.decode(q.encode(query)))
    return q.decode_answer(query, q.encode(answer))


def listed(world: World, path: str) -> list[str]:
    return [entry.path for entry in ask(world, q.Page(path, "", 1000)).entries]


def content(world: World, path: str) -> bytes | None:
    return world.state.open(path)[0].inline


def swept(world: World) -> None:
    while world.state.doomed:
        world.do(c.Sweep(100))


# Reading


def test_a_snapshot_shows_what_was_there_whatever_happens_afterwards(world: World) -> None:
    world.snapshot("/d", "s")
    world.put("/d/a", b"other", overwrite=True)
    world.put("/d/sub/new", b"x")
    world.delete("/d/sub/b")
    world.delete("/d/empty")
    assert listed(world, "/d/.snapshot/s") == [f"/d/.snapshot/s/{n}" for n in ("a", "empty", "sub")]
    assert listed(world, "/d/.snapshot/s/sub") == [f"/d/.snapshot/s/sub/{n}" for n in "bc"]
    assert content(world, "/d/.snapshot/s/a") == b"first"
    assert content(world, "/d/a") == b"other"
    assert world.state.summary("/d/.snapshot/s").bytes == len(b"firstsecondthird")
    assert listed(world, "/d/sub") == ["/d/sub/c", "/d/sub/new"]
    check_counts(world.state)


def test_a_leaf_that_is_left_alone_by_deletes_is_still_shared(world: World) -> None:
    """Its directory is nobody else's by then, and it is all that the directory has."""
    names = [f"/many/{number:03}" for number in range(42 + btree.LEAF_MAX)]
    for name in names:
        world.put(name, b"old")
    world.snapshot("/many", "s")
    for name in names[:42]:
        world.delete(name)
    directory = world.state.tree.find("/many")
    assert isinstance(directory, Directory)
    assert (directory.refs, directory.node.refs) == (1, 2)
    world.put(names[50], b"new", overwrite=True)
    assert content(world, "/many/.snapshot/s/050") == b"old"
    check_counts(world.state)


def test_snapshots_are_listed_as_directories_with_their_time_and_not_by_their_directory(
    world: World,
) -> None:
    world.now_ms = 5000
    world.snapshot("/d", "one")
    world.now_ms = 9000
    world.snapshot("/d", "two")
    assert listed(world, "/d") == ["/d/a", "/d/empty", "/d/sub"]
    entries = ask(world, q.Page("/d/.snapshot", "", 10)).entries
    assert [(e.path, e.mtime_ms, e.record) for e in entries] == [
        ("/d/.snapshot/one", 5000, None),
        ("/d/.snapshot/two", 9000, None),
    ]
    assert world.state.stat("/d/.snapshot/one").mtime_ms == 5000
    assert world.state.stat("/d/.snapshot").mtime_ms == 9000
    assert world.state.stat("/d/.snapshot/one/sub").mtime_ms == 1000
    summary = world.state.summary("/d/.snapshot")
    assert (summary.files, summary.directories) == (6, 7)


def test_the_root_has_snapshots_too(world: World) -> None:
    assert listed(world, "/.snapshot") == []
    world.snapshot("/", "all")
    world.delete("/f")
    assert listed(world, "/.snapshot") == ["/.snapshot/all"]
    assert content(world, "/.snapshot/all/f") == b"file"
    assert listed(world, "/") == ["/d"]


@pytest.mark.parametrize(
    "path",
    [
        "/f/.snapshot",
        "/no/.snapshot",
        "/d/.snapshot/no",
        "/d/.snapshot/s/no",
        "/d/.snapshot/s/.snapshot",
        "/d/.snapshot/s/.snapshot/s",
        "/d/.snapshot/s/a/x",
    ],
)
def test_what_no_snapshot_has_is_not_found(world: World, path: str) -> None:
    world.snapshot("/d", "s")
    with pytest.raises(NotFound):
        world.state.stat(path)


def test_a_snapshot_is_no_file(world: World) -> None:
    world.snapshot("/d", "s")
    for path in ("/d/.snapshot", "/d/.snapshot/s"):
        with pytest.raises(PathIsDirectory):
            world.state.open(path)


def test_a_name_that_only_begins_like_that_of_snapshots_is_an_ordinary_one(world: World) -> None:
    world.put("/d/.snapshots/x", b"1")
    world.mkdirs("/d/.snapshot-2")
    assert content(world, "/d/.snapshots/x") == b"1"
    assert listed(world, "/d")[:2] == ["/d/.snapshot-2", "/d/.snapshots"]


# Clones and rollbacks


def test_a_clone_and_its_source_go_their_own_ways(world: World) -> None:
    world.clone("/d", "/e")
    world.put("/e/sub/b", b"of the clone", overwrite=True)
    world.delete("/d/a")
    assert content(world, "/d/sub/b") == b"second"
    assert content(world, "/e/sub/b") == b"of the clone"
    assert content(world, "/e/a") == b"first"
    world.clone("/e/sub", "/d/again")
    world.clone("/d/again/b", "/e/of-a-file")
    world.delete("/e/sub", recursive=True)
    assert content(world, "/d/again/b") == content(world, "/e/of-a-file") == b"of the clone"
    check_counts(world.state)


def test_a_snapshot_and_what_is_in_it_can_be_cloned(world: World) -> None:
    world.snapshot("/d", "s")
    world.put("/d/a", b"later", overwrite=True)
    world.clone("/d/.snapshot/s", "/whole")
    world.clone("/d/.snapshot/s/sub", "/part")
    world.clone("/d/.snapshot/s/a", "/d/old-a")
    world.do(world.delete_snapshots_of("/d", "s"))
    swept(world)
    assert content(world, "/whole/a") == content(world, "/d/old-a") == b"first"
    assert listed(world, "/part") == ["/part/b", "/part/c"]
    check_counts(world.state)


def test_a_rollback_can_be_undone(world: World) -> None:
    world.snapshot("/d", "s")
    world.put("/d/a", b"later", overwrite=True)
    world.delete("/d/sub", recursive=True)
    done = world.rollback("/d", "s")
    assert content(world, "/d/a") == b"first"
    assert content(world, "/d/sub/b") == b"second"
    before = ask(world, q.SnapshotNumber(done.number))
    assert (before.path, before.name) == ("/d", "before-s")
    world.rollback("/d", "before-s")
    assert content(world, "/d/a") == b"later"
    assert listed(world, "/d") == ["/d/a", "/d/empty"]
    assert listed(world, "/d/.snapshot") == [
        f"/d/.snapshot/{name}" for name in ("before-before-s", "before-s", "s")
    ]
    check_counts(world.state)


def test_a_rollback_that_is_repeated_gets_its_answer_and_happens_once(world: World) -> None:
    world.snapshot("/d", "s")
    command = world.rollback_of("/d", "s")
    first = world.do(command)
    world.put("/d/new", b"1")
    assert world.do(command) == first
    assert content(world, "/d/new") == b"1"
    assert len(world.state.history) == 2


def test_names_of_what_was_before_are_new_ones(world: World) -> None:
    long = "x" * 255
    world.snapshot("/d", long)
    numbers = [world.rollback("/d", long).number for _ in range(3)]
    names = [ask(world, q.SnapshotNumber(number)).name for number in numbers]
    assert len(set(names)) == 3
    assert all(len(name) <= 255 and name.startswith("before-xx") for name in names)


def test_the_root_can_be_rolled_back(world: World) -> None:
    world.snapshot("/", "s")
    world.delete("/d", recursive=True)
    world.rollback("/", "s")
    assert content(world, "/d/a") == b"first"
    assert content(world, "/f") == b"file"
    check_counts(world.state)


def test_a_rollback_above_leaves_snapshots_below_readable_and_they_can_go_back(
    world: World,
) -> None:
    world.snapshot("/d", "old")
    world.put("/d/young/x", b"1")
    world.snapshot("/d/young", "s")
    world.rollback("/d", "old")
    assert "/d/young" not in listed(world, "/d")
    assert content(world, "/d/young/.snapshot/s/x") == b"1"
    assert listed(world, "/d/young/.snapshot") == ["/d/young/.snapshot/s"]
    assert world.rollback("/d/young", "s").number == 0, "nothing was there"
    assert content(world, "/d/young/x") == b"1"
    check_counts(world.state)


def test_a_rollback_finds_a_file_or_nothing_above_in_its_way(world: World) -> None:
    world.snapshot("/", "old")
    world.put("/y/z/x", b"1")
    world.snapshot("/y/z", "s")
    world.rollback("/", "old")
    assert world.refusal(world.rollback_of("/y/z", "s")) is NotFound
    world.put("/y/z", b"a file")
    assert world.refusal(world.rollback_of("/y/z", "s")) is PathIsFile
    world.delete("/y/z")
    assert content(world, "/y/z/.snapshot/s/x") == b"1"


# Names and cuts


def test_a_snapshot_without_a_name_gets_one_from_the_clock(world: World) -> None:
    world.now_ms = 1_795_169_472_123
    names = [ask(world, q.SnapshotNumber(world.snapshot("/d").number)).name for _ in range(3)]
    assert names == ["s20261120-101112.123", "s20261120-101112.123-2", "s20261120-101112.123-3"]
    world.now_ms = 10**17
    assert world.snapshot("/d").number == 4


@pytest.mark.parametrize("name", [".", "..", ".x", "a/b", "/", "x" * 256, "a\0b"])
def test_bad_names_are_refused(world: World, name: str) -> None:
    world.snapshot("/d", "s")
    assert world.refusal(world.snapshot_of("/d", name=name)) is BadRequest
    assert world.refusal(world.rename_snapshot_of("/d", "s", name)) is BadRequest


def test_a_snapshot_can_be_renamed(world: World) -> None:
    number = world.snapshot("/d", "s").number
    assert world.do(world.rename_snapshot_of("/d", "s", "t")).number == number
    assert listed(world, "/d/.snapshot") == ["/d/.snapshot/t"]
    assert world.refusal(world.rename_snapshot_of("/d", "s", "u")) is NotFound
    world.snapshot("/d", "u")
    assert world.refusal(world.rename_snapshot_of("/d", "t", "u")) is AlreadyExists
    assert not world.do(world.rename_snapshot_of("/d", "t", "t")).changed
    check_counts(world.state)


def test_a_cut_is_of_one_moment_and_goes_back_together(world: World) -> None:
    world.put("/e/x", b"1")
    world.do(world.snapshot_of("/d/sub", "/e", name="c", cut=True))
    world.put("/e/x", b"2", overwrite=True)
    world.delete("/d/sub/b")
    done = world.do(world.rollback_of("", "c", cut=True))
    assert (content(world, "/e/x"), content(world, "/d/sub/b")) == (b"1", b"second")
    assert ask(world, q.SnapshotNumber(done.number)).cut == "before-c"
    world.do(world.rollback_of("", "before-c", cut=True))
    assert content(world, "/e/x") == b"2"
    assert listed(world, "/d/sub") == ["/d/sub/c"]
    check_counts(world.state)


def test_a_cut_that_has_lost_a_snapshot_does_not_go_back_in_part(world: World) -> None:
    world.put("/e/x", b"1")
    world.do(world.snapshot_of("/d", "/e", name="c", cut=True))
    world.do(world.delete_snapshots_of("/e", "c"))
    assert world.refusal(world.rollback_of("", "c", cut=True)) is NotFound
    world.rollback("/d", "c")


REFUSED: dict[str, tuple[Callable[[World], c.Command], type[DisklessError]]] = {
    "of a file": (lambda w: w.snapshot_of("/f", name="x"), PathIsFile),
    "of nothing": (lambda w: w.snapshot_of("/no", name="x"), NotFound),
    "of no path": (lambda w: w.snapshot_of(name="x"), BadRequest),
    "of a relative path": (lambda w: w.snapshot_of("d", name="x"), BadRequest),
    "of two without a cut": (lambda w: w.snapshot_of("/d", "/", name="x"), BadRequest),
    "a name that exists": (lambda w: w.snapshot_of("/d", name="s"), AlreadyExists),
    "a cut of one and the same": (lambda w: w.snapshot_of("/d", "/d", cut=True), BadRequest),
    "a cut within": (lambda w: w.snapshot_of("/d/sub", "/d", cut=True), BadRequest),
    "a cut within the root": (lambda w: w.snapshot_of("/d/sub", "/", cut=True), BadRequest),
    "a cut of which one is nothing": (lambda w: w.snapshot_of("/d", "/no", cut=True), NotFound),
    "a cut of too many": (
        lambda w: w.snapshot_of(*(f"/{n}" for n in range(past.CUT_MAX + 1)), cut=True),
        BadRequest,
    ),
    "a cut that exists": (lambda w: w.snapshot_of("/d/empty", name="c", cut=True), AlreadyExists),
    "of a snapshot": (lambda w: w.snapshot_of("/d/.snapshot/s", name="x"), ReadOnly),
    "delete what is not there": (lambda w: w.delete_snapshots_of("/d", "s", "no"), NotFound),
    "roll back to nothing": (lambda w: w.rollback_of("/d", "no"), NotFound),
    "roll back a cut that is none": (lambda w: w.rollback_of("", "s", cut=True), NotFound),
    "clone nothing": (lambda w: w.clone_of("/no", "/x"), NotFound),
    "clone onto something": (lambda w: w.clone_of("/d/sub", "/f"), AlreadyExists),
    "clone onto the root": (lambda w: w.clone_of("/d/sub", "/"), AlreadyExists),
    "clone into itself": (lambda w: w.clone_of("/d", "/d/x"), BadRequest),
    "clone onto itself": (lambda w: w.clone_of("/d", "/d"), BadRequest),
    "clone the root": (lambda w: w.clone_of("/", "/x"), BadRequest),
    "clone below nothing": (lambda w: w.clone_of("/d", "/no/x"), NotFound),
    "clone below a file": (lambda w: w.clone_of("/d", "/f/x"), PathIsFile),
    "clone into a snapshot": (lambda w: w.clone_of("/f", "/d/.snapshot/x"), ReadOnly),
    "clone all snapshots": (lambda w: w.clone_of("/d/.snapshot", "/x"), BadRequest),
    "put into a snapshot": (lambda w: w.commit_of(inline_file("/d/.snapshot/s/x")), ReadOnly),
    "put in place of snapshots": (lambda w: w.commit_of(inline_file("/x/.snapshot")), ReadOnly),
    "make a directory there": (lambda w: w.mkdirs_of("/x/.snapshot"), ReadOnly),
    "rename out of a snapshot": (lambda w: w.rename_of("/d/.snapshot/s/a", "/x"), ReadOnly),
    "rename into a snapshot": (lambda w: w.rename_of("/f", "/d/.snapshot/s/x"), ReadOnly),
    "delete in a snapshot": (lambda w: w.delete_of("/d/.snapshot/s/a"), ReadOnly),
    "delete its directory": (lambda w: w.delete_of("/d", recursive=True), HasSnapshots),
    "delete above": (lambda w: w.delete_of("/", recursive=True), HasSnapshots),
    "rename its directory": (lambda w: w.rename_of("/d", "/x"), HasSnapshots),
    "replace its directory": (lambda w: w.rename_of("/g", "/h", overwrite=True), HasSnapshots),
    "rename above": (lambda w: w.rename_of("/", "/x"), BadRequest),
    "rename onto its directory": (lambda w: w.rename_of("/f", "/d"), AlreadyExists),
    "rename its directory onto itself": (lambda w: w.rename_of("/d", "/d"), AlreadyExists),
    "rename its directory into itself": (lambda w: w.rename_of("/d", "/d/x"), BadRequest),
}


@pytest.mark.parametrize(("make", "error"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(
    world: World, make: Callable[[World], c.Command], error: type[DisklessError]
) -> None:
    world.snapshot("/d", "s")
    world.mkdirs("/g")
    world.mkdirs("/h")
    world.do(world.snapshot_of("/h", name="c", cut=True))
    assert world.refusal(make(world)) is error


def message(world: World, command: c.Command) -> str:
    (result,) = world.apply(command)
    assert isinstance(result, c.Refused)
    return result.message


def test_errors_name_a_few_of_the_snapshots_and_how_many_more(world: World) -> None:
    for number in range(5):
        world.snapshot("/d/sub", f"s{number}")
    text = message(world, world.delete_of("/d", recursive=True))
    named = "/d/sub/.snapshot/s0, /d/sub/.snapshot/s1, /d/sub/.snapshot/s2 and 2 more: delete those"
    assert named in text
    assert "--with-snapshots" in text
    assert "s0, s1, s2 and 2 more" in message(world, world.rollback_of("/d/sub", "x"))
    assert "it has none" in message(world, world.rollback_of("/d", "x"))


def test_only_what_lies_below_counts_as_below(world: World) -> None:
    """Not what only begins with the same characters."""
    world.put("/dd/x")
    world.put("/d-/x")
    world.snapshot("/dd", "s")
    world.snapshot("/d-", "s")
    world.rename("/d", "/e")
    assert world.refusal(world.delete_of("/dd", recursive=True)) is HasSnapshots


def test_a_delete_that_means_it_takes_the_snapshots_along(world: World) -> None:
    world.put("/e/x")
    world.snapshot("/d", "s")
    world.snapshot("/d/sub", "s")
    world.snapshot("/e", "s")
    world.delete("/d", recursive=True, snapshots=True)
    swept(world)
    assert [one.path for one in world.state.history.by_id.values()] == ["/e"]
    assert sorted(world.files()) == ["/e/x", "/f"]
    assert len(world.state.files) == 2
    check_counts(world.state)


def test_the_root_is_deleted_with_its_own_snapshots_and_those_below(world: World) -> None:
    world.snapshot("/", "s")
    world.snapshot("/d", "s")
    world.delete("/", recursive=True, snapshots=True)
    swept(world)
    assert (len(world.state.history), len(world.state.files)) == (0, 0)
    check_counts(world.state)


# Memory


def weight(state: NamespaceState) -> int:
    return state.bytes_used - state.sessions.bytes_used


def test_memory_is_back_where_it_was_when_snapshots_and_clones_are_gone(world: World) -> None:
    for number in range(300):
        world.put(f"/d/many/{number}")
    before = weight(world.state)
    world.snapshot("/d", "s")
    world.clone("/d", "/e")
    for number in range(0, 300, 7):
        world.put(f"/d/many/{number}", b"y", overwrite=True)
        world.delete(f"/e/many/{number}")
    assert weight(world.state) > before
    world.rollback("/d", "s")
    world.do(world.delete_snapshots_of("/d", "s", "before-s"))
    world.delete("/e", recursive=True)
    swept(world)
    assert weight(world.state) == before
    assert world.state.tree.files == len(world.state.files)
    check_counts(world.state)


def test_growth_by_snapshots_is_refused_in_a_full_namespace_and_deletion_is_not(
    world: World,
) -> None:
    world.snapshot("/d", "s")
    world.snapshot("/d", "gone")
    world.do(c.Limit(world.state.bytes_used))
    for command in (
        world.snapshot_of("/d", name="t"),
        world.clone_of("/d", "/x"),
        world.rollback_of("/d", "s"),
        world.rename_snapshot_of("/d", "s", "s" * 99),
        world.rename_of("/d/a", "/d/b"),
    ):
        assert world.refusal(command) is CapacityExceeded
    world.delete("/d/a")
    world.do(world.delete_snapshots_of("/d", "gone"))
    world.delete("/d", recursive=True, snapshots=True)


def test_a_change_of_what_is_shared_is_never_larger_than_what_was_checked_for_it(
    world: World,
) -> None:
    for number in range(1000):
        world.put(f"/d/many/{number:04}")
    world.snapshot("/", "s")
    state = world.state
    for command, growth in (
        (world.commit_of(inline_file("/d/many/0001x")), weights.path_bytes("/d/many/0001x")),
        (world.mkdirs_of("/d/many/0500x/y"), weights.path_bytes("/d/many/0500x/y")),
    ):
        parts = ("d", "many", "0001x" if isinstance(command, c.Commit) else "0500x")
        growth += state.tree.copy_bytes(parts, set()) + weights.FILE_BYTES + 1
        before = weight(state)
        world.do(command)
        assert 0 < weight(state) - before <= growth


@pytest.mark.parametrize("room", range(0, 24_000, 2000))
@pytest.mark.parametrize("verb", ["rollback", "rename", "replace"])
def test_a_leaf_that_is_merged_with_a_shared_one_does_not_exceed_the_limit(
    world: World, verb: str, room: int
) -> None:
    names = [f"/p/{number:03}{'n' * 200}" for number in range(btree.LEAF_MAX + 1)]
    for name in names:
        world.mkdirs(name)
    half = len(names) // 2
    for name in (*names[btree.LEAF_MIN : half], *names[half + btree.LEAF_MERGED_MAX // 2 :]):
        world.delete(name)
    world.mkdirs("/o/x")
    world.snapshot(names[0], "s")
    world.snapshot("/", "all")
    before = weight(world.state)
    world.do(c.Limit(world.state.bytes_used + room))
    command = {
        "rollback": lambda: world.rollback_of(names[0], "s"),
        "rename": lambda: world.rename_of(names[1], "/o/y"),
        "replace": lambda: world.rename_of("/o/x", names[1], overwrite=True),
    }[verb]()
    (result,) = world.apply(command)
    assert weight(world.state) - before <= room
    assert isinstance(result, c.Refused) == (weight(world.state) == before)


def test_there_are_only_so_many_snapshots(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SNAPSHOTS_MAX", 2)
    world.snapshot("/d", "a")
    world.snapshot("/d", "b")
    assert world.refusal(world.snapshot_of("/d", name="c")) is CapacityExceeded
    assert world.refusal(world.rollback_of("/d", "a")) is CapacityExceeded
    world.do(world.delete_snapshots_of("/d", "a"))
    world.snapshot("/d", "c")


def test_clones_of_clones_end_where_numbers_do(world: World) -> None:
    world.mkdirs("/n/0")
    world.put("/n/0/x", b"x")
    number = 0
    results: list[c.Result] = [c.Done()]
    while all(isinstance(result, c.Done) for result in results):
        number += 1
        world.mkdirs(f"/n/{number}")
        commands = [world.clone_of(f"/n/{number - 1}", f"/n/{number}/{n}") for n in "ab"]
        results = [world.apply(command)[0] for command in commands]
    # Not `refusal`, which compares all that there is, path by path.
    assert {result.reason for result in results if isinstance(result, c.Refused)} == {
        "CapacityExceeded"
    }
    assert past.COUNTED_MAX >= world.state.summary("/").directories > past.COUNTED_MAX // 4
    assert ask(world, q.Summarize("/")).files > 10**17


# Questions


def test_snapshots_are_listed_in_pages(world: World) -> None:
    world.now_ms = 7000
    for name in ("a", "b", "c"):
        world.snapshot("/d", name)
    world.snapshot("/d/sub", "x")
    first = ask(world, q.Snapshots("/d", 0, 2))
    assert [one.name for one in first.entries] == ["a", "b"]
    assert first.more
    rest = ask(world, q.Snapshots("/d", first.entries[-1].number, 2))
    assert ([one.name for one in rest.entries], rest.more) == (["c"], False)
    everything = ask(world, q.Snapshots("", 0, 100))
    assert [one.path for one in everything.entries] == ["/d"] * 3 + ["/d/sub"]
    one = everything.entries[-1]
    assert (one.files, one.directories, one.bytes, one.time_ms) == (2, 1, 11, 7000)
    assert ask(world, q.Snapshots("/d/empty", 0, 9)).entries == []
    with pytest.raises(NotFound):
        ask(world, q.Snapshots("/no", 0, 9))


def test_a_snapshot_knows_its_place_in_the_log(world: World) -> None:
    world.state.apply(world.snapshot_of("/d", name="s"), now_ms=1, elapsed_ms=1, op=77)
    assert ask(world, q.Snapshots("/d", 0, 1)).entries[0].op == 77


def own(world: World, path: str, limit: int = 1000) -> tuple[int, int]:
    """Files and bytes that are at a path alone, over all pages."""
    files = size = 0
    cursor, pages = "", 0
    while pages == 0 or cursor:
        page = ask(world, q.Usage(path, cursor, limit))
        files, size = files + page.own_files, size + page.own_bytes
        cursor = page.cursor
        pages += 1
        assert pages < 10_000
    return files, size


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_own_bytes_are_told_from_shared_ones(world: World, limit: int) -> None:
    assert own(world, "/", limit) == (4, 20)
    world.snapshot("/d", "s")
    assert own(world, "/d", limit) == (0, 0)
    assert own(world, "/", limit) == (1, 4), "/f"
    world.put("/d/a", b"0123456789", overwrite=True)
    assert own(world, "/d", limit) == (1, 10)
    assert own(world, "/d/a", limit) == (1, 10)
    assert own(world, "/d/sub/b", limit) == (0, 0)
    assert own(world, "/d/.snapshot/s", limit) == (1, 5)
    assert own(world, "/d/.snapshot/s/sub", limit) == (0, 0)
    assert own(world, "/d/.snapshot", limit) == (0, 0)
    world.delete("/d/sub", recursive=True)
    assert own(world, "/d/.snapshot/s", limit) == (3, 16)


def held(state: NamespaceState) -> int:
    steps = held_by_snapshots(state)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return int(done.value)


def test_bytes_that_only_snapshots_hold_are_those_that_no_path_leads_to(world: World) -> None:
    assert held(world.state) == 0
    world.snapshot("/d", "s")
    world.snapshot("/", "t")
    assert held(world.state) == 0
    world.put("/d/a", b"0123456789", overwrite=True)
    assert held(world.state) == 5
    world.delete("/d/sub/c")
    assert held(world.state) == 10
    world.clone("/d/.snapshot/s/sub", "/x")
    assert held(world.state) == 5
    world.delete("/d", recursive=True, snapshots=True)
    assert held(world.state) == 5
    world.do(world.delete_snapshots_of("/", "t"))
    assert held(world.state) == 0


def changes(world: World, path: str, a: str, b: str, limit: int) -> list[tuple[str, str, int, int]]:
    found = []
    cursor, pages = "", 0
    while pages == 0 or cursor:
        page = ask(world, q.Diff(path, a, b, cursor, limit))
        found += [(one.kind, one.path, one.bytes_before, one.bytes_after) for one in page.changes]
        cursor = page.cursor
        pages += 1
        assert pages < 10_000
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_a_diff_tells_what_was_added_removed_and_changed(world: World, limit: int) -> None:
    world.snapshot("/d", "s")
    assert changes(world, "/d", "s", "", limit) == []
    world.put("/d/a", b"0123456789", overwrite=True)
    world.put("/d/sub/new", b"1")
    world.delete("/d/sub/b")
    world.put("/d/made/x/y", b"22")
    world.delete("/d/empty")
    world.put("/d/empty", b"a file")
    there = [
        ("M", "a", 5, 10),
        ("-", "empty", 0, 0),
        ("+", "empty", 0, 6),
        ("+", "made", 0, 2),
        ("-", "sub/b", 6, 0),
        ("+", "sub/new", 0, 1),
    ]
    assert changes(world, "/d", "s", "", limit) == there
    world.snapshot("/d", "t")
    assert changes(world, "/d", "s", "t", limit) == there
    assert [(kind, path) for kind, path, *_ in changes(world, "/d", "t", "s", limit)] == [
        ("M", "a"), ("-", "empty"), ("+", "empty"), ("-", "made"), ("+", "sub/b"),
        ("-", "sub/new"),
    ]  # fmt: skip


@pytest.mark.parametrize(("path", "a", "b"), [("/d", "no", ""), ("/d", "s", "no"), ("/e", "s", "")])
def test_a_diff_needs_what_it_compares(world: World, path: str, a: str, b: str) -> None:
    world.snapshot("/d", "s")
    with pytest.raises(NotFound):
        ask(world, q.Diff(path, a, b, "", 10))


def many(world: World, count: int) -> None:
    for number in range(count):
        world.put(f"/many/{number:04}", b"12")


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_diff_of_a_large_directory_is_right_where_nodes_do_not_align(
    world: World, limit: int
) -> None:
    many(world, 400)
    world.snapshot("/many", "s")
    expected = []
    for number in range(100, 190):  # whole leaves go, and their neighbours change
        world.delete(f"/many/{number:04}")
        expected.append(("-", f"{number:04}", 2, 0))
    for number in range(120):  # and some are split
        world.put(f"/many/0300-{number:03}", b"1")
        expected.append(("+", f"0300-{number:03}", 0, 1))
    assert changes(world, "/many", "s", "", limit) == sorted(expected, key=lambda one: one[1])


def test_leaves_that_are_shared_as_a_whole_are_nobodys_own(world: World) -> None:
    many(world, 400)
    world.snapshot("/many", "s")
    world.put("/many/0200", b"12345", overwrite=True)
    assert own(world, "/many") == (1, 5)
    assert own(world, "/many/.snapshot/s") == (1, 2)
