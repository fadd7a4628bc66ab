"""What leaves memory first: the order, the marks, and what a walk over all files finds."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless import eviction, policy
from diskless.agent.leading.evictor import EVICT_FILES, HOLD_S, Evictor
from diskless.agent.ports import Pulse
from diskless.errors import BadRequest, MemoryFull
from diskless.eviction import Candidate, Standing, Wishes
from diskless.model import Extent
from diskless.namespace import census as walks
from diskless.namespace import commands as c
from diskless.namespace.behind import pieces_behind
from diskless.namespace.census import Census, census, is_still_there
from tests.unit.test_namespace_world import World, agent_up, check_counts, inline_file
from tests.unit.test_tier_state import URI, keep

names = st.builds(
    lambda number, kind: f"{number}{kind}",
    st.integers(0, 60),
    st.sampled_from(["", ".delta", ".snapshot", ".zip", ".changelog", ".compact", "_ab-1.zip"]),
)
candidates = st.lists(
    st.builds(
        Candidate, st.integers(0, 2), st.sampled_from(Standing), st.integers(1, 99),
        st.integers(1, 1000), st.just(0), st.just("/x"),
    ),
    max_size=20, unique_by=lambda one: one.id,
)  # fmt: skip


# Names


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("12", 12), ("12.delta", 12), ("12.snapshot", 12), ("12.zip", 12), ("7.compact", 7),
        ("12_3f-aa.changelog", 12), ("metadata", None), ("0000-1.sst", None), (".12.crc", None),
        ("", None),
    ],
)  # fmt: skip
def test_files_are_named_after_batches(name: str, batch: int | None) -> None:
    assert eviction.batch_of(name) == batch


@given(st.lists(names, unique=True), st.integers(0, 60), st.integers(1, 5))
def test_the_newest_batches_and_all_that_they_build_on_are_needed(
    found: list[str], newest: int, keep_: int
) -> None:
    first = eviction.first_needed(found, newest=newest, keep=keep_)
    assert first <= max(newest - keep_ + 1, 0) or first == newest - keep_ + 1
    chained = any(name.endswith((".delta", ".changelog", ".compact")) for name in found)
    full = [
        eviction.batch_of(name) or 0
        for name in found
        if name.endswith((".snapshot", ".zip", ".compact"))
    ]
    if chained and first > 0:
        assert first in full, "a chain begins with something whole"
    for name in found:
        standing = eviction.standing_of(name, first)
        number = eviction.batch_of(name)
        assert number is not None
        if number > newest - keep_:
            assert standing is Standing.RECENT


def test_what_is_of_no_checkpoint_or_of_no_batch_is_plain() -> None:
    assert eviction.standing_of("12.delta", None) is Standing.PLAIN
    assert eviction.standing_of("0a.sst", 7) is Standing.PLAIN


# The order, and how much


@given(candidates, st.integers(0, 5000))
def test_the_least_needed_go_first_and_no_more_than_enough(
    found: list[Candidate], stored_bytes: int
) -> None:
    found = sorted(found)
    rest = iter(found)
    chosen = eviction.choose(rest, stored_bytes=stored_bytes, per_byte=1.5, files_max=99)
    left = set(rest)
    assert left == set(found) - set(chosen), "none was taken and not used"
    assert not chosen or not left or max(chosen) < min(left)
    freed = sum(1.5 * one.size for one in chosen)
    assert freed >= stored_bytes or not left
    assert not chosen or freed - 1.5 * chosen[-1].size < stored_bytes


def test_what_has_a_higher_priority_stays_however_old_it_is() -> None:
    old = Candidate(1, Standing.OLD, 1, 1, 0, "/a")
    recent = Candidate(0, Standing.RECENT, 2, 1, 0, "/b")
    assert sorted([old, recent]) == [recent, old]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.just(100)), min_size=1),
    st.integers(0, 300), st.booleans(),
)  # fmt: skip
def test_between_the_marks_nothing_begins_and_what_has_begun_goes_on(
    agents: list[tuple[int, int]], freed: int, evicting: bool
) -> None:
    used, most = map(list, zip(*agents, strict=True))
    due = eviction.bytes_to_free(lasting=used, bytes_max=most, freed_bytes=freed, evicting=evicting)
    fullest = max(used) / 100
    if fullest <= eviction.LOW_SHARE or (fullest <= eviction.HIGH_SHARE and not evicting):
        assert due == 0
    else:
        assert due == max(round((fullest - eviction.LOW_SHARE) * sum(most)) - freed, 0)


def test_files_come_back_only_to_where_they_need_not_leave_again() -> None:
    assert eviction.HYDRATE_SHARE < eviction.LOW_SHARE < eviction.HIGH_SHARE < 7 / 8


# Policies


def test_priorities_are_what_policies_say_now() -> None:
    priority = eviction.priorities({"/a": {policy.PRIORITY: "9"}, "/a/b": {policy.PRIORITY: "1"}})
    assert [priority(path) for path in ("/a/x", "/a/b/x", "/x")] == [9, 1, 5]


def test_wishes_are_inherited() -> None:
    table = {"/": {policy.PIN: "yes"}, "/a": {policy.KEEP_IN_MEMORY: "3"}, "/a/b": {"pin": "no"}}
    assert eviction.wishes(table, "/x") == Wishes(True, None)
    assert eviction.wishes(table, "/a/b/c") == Wishes(False, 3)


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "01", "1.5", "9" * 30, "²"])
def test_batches_to_keep_are_counted(value: str) -> None:
    with pytest.raises(BadRequest, match="a number of batches from 1"):
        policy.check(policy.KEEP_IN_MEMORY, value)


def test_good_wishes_are_taken() -> None:
    policy.check(policy.KEEP_IN_MEMORY, "100")
    policy.check(policy.PIN, "yes")
    with pytest.raises(BadRequest, match="yes, no"):
        policy.check(policy.PIN, "maybe")


# A walk over all files


def tiered() -> World:
    world = World()
    world.do(c.AttachTier(URI, 1, 0))
    for slot in range(4):
        world.do(agent_up(slot))
    return world


def put(world: World, path: str) -> int:
    return world.put_in(path, world.stripe())


def settle(world: World) -> None:
    """All that there is is in the tier, within the horizon."""
    tier = world.state.tier
    lacking = [id_ for id_ in world.state.files if id_ not in tier.places]
    keep(world, tier.last_segment + 1, *((id_, 1) for id_ in lacking))
    world.do(c.Horizon(1, tier.number + 1, tier.change, 0, 0, world.state.last_file))


def walked(
    world: World, meanwhile: Callable[[], object] = lambda: None, aside: Collection[int] = ()
) -> Census:
    steps = census(world.state, lambda path: 0, aside)
    while True:
        try:
            next(steps)
            meanwhile()
        except StopIteration as end:
            found: Census = end.value
            return found


def by_path(found: list[Candidate]) -> dict[str, Standing]:
    return {one.path: one.standing for one in found}


def checkpoint(world: World, batches: int, path: str = "/q") -> None:
    for batch in range(batches):
        world.put(f"{path}/offsets/{batch}")
        put(world, f"{path}/state/0/0/{batch + 1}.delta")
        world.put(f"{path}/commits/{batch}")
    put(world, f"{path}/state/0/0/4.snapshot")


def test_old_batches_go_before_what_is_nobodys_and_that_before_what_recovery_needs() -> None:
    world = tiered()
    checkpoint(world, 8)
    put(world, "/plain")
    settle(world)
    found = walked(world)
    standings = by_path(found.candidates)
    assert standings["/plain"] is Standing.PLAIN
    for number in range(1, 9):
        needed = Standing.RECENT if number >= 4 else Standing.OLD
        assert standings[f"/q/state/0/0/{number}.delta"] is needed
    assert "/q/offsets/0" not in standings, "it travels with the namespace"
    assert [one.standing for one in found.candidates] == sorted(standings.values())
    assert not found.surplus


def test_what_a_policy_keeps_is_no_candidate_and_the_rest_goes_in_any_case() -> None:
    world = tiered()
    checkpoint(world, 8)
    world.do(c.SetPolicy("/q", policy.KEEP_IN_MEMORY, "1"))
    settle(world)
    found = walked(world)
    assert not found.candidates
    assert sorted(by_path(found.surplus)) == [f"/q/state/0/0/{n}.delta" for n in (1, 2, 3)]


@pytest.mark.parametrize("committed", [0, 1])
def test_a_query_in_its_first_batches_is_one_that_may_have_to_recover(committed: int) -> None:
    """Batch 0 is a batch: before its commit nothing is older than its plan, and after it batch 1
    builds on its state."""
    world = tiered()
    checkpoint(world, committed)
    world.put(f"/q/offsets/{committed}")
    world.mkdirs("/q/commits")
    put(world, f"/q/state/0/0/{committed + 1}.delta")
    settle(world)
    recent = {Standing.RECENT}
    assert set(by_path(walked(world).candidates).values()) == recent
    world.do(c.SetPolicy("/q", policy.KEEP_IN_MEMORY, "1"))
    settle(world)
    found = walked(world)
    assert not found.candidates
    assert not found.surplus


class Leading:
    """What an evictor knows of the leader: a replica, a hydrator and a drainer that are well."""

    is_trusted = True
    superseded = None
    shunned = ()

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = world.state
        self.evicted: list[tuple[tuple[int, int], ...]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.hurried, self.work = False, asyncio.Event()

    async def execute(self, command: c.Evict) -> tuple[c.Result, ...]:
        self.evicted.append(command.files)
        self.meanwhile()
        return self.world.apply(command)

    def want(self, ids: Collection[int]) -> None: ...
    def shun(self, ids: Collection[int]) -> None: ...
    def welcome(self, ids: Collection[int]) -> None: ...


def test_what_is_to_go_in_any_case_is_looked_at_again_right_before_it_goes() -> None:
    """Not all of it at once: there may be tens of thousands of files."""
    world = tiered()
    for batch in range(2 * EVICT_FILES):
        put(world, f"/q/state/0/0/{batch}.zip")
    checkpoint(world, 1)
    newest = 3 * EVICT_FILES
    world.put(f"/q/commits/{newest}")
    world.do(c.SetPolicy("/q", policy.KEEP_IN_MEMORY, "1"))
    settle(world)
    leading = Leading(world)
    path = f"/q/state/0/0/{2 * EVICT_FILES - 2}.zip"  # the last of them
    last = world.state.tree.find(path).record.id
    leading.meanwhile = lambda: world.delete(path) if len(leading.evicted) == 1 else None
    asyncio.run(evictor_of(leading).look())
    gone = [id_ for part in leading.evicted for id_, _ in part]
    assert len(gone) >= 2 * EVICT_FILES - 2
    assert all(0 < len(part) <= EVICT_FILES for part in leading.evicted)
    assert last not in gone


def pulse(lasting: int, bytes_max: int = 100) -> Pulse:
    return Pulse("boot", 0, 0, {"shards": lasting}, bytes_max, 0, 0, ())


def evictor_of(leading: Leading, *pulses: Pulse) -> Evictor:
    return Evictor(
        replica=leading, drainer=leading, backlog=leading, hydrator=leading,
        pulses=dict(enumerate(pulses)), per_byte=1.5, now_s=lambda: 0.0,
    )  # fmt: skip


@pytest.mark.parametrize("why", ["silent", "empty", ""])
def test_nothing_is_evicted_while_the_tier_could_not_give_it_back(why: str) -> None:
    world = tiered()
    put(world, "/a")
    settle(world)
    leading = Leading(world)
    leading.is_trusted = why != "silent"
    asyncio.run(evictor_of(leading, pulse(50 if why == "empty" else 99)).look())
    assert bool(leading.evicted) is (why == "")


@pytest.mark.parametrize("hope", ["the drain", "what is freed", "packing", ""])
def test_memory_is_stuck_when_nothing_is_left_that_could_make_room(hope: str) -> None:
    world = tiered()
    for path in ("/a", "/b", "/c"):
        world.put_in(path, world.stripe(1000))
    world.do(c.SetPolicy("/", policy.PIN, "yes"))
    if hope == "what is freed":
        world.put_in("/large", world.stripe(100_000))  # so that nothing is worth packing
        world.delete("/a")
    elif hope == "packing":
        stripe = world.stripe(3000)
        half = c.NewFile("/half", 1000, 0, None, (Extent(stripe.id, 0, 1000),))
        rest = c.NewFile("/rest", 2000, 0, None, (Extent(stripe.id, 1000, 2000),))
        world.do(c.Commit((stripe,), (world.put_of(half, rest),)))
        world.delete("/rest")
    settle(world)
    if hope == "the drain":
        world.put("/new")
    evictor = evictor_of(Leading(world), pulse(99_000, 100_000))
    asyncio.run(evictor.look())
    assert evictor.helps() is bool(hope)


def test_a_put_into_a_full_namespace_waits_for_eviction_and_not_for_ever() -> None:
    world = tiered()
    put(world, "/a")
    now_s = 0.0
    evictor = evictor_of(Leading(world))
    evictor._now_s = lambda: now_s
    commit, delete = world.commit_of(world.put_of(inline_file("/b"))), world.delete_of("/a")

    async def check() -> None:
        nonlocal now_s
        assert evictor.before(commit) is None, "there is no limit"
        world.state.bytes_max = world.state.bytes_used + 1
        assert evictor.before(commit) is None, "nobody makes room"
        evictor.evicting = True
        assert evictor.before(delete) is None
        waits = [asyncio.ensure_future(evictor.before(commit)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not waits[0].done()
        world.state.bytes_max *= 100
        await asyncio.wait_for(waits[0], timeout=10)
        world.state.bytes_max //= 100
        held = asyncio.ensure_future(evictor.before(commit))
        await asyncio.sleep(0)
        now_s += HOLD_S
        with pytest.raises(MemoryFull):
            await asyncio.wait_for(held, timeout=10)
        await asyncio.wait(waits)

    asyncio.run(check())


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_was_moved_since_it_was_chosen_is_not_evicted(moved: bool) -> None:
    """Whoever moved it has freed what it lay in, and counts on where it lies now."""
    world = tiered()
    id_ = put(world, "/a")
    settle(world)
    if moved:
        stripe = world.stripe()
        extents = (Extent(stripe.id, 0, world.state.files[id_].record.size),)
        world.do(c.Relocate((stripe,), (c.Move(id_, 0, extents),)))
    before = world.state.files[id_].record
    assert world.do(c.Evict(((id_, 0),))).changed is not moved
    assert (world.state.files[id_].record == before) is moved
    assert (id_ in world.state.tier.evicted) is not moved


def test_pinned_files_stay_by_whichever_path_and_are_wanted_if_they_are_gone() -> None:
    world = tiered()
    ids = {path: put(world, path) for path in ("/a/x", "/a/y", "/b")}
    world.clone("/a", "/c")
    world.do(c.SetPolicy("/c/x", policy.PIN, "yes"))
    settle(world)
    assert {one.id for one in walked(world).candidates} == {ids["/a/y"], ids["/b"]}
    world.do(c.Evict(((ids["/a/x"], 0), (ids["/b"], 0))))
    found = walked(world)
    assert found.wanted == [ids["/a/x"]]
    assert {one.id for one in found.candidates} == {ids["/a/y"]}


def test_what_only_snapshots_show_goes_first() -> None:
    world = tiered()
    ids = {path: put(world, path) for path in ("/d/kept", "/d/gone", "/d/old")}
    world.snapshot("/d", "s")
    world.delete("/d/gone")
    ids["new"] = put(world, "/d/new")
    settle(world)
    found = walked(world).candidates
    assert (found[0].id, found[0].standing) == (ids["/d/gone"], Standing.ALONE)
    assert {one.id for one in found[1:]} == {ids["/d/kept"], ids["/d/old"], ids["new"]}


def test_what_only_snapshots_by_policy_show_goes_in_any_case_where_they_are_to_be_in_the_tier() -> (
    None
):
    world = tiered()
    world.do(c.SetPolicy("/", policy.HISTORY_IN, policy.TIER))
    world.do(c.SetPolicy("/here", policy.HISTORY_IN, policy.MEMORY))
    ids = {}
    for top in ("/there", "/here"):
        for name in ("live", "both", "alone"):
            ids[top, name] = put(world, f"{top}/{name}")
        world.snapshot(top, "history-1-batch-1")
        world.delete(f"{top}/alone")
        world.snapshot(top, "by-hand")
        world.delete(f"{top}/both")
    settle(world)
    found = walked(world)
    assert {one.id for one in found.surplus} == {ids["/there", "alone"]}
    assert {one.id for one in found.candidates} == {*ids.values()} - {ids["/there", "alone"]}


def test_what_was_set_aside_is_needed_again_after_a_rollback() -> None:
    world = tiered()
    world.do(c.SetPolicy("/q", policy.KEEP_IN_MEMORY, "1"))
    checkpoint(world, 3)
    world.snapshot("/q", "s")
    for batch in (8, 9):
        world.put(f"/q/commits/{batch}")
    put(world, "/q/state/0/0/9.snapshot")
    settle(world)
    gone = walked(world).surplus
    assert sorted(by_path(gone)) == [
        *(f"/q/state/0/0/{n}.delta" for n in (1, 2, 3)), "/q/state/0/0/4.snapshot",
    ]  # fmt: skip
    ids = [one.id for one in gone]
    world.do(c.Evict(tuple((id_, 0) for id_ in ids)))
    assert not walked(world, aside=ids).needed
    world.rollback("/q", "s")
    found = walked(world, aside=ids)
    assert sorted(found.needed) == sorted(ids)
    assert sorted(found.wanted) == sorted(ids), "they are of the batches that are kept"


def test_history_is_kept_in_a_tier_only_where_there_is_one() -> None:
    world = World()
    with pytest.raises(BadRequest, match="needs a durable tier"):
        world.do(c.SetPolicy("/q", policy.HISTORY_IN, policy.TIER))
    assert world.do(c.SetPolicy("/q", policy.HISTORY_IN, policy.MEMORY)).changed


def test_only_what_is_within_the_horizon_is_a_candidate() -> None:
    world = tiered()
    put(world, "/safe")
    settle(world)
    put(world, "/new")
    late = put(world, "/kept-and-not-announced")
    keep(world, 9, (late, 1))
    assert by_path(walked(world).candidates) == {"/safe": Standing.PLAIN}


def test_a_walk_goes_on_while_everything_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "STRETCH_STEPS", 3)
    world = tiered()
    for number in range(120):
        put(world, f"/d/{number % 7}/{number}")
    world.snapshot("/d", "s")
    settle(world)
    todo: list[Callable[[], Any]] = [
        lambda: world.delete("/d/3", recursive=True),
        lambda: world.rename("/d/4", "/e"),
        lambda: [put(world, f"/d/5/new-{n}") for n in range(200)],
    ]
    found = walked(world, lambda: todo.pop()() if todo else None)
    assert not todo
    assert found.candidates
    for one in found.candidates:
        if is_still_there(world.state, one):
            assert world.do(c.Evict(((one.id, one.layout),))) == c.Done(1)


def test_no_more_candidates_are_remembered_than_would_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walks, "CANDIDATES_MAX", 5)
    world = tiered()
    ids = [put(world, f"/{number}") for number in range(40)]
    settle(world)
    found = [one.id for one in walked(world).candidates]
    assert len(found) <= 10
    assert found[:5] == ids[:5]


def test_who_was_moved_meanwhile_is_not_where_it_was_found() -> None:
    world = tiered()
    put(world, "/a")
    settle(world)
    (one,) = walked(world).candidates
    assert is_still_there(world.state, one)
    world.rename("/a", "/pinned")
    assert not is_still_there(world.state, one)


def test_a_file_that_is_deleted_or_evicted_anew_while_it_is_brought_back_stays_as_it_is() -> None:
    world = tiered()
    gone, moved = put(world, "/gone"), put(world, "/moved")
    settle(world)
    world.do(c.Evict(((gone, 0), (moved, 0))))
    world.delete("/gone")
    stripe = world.stripe(200)
    moves = (
        c.Move(gone, 1, (Extent(stripe.id, 0, 100),)),
        c.Move(moved, 0, (Extent(stripe.id, 100, 100),)),
    )
    assert world.do(c.Relocate((stripe,), moves)) == c.Done(0, changed=False)
    assert gone not in world.state.files
    assert stripe.id not in world.state.ledger.entries, "its shards belong to nothing"
    assert moved in world.state.tier.evicted
    check_counts(world.state)


def test_stripes_are_freed_only_with_the_last_file_in_them() -> None:
    world = tiered()
    stripe = world.stripe(200)
    ids = [world.put_in(f"/{at}", stripe, at, 100) for at in (0, 100)]
    settle(world)
    freed = world.state.ledger.freed_ms
    assert world.do(c.Evict(((ids[0], 0),))) == c.Done(1)
    assert stripe.id not in freed
    assert world.do(c.Evict(((ids[1], 0),))) == c.Done(1)
    assert stripe.id in freed, "who has one of them open reads on for a while"
    assert world.state.ledger.get(stripe.id) == stripe
    check_counts(world.state)


# What the tier has of a stripe


def test_the_bytes_of_a_stripe_are_found_in_the_tier_if_it_has_all_of_them() -> None:
    world = tiered()
    stripe = world.stripe(300)
    files = [
        c.NewFile(f"/{n}", 100, n, None, (Extent(stripe.id, at, 100),))
        for n, at in enumerate((100, 0, 200))
    ]
    world.do(world.commit_of(*files, stripes=(stripe,)))
    wanted = Extent(stripe.id, 50, 200)
    assert pieces_behind(world.state, wanted) is None
    settle(world)
    found = pieces_behind(world.state, wanted)
    assert found is not None
    assert [(one.id, one.offset, one.length) for one in found] == [
        (2, 50, 50), (1, 0, 100), (3, 0, 50)
    ]  # fmt: skip
    world.delete("/0")
    assert pieces_behind(world.state, wanted) is None, "nobody can know what lay there"
