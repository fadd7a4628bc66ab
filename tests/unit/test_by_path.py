"""Quotas, and grades of parity and priority: against a count from scratch, and as rules."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless import policy
from diskless.errors import BadRequest, CapacityExceeded, StaleShards
from diskless.model import DrillStatus, Extent, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace import grading, quotas
from diskless.namespace import snapshot as s
from diskless.namespace.replay import Replayer, found
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import File, size_of
from tests.unit.recount import check_plan, cluster_of, counted, recount
from tests.unit.test_namespace_world import World, agent_up, check_counts, dump, file_in, walk

K = 2


def graded(agents: int = 6) -> World:
    """A world that knows the cluster's k."""
    world = World(0)
    world.state = NamespaceState(parity_shards=K)
    for slot in range(agents):
        world.do(agent_up(slot))
    world.session = world.do(c.OpenSession()).number
    return world


def stripe(world: World, m: int, k: int, size: int = 100) -> Stripe:
    world._counter += 1
    places = tuple(Place(slot, 1) for slot in range(m + k))
    return Stripe(f"0.1.{world._counter}", m, k, size, places)


def ask(world: World, path: str, key: str, value: str) -> None:
    world.do(c.SetPolicy(path, key, value))


def copy_of(state: NamespaceState) -> NamespaceState:
    other = NamespaceState(parity_shards=state.parity_shards)
    restorer = s.Restorer(other)
    for chunk in s.snapshot(state):
        restorer.take(chunk)
    return other


# Grades.


def test_a_grade_tells_its_priority_and_its_parity_and_nothing_asked_for_is_0() -> None:
    assert policy.grade() == policy.GRADE_DEFAULT == 0
    for priority, parity in product(range(10), (None, *range(9))):
        made = policy.grade(priority, parity)
        assert policy.priority_of(made) == priority
        for k in range(1, 9):
            assert policy.parity_of(made, k) == (k if parity is None else min(parity, k))


grades = st.builds(policy.grade, st.integers(0, 9), st.none() | st.integers(0, 8))


@given(grades, grades)
def test_the_highest_of_two_grades_is_at_least_both(one: int, other: int) -> None:
    both = policy.highest(one, other)
    assert both == policy.highest(other, one)
    assert policy.priority_of(both) == max(map(policy.priority_of, (one, other)))
    assert policy.parity_of(both, 9) == max(policy.parity_of(g, 9) for g in (one, other))
    moved = policy.with_priority(both, 3)
    assert (policy.priority_of(moved), policy.parity_of(moved, 9)) == (
        3,
        policy.parity_of(both, 9),
    )


names = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "/" + "/".join(parts))
asked = st.fixed_dictionaries(
    {},
    optional={
        policy.PRIORITY: st.integers(0, 9).map(str),
        policy.PARITY: st.integers(0, 3).map(str),
        policy.QUOTA: st.just("1MiB"),
    },
)


@given(st.dictionaries(names, asked), names)
def test_grades_are_what_policies_say_of_each_key_by_itself(
    table: dict[str, dict[str, str]], path: str
) -> None:
    priority = policy.effective(table, path, policy.PRIORITY, default="5").value
    parity = policy.effective(table, path, policy.PARITY, default="").value
    expected = policy.grade(int(priority), int(parity) if parity else None)
    made = policy.Grades.of(table)
    assert made.at(path) == expected
    assert policy.Grades(made.rows).at(path) == expected
    assert expected in made.within(path)
    assert made.within(path) <= made.within("/")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("parity", "3", r"^/a: parity=3 is more than the cluster's k, which is 2$"),
        ("parity", "9", "0 to the cluster's k"),
        ("parity", "-1", "0 to the cluster's k"),
        ("parity", "01", "0 to the cluster's k"),
        ("priority", "10", "it is 0 to 9"),
        ("priority", "high", "it is 0 to 9"),
        ("quota", "0", "a size such as 10GiB"),
        ("quota", "much", "a size such as 10GiB"),
    ],
)
def test_values_that_there_are_not_are_refused(key: str, value: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        ask(graded(), "/a", key, value)


def test_a_stripe_of_too_little_parity_for_a_path_is_refused_for_now() -> None:
    world = graded()
    ask(world, "/one", "parity", "1")
    ask(world, "/none", "parity", "0")
    for path, least in (("/all", 2), ("/one", 1), ("/none", 0)):
        for k in range(3):
            made = stripe(world, 2 if k else 1, k)
            put = world.commit_of(file_in(f"{path}/{k}", Extent(made.id, 0, 100)), stripes=[made])
            if k < least:
                assert world.refusal(put) is StaleShards
            else:
                world.do(put)
    check_counts(world.state)


def test_a_stripe_without_parity_has_one_shard() -> None:
    world = graded()
    ask(world, "/", "parity", "0")
    wide = stripe(world, 2, 0)
    put = world.commit_of(file_in("/a", Extent(wide.id, 0, 100)), stripes=[wide])
    assert world.refusal(put) is BadRequest


def test_the_margin_of_one_class_says_nothing_of_another() -> None:
    world = graded()
    ask(world, "/one", "parity", "1")
    ask(world, "/none", "parity", "0")
    for path, k in (("/all", 2), ("/one", 1), ("/none", 0)):
        world.put_in(path + "/f", stripe(world, 2 if k else 1, k))
    world.do(c.AgentDown(0, 1))
    tally = world.state.health.tally()
    assert [tally.margin_of(k) for k in (2, 1, 0)] == [1, 0, -1]
    assert tally.margin(K) == 1
    assert tally.standings == {"total": 3, "healthy": 0, "degraded": 2, "lost": 1}
    world.do(c.AgentDown(1, 1))
    assert [world.state.health.tally().margin_of(k) for k in (2, 1, 0)] == [0, -1, -1]
    check_plan(world.state.ledger, cluster_of(world.state.agents, data_shards=2, parity_shards=K))


def test_what_is_moved_to_where_more_is_asked_for_is_thin_until_it_is_written_anew() -> None:
    world = graded()
    ask(world, "/scratch", "parity", "0")
    ask(world, "/kept", "priority", "9")
    world.mkdirs("/kept")
    bare = stripe(world, 1, 0)
    id_ = world.put_in("/scratch/f", bare)
    world.rename("/scratch/f", "/scratch/g")
    assert not world.state.thin
    world.rename("/scratch/g", "/kept/f")
    assert list(world.state.thin) == list(copy_of(world.state).thin) == [id_]
    record = world.state.files[id_].record
    assert record.grade == policy.grade(9)
    assert world.state.ledger.entries[bare.id].priority == 9
    better = stripe(world, 2, 2)
    move = c.Move(id_, record.layout, (Extent(better.id, 0, 100),))
    assert world.do(c.Relocate((better,), (move,))).number == 1
    assert not world.state.thin
    world.mkdirs("/scratch")
    world.rename("/kept/f", "/scratch/f")
    assert policy.parity_of(world.state.files[id_].record.grade, K) == 2, "it keeps what it has"
    check_counts(world.state)


def test_a_clone_where_more_is_asked_for_makes_the_one_file_better_for_both() -> None:
    world = graded()
    ask(world, "/scratch", "parity", "1")
    id_ = world.put_in("/scratch/tree/f", stripe(world, 2, 1))
    world.clone("/scratch/tree", "/copy")
    assert list(world.state.thin) == [id_]
    world.delete("/copy", recursive=True)
    world.delete("/scratch", recursive=True)
    assert not world.state.thin


def swapped(world: World, path: str, source: str) -> c.Replace:
    world.snapshot(path, "before")
    return c.Replace(world.session, world.next_sequence(), (c.Swap(path, source, "before"),))


def test_what_is_put_in_the_place_of_another_gets_what_is_asked_for_there() -> None:
    world = graded()
    ask(world, "/scratch", "parity", "0")
    world.put("/kept/f")
    id_ = world.put_in("/scratch/draft/f", stripe(world, 1, 0))
    world.do(swapped(world, "/kept", "/scratch/draft"))
    assert list(world.state.thin) == list(copy_of(world.state).thin) == [id_]


def test_what_is_put_in_the_place_of_another_counts_for_the_quota_there() -> None:
    world = World()
    ask(world, "/q", "quota", "20B")
    world.put("/q/tree/f", b"x" * 8)
    for size, refused in ((13, True), (12, False)):
        world.put(f"/draft-{size}/f", b"y" * size)
        command = swapped(world, "/q/tree", f"/draft-{size}")
        (result,) = world.apply(command)
        assert isinstance(result, c.Refused) is refused
        world.do(c.DeleteSnapshots(world.session, world.next_sequence(), "/q/tree", ("before",)))
    assert quotas.used(world.state, "/q") == 12


def test_a_large_directory_is_not_moved_to_where_more_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grading, "REGRADED_MAX", 4)
    world = graded()
    ask(world, "/scratch", "parity", "0")
    for n in range(4):
        world.put_in(f"/scratch/tree/{n}", stripe(world, 1, 0))
    with pytest.raises(BadRequest, match=r"has 4 files, some with parity=0, and /tree asks for"):
        world.rename("/scratch/tree", "/tree")
    with pytest.raises(BadRequest, match="move them in parts"):
        world.clone("/scratch/tree", "/tree")
    world.rename("/scratch/tree", "/scratch/wood")
    world.rename("/scratch/wood/0", "/0")
    world.rename("/scratch/wood", "/wood")
    assert len(world.state.thin) == 4


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_repair_goes_by_priority_then_parity_then_margin(data: st.DataObject) -> None:
    world = graded()
    for n in range(data.draw(st.integers(1, 12))):
        priority, k = data.draw(st.integers(0, 9)), data.draw(st.integers(0, K))
        ask(world, f"/{n}", "priority", str(priority))
        ask(world, f"/{n}", "parity", str(k))
        world.put_in(f"/{n}/f", stripe(world, 2 if k else 1, k))
    for slot in data.draw(st.sets(st.integers(0, 5), max_size=3)):
        world.do(agent_up(slot, "another life"))
    state = world.state
    assert counted(state) == recount(state)
    cluster = cluster_of(state.agents, data_shards=2, parity_shards=K)
    check_plan(state.ledger, cluster)
    check_plan(copy_of(state).ledger, cluster)


def test_after_a_restore_files_have_the_grades_that_their_paths_ask_for_now() -> None:
    world = graded()
    world.do(c.AttachTier("file:///t", 1, 0))
    state = NamespaceState(parity_shards=1)
    replayer = Replayer(state)
    assert replayer.state.trusts
    for path in ("/first/a", "/first/b/c", "/usual", "/last"):
        node = state.tree.spot(path, overwrite=False)
        record = s.FileRecord(state.next_file(), 5, 1, 0, None)
        file, _ = state.tree.put(node, record, now_ms=1)
        state.take(file)
        state.tier.add_segment(1, "segment", 100)
        state.tier.keep(record.id, quotas_place())
    for path, key, value in (
        ("/first", "priority", "9"),
        ("/last", "priority", "1"),
        ("/first/b", "parity", "2"),  # more than this cluster has
    ):
        state.policies.set(path, key, value)
    found(state, uri="file:///t", epoch=2, number=1, rewound=False)
    assert not state.trusts
    ranks = {p: state.tier.newest_cold(priority=p, below=1 << 62, limit=9) for p in range(10)}
    assert {p: ids for p, ids in ranks.items() if ids} == {9: [2, 1], 5: [3], 1: [4]}
    assert policy.parity_of(state.files[2].record.grade, 1) == 1
    assert {p for p in range(10) if copy_of(state).tier.newest_cold(
        priority=p, below=1 << 62, limit=9)} == {9, 5, 1}  # fmt: skip


def quotas_place() -> "object":
    from diskless.namespace.tier import Kept

    return Kept(1, 0, 5, 0)


# Quotas.

PATHS = ["/a", "/a/b", "/a/b/f", "/a/g", "/c", "/c/f", "/c/d/f"]
DIRECTORIES = ["/", "/a", "/a/b", "/c", "/c/d"]
paths_ = st.sampled_from(PATHS)
things = st.sampled_from(["/a/b", "/a/b/f", "/a/g", "/c", "/c/f", "/a/n", "/c/n", "/n"])
sizes = st.integers(0, 40)


def used_by_walking(state: NamespaceState, path: str) -> int:
    node = state.tree.find(path)
    size = 0
    if node is not None:
        size = size_of(node) if isinstance(node, File) else sum(
            thing.record.size for _, thing in walk(node) if isinstance(thing, File)
        )  # fmt: skip
    above = path.rstrip("/") + "/"
    for snapshot in state.history.by_id.values():
        if snapshot.path == path or (snapshot.path + "/").startswith(above):
            size += sum(t.record.size for _, t in walk(snapshot.root) if isinstance(t, File))
    return size


commands = st.one_of(
    st.tuples(st.just("put"), paths_, sizes),
    st.tuples(st.just("put two"), paths_, sizes),
    st.tuples(st.just("rename"), things, things),
    st.tuples(st.just("delete"), things, st.none()),
    st.tuples(st.just("clone"), things, things),
    st.tuples(st.just("snapshot"), st.sampled_from(["/a", "/c"]), st.just("x")),
    st.tuples(st.just("forget"), st.sampled_from(["/a", "/c"]), st.just("x")),
    st.tuples(st.just("rollback"), st.sampled_from(["/a", "/c"]), st.just("x")),
    st.tuples(st.just("quota"), st.sampled_from(DIRECTORIES), st.integers(1, 100)),
    st.tuples(st.just("no quota"), st.sampled_from(DIRECTORIES), st.none()),
)
BEGINNING = [("put", "/a/b/f", 30), ("put", "/a/g", 10), ("put", "/c/f", 20), ("quota", "/a", 50)]


def command_of(world: World, what: str, one: str, other: object) -> c.Command:
    inline = lambda path, size: c.NewFile(path, size, 0, b"x" * size)  # noqa: E731
    match what:
        case "put":
            return world.commit_of(inline(one, other), overwrite=True)
        case "put two":
            files = inline(one + "1", other), inline(one + "2", other)
            return world.commit_of(*files, overwrite=True)
        case "rename":
            return world.rename_of(one, str(other), overwrite=True)
        case "delete":
            return world.delete_of(one, recursive=True)
        case "clone":
            return world.clone_of(one, str(other))
        case "snapshot":
            return world.snapshot_of(one, name=str(other))
        case "forget":
            return world.delete_snapshots_of(one, str(other))
        case "rollback":
            return world.rollback_of(one, str(other))
        case "quota":
            return c.SetPolicy(one, "quota", f"{other}B")
        case _:
            return c.RemovePolicy(one, "quota")


@settings(max_examples=150, deadline=None)
@given(st.lists(commands, min_size=10, max_size=25))
def test_quotas_hold_whatever_is_done_and_refuse_nothing_else(
    steps: list[tuple[str, str, object]],
) -> None:
    """Afterwards nothing holds more than its quota unless it did before, and then not more than
    it did; what is refused for a quota would have broken just that."""
    world = World()
    state = world.state
    for step in (*BEGINNING, *steps):
        limits = dict(state.policies.quotas)
        before = {path: used_by_walking(state, path) for path in limits}
        command = command_of(world, *step)
        twin = copy_of(state)
        (result,) = world.apply(command)
        for path in DIRECTORIES:
            assert quotas.used(state, path) == used_by_walking(state, path)
        if isinstance(result, c.Refused) and result.reason == CapacityExceeded.__name__:
            assert any(f"the quota of {path} is" in result.message for path in limits)
            assert dump(state, sessions=False) == dump(twin, sessions=False)
            for path in limits:
                twin.policies.remove(path, "quota")
            (freed,) = twin.apply(command, now_ms=world.now_ms, elapsed_ms=world.elapsed_ms)
            assert isinstance(freed, c.Done)
            after = {path: used_by_walking(twin, path) for path in limits}
            assert any(after[p] > max(limits[p], before[p]) for p in limits)
        else:
            after = {path: used_by_walking(state, path) for path in limits}
            assert all(after[p] <= max(limits[p], before[p]) for p in limits)
    twin = copy_of(state)
    for path in DIRECTORIES:
        assert quotas.used(twin, path) == quotas.used(state, path)


def test_what_frees_as_much_as_it_brings_is_not_refused_by_a_full_quota() -> None:
    world = World()
    ask(world, "/q", "quota", "10B")
    world.put("/q/a", b"x" * 6)
    world.put("/q/b", b"x" * 4)
    world.put("/c", b"x" * 6)
    world.put("/q/a", b"y" * 6, overwrite=True)
    world.rename("/c", "/q/a", overwrite=True)
    world.rename("/q/b", "/q/d")
    with pytest.raises(CapacityExceeded, match=r"^/q/e: the quota of /q is 10 B, it holds 10 B"):
        world.put("/q/e", b"x")
    world.put("/q/e", b"")
    ask(world, "/q", "quota", "5B")
    world.delete("/q/d")
    world.put("/q/a", b"x" * 5, overwrite=True)


def test_the_last_drill_is_part_of_what_a_new_voter_is_told() -> None:
    world = World()
    told = c.Drilled(DrillStatus(sound=False, problem="x" * 1000, number=7), "ann")
    assert world.refusal(told) is BadRequest
    world.do(c.AttachTier("file:///t", 1, 0))
    world.do(told)
    known = world.state.tier.drill
    assert known is not None
    assert (known.number, known.time_ms, len(known.problem)) == (7, world.now_ms, 500)
    assert copy_of(world.state).tier.drill == known


def test_what_was_allowed_once_is_not_refused_when_it_is_made_again() -> None:
    """A restore makes changes again in a cluster of another k, and with no quota in their way."""
    state = NamespaceState(parity_shards=1)
    replayer = Replayer(state)
    replayer._make(c.SetPolicy("/a", "parity", "2"))
    replayer._make(c.SetPolicy("/a", "quota", "1B"))
    spot = state.tree.spot("/b", overwrite=False)
    state.tree.put(spot, s.FileRecord(state.next_file(), 50, 1, 0, None), now_ms=1)
    replayer._make(c.Mkdirs(0, 0, "/a"))
    replayer._make(c.Rename(0, 0, "/b", "/a/b", False))
    assert quotas.used(state, "/a") == 50
    assert Counter(state.policies.quotas) == {"/a": 1}
