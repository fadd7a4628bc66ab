"""Paths: what put, mkdirs, rename, delete and listing do, and that refusals do nothing."""

import msgspec
import pytest

from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    DisklessError,
    NotFound,
    PathIsDirectory,
    PathIsFile,
)
from diskless.gateway.statuses import path_status
from diskless.namespace import answers
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.tree import Spot
from diskless.paths import PATH_BYTES_MAX
from diskless.protocol.frames import META_BYTES_MAX
from diskless.protocol.messages import Listing
from tests.unit.test_namespace_world import World, inline_file

BAD_PATHS = ["", "a", "a/b", "//", "/a//b", "/a/", "/./a", "/a/../b", "/a\0b"]


@pytest.fixture
def world() -> World:
    return World()


# Putting


@pytest.mark.parametrize("changed", [False, True], ids=["", "changed since"])
@pytest.mark.parametrize("shared", ["", "/d", "/d/below"])
def test_where_a_put_goes_is_the_same_whatever_was_looked_for_before_it(
    world: World, shared: str, changed: bool
) -> None:
    names = [f"/{top}/{n:03}" for n in range(100) for top in ("d", "d/below", "e")]
    world.do(world.commit_of(*(inline_file(name, b"old") for name in names)))
    if shared:
        world.snapshot(shared, "before")
    if changed:
        world.put("/d/050", b"new", overwrite=True)  # What is on its way is its own again.
    tree = world.state.tree
    wanted = ("/d/000", "/d/050", "/d/099", "/d/a", "/d/below/000", "/d/below/a", "/e/001", "/e/a",
              "/a", "/a/b", "/a/c", "/b/b", "/d/below", "/d/000/below", "/d/a/b", "/d")  # fmt: skip

    def found(path: str, beside: Spot | None = None) -> object:
        try:
            spot = tree.spot(path, overwrite=True, beside=beside)
        except DisklessError as error:
            return repr(error)
        return spot.parts, [id(node) for node in (*spot.trail, spot.leaf, spot.old)], spot.shared

    for before in wanted:
        for path in wanted:
            try:
                beside = tree.spot(before, overwrite=True)
            except DisklessError:
                continue
            trail = list(beside.trail)
            assert found(path, beside) == found(path), (before, path)
            assert len(beside.trail) == len(trail), "nothing is done to the first"


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("there", [0, 60, 100], ids=["none", "some", "split"])
def test_many_files_in_one_put_end_as_they_do_one_by_one(there: int, shared: bool) -> None:
    """Whatever those before it did to the tree: made directories, split nodes, copied them."""
    together, apart = World(), World()
    names = [f"/{top}/{n:03}" for n in range(0, 150, 3) for top in ("d", f"new{n}", "d/below")]
    for world in (together, apart):
        for number in range(there):
            world.put(f"/d/{number:03}", b"old")
        if shared and there:
            world.snapshot("/d", "before")
    together.do(together.commit_of(*(inline_file(n, n.encode()) for n in names), overwrite=True))
    for name in names:
        apart.put(name, name.encode(), overwrite=True)
    assert together.files() == apart.files()
    assert together.directories() == apart.directories()
    root, other = together.state.tree.root, apart.state.tree.root
    assert (root.files, root.bytes, root.directories) == (
        other.files,
        other.bytes,
        other.directories,
    )
    if shared and there:
        kept = together.state.get("/d/.snapshot/before/000")
        assert kept.record.inline == b"old"


def test_a_put_makes_the_directories_above_the_file(world: World) -> None:
    world.put("/a/b/c", b"new")
    assert world.files() == {"/a/b/c": b"new"}
    assert world.directories() == {"/", "/a", "/a/b"}
    assert world.state.tree.directories == 3


def test_a_put_that_makes_no_directories_needs_the_one_above(world: World) -> None:
    world.mkdirs("/a")
    for path, there in [("/f", True), ("/a/f", True), ("/b/f", False), ("/a/b/f", False)]:
        put = msgspec.structs.replace(world.put_of(inline_file(path, b"x")), parents=False)
        if there:
            world.do(c.Commit((), (put,)))
        else:
            with pytest.raises(NotFound, match="directory above"):
                world.do(c.Commit((), (put,)))
    assert world.files().keys() == {"/f", "/a/f"}
    assert world.directories() == {"/", "/a"}


def test_a_put_answers_the_ids_and_the_time_that_stat_then_shows(world: World) -> None:
    done = world.do(world.commit_of(inline_file("/a", b"1"), inline_file("/b", b"22")))
    first, second = world.state.stat("/a").record, world.state.stat("/b").record
    assert first is not None
    assert second is not None
    assert (first.id, second.id) == (done.number, done.number + 1)
    assert first.mtime_ms == second.mtime_ms == done.time_ms == world.now_ms


def test_a_put_without_overwrite_is_refused_where_a_file_is(world: World) -> None:
    world.put("/a", b"old")
    assert world.refusal(world.commit_of(inline_file("/a", b"new"))) is AlreadyExists
    assert world.files() == {"/a": b"old"}


def test_a_put_with_overwrite_replaces_the_file_under_a_new_id(world: World) -> None:
    old = world.put("/a", b"old")
    new = world.put("/a", b"newer", overwrite=True)
    assert world.files() == {"/a": b"newer"}
    assert new.number > old.number
    assert list(world.state.files) == [new.number]
    assert (world.state.bytes_logical, world.state.bytes_inline) == (5, 5)


def test_file_ids_are_never_used_again(world: World) -> None:
    ids = []
    for _ in range(3):
        ids.append(world.put("/a").number)
        world.delete("/a")
    assert len(set(ids)) == 3
    assert ids == sorted(ids)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/", PathIsDirectory),
        ("/dir", PathIsDirectory),
        ("/dir/empty", PathIsDirectory),
        ("/file/below", PathIsFile),
        ("/file/far/below", PathIsFile),
        *((path, BadRequest) for path in BAD_PATHS),
        ("/" + "x" * PATH_BYTES_MAX, BadRequest),
    ],
)
def test_a_put_where_no_file_can_be_is_refused(
    world: World, path: str, error: type[DisklessError], overwrite: bool
) -> None:
    world.put("/file")
    world.mkdirs("/dir/empty")
    command = world.commit_of(inline_file(path), overwrite=overwrite)
    assert world.refusal(command) is error


def test_puts_of_one_request_become_visible_together(world: World) -> None:
    world.do(world.commit_of(inline_file("/a/1", b"1"), inline_file("/b/2", b"2")))
    assert world.files() == {"/a/1": b"1", "/b/2": b"2"}


@pytest.mark.parametrize(
    ("files", "overwrite", "error"),
    [
        (["/new", "/taken"], False, AlreadyExists),
        (["/new", "/dir"], True, PathIsDirectory),
        (["/new", "/taken/below"], True, PathIsFile),
        (["/new", "relative"], True, BadRequest),
        (["/new", "/other", "/new"], True, BadRequest),
        (["/new", "/new/below"], True, BadRequest),
        (["/new/far/below", "/new"], True, BadRequest),
    ],
)
def test_one_impossible_file_refuses_the_whole_request(
    world: World, files: list[str], overwrite: bool, error: type[DisklessError]
) -> None:
    world.put("/taken")
    world.mkdirs("/dir")
    command = world.commit_of(*(inline_file(path) for path in files), overwrite=overwrite)
    assert world.refusal(command) is error


def test_names_that_only_begin_alike_are_not_below_one_another(world: World) -> None:
    world.do(world.commit_of(inline_file("/new"), inline_file("/new2"), inline_file("/new.d/x")))
    assert list(world.files()) == ["/new", "/new.d/x", "/new2"]


# Mkdirs


def test_mkdirs_makes_all_that_is_missing_and_says_whether_it_did(world: World) -> None:
    assert world.mkdirs("/a/b/c").changed
    assert not world.mkdirs("/a/b").changed
    assert world.mkdirs("/a/b/d").changed
    assert not world.mkdirs("/").changed
    assert world.directories() == {"/", "/a", "/a/b", "/a/b/c", "/a/b/d"}
    assert world.state.tree.directories == 5


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/file", AlreadyExists),
        ("/file/below", PathIsFile),
        ("/file/far/below", PathIsFile),
        *((path, BadRequest) for path in BAD_PATHS),
    ],
)
def test_mkdirs_is_refused_at_and_below_a_file(
    world: World, path: str, error: type[DisklessError]
) -> None:
    world.put("/file")
    assert world.refusal(world.mkdirs_of(path)) is error


def test_mkdirs_without_parents_needs_the_directory_above(world: World) -> None:
    world.put("/file")
    assert world.refusal(world.mkdirs_of("/a/b", parents=False)) is NotFound
    assert world.refusal(world.mkdirs_of("/file/below", parents=False)) is PathIsFile
    assert world.refusal(world.mkdirs_of("/file/far/below", parents=False)) is PathIsFile
    assert world.refusal(world.mkdirs_of("/file", parents=False)) is AlreadyExists
    assert world.directories() == {"/"}
    assert world.mkdirs("/a", parents=False).changed
    assert world.mkdirs("/a/b", parents=False).changed
    assert not world.mkdirs("/a/b", parents=False).changed
    assert not world.mkdirs("/", parents=False).changed


def test_a_command_of_an_earlier_version_makes_parents() -> None:
    old = msgspec.msgpack.encode(["Mkdirs", 1, 2, "/a/b"])
    assert c.decode(old) == c.Mkdirs(1, 2, "/a/b", parents=True)


# Renaming


def test_a_renamed_file_keeps_its_id_and_its_time(world: World) -> None:
    done = world.put("/a", b"bytes")
    world.mkdirs("/dir")
    world.now_ms += 500
    world.rename("/a", "/dir/b")
    record = world.state.stat("/dir/b").record
    assert world.files() == {"/dir/b": b"bytes"}
    assert record is not None
    assert (record.id, record.mtime_ms) == (done.number, done.time_ms)
    assert world.state.stat("/").mtime_ms == world.state.stat("/dir").mtime_ms == world.now_ms


def test_a_renamed_directory_takes_everything_below_along(world: World) -> None:
    world.put("/a/b/1")
    world.put("/a/2")
    world.mkdirs("/a/empty")
    world.mkdirs("/to")
    world.rename("/a", "/to/z")
    assert list(world.files()) == ["/to/z/2", "/to/z/b/1"]
    assert world.directories() == {"/", "/to", "/to/z", "/to/z/b", "/to/z/empty"}


def test_a_file_replaces_a_file_only_with_overwrite(world: World) -> None:
    moved = world.put("/a", b"aa")
    world.put("/b", b"b")
    assert world.refusal(world.rename_of("/a", "/b")) is AlreadyExists
    world.rename("/a", "/b", overwrite=True)
    assert world.files() == {"/b": b"aa"}
    assert list(world.state.files) == [moved.number]
    assert world.state.bytes_logical == 2


def test_a_directory_replaces_an_empty_directory_only_with_overwrite(world: World) -> None:
    world.put("/a/1")
    world.mkdirs("/b")
    assert world.refusal(world.rename_of("/a", "/b")) is AlreadyExists
    world.rename("/a", "/b", overwrite=True)
    assert list(world.files()) == ["/b/1"]
    assert world.directories() == {"/", "/b"}
    assert world.state.tree.directories == 2


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/missing", "/new", NotFound),
        ("/missing", "/missing", NotFound),
        ("/file/below", "/new", NotFound),
        ("/", "/new", BadRequest),
        ("/", "/", BadRequest),
        ("/dir", "/dir/below", BadRequest),
        ("/dir", "/dir/sub/below", BadRequest),
        ("/file", "/file/below", BadRequest),
        ("/file", "/missing/new", NotFound),
        ("/file", "/other/new", PathIsFile),
        ("/file", "/", AlreadyExists),
        ("/dir", "/", AlreadyExists),
        *((path, "/new", BadRequest) for path in BAD_PATHS),
        *(("/file", path, BadRequest) for path in BAD_PATHS),
    ],
)
def test_an_impossible_rename_is_refused_with_and_without_overwrite(
    world: World, source: str, target: str, error: type[DisklessError], overwrite: bool
) -> None:
    world.put("/file")
    world.put("/other")
    world.put("/dir/sub/1")
    assert world.refusal(world.rename_of(source, target, overwrite=overwrite)) is error


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/dir", "/full", DirectoryNotEmpty),
        ("/dir/sub", "/dir", DirectoryNotEmpty),  # onto the directory it lies in
        ("/dir", "/file", PathIsFile),
        ("/file", "/empty", PathIsDirectory),
        ("/file", "/full", PathIsDirectory),
        ("/full/1", "/full", PathIsDirectory),
    ],
)
def test_overwrite_does_not_replace_what_is_not_alike_or_not_empty(
    world: World, source: str, target: str, error: type[DisklessError]
) -> None:
    world.put("/file")
    world.put("/full/1")
    world.put("/dir/sub/2")
    world.mkdirs("/empty")
    assert world.refusal(world.rename_of(source, target, overwrite=True)) is error
    assert world.refusal(world.rename_of(source, target)) is AlreadyExists


@pytest.mark.parametrize("path", ["/file", "/dir", "/dir/sub"])
def test_a_rename_onto_itself_changes_nothing(world: World, path: str) -> None:
    world.put("/file")
    world.put("/dir/sub/1")
    before = world.files(), world.directories()
    assert world.refusal(world.rename_of(path, path)) is AlreadyExists
    world.rename(path, path, overwrite=True)
    assert (world.files(), world.directories()) == before


def test_a_name_that_only_begins_like_the_source_is_not_below_it(world: World) -> None:
    world.put("/a/1")
    world.rename("/a", "/ab")
    world.rename("/ab", "/a")
    assert list(world.files()) == ["/a/1"]


def test_renames_back_and_forth_leave_what_was_there(world: World) -> None:
    world.put("/a/1", b"1")
    world.put("/b/2", b"22")
    before = world.files()
    for source, target in [("/a", "/c"), ("/b", "/a"), ("/c", "/b"), ("/a", "/c"), ("/b", "/a")]:
        world.rename(source, target)
    world.rename("/c", "/b")
    assert world.files() == before


# Deleting


def test_deleting_a_file_lets_go_of_its_bytes(world: World) -> None:
    world.put("/a/1", b"123")
    assert world.delete("/a/1").changed
    assert world.files() == {}
    assert world.directories() == {"/", "/a"}
    assert (world.state.files, world.state.bytes_logical, world.state.bytes_inline) == ({}, 0, 0)


@pytest.mark.parametrize("path", ["/missing", "/a/missing", "/a/1/below"])
@pytest.mark.parametrize("recursive", [False, True])
def test_deleting_what_is_not_there_succeeds_and_says_so(
    world: World, path: str, recursive: bool
) -> None:
    world.put("/a/1")
    assert not world.delete(path, recursive=recursive).changed
    assert list(world.files()) == ["/a/1"]


@pytest.mark.parametrize("path", ["/a", "/a/b", "/"])
def test_a_directory_with_entries_is_deleted_only_recursively(world: World, path: str) -> None:
    world.put("/a/b/1")
    world.put("/a/b/2")
    world.mkdirs("/a/b/c")
    assert world.refusal(world.delete_of(path)) is DirectoryNotEmpty
    assert world.delete(path, recursive=True).changed
    assert world.files() == {}
    assert (world.state.files, world.state.bytes_logical) == ({}, 0)
    assert len(world.directories()) == world.state.tree.directories


def test_an_empty_directory_is_deleted_without_recursion(world: World) -> None:
    world.mkdirs("/a/b")
    assert world.delete("/a/b").changed
    assert world.directories() == {"/", "/a"}


def test_deleting_the_root_empties_it_and_it_can_be_used_again(world: World) -> None:
    world.put("/a/1")
    world.mkdirs("/b/c")
    world.delete("/", recursive=True)
    assert world.directories() == {"/"}
    assert world.state.tree.directories == 1
    world.put("/a/1", b"again")
    assert world.files() == {"/a/1": b"again"}


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_is_none_cannot_be_deleted(world: World, path: str) -> None:
    assert world.refusal(world.delete_of(path, recursive=True)) is BadRequest


# Reading


def names_of(world: World, path: str, *, after: str = "", limit: int = 100) -> list[str]:
    entries, _ = world.state.page(path, after=after, limit=limit)
    return [entry.path for entry in entries]


def test_a_listing_is_in_order_and_follows_every_change(world: World) -> None:
    for name in ["b", "c", "a"]:
        world.put(f"/d/{name}")
    assert names_of(world, "/d") == ["/d/a", "/d/b", "/d/c"]
    world.put("/d/aa")
    world.delete("/d/b")
    world.rename("/d/c", "/d/0")
    world.put("/d/a", b"other", overwrite=True)
    assert names_of(world, "/d") == ["/d/0", "/d/a", "/d/aa"]
    assert names_of(world, "/") == ["/d"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_give_every_entry_once_and_say_when_it_was_the_last(world: World, limit: int) -> None:
    for n in range(7):
        world.put(f"/d/{n}")
    seen: list[str] = []
    after, more = "", True
    while more:
        entries, more = world.state.page("/d", after=after, limit=limit)
        assert 1 <= len(entries) <= limit
        seen += [entry.path for entry in entries]
        after = entries[-1].path.rpartition("/")[2]
    assert seen == [f"/d/{n}" for n in range(7)]


def test_a_page_goes_on_behind_a_name_that_is_gone(world: World) -> None:
    for name in "abcd":
        world.put(f"/{name}")
    world.delete("/b")
    assert names_of(world, "/", after="b") == ["/c", "/d"]
    assert names_of(world, "/", after="z") == []


def test_a_listing_of_a_file_is_the_file_and_of_an_empty_directory_nothing(world: World) -> None:
    world.put("/a/1", b"123")
    world.mkdirs("/empty")
    (entry,), more = world.state.page("/a/1", after="", limit=5)
    assert entry == world.state.stat("/a/1")
    assert not more
    assert world.state.page("/empty", after="", limit=5) == ([], False)


def test_a_page_is_never_empty_or_endless_whatever_limit_is_asked_for(world: World) -> None:
    world.put("/a")
    world.put("/b")
    page = answers.answer(world.state, q.Page("/", "", -5))
    assert ([entry.path for entry in page.entries], page.more) == (["/a"], True)
    assert len(answers.answer(world.state, q.Page("/", "", 2**40)).entries) == 2


@pytest.mark.parametrize("letter", ["x", "é", "\x01"])
def test_a_page_of_long_paths_fits_in_a_frame_however_they_are_escaped(
    world: World, letter: str
) -> None:
    folder = "/" + letter * (4080 // len(letter.encode()))
    names = [f"{folder}/{number:04}" for number in range(1010)]
    for name in names:
        world.put(name)
    found: list[str] = []
    more = True
    while more:
        page = answers.answer(world.state, q.Page(folder, found[-1][-4:] if found else "", 1000))
        listing = Listing([path_status(entry) for entry in page.entries], page.more)
        assert len(msgspec.json.encode(listing)) <= META_BYTES_MAX
        found += [entry.path for entry in page.entries]
        more = page.more
    assert found == names


@pytest.mark.parametrize("names_max", [1, 100, 10_000])
def test_the_newest_are_those_of_the_greatest_numbers_whatever_the_order_of_names(
    world: World, names_max: int
) -> None:
    for number in range(1203):
        world.put(f"/d/{number}")
    for name in (
        "x",
        "1203.compact",
        ".1204.crc",
        "01205",
        "9" * 19,
        "\u0661\u0662\u0663\u0664\u0665",
    ):
        world.put(f"/d/{name}")
    world.mkdirs("/d/5000")
    found: dict[int, str] = {}
    after, asked = "", 0
    while asked == 0 or after:
        entries, after = world.state.newest("/d", after=after, limit=3, names_max=names_max)
        assert len(entries) <= 3
        numbers = [int(entry.path.rpartition("/")[2]) for entry in entries]
        assert numbers == sorted(numbers, reverse=True)
        assert not found.keys() & set(numbers), "each is told once"
        found |= dict.fromkeys(numbers, "")
        asked += 1
    assert sorted(found)[-3:] == [1200, 1201, 1202]
    assert asked == 1 or names_max < 1203


def test_the_newest_of_a_file_or_of_nothing(world: World) -> None:
    world.put("/d/1")
    world.mkdirs("/empty")
    assert answers.answer(world.state, q.Newest("/empty", "", 5)) == q.NewestFound([], "")
    assert len(answers.answer(world.state, q.Newest("/d", "", -5)).entries) == 1
    with pytest.raises(PathIsFile):
        answers.answer(world.state, q.Newest("/d/1", "", 5))


def test_stat_shows_what_a_file_is_but_not_its_bytes(world: World) -> None:
    world.put("/a/1", b"123")
    found = world.state.stat("/a/1")
    assert found.record is not None
    assert (found.record.size, found.record.inline, found.record.extents) == (3, None, ())
    assert world.state.stat("/a").record is None


def test_a_summary_counts_the_whole_subtree(world: World) -> None:
    world.put("/a/b/1", b"12")
    world.put("/a/2", b"345")
    world.mkdirs("/a/empty")
    world.put("/other", b"6")
    found = world.state.summary("/a")
    assert (found.files, found.directories, found.bytes) == (2, 3, 5)
    found = world.state.summary("/other")
    assert (found.files, found.directories, found.bytes) == (1, 0, 1)


@pytest.mark.parametrize(
    "query",
    [
        q.Stat,
        q.Open,
        q.Summarize,
        lambda path: q.Page(path, "", 9),
        lambda path: q.Newest(path, "", 9),
    ],
    ids=["stat", "open", "summarize", "page", "newest"],
)
def test_questions_about_what_is_not_there_raise_not_found(world: World, query: object) -> None:
    world.put("/file")
    assert callable(query)
    for path in ["/missing", "/file/below"]:
        with pytest.raises(NotFound, match=path):
            answers.answer(world.state, query(path))
    with pytest.raises(BadRequest):
        answers.answer(world.state, query("relative"))


def test_a_directory_cannot_be_opened_for_its_bytes(world: World) -> None:
    world.mkdirs("/dir")
    for path in ["/dir", "/"]:
        with pytest.raises(PathIsDirectory):
            world.state.open(path)


@pytest.mark.parametrize(
    "names",
    [("/a", "/a/b"), ("/a/b", "/a"), ("/x", "/d/e", "/d/e/f/g/h"), ("/a", "/a")],
    ids=["child", "parent last", "far below", "twice"],
)
def test_files_of_one_put_lie_beside_each_other_or_none_is_made(names: tuple[str, ...]) -> None:
    world = World()
    files = [inline_file(name) for name in names]
    assert world.refusal(world.commit_of(*files)) is BadRequest
    world.do(world.commit_of(inline_file("/a/b"), inline_file("/ab"), inline_file("/a/bc")))
