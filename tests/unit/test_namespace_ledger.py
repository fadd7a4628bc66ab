"""Stripes: when they become known, live, freed and forgotten, and what can use them."""

import pytest
from msgspec.structs import replace

from diskless.errors import BadRequest, NotFound, StaleShards, UploadLost
from diskless.model import DrillStatus, Extent, HeldShard, Place, Stripe, StripeId, TierOptions
from diskless.namespace import answers
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.ledger import Verdict, stored_bytes
from diskless.namespace.roster import BOOTS_PER_SLOT_MAX
from diskless.namespace.state import DEMOTE_BYTES_MIN
from tests.unit.test_namespace_world import (
    DATA_SHARDS,
    PARITY_SHARDS,
    World,
    agent_up,
    dump,
    file_in,
    inline_file,
)

LARGE = b"z" * (DEMOTE_BYTES_MIN + 1)


@pytest.fixture
def world() -> World:
    return World()


def live(world: World) -> dict[str, int]:
    """Live bytes of the stripes that are not freed."""
    ledger = world.state.ledger
    return {
        id_: entry.live_bytes for id_, entry in ledger.entries.items() if id_ not in ledger.freed_ms
    }


def verdicts(world: World, *stripes: str) -> list[Verdict]:
    """On shard 0 of each, on the first agent, as new stripes have it."""
    return judged(world, Place(0, 1), *(HeldShard(stripe, 0, 0) for stripe in stripes))


def judged(world: World, at: Place, *shards: HeldShard) -> list[Verdict]:
    found: list[Verdict] = answers.answer(world.state, q.Review(at, shards))
    return found


def commit(world: World, stripes: list[Stripe], *files: c.NewFile) -> tuple[c.Result, ...]:
    """Every file as a put of its own, in one commit."""
    return world.apply(c.Commit(tuple(stripes), tuple(world.put_of(file) for file in files)))


# Live bytes


def test_a_stripe_is_known_from_its_first_file_on_and_freed_with_its_last(world: World) -> None:
    stripe = world.stripe(100)
    commit(
        world, [stripe],
        file_in("/a", Extent(stripe.id, 0, 30)), file_in("/b", Extent(stripe.id, 30, 70)),
    )  # fmt: skip
    ledger = world.state.ledger
    assert live(world) == {stripe.id: 100}
    assert (ledger.live_bytes, ledger.payload_bytes) == (100, 100)
    assert (list(ledger.partly_dead), ledger.freed_ms) == ([], {})

    world.delete("/a")
    assert live(world) == {stripe.id: 70}
    assert (ledger.live_bytes, list(ledger.partly_dead)) == (70, [stripe.id])

    world.elapsed_ms = 9000
    world.delete("/b")
    assert live(world) == {}
    assert (ledger.live_bytes, ledger.payload_bytes) == (0, 0)
    assert (list(ledger.partly_dead), ledger.freed_ms) == ([], {stripe.id: 9000})
    assert ledger.stored_bytes == stored_bytes(stripe)


@pytest.mark.parametrize("how", ["overwrite", "rename", "delete", "delete above", "delete root"])
def test_every_way_to_lose_a_file_frees_its_stripe(world: World, how: str) -> None:
    stripe = world.stripe()
    world.put_in("/d/a", stripe)
    world.put("/other")
    match how:
        case "overwrite":
            world.put("/d/a", overwrite=True)
        case "rename":
            world.rename("/other", "/d/a", overwrite=True)
        case "delete":
            world.delete("/d/a")
        case "delete above":
            world.delete("/d", recursive=True)
        case "delete root":
            world.delete("/", recursive=True)
    assert live(world) == {}
    assert list(world.state.ledger.freed_ms) == [stripe.id]


def test_moving_a_file_to_another_path_leaves_its_stripe_alone(world: World) -> None:
    stripe = world.stripe()
    id_ = world.put_in("/d/a", stripe)
    world.rename("/d", "/e")
    assert live(world) == {stripe.id: 100}
    assert world.state.ledger.entries[stripe.id].files == {id_: 100}


def test_a_file_may_use_a_stripe_in_several_pieces_and_several_stripes(world: World) -> None:
    first, second = world.stripe(100), world.stripe(50)
    extents = Extent(first.id, 0, 10), Extent(second.id, 0, 50), Extent(first.id, 10, 20)
    world.do(world.commit_of(file_in("/a", *extents), stripes=[first, second]))
    assert live(world) == {first.id: 30, second.id: 50}
    record, stripes = world.state.open("/a")
    assert record.extents == extents
    assert {stripe.id for stripe in stripes} == {first.id, second.id}
    world.delete("/a")
    assert set(world.state.ledger.freed_ms) == {first.id, second.id}


def test_shard_bytes_are_counted_with_parity_and_rounding(world: World) -> None:
    stripe = world.stripe(101)
    world.put_in("/a", stripe)
    assert stored_bytes(stripe) == 51 * 3
    assert world.state.ledger.stored_bytes == 51 * 3


def test_bytes_of_a_refused_put_are_dead_from_the_start(world: World) -> None:
    """Else a stripe with one small file left would never be packed again."""
    world.put("/taken")
    stripe = world.stripe(100)
    results = commit(
        world, [stripe],
        file_in("/a", Extent(stripe.id, 0, 10)), file_in("/taken", Extent(stripe.id, 10, 90)),
    )  # fmt: skip
    assert [type(result) for result in results] == [c.Done, c.Refused]
    assert live(world) == {stripe.id: 10}
    assert list(world.state.ledger.partly_dead) == [stripe.id]


def test_a_stripe_freed_and_used_again_within_one_commit_is_live(world: World) -> None:
    first, second = world.stripe(100), world.stripe(10)
    puts = (
        world.put_of(file_in("/x", Extent(first.id, 0, 60))),
        world.put_of(file_in("/x", Extent(second.id, 0, 10)), overwrite=True),
        world.put_of(file_in("/y", Extent(first.id, 60, 40))),
    )
    world.apply(c.Commit((first, second), puts))
    ledger = world.state.ledger
    assert live(world) == {first.id: 40, second.id: 10}
    assert (ledger.freed_ms, list(ledger.partly_dead)) == ({}, [first.id])
    assert (ledger.live_bytes, ledger.payload_bytes) == (50, 110)


# Stripes that nobody may use, or nobody uses


def test_the_stripe_of_a_refused_put_stays_unknown_and_may_be_offered_again(
    world: World,
) -> None:
    world.put("/taken")
    stripe = world.stripe()
    file = file_in("/taken", Extent(stripe.id, 0, 100))
    world.refusal(world.commit_of(file, stripes=[stripe]))
    assert world.state.ledger.entries == {}
    assert verdicts(world, stripe.id) == [Verdict.UNDECIDED]
    world.do(world.commit_of(file, stripes=[stripe], overwrite=True))
    assert live(world) == {stripe.id: 100}


def test_a_stripe_that_no_put_of_its_commit_uses_stays_unknown(world: World) -> None:
    stripe = world.stripe()
    world.do(world.commit_of(inline_file("/a"), stripes=[stripe]))
    assert world.state.ledger.entries == {}
    with pytest.raises(NotFound, match=stripe.id):
        world.state.locate([stripe.id])


def test_several_files_of_one_put_are_all_visible_or_none_is(world: World) -> None:
    good, stale = (
        world.stripe(),
        replace(world.stripe(), places=(Place(0, 9), Place(1, 1), Place(2, 1))),
    )
    files = file_in("/a", Extent(good.id, 0, 100)), file_in("/b", Extent(stale.id, 0, 100))
    assert world.refusal(world.commit_of(*files, stripes=[good, stale])) is StaleShards
    assert world.state.ledger.entries == {}
    world.do(world.commit_of(files[0], stripes=[good, stale]))
    assert live(world) == {good.id: 100}


def test_a_put_in_a_good_stripe_succeeds_beside_one_in_a_stale_stripe(world: World) -> None:
    stale = world.stripe()
    world.do(agent_up(2, "second"))
    good = world.stripe()
    results = commit(
        world, [stale, good],
        file_in("/a", Extent(stale.id, 0, 100)), file_in("/b", Extent(good.id, 0, 100)),
    )  # fmt: skip
    assert [type(result) for result in results] == [c.Refused, c.Done]
    assert live(world) == {good.id: 100}


@pytest.mark.parametrize(
    "extents",
    [
        [Extent("0.1.99", 0, 100)],
        [Extent("", 0, 100)],
        [Extent("0.1.1", 1, 100)],
        [Extent("0.1.1", 0, 101)],
        [Extent("0.1.1", -1, 100)],
        [Extent("0.1.1", 0, 0)],
        [Extent("0.1.1", 0, 100), Extent("0.1.1", 0, 0)],
        [Extent("0.1.1", 0, 100), Extent("0.1.1", 50, -50)],
    ],
    ids=str,
)
def test_bytes_that_are_not_in_the_commit_are_refused(world: World, extents: list[Extent]) -> None:
    stripe = world.stripe(100)
    assert stripe.id == "0.1.1"
    command = world.commit_of(file_in("/a", *extents), stripes=[stripe])
    assert world.refusal(command) is BadRequest


@pytest.mark.parametrize(
    "file",
    [
        c.NewFile("/a", 2, 0, b"x"),
        c.NewFile("/a", 0, 0, b"x"),
        c.NewFile("/a", -1, 0, b""),
        c.NewFile("/a", 0, 0, None),
        c.NewFile("/a", 1, 0, None),
        c.NewFile("/a", 99, 0, None, (Extent("0.1.1", 0, 100),)),
        c.NewFile("/a", 101, 0, b"x", (Extent("0.1.1", 0, 100),)),
        c.NewFile("/a", 100, 0, b"", (Extent("0.1.1", 0, 100),)),
    ],
    ids=str,
)
def test_a_file_whose_parts_are_not_its_size_or_not_in_one_place_is_refused(
    world: World, file: c.NewFile
) -> None:
    assert world.refusal(world.commit_of(file, stripes=[world.stripe(100)])) is BadRequest


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ""},
        {"id": "1.2"},
        {"id": "a.b.c"},
        {"id": "0.1.2.3"},
        {"data_shards": 0, "parity_shards": 3},
        {"data_shards": 3, "parity_shards": 0},
        {"data_shards": 4, "parity_shards": -1},
        {"parity_shards": 2},
        {"places": ()},
        {"places": (Place(0, 1), Place(1, 1))},
        {"places": (Place(0, 1), Place(1, 1), Place(1, 1))},
        {"payload_bytes": 0},
        {"payload_bytes": -5},
    ],
    ids=str,
)
def test_a_stripe_that_no_writer_makes_is_refused_not_crashed_on(
    world: World, changes: dict[str, object]
) -> None:
    stripe = replace(world.stripe(100), **changes)
    file = file_in("/a", Extent(stripe.id, 0, 1))
    assert world.refusal(world.commit_of(file, stripes=[stripe])) is BadRequest
    assert world.do(world.commit_of(inline_file("/b"), stripes=[stripe])).changed


def test_a_known_stripe_that_is_offered_again_counts_as_the_ledger_has_it(world: World) -> None:
    stripe = world.stripe(100)
    world.put_in("/a", stripe)
    longer = replace(stripe, payload_bytes=200)
    beyond = file_in("/b", Extent(stripe.id, 100, 100))
    assert world.refusal(world.commit_of(beyond, stripes=[longer])) is BadRequest
    within = file_in("/b", Extent(stripe.id, 0, 100))
    world.do(world.commit_of(within, stripes=[longer]))
    assert world.state.locate([stripe.id]) == [stripe]


# Lives of agents


def test_a_stripe_on_a_restarted_agent_is_refused_as_stale(world: World) -> None:
    stripe = world.stripe()
    file = file_in("/a", Extent(stripe.id, 0, 100))
    world.do(agent_up(1, "second"))
    assert world.refusal(world.commit_of(file, stripes=[stripe])) is StaleShards
    assert StaleShards.retryable


def test_a_stripe_on_an_unknown_agent_is_refused_as_stale(world: World) -> None:
    stripe = replace(world.stripe(), places=(Place(0, 1), Place(1, 1), Place(77, 1)))
    file = file_in("/a", Extent(stripe.id, 0, 100))
    assert world.refusal(world.commit_of(file, stripes=[stripe])) is StaleShards


def test_a_stripe_on_an_agent_that_is_down_is_refused_until_it_is_back(world: World) -> None:
    stripe = world.stripe()
    file = file_in("/a", Extent(stripe.id, 0, 100))
    world.do(c.AgentDown(1, 1))
    assert world.refusal(world.commit_of(file, stripes=[stripe])) is StaleShards
    world.do(agent_up(1))
    world.put_in("/a", stripe)
    assert live(world) == {stripe.id: 100}


def test_down_is_not_lost(world: World) -> None:
    stripe = world.stripe()
    world.put_in("/a", stripe)
    tally = world.state.health.tally
    world.do(c.AgentDown(1, 1))
    assert tally().standings == {"total": 1, "healthy": 0, "degraded": 1, "lost": 0}
    world.do(agent_up(1))
    assert tally().standings == {"total": 1, "healthy": 1, "degraded": 0, "lost": 0}
    world.do(agent_up(1, "second"))
    assert tally().standings == {"total": 1, "healthy": 0, "degraded": 1, "lost": 0}


def test_a_new_boot_is_a_new_incarnation_and_a_repeated_one_is_not(world: World) -> None:
    assert [world.do(agent_up(1)) for _ in range(2)] == [c.Done(1, changed=False)] * 2
    assert world.do(agent_up(1, "second")) == c.Done(2)
    assert world.do(agent_up(1, "second")) == c.Done(2, changed=False)
    assert world.do(agent_up(9, "any")) == c.Done(1)


def test_a_late_repeat_of_an_ended_life_does_not_supersede_its_successor(world: World) -> None:
    world.do(agent_up(1, "second"))
    before = dump(world.state)
    assert world.do(agent_up(1, "first")) == c.Done(1, changed=False)
    assert dump(world.state) == before
    assert world.do(agent_up(1, "third")) == c.Done(3)


def test_only_so_many_lives_of_a_slot_are_remembered(world: World) -> None:
    for life in range(3 * BOOTS_PER_SLOT_MAX):
        world.do(agent_up(1, f"boot {life}"))
    assert len(world.state.roster.boots[1]) == BOOTS_PER_SLOT_MAX
    assert world.state.agents[1].incarnation == 3 * BOOTS_PER_SLOT_MAX + 1


def test_an_agent_at_a_new_address_keeps_its_life(world: World) -> None:
    assert world.do(agent_up(1, host="elsewhere")) == c.Done(1)
    assert world.state.agents[1].address == "elsewhere:1"


def test_the_roster_has_a_new_version_exactly_when_it_changed(world: World) -> None:
    versions = [world.state.roster_version]
    for command in [
        agent_up(1),
        c.AgentDown(1, 9),  # another life
        c.AgentDown(88, 1),  # nobody
        c.AgentDown(1, 1),
        c.AgentDown(1, 1),
        agent_up(1),
        agent_up(1, "second"),
    ]:
        world.do(command)
        versions.append(world.state.roster_version)
    start = versions[0]
    assert versions == [start, start, start, start, start + 1, start + 1, start + 2, start + 3]


def test_an_old_lifes_down_does_not_hit_the_new_life(world: World) -> None:
    world.do(agent_up(1, "second"))
    world.do(c.AgentDown(1, 1))
    assert world.state.agents[1].up


# Freeing and forgetting


def test_a_freed_stripe_can_be_read_until_it_is_reaped(world: World) -> None:
    stripe = world.stripe()
    world.put_in("/a", stripe)
    world.delete("/a")
    assert world.state.locate([stripe.id]) == [stripe]
    assert verdicts(world, stripe.id) == [Verdict.KEEP]
    world.do(c.Reap((stripe.id,)))
    with pytest.raises(NotFound, match=stripe.id):
        world.state.locate([stripe.id])
    ledger = world.state.ledger
    assert (ledger.entries, ledger.freed_ms, ledger.stored_bytes) == ({}, {}, 0)


def test_a_live_stripe_is_never_reaped(world: World) -> None:
    stripe = world.stripe()
    world.put_in("/a", stripe)
    before = dump(world.state)
    world.do(c.Reap((stripe.id, "0.1.99", "no id")))
    assert dump(world.state) == before
    world.delete("/a")
    world.do(c.Reap((stripe.id, stripe.id)))
    assert world.state.ledger.stored_bytes == 0


def test_stripes_are_freed_in_the_order_of_time(world: World) -> None:
    stripes = [world.stripe() for _ in range(3)]
    for stripe in stripes:
        world.put_in(f"/{stripe.id}", stripe)
    for stripe in [stripes[1], stripes[2], stripes[0]]:
        world.elapsed_ms += 10
        world.delete(f"/{stripe.id}")
    freed = list(world.state.ledger.freed_ms.items())
    assert [id_ for id_, _ in freed] == [stripes[1].id, stripes[2].id, stripes[0].id]
    assert [at for _, at in freed] == sorted(at for _, at in freed)


# Fences


def test_a_writer_is_doubted_since_it_was_first_and_until_it_is_fenced(world: World) -> None:
    world.elapsed_ms = 500
    world.do(c.Doubt(((2, 1), (3, 1))))
    world.elapsed_ms = 900
    world.do(c.Doubt(((3, 1), (4, 1))))
    ledger = world.state.ledger
    assert ledger.doubted_ms == {(2, 1): 500, (3, 1): 500, (4, 1): 900}
    world.do(c.Fence(3, 1, 7))
    assert ledger.doubted_ms == {(2, 1): 500, (4, 1): 900}


def test_a_fenced_stripe_can_never_be_defined(world: World) -> None:
    first, second, third = (world.stripe() for _ in range(3))
    world.do(c.Fence(0, 1, 3))
    assert verdicts(world, first.id, second.id, third.id) == [
        Verdict.DROP, Verdict.DROP, Verdict.UNDECIDED,
    ]  # fmt: skip
    for stripe in [first, second]:
        file = file_in("/a", Extent(stripe.id, 0, 100))
        assert world.refusal(world.commit_of(file, stripes=[stripe])) is UploadLost
    world.put_in("/a", third)


def test_a_fence_spares_what_was_committed_before_it(world: World) -> None:
    stripe = world.stripe()
    world.put_in("/a", stripe)
    world.do(c.Fence(0, 1, 2**62))
    assert verdicts(world, stripe.id) == [Verdict.KEEP]
    assert live(world) == {stripe.id: 100}
    world.delete("/a")
    world.do(c.Reap((stripe.id,)))
    assert verdicts(world, stripe.id) == [Verdict.DROP]


def test_a_fence_is_for_one_life_of_one_writer(world: World) -> None:
    world.do(c.Fence(0, 1, 2**62))
    assert verdicts(world, "0.1.5", "0.2.5", "1.1.5") == [
        Verdict.DROP, Verdict.UNDECIDED, Verdict.UNDECIDED,
    ]  # fmt: skip
    world.put_in("/a", world.stripe(writer=1))


def test_a_fence_never_moves_back(world: World) -> None:
    world.do(c.Fence(0, 1, 10))
    world.do(c.Fence(0, 1, 5))
    assert verdicts(world, "0.1.9", "0.1.10") == [Verdict.DROP, Verdict.UNDECIDED]


def test_a_fenced_stripe_cannot_come_in_by_a_move_either(world: World) -> None:
    file = world.put("/a", LARGE).number
    stripe = world.stripe(len(LARGE))
    world.do(c.Fence(0, 1, 2))
    move = c.Move(file, 0, (Extent(stripe.id, 0, len(LARGE)),))
    assert world.do(c.Relocate((stripe,), (move,))) == c.Done(0, changed=False)
    assert world.state.ledger.entries == {}


def test_a_review_of_what_is_no_id_is_refused(world: World) -> None:
    with pytest.raises(BadRequest, match=r"'x\.y' is not the id"):
        verdicts(world, "x.y")


@pytest.mark.parametrize("text", ["0.1.2", "17.3.99999"])
def test_a_stripes_id_tells_its_writer_its_life_and_its_number(text: str) -> None:
    who = StripeId.parse(text)
    assert str(who) == text
    assert [who.slot, who.incarnation, who.counter] == [int(part) for part in text.split(".")]


# Relocation: demotion and repacking


def test_larger_inline_files_wait_for_demotion_the_oldest_first(world: World) -> None:
    world.put("/small", LARGE[1:])
    first = world.put("/first", LARGE).number
    second = world.put("/second", LARGE).number
    world.now_ms, world.elapsed_ms = 1_000_000, 60
    third = world.put("/third", LARGE).number
    world.rename("/first", "/moved")
    assert world.state.demotable_ms == {first: 50, second: 50, third: 60}
    world.delete("/second")
    newer = world.put("/moved", LARGE, overwrite=True).number
    assert list(world.state.demotable_ms) == [third, newer]


def test_demotion_moves_the_bytes_and_keeps_the_file(world: World) -> None:
    id_ = world.put("/a", LARGE).number
    before = world.state.files[id_].record
    stripe = world.stripe(len(LARGE))
    extents = (Extent(stripe.id, 0, len(LARGE)),)
    world.now_ms += 60_000
    assert world.do(c.Relocate((stripe,), (c.Move(id_, 0, extents),))) == c.Done(1)
    after = world.state.files[id_].record
    assert after == replace(before, inline=None, extents=extents, layout=1)
    assert world.files() == {"/a": extents}
    assert (world.state.bytes_inline, world.state.bytes_logical) == (0, len(LARGE))
    assert (list(world.state.demotable_ms), live(world)) == ([], {stripe.id: len(LARGE)})


def test_a_move_is_done_only_if_the_file_is_as_it_was_read(world: World) -> None:
    id_ = world.put("/a", LARGE).number
    first, second = world.stripe(len(LARGE)), world.stripe(len(LARGE))
    to_first = c.Relocate((first,), (c.Move(id_, 0, (Extent(first.id, 0, len(LARGE)),)),))
    to_second = c.Relocate((second,), (c.Move(id_, 0, (Extent(second.id, 0, len(LARGE)),)),))
    assert world.do(to_first).number == 1
    before = dump(world.state)
    assert world.do(to_first) == c.Done(0, changed=False)  # a repeat
    assert world.do(to_second) == c.Done(0, changed=False)  # a rival that read before it
    assert dump(world.state) == before
    world.put("/a", LARGE, overwrite=True)
    later = c.Relocate((second,), (c.Move(id_, 1, (Extent(second.id, 0, len(LARGE)),)),))
    assert world.do(later) == c.Done(0, changed=False)  # that file is gone
    assert second.id not in world.state.ledger.entries


def test_repacking_frees_the_sparse_stripe_and_keeps_the_rest_of_a_file(world: World) -> None:
    sparse, full, target = world.stripe(100), world.stripe(50), world.stripe(10)
    extents = Extent(sparse.id, 40, 10), Extent(full.id, 0, 50)
    file = file_in("/a", *extents)
    id_ = world.do(world.commit_of(file, stripes=[sparse, full])).number
    assert list(world.state.ledger.partly_dead) == [sparse.id]
    moved = Extent(target.id, 0, 10), extents[1]
    assert world.do(c.Relocate((target,), (c.Move(id_, 0, moved),))).number == 1
    ledger = world.state.ledger
    assert live(world) == {full.id: 50, target.id: 10}
    assert (list(ledger.freed_ms), list(ledger.partly_dead)) == ([sparse.id], [])
    assert (ledger.live_bytes, ledger.payload_bytes) == (60, 60)


def test_a_relocation_moves_what_it_can_and_counts_it(world: World) -> None:
    ids = [world.put(f"/{n}", LARGE).number for n in range(3)]
    world.delete("/1")
    stripe = world.stripe(3 * len(LARGE))
    moves = tuple(
        c.Move(id_, 0, (Extent(stripe.id, n * len(LARGE), len(LARGE)),))
        for n, id_ in enumerate(ids)
    )
    assert world.do(c.Relocate((stripe,), moves)) == c.Done(2)
    assert live(world) == {stripe.id: 2 * len(LARGE)}
    assert list(world.state.ledger.partly_dead) == [stripe.id]
    assert list(world.state.demotable_ms) == []


def test_a_relocation_to_a_restarted_agent_moves_nothing(world: World) -> None:
    id_ = world.put("/a", LARGE).number
    stripe = world.stripe(len(LARGE))
    world.do(agent_up(1, "second"))
    move = c.Move(id_, 0, (Extent(stripe.id, 0, len(LARGE)),))
    before = dump(world.state)
    assert world.do(c.Relocate((stripe,), (move,))) == c.Done(0, changed=False)
    assert dump(world.state) == before


@pytest.mark.parametrize(
    "extents",
    [
        (),
        (Extent("0.1.2", 0, 99),),
        (Extent("0.1.2", 0, 100), Extent("0.1.2", 0, 1)),
        (Extent("0.1.2", 1, 100),),
        (Extent("0.1.1", 1, 100),),
        (Extent("0.1.2", 0, 100), Extent("0.1.1", 0, 0)),
        (Extent("0.1.77", 0, 100),),
    ],
    ids=str,
)
def test_a_move_that_would_change_a_files_bytes_is_not_done(
    world: World, extents: tuple[Extent, ...]
) -> None:
    old, new = world.stripe(100), world.stripe(100)
    assert (old.id, new.id) == ("0.1.1", "0.1.2")
    id_ = world.put_in("/a", old)
    before = dump(world.state)
    assert world.do(c.Relocate((new,), (c.Move(id_, 0, extents),))) == c.Done(0, changed=False)
    assert dump(world.state) == before


# The wire


# Shards that move


def moved(world: World, stripe: Stripe, version: int, *places: tuple[int, Place]) -> c.Done:
    return world.do(c.MoveShards((c.ShardMove(stripe.id, version, places),)))


@pytest.fixture
def spread_world() -> World:
    """With agents beyond those that new stripes lie on."""
    return World(agents=DATA_SHARDS + PARITY_SHARDS + 2)


LAST = DATA_SHARDS + PARITY_SHARDS
SPARE = Place(LAST, 1)


def test_a_move_changes_where_shards_are_and_nothing_else(spread_world: World) -> None:
    world, stripe = spread_world, spread_world.stripe()
    world.put_in("/a", stripe)
    before = world.state.ledger.stored_bytes
    assert moved(world, stripe, 0, (1, SPARE)) == c.Done(1)
    after = world.state.ledger.get(stripe.id)
    assert after.places == (stripe.places[0], SPARE, *stripe.places[2:])
    assert after == replace(stripe, places=after.places, version=1)
    assert world.state.ledger.stored_bytes == before


def test_of_two_moves_of_one_version_only_the_first_is_made(spread_world: World) -> None:
    world, stripe = spread_world, spread_world.stripe()
    world.put_in("/a", stripe)
    assert moved(world, stripe, 0, (1, SPARE)).changed
    assert not moved(world, stripe, 0, (2, Place(LAST + 1, 1))).changed
    assert moved(world, stripe, 1, (2, Place(LAST + 1, 1))).changed


@pytest.mark.parametrize(
    "place",
    [Place(0, 1), Place(LAST, 2), Place(LAST + 1, 1), Place(LAST + 9, 1)],
    ids=["on an agent that has another", "another life", "down", "unknown"],
)
def test_a_move_to_where_a_shard_cannot_count_is_refused(spread_world: World, place: Place) -> None:
    world, stripe = spread_world, spread_world.stripe()
    world.put_in("/a", stripe)
    world.do(c.AgentDown(LAST + 1, 1))
    assert moved(world, stripe, 0, (1, place)) == c.Done(0, changed=False)
    assert moved(world, stripe, 0, (len(stripe.places), SPARE)) == c.Done(0, changed=False)
    assert world.state.ledger.get(stripe.id) == stripe


def test_a_move_of_a_stripe_that_is_gone_is_refused(spread_world: World) -> None:
    world, stripe = spread_world, spread_world.stripe()
    assert not moved(world, stripe, 0, (1, SPARE)).changed
    world.put_in("/a", stripe)
    world.delete("/a")
    world.do(c.Reap((stripe.id,)))
    assert not moved(world, stripe, 0, (1, SPARE)).changed


def test_a_shard_is_dropped_only_when_no_move_can_name_it_any_more(spread_world: World) -> None:
    """The new one waits for the move it was stored for, the old one goes with it."""
    world, stripe = spread_world, spread_world.stripe()
    world.put_in("/a", stripe)
    old, new = HeldShard(stripe.id, 1, 0), HeldShard(stripe.id, 1, 1)
    assert judged(world, stripe.places[1], old) == [Verdict.KEEP]
    assert judged(world, SPARE, new) == [Verdict.UNCLAIMED]
    moved(world, stripe, 0, (1, SPARE))
    assert judged(world, stripe.places[1], old) == [Verdict.DROP]
    assert judged(world, SPARE, new) == [Verdict.KEEP]
    stored_in_vain = HeldShard(stripe.id, 2, 1)
    assert judged(world, Place(LAST + 1, 1), stored_in_vain) == [Verdict.DROP]


def test_an_empty_move_ends_those_that_are_under_way(spread_world: World) -> None:
    world, stripe = spread_world, spread_world.stripe()
    world.put_in("/a", stripe)
    left_behind = HeldShard(stripe.id, 1, 1)
    assert judged(world, SPARE, left_behind) == [Verdict.UNCLAIMED]
    assert moved(world, stripe, 0).changed
    assert judged(world, SPARE, left_behind) == [Verdict.DROP]
    assert not moved(world, stripe, 0, (1, SPARE)).changed


def test_a_shard_that_a_writer_stored_on_one_agent_too_many_is_dropped(world: World) -> None:
    stripe = world.stripe()
    world.put_in("/a", stripe)
    assert judged(world, Place(88, 1), HeldShard(stripe.id, 1, 0)) == [Verdict.DROP]


def test_a_drained_agent_stays_so_through_its_lives_until_that_is_over(world: World) -> None:
    version = world.state.roster_version
    assert world.do(c.Drain(1, True)).changed
    assert not world.do(c.Drain(1, True)).changed
    assert world.state.roster_version == version + 1
    world.do(c.AgentDown(1, 1))
    world.do(agent_up(1, "second"))
    assert world.state.agents[1].draining
    world.do(c.Drain(1, False))
    assert not world.state.agents[1].draining
    assert world.refusal(c.Drain(88, True)) is BadRequest


def test_an_agent_is_slow_in_one_life_and_until_that_is_over(world: World) -> None:
    version = world.state.roster_version
    assert world.do(c.AgentSlow(1, 1, True)).changed
    assert not world.do(c.AgentSlow(1, 1, True)).changed
    assert world.state.roster_version == version + 1
    world.do(c.AgentDown(1, 1))
    world.do(agent_up(1))
    assert world.state.agents[1].slow, "the same life is back"
    world.do(c.AgentSlow(1, 1, False))
    assert not world.state.agents[1].slow
    world.do(c.AgentSlow(1, 1, True))
    world.do(agent_up(1, "second"))
    assert not world.state.agents[1].slow
    assert not world.do(c.AgentSlow(1, 1, True)).changed, "of a life that is over"
    assert not world.do(c.AgentSlow(88, 1, True)).changed


def test_an_agent_is_down_since_the_command_that_said_so(world: World) -> None:
    world.elapsed_ms = 5000
    world.do(c.AgentDown(1, 1))
    world.elapsed_ms = 9000
    world.do(c.AgentDown(1, 1))
    assert world.state.agents[1].down_ms == 5000
    world.do(agent_up(1))
    assert (world.state.agents[1].up, world.state.agents[1].down_ms) == (True, 0)


def example_commands(world: World) -> list[c.Command]:
    stripe = world.stripe()
    put = world.put_of(inline_file("/ä/b", b"\0\xff"), file_in("/c", Extent(stripe.id, 0, 100)))
    return [
        c.Commit((stripe,), (put,)),
        c.Commit((), ()),
        c.OpenSession("q1"),
        c.IssueToken("q1", ("/a", "/b"), True, 5, "admin"),
        c.RevokeToken("q1", "admin"),
        world.mkdirs_of("/d"),
        world.rename_of("/d", "/e", overwrite=True),
        world.delete_of("/e", recursive=True, snapshots=True),
        world.snapshot_of("/d", "/e", name="s", cut=True),
        world.rename_snapshot_of("/d", "s", "t"),
        world.delete_snapshots_of("/d", "t", "u"),
        world.clone_of("/d/.snapshot/s", "/f"),
        world.rollback_of("/d", "s", cut=True),
        c.Relocate((stripe,), (c.Move(1, 0, (Extent(stripe.id, 0, 2),)),)),
        c.MoveShards((c.ShardMove(stripe.id, 0, ((1, Place(4, 1)),)),)),
        c.Doubt(((0, 1), (2, 3))),
        c.Fence(0, 1, 2**62),
        c.Reap((stripe.id,)),
        agent_up(3, "boot"),
        c.AgentDown(3, 1),
        c.AgentSlow(3, 1, True),
        c.AgentEnds(3, 1, "SIGTERM 1", 30_000),
        c.Drain(3, True),
        c.Sweep(100),
        c.Limit(1 << 40),
        c.SetPolicy("/ä", "durability", "sync", "admin"),
        c.RemovePolicy("/ä", "", "admin"),
        c.AttachTier("s3://b/p", 2, 7, "admin", TierOptions(durability="sync", lag_max_s=2.5)),
        c.DetachTier("admin"),
        c.Close(True, "admin"),
        c.Drilled(DrillStatus(sound=False, problem="ä", problems=2, took_s=1.5), "admin"),
        c.Evict(((2**41, 3), (2, 0)), returns=True),
        c.Prune(1, 2, "/ä", ("a/b", "c")),
        c.Replace(1, 2, (c.Swap("/ä", "/.draft", "before"),), checked=False, force=True),
        c.KeepLeases(1, 2, ("/q",), ("/over",)),
        c.Keep(7, ((1, "seg/1", 1 << 25),), ((2**41, 1, 2**39, 2**39, 255),)),
        c.Horizon(2, 7, 9, 8, 1000, 2**41),
        c.Mark(),
        c.Unmark(),
    ]


def test_every_command_survives_the_wire(world: World) -> None:
    commands = example_commands(world)
    assert {type(command) for command in commands} == set(c.Command.__args__)
    for command in commands:
        assert c.decode(c.encode(command)) == command


def test_every_answer_survives_the_wire(world: World) -> None:
    stripe = world.stripe()
    world.put_in("/d/a", stripe)
    world.put("/d/b", b"inline")
    for query in [
        q.Stat("/d"),
        q.Stat("/d/a"),
        q.Page("/d", "", 1),
        q.Open("/d/a"),
        q.Open("/d/b"),
        q.Locate((stripe.id,)),
        q.Summarize("/"),
        q.Placed(stripe.places[0]),
        q.Review(Place(0, 1), (HeldShard(stripe.id, 0, 0), HeldShard("0.1.99", 2, 1))),
    ]:
        assert q.decode(q.encode(query)) == query
        answer = answers.answer(world.state, query)
        assert q.decode_answer(query, q.encode(answer)) == answer
