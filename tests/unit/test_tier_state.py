"""What the namespace knows of a durable tier: places of files, the horizon, the journal, marks,
pictures, and a state that begins with what they say."""

import pytest

from diskless import policy
from diskless.errors import BadRequest, Closing, Unavailable
from diskless.model import Extent, TierOptions
from diskless.namespace import answers, picture, tier
from diskless.namespace import commands as c
from diskless.namespace import journal as j
from diskless.namespace import queries as q
from diskless.namespace.replay import Diverged, Replayer, found
from diskless.namespace.replication import NamespaceMachine
from diskless.namespace.snapshot import snapshot
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Kept
from diskless.namespace.views import TierPlace
from tests.unit.test_namespace_tier import below, facts
from tests.unit.test_namespace_world import World, agent_up, check_counts, dump, inline_file

URI = "s3://bucket/prefix"


def tiered(**journal: int) -> World:
    world = World()
    world.state.journal = j.Journal(**journal)
    world.do(c.AttachTier(URI, 1, 0))
    return world


def entries(world: World, after: int = 1) -> list[bytes]:
    journal = world.state.journal
    assert journal is not None
    return journal.after(after, upto=journal.last, limit=1000)


def whats(world: World) -> list[j.What]:
    return [j.decode(entry).what for entry in entries(world)]


def keep(world: World, segment: int, *rows: tuple[int, int]) -> c.Done:
    """Rows of a file and its stored bytes."""
    places = tuple((id_, segment, 10 * n, size, 1) for n, (id_, size) in enumerate(rows))
    return world.do(c.Keep(1, ((segment, f"seg/{segment}", 1000),), places))


def again(world: World) -> NamespaceState:
    """What the tier would say of a world: its picture of now."""
    world.do(c.Mark())
    state = NamespaceState()
    picture.restore_picture(state, picture.rows(world.state))
    return state


def place_all(state: NamespaceState) -> None:
    state.tier.add_segment(7, "seg/7", 1000)
    for n, id_ in enumerate(list(state.tier.cold)):
        state.tier.keep(id_, Kept(7, n, 1, 0))


# Places and segments


def test_a_segment_lives_as_long_as_a_file_in_it() -> None:
    world = tiered()
    one, two = world.put("/1").number, world.put("/2").number
    assert keep(world, 1, (one, 5), (two, 7), (999, 9)) == c.Done(2), "999 is gone"
    segments = world.state.tier.segments
    assert (segments[1].live_bytes, world.state.tier.live_bytes) == (12, 12)
    world.delete("/1")
    assert segments[1].live_bytes == 7
    world.put("/2", b"new", overwrite=True)
    assert not segments
    assert not world.state.tier.places
    assert world.state.tier.last_segment == 1, "its number is not given again"
    check_counts(world.state)


def test_a_file_that_is_kept_elsewhere_leaves_its_old_segment() -> None:
    world = tiered()
    one, two = world.put("/1").number, world.put("/2").number
    keep(world, 1, (one, 5), (two, 7))
    keep(world, 2, (one, 3))
    assert {n: s.live_bytes for n, s in world.state.tier.segments.items()} == {1: 7, 2: 3}
    keep(world, 2, (two, 4))
    assert {n: s.live_bytes for n, s in world.state.tier.segments.items()} == {2: 7}


def test_what_a_snapshot_holds_stays_in_the_tier_until_it_goes() -> None:
    world = tiered()
    id_ = world.put("/d/1").number
    keep(world, 1, (id_, 5))
    world.snapshot("/d", "s")
    world.delete("/d/1")
    assert world.state.tier.place(id_) == Kept(1, 0, 5, 1)
    world.do(world.delete_snapshots_of("/d", "s"))
    assert world.state.tier.place(id_) is None


@pytest.mark.parametrize(
    "row",
    [(1, 2, 0, 5, 0), (1, 1, -1, 5, 0), (1, 1, 0, 0, 0), (1, 1, 0, 5, 256), (1, 1, 1 << 40, 5, 0)],
)
def test_places_that_cannot_be_are_refused(row: tuple[int, int, int, int, int]) -> None:
    world = tiered()
    world.put("/1")
    assert world.refusal(c.Keep(1, ((1, "seg/1", 1000),), (row,))) is BadRequest


def test_places_need_a_tier_and_come_in_bounded_numbers() -> None:
    row = (1, 1, 0, 5, 0)
    assert World().refusal(c.Keep(1, ((1, "s", 9),), (row,))) is BadRequest
    many = (row,) * (tier.KEEP_ROWS_MAX + 1)
    assert tiered().refusal(c.Keep(1, ((1, "s", 9),), many)) is BadRequest


def test_a_tier_is_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "FORGET_PLACES", 2)
    world = tiered()
    ids = [world.put(f"/{n}").number for n in range(5)]
    keep(world, 1, *((id_, 1) for id_ in ids))
    change = world.state.tier.change
    assert world.do(c.DetachTier()).number == 3
    assert not world.state.tier.attached, "a tier that names only some files is none"
    assert world.refusal(c.Keep(2, ((2, "seg/2", 9),), ((ids[0], 2, 0, 1, 0),))) is BadRequest
    assert world.refusal(c.AttachTier("file:///other", 1, 0)) is Unavailable
    world.delete("/4")
    assert ids[4] not in world.state.tier.places
    assert [world.do(c.DetachTier()).number for _ in range(1)] == [0]
    assert not world.state.tier.attached
    assert world.do(c.DetachTier()) == c.Done(changed=False)
    world.put("/x")
    assert world.state.tier.change == change, "nothing is counted that no tier keeps"
    world.do(c.AttachTier("file:///other", 1, 0))
    assert world.state.tier.change == change + 1
    assert world.state.tier.last_segment == 1
    check_counts(world.state)


def test_what_is_said_of_another_tier_is_not_believed() -> None:
    world = tiered()
    id_ = world.put("/a").number
    row, segment = (id_, 1, 0, 5, 0), (1, "seg/1", 9)
    assert world.refusal(c.Keep(1, (segment,), (row,), "file:///before")) is BadRequest
    assert not world.do(c.Horizon(1, 1, 2, 9, 9, 1, "file:///before")).changed
    assert world.do(c.Keep(1, (segment,), (row,), URI)).changed
    assert world.do(c.Horizon(1, 1, 2, 9, 9, 1, URI)).changed


def test_nothing_is_changed_while_the_cluster_is_closed_and_answers_are_given_again() -> None:
    world = tiered()
    assert World().refusal(c.Close(True)) is BadRequest
    put = c.Commit((), (c.Put(world.session, 70, True, (inline_file("/a"),)),))
    done = world.state.apply(put, now_ms=5, elapsed_ms=5, op=9)
    change = world.state.tier.change
    assert world.do(c.Close(True)) == c.Done(change)
    assert world.state.apply(put, now_ms=6, elapsed_ms=6, op=10) == done
    for command in (
        c.Mkdirs(world.session, 71, "/d"),
        c.Rename(world.session, 71, "/a", "/b", True),
        c.Delete(world.session, 71, "/a", True),
        c.CreateSnapshot(world.session, 71, ("/",), "s"),
        c.SetPolicy("/", policy.DURABILITY, policy.SYNC),
        c.IssueToken("t", ("/",), True, 99),
    ):
        assert world.refusal(command) is Closing
    moved = NamespaceMachine()
    for chunk in snapshot(world.state):
        moved.restore(chunk)
    assert moved.state.tier.closed
    assert world.state.tier.change == change
    assert world.do(c.Close(False)).changed
    world.do(c.Mkdirs(world.session, 71, "/d"))


def test_a_detached_tier_leaves_no_mark() -> None:
    world = tiered()
    id_ = world.put("/a").number
    world.do(c.Mark())
    world.delete("/a")
    assert id_ in world.state.files
    world.do(c.DetachTier())
    assert world.state.marked is None
    assert id_ not in world.state.files
    check_counts(world.state)


# The horizon and the journal


def test_the_horizon_moves_forward_and_trims_the_journal() -> None:
    world = tiered()
    for n in range(4):
        world.put(f"/{n}")
    state, journal = world.state, world.state.journal
    assert journal is not None
    assert not journal.covers(state.tier.horizon_change), "its first round is whole"
    assert world.do(c.Horizon(1, 1, 3, 70, 900, 2)).changed
    assert (state.tier.horizon_op, state.tier.horizon_time_ms, state.tier.horizon_file) == (
        70, 900, 2,
    )  # fmt: skip
    assert journal.since == 3
    assert journal.covers(state.tier.horizon_change)
    for stale in (
        c.Horizon(1, 1, 5, 0, 0, 0),
        c.Horizon(0, 9, 5, 0, 0, 0),
        c.Horizon(1, 2, 2, 0, 0, 0),
        c.Horizon(1, 2, 6, 0, 0, 0),
    ):
        assert not world.do(stale).changed
    assert (state.tier.number, state.tier.horizon_change) == (1, 3)


def test_only_what_was_done_is_written_down_and_only_once() -> None:
    world = tiered()
    put = world.commit_of(inline_file("/a", b"secret bytes"))
    world.do(put)
    world.do(put)  # a repeat is answered and not run
    world.mkdirs("/d")
    world.mkdirs("/d")
    world.refusal(world.commit_of(inline_file("/a")))
    world.delete("/not/there")
    assert whats(world) == [j.Written(1, False, (("/a", 12, 0),)), c.Mkdirs(0, 0, "/d")]
    assert b"secret" not in b"".join(entries(world))


def test_a_name_that_the_state_chose_is_written_down() -> None:
    world = tiered()
    world.mkdirs("/d")
    world.snapshot("/d")
    (name,) = world.state.history.at("/d")
    assert whats(world)[-1] == c.CreateSnapshot(0, 0, ("/d",), name)


def test_whose_a_command_was_and_where_bytes_lie_is_not_written_down() -> None:
    world = tiered()
    stripe = world.stripe()
    world.put_in("/a", stripe)
    world.do(c.IssueToken("q", ("/a",), True, 0, "ann"))
    world.do(c.SetPolicy("/a", "durability", "memory", "ann"))
    assert whats(world) == [
        j.Written(1, True, (("/a", 100, 0),)),
        c.IssueToken("q", ("/a",), True, 0),
        c.SetPolicy("/a", "durability", "memory"),
    ]
    assert stripe.id.encode() not in b"".join(entries(world))


def test_a_journal_that_outgrows_its_limit_has_a_gap() -> None:
    world = tiered(bytes_max=1000)
    journal = world.state.journal
    assert journal is not None
    for n in range(100):
        world.put(f"/{n}")
        assert journal.bytes_used <= 1000
    assert not journal.covers(1)
    assert journal.covers(journal.since)
    left = journal.after(journal.since, upto=journal.last, limit=1000)
    assert [j.decode(entry).change for entry in left] == list(range(journal.since + 1, 102))
    assert journal.bytes_used == sum(len(entry) + j.ENTRY_BYTES for entry in left)


def test_a_long_journal_is_trimmed_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(j, "TRIM_AT_ONCE", 3)
    world = tiered()
    journal = world.state.journal
    assert journal is not None
    for n in range(20):
        world.put(f"/{n}")
    world.do(c.Horizon(1, 1, 15, 0, 0, 0))
    assert journal.since == 4
    assert journal.covers(15)
    for n in range(6):
        world.put(f"/x{n}")
    assert journal.since in (15, 16)
    while journal.last > journal.since:
        world.do(c.Horizon(1, world.state.tier.number + 1, journal.last, 0, 0, 0))
    assert journal.bytes_used == 0


def test_a_replica_that_got_its_state_by_transfer_has_written_nothing_down() -> None:
    machine = NamespaceMachine()
    commands: list[c.Command] = [
        c.AttachTier(URI, 1, 0),
        c.OpenSession(),
        c.Mkdirs(1, 1, "/a"),
        c.Mark(),
        c.Mkdirs(1, 2, "/b"),
    ]
    for op, command in enumerate(commands, 1):
        machine.apply(op, op, op, c.encode(command))
    assert machine.journal.covers(1)
    copy = NamespaceMachine()
    for chunk in machine.snapshot():
        copy.restore(chunk)
    assert dump(copy.state) == dump(machine.state)
    assert not copy.journal.covers(1)
    assert copy.journal.covers(copy.state.tier.change)
    copy.apply(9, 9, 9, c.encode(c.Mkdirs(1, 3, "/c")))
    assert [j.decode(entry).change for entry in copy.journal.after(3, upto=9, limit=9)] == [4]


# Replaying


def test_what_does_not_follow_is_not_replayed() -> None:
    world = tiered()
    world.put("/a")
    world.mkdirs("/d")
    first, second = map(j.decode, entries(world))
    empty = NamespaceState()
    empty.tier.change = 1
    replayer = Replayer(empty)
    with pytest.raises(Diverged, match="change 3 does not follow 1"):
        replayer.apply(second)
    replayer.apply(first)
    other = j.Entry(3, 1, 1, j.Written(9, False, (("/b", 1, 1),)))
    with pytest.raises(Diverged, match="file 9 does not follow 1"):
        replayer.apply(other)


def test_a_change_that_cannot_be_made_again_says_why() -> None:
    state = NamespaceState()
    with pytest.raises(Diverged, match="change 1, Rename: /a: no such file"):
        Replayer(state).apply(j.Entry(1, 1, 1, c.Rename(0, 0, "/a", "/b", False)))


def test_tokens_that_were_forgotten_by_a_refused_command_are_forgotten_again() -> None:
    world = tiered()
    for n in range(12):
        world.do(c.IssueToken(f"q{n}", ("/a",), True, 10))
    base = again(world)
    at = world.state.tier.change
    world.now_ms = 10**9
    world.do(c.IssueToken("kept", ("/a",), True, 0))
    (result,) = world.apply(c.IssueToken("kept", ("/b",), True, 0))
    assert isinstance(result, c.Refused)
    assert set(world.state.tokens.by_name) == {"kept"}
    world.do(c.IssueToken("q11", ("/b",), True, 0))
    replayer = Replayer(base)
    for entry in entries(world, at):
        replayer.apply(j.decode(entry))
    assert base.tokens.by_name == world.state.tokens.by_name


def test_a_replayed_put_is_cold_but_for_empty_files() -> None:
    world = tiered()
    world.put("/a", b"abc")
    world.put("/empty", b"")
    state = again(world)
    assert list(state.tier.cold.items()) == [(1, 3)]
    assert state.open("/empty")[0].inline == b""
    assert below(state.tree.root) == below(world.state.tree.root)
    check_counts(state)


# Cold files


def test_a_cold_file_is_opened_with_its_place_until_it_is_back_in_memory() -> None:
    world = tiered()
    id_ = world.put("/a", b"x" * 100).number
    assert answers.answer(world.state, q.Open("/a")).place is None, "its bytes are here"
    world.state = state = again(world)
    assert answers.answer(state, q.Open("/a")).place is None, "nobody said where it is"
    place_all(state)
    place = TierPlace("seg/7", 0, 1, 0)
    assert answers.answer(state, q.Open("/a")).place == place
    assert answers.answer(state, q.TierPlaces((id_, 99))) == [place, None]
    assert [answers.answer(state, q.TierParts(one)) for one in (id_, 99)] == [[place], []]
    assert state.tier.newest_cold(below=1 << 60, limit=9) == [id_]
    for slot in range(4):
        world.do(agent_up(slot))
    stripe = world.stripe(100)
    move = c.Move(id_, 0, (Extent(stripe.id, 0, 100),))
    assert world.do(c.Relocate((stripe,), (move,))) == c.Done(1)
    opened = answers.answer(state, q.Open("/a"))
    assert (opened.place, opened.stripes) == (None, [stripe])
    assert not state.tier.cold
    assert answers.answer(state, q.TierPlaces((id_,))) == [place], "it is still there too"
    check_counts(state)


def test_a_tier_is_not_detached_while_files_are_only_there() -> None:
    world = tiered()
    world.put("/a")
    world.state = again(world)
    with pytest.raises(BadRequest, match="1 files have their bytes in"):
        world.do(c.DetachTier())
    world.session = world.do(c.OpenSession()).number
    world.delete("/a")
    assert world.do(c.DetachTier()) == c.Done()


def test_cold_files_are_told_newest_first() -> None:
    world = tiered()
    for n in range(10):
        world.put(f"/{n}")
    state = again(world)
    assert state.tier.newest_cold(below=1 << 60, limit=3) == [10, 9, 8]
    assert state.tier.newest_cold(below=8, limit=3) == [7, 6, 5]


def test_the_state_of_the_tier_is_told_in_numbers() -> None:
    world = tiered()
    keep(world, 1, (world.put("/a", b"abc").number, 2))
    status = answers.answer(world.state, q.TierState())
    assert (status.attached, status.uri, status.epoch, status.change) == (True, URI, 1, 2)
    assert (status.files, status.live_bytes, status.segments) == (1, 2, 1)
    assert (status.cold_files, status.cold_bytes) == (0, 0)
    assert answers.answer(again(world), q.TierState()).cold_bytes == 3


# Marks


def test_a_mark_leaves_nothing_behind() -> None:
    world = World()
    for n in range(50):
        world.put(f"/d/{n % 5}/{n}")
    world.snapshot("/d", "s")
    before = dump(world.state, sessions=False)
    world.do(c.Mark())
    assert world.state.bytes_used > sum(before["weights"].values())
    assert world.do(c.Unmark()).changed
    assert dump(world.state, sessions=False) == before
    assert not world.do(c.Unmark()).changed


def test_what_only_a_mark_holds_is_swept_when_it_goes_and_not_before() -> None:
    world = World()
    for n in range(50):
        world.put(f"/d/{n % 5}/{n}")
    world.snapshot("/d", "s")
    world.do(c.Mark())
    world.delete("/d", recursive=True, snapshots=True)
    assert len(world.state.files) == 50
    assert not world.state.history
    check_counts(world.state)
    world.do(c.Unmark())
    while world.state.doomed:
        world.do(c.Sweep(10))
    assert not world.state.files
    check_counts(world.state)


def test_the_next_mark_takes_the_place_of_the_last() -> None:
    world = World()
    id_ = world.put("/a").number
    world.do(c.Mark())
    world.delete("/a")
    assert id_ in world.state.files
    world.do(c.Mark())
    assert id_ not in world.state.files
    world.do(c.Unmark())
    check_counts(world.state)


def test_a_picture_is_of_the_marked_moment_whatever_is_done_while_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(picture, "CHUNK_ROWS_MAX", 1)
    monkeypatch.setattr(picture, "TOKENS_PAGE", 1)
    world = tiered()
    for n in range(20):
        world.put(f"/d/{n % 5}/{n}")
        world.do(c.IssueToken(f"q{n}", ("/a",), True, 0))
    for name in "stu":  # each of which has something for itself
        world.put(f"/d/only-{name}/x")
        world.snapshot("/d", name)
        world.delete(f"/d/only-{name}", recursive=True)
    world.do(c.SetPolicy("/d", "durability", "sync"))
    world.do(c.Mark())
    before = facts(world.state)
    todo: list[c.Command] = [
        world.rename_snapshot_of("/d", "s", "renamed"),
        world.delete_snapshots_of("/d", "t"),
        c.RemovePolicy("/d", ""),
        c.RevokeToken("q3"),
        c.RevokeToken("q19"),
        c.RevokeToken("never issued"),
        c.IssueToken("q99", ("/a",), True, 0),
        world.delete_of("/d/1", recursive=True),
        world.rename_of("/d/2", "/e"),
        world.rollback_of("/d", "renamed"),
        world.delete_of("/d", recursive=True, snapshots=True),
        world.commit_of(inline_file("/d/3/new")),
    ]  # fmt: skip
    state = NamespaceState()
    painter = picture.Painter(state)
    for count, chunk in enumerate(picture.rows(world.state)):
        painter.take(chunk)
        if count % 3 == 0 and todo:
            world.do(todo.pop(0))
    assert not todo
    assert facts(state) == before
    check_counts(state)
    check_counts(world.state)


def test_files_that_several_share_are_told_once() -> None:
    world = World()
    ids = [world.put(f"/a/{n}").number for n in range(3)]
    world.clone("/a", "/b")
    world.put("/b/x")  # so that its leaf is another
    world.do(c.Mark())
    told = [row[0] for chunk in picture.rows(world.state) for row in picture.files_of(chunk)]
    assert sorted(told) == [*ids, 4]


def test_whoever_walks_a_mark_that_goes_is_told() -> None:
    world = World()
    with pytest.raises(picture.MarkGone):
        next(picture.rows(world.state))
    world.do(c.Mark())
    chunks = picture.rows(world.state)
    next(chunks)
    world.do(c.Mark())
    with pytest.raises(picture.MarkGone):
        next(chunks)


# What is not durable


def test_files_are_durable_that_any_durable_path_leads_to() -> None:
    world = tiered()
    world.do(c.SetPolicy("/tmp", "durability", "memory"))
    world.do(c.SetPolicy("/tmp/a/kept", "durability", "sync"))
    ids = {
        path: world.put(path).number
        for path in ("/x", "/d/y", "/tmp/1", "/tmp/a/2", "/tmp/a/kept/3", "/tmp/a/kept/b/4")
    }
    world.clone("/tmp/1", "/d/clone")
    world.snapshot("/tmp", "s")
    world.do(c.Mark())
    assert picture.has_memory(world.state)
    found_ = {id_ for some in picture.durable_files(world.state) for id_ in some}
    assert {path for path, id_ in ids.items() if id_ in found_} == ids.keys() - {"/tmp/a/2"}


def test_what_no_policy_speaks_of_asks_for_what_the_tier_was_attached_with() -> None:
    world = World()
    world.do(c.AttachTier(URI, 1, 0, options=TierOptions(durability="memory")))
    ids = [world.put(path).number for path in ("/a", "/d/b")]
    world.do(c.SetPolicy("/d", "durability", "async"))
    world.do(c.Mark())
    assert picture.has_memory(world.state)
    assert [id_ for some in picture.durable_files(world.state) for id_ in some] == ids[1:]


def test_with_no_path_that_asks_for_memory_all_files_are_durable() -> None:
    world = tiered()
    world.do(c.SetPolicy("/d", "durability", "sync"))
    world.do(c.Mark())
    assert not picture.has_memory(world.state)


def test_what_the_tier_has_not_is_absent_after_a_restore_also_in_snapshots() -> None:
    world = tiered()
    world.do(c.SetPolicy("/tmp", "durability", policy.MEMORY))
    gone = [world.put(f"/tmp/{n}/{n}").number for n in range(4)]
    world.put("/d/x")
    world.snapshot("/", "s")
    world.snapshot("/d", "t")
    world.put("/tmp/late")
    state = again(world)
    place_all(state)
    for id_ in [*gone, 6]:
        state.tier.forget(id_)
    times = {path: what for path, what in below(state.tree.root).items() if isinstance(what, int)}
    change = state.tier.change
    assert found(state, uri=URI, epoch=2, number=5, rewound=False) == 9
    assert state.tier.horizon_change == change
    assert state.tier.change == change + 1, "so that the next manifest is whole"
    assert "/d/x" in below(state.tree.root)
    assert not any("/tmp/" in path and "x" in path for path in below(state.tree.root))
    assert below(state.tree.root).items() >= times.items(), "nobody has changed directories"
    (kept, other) = state.history.by_id.values()
    assert [path for path, what in below(kept.root).items() if isinstance(what, tuple)] == ["/d/x"]
    assert len(state.files) == 1
    assert found(state, uri=URI, epoch=3, number=6, rewound=False) == 0
    assert state.tier.horizon_change == state.tier.change
    check_counts(state)
    assert other.root is state.tree.find("/d"), "what is whole stays shared"


def test_a_new_cluster_begins_with_numbers_of_its_own() -> None:
    world = tiered()
    world.put("/a")
    for rewound in (False, True):
        state = again(world)
        place_all(state)
        found(state, uri=URI, epoch=3, number=8, rewound=rewound)
        tier_ = state.tier
        assert (tier_.uri, tier_.epoch, tier_.number) == (URI, 3, 8)
        assert tier_.change - tier_.horizon_change == rewound, "then the next one is whole"
        other = World.__new__(World)
        other.state, other.now_ms, other.elapsed_ms = state, 1000, 0
        assert other.do(c.OpenSession()).number == (3 << 48) + 1
        other.session, other._sequence = (3 << 48) + 1, 0
        assert other.put("/b").number == (3 << 40) + 1
        assert tier_.horizon_file == 3 << 40
        check_counts(state)
