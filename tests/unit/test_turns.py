"""No step of the loop is proportional to the state: work is counted at two sizes.

A turn of the event loop may take 20 ms. A line of Python takes about 0.1 µs, so no step may
run more than `LINES_MAX` of them, and with five times the state it must not run more than
with one: what holds for both sizes here holds for a million files and 250,000 stripes.
"""

from collections.abc import Callable, Coroutine, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any

import pytest

from diskless.agent.leading import carrier, cut
from diskless.agent.leading.janitor import REAP_STRIPES_MAX, SWEEP_ENTRIES
from diskless.balance import Load, Scales, Walk
from diskless.config import MIB
from diskless.model import Extent, FileRecord, Place, Stripe
from diskless.namespace import answers, picture
from diskless.namespace import commands as c
from diskless.namespace import journal as j
from diskless.namespace import queries as q
from diskless.namespace import snapshot as s
from diskless.namespace.health import SETTLE_GROUPS
from diskless.namespace.state import NamespaceState
from diskless.namespace.survey import survey
from diskless.namespace.swaps import PRUNED_MAX
from diskless.namespace.tier import KEEP_ROWS_MAX
from diskless.namespace.usage import held_by_snapshots
from diskless.repair import Cluster, RepairPlan
from diskless.tier.round import Packer
from tests.unit.recount import counted, recount
from tests.unit.test_namespace_world import agent_up
from tests.unit.work import Work, work_of, worst

SMALL, LARGE = 3000, 15_000
AGENTS, M, K = 8, 4, 2
LINES_MAX = 100_000
SLACK = 1.1
"""Tables that double and trees that grow by a level are allowed."""
FILES_IN_STRIPE = 2
TRIES = 3
HALF = 1000


class Big:
    """A state with `size` stripes of two files each, and as many small files in one
    directory. Every fourth stripe has lost one of its files."""

    def __init__(self, size: int, *, scattered: bool = False) -> None:
        """Shards are placed in rotation; or `scattered`, so that hardly two stripes lie alike."""
        self.size = size
        self.agents = 40 if scattered else AGENTS
        self.state = NamespaceState()
        for slot in range(self.agents):
            self.apply(agent_up(slot, host=f"host-{slot}"))
        self.session = self.apply(c.OpenSession())[0].number
        self.sequence = 0
        for number in range(size):
            self.put_stripe(number, self.places(number, scattered))
        for first in range(0, size, 500):
            self.put(*(c.NewFile(f"/flat/{n}", 1, n, b"1") for n in range(first, first + 500)))
        for number in range(0, size, 4):
            self.delete(f"/deep/{number % 50}/{number}-0")

    def places(self, number: int, scattered: bool) -> tuple[Place, ...]:
        if not scattered:
            return tuple(Place((number + i) % self.agents, 1) for i in range(M + K))
        slots: dict[int, None] = {}
        mixed = number + 1
        while len(slots) < M + K:
            mixed = mixed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            slots[(mixed >> 33) % self.agents] = None
        return tuple(Place(slot, 1) for slot in slots)

    def put_stripe(self, number: int, places: tuple[Place, ...]) -> None:
        stripe = Stripe(f"0.1.{number + 1}", M, K, FILES_IN_STRIPE * HALF, places)
        files = (
            c.NewFile(
                f"/deep/{number % 50}/{number}-{part}",
                HALF,
                number,
                None,
                (Extent(stripe.id, part * HALF, HALF),),
            )
            for part in range(FILES_IN_STRIPE)
        )
        self.put(*files, stripes=(stripe,))

    def apply(self, command: c.Command) -> tuple[Any, ...]:
        results = self.state.apply(command, now_ms=1000, elapsed_ms=1000)
        assert all(isinstance(result, c.Done) for result in results), results
        return results

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def put(self, *files: c.NewFile, stripes: tuple[Stripe, ...] = ()) -> None:
        self.apply(c.Commit(stripes, (c.Put(self.session, self.next_sequence(), False, files),)))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self.apply(c.Delete(self.session, self.next_sequence(), path, recursive))

    def cluster(self, **more: Any) -> Cluster:
        return Cluster(agents=dict(self.state.agents), data_shards=M, parity_shards=K, **more)


@cache
def snapshot_of(size: int, scattered: bool) -> list[bytes]:
    return list(s.snapshot(Big(size, scattered=scattered).state))


def big(size: int, *, scattered: bool = False) -> Big:
    """Of its own, for a test that changes it: built once and copied."""
    copy = Big(0)
    copy.size, copy.agents = size, 40 if scattered else AGENTS
    copy.state = NamespaceState()
    restorer = s.Restorer(copy.state)
    for chunk in snapshot_of(size, scattered):
        restorer.take(chunk)
    copy.session = copy.apply(c.OpenSession())[0].number
    copy.sequence = 0
    return copy


def check(
    step: Callable[[Big], Work], *, scattered: bool = False, tables_grow: bool = False
) -> None:
    """The step takes as much work in a large state as in a small one, and little. If tables
    grow meanwhile, Python copies them. What threads of earlier tests take counts as memory of
    the step: it is measured again then."""
    for _ in range(TRIES):
        small, large = (step(big(size, scattered=scattered)) for size in (SMALL, LARGE))
        assert large.lines <= LINES_MAX
        assert large.lines <= SLACK * small.lines + 500
        if tables_grow or large.peak_bytes <= SLACK * small.peak_bytes + 50_000:
            return
    raise AssertionError("something is copied whole")


def drained(steps: Iterator[Any]) -> list[Work]:
    """The work of each step of an iterator."""
    found: list[Work] = []
    more = True

    def step() -> None:
        nonlocal more
        more = next(steps, drained) is not drained

    while more:
        found.append(work_of(step))
    return found


def test_the_meter_sees_loops_and_copies() -> None:
    """Else none of the tests here could fail."""
    with pytest.raises(AssertionError):
        check(lambda one: work_of(lambda: recount_by_stripe(one.state)))
    with pytest.raises(AssertionError):
        check(lambda one: work_of(lambda: sorted(one.state.files)))


def recount_by_stripe(state: NamespaceState) -> int:
    """What a report must not do: ask about each stripe."""
    return sum(len(state.locate([id_])) for id_ in state.ledger.entries)


def test_a_report_reads_counters() -> None:
    def status(one: Big) -> Work:
        state = one.state
        return work_of(lambda: (counted(state), state.tree.files, state.bytes_logical))

    check(status)
    check(status, scattered=True)


@pytest.mark.parametrize(
    "change",
    [
        c.AgentDown(1, 1),
        agent_up(1, "another life", host="host-1"),
        agent_up(1, "first", host="elsewhere"),
        c.Drain(1, True),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_agent_that_comes_or_goes_costs_what_lies_alike(change: c.Command) -> None:
    check(lambda one: work_of(lambda: one.apply(change)))


def test_an_agent_that_goes_costs_no_more_than_a_slice_if_nothing_lies_alike() -> None:
    """And the margin is a promise that can be kept at every moment until all is judged."""
    one = big(LARGE, scattered=True)
    groups = one.state.health.groups
    assert groups > LARGE / 2, "hardly two lie alike"
    work = work_of(lambda: one.apply(c.AgentDown(1, 1)))
    truth = recount(one.state)
    slices = 0
    assert work.lines <= LINES_MAX
    while not one.state.health.settle():
        slices += 1
        found = counted(one.state)["margins"]
        assert all(found[parity] <= known for parity, known in truth["margins"].items())
    assert slices >= groups * (M + K) // one.agents // SETTLE_GROUPS - 1
    assert counted(one.state) == truth
    one.apply(c.AgentDown(2, 1))
    assert work_of(one.state.health.settle).lines <= LINES_MAX


def plan_steps(one: Big, cluster: Cluster) -> tuple[list[Work], RepairPlan]:
    plans: list[RepairPlan] = []

    def run() -> Iterator[None]:
        plans.append((yield from survey(one.state.ledger, cluster)))

    return drained(run()), plans[0]


def test_with_all_well_a_plan_looks_at_nothing() -> None:
    for scattered in (False, True):
        check(lambda one: worst(plan_steps(one, one.cluster())[0]), scattered=scattered)


@pytest.mark.parametrize("scattered", [False, True])
def test_shards_to_move_are_found_in_slices(scattered: bool) -> None:
    """Also where it looks in vain: no agent takes anything, and all stripes are asked for."""

    def step(one: Big, *, takes: bool) -> Work:
        placed = one.state.health.bytes_placed
        loads = [
            Load(
                slot=slot,
                host=f"host-{slot}",
                bytes_max=10 * max(placed.values()),
                bytes_used=placed[slot] * (3 if slot == 1 else 1),
                takes=takes,
            )
            for slot in range(one.agents)
        ]
        turns = (1 for id_ in Walk(one.state.health, Scales(loads)) if id_ is None)
        steps = drained(islice(turns, 40))
        assert len(steps) > 10 or not (takes or scattered), "few lie alike"
        return worst(steps)

    for takes in (True, False):
        check(partial(step, takes=takes), scattered=scattered)


def test_a_plan_is_made_in_slices_and_costs_what_is_ill() -> None:
    def step(one: Big) -> Work:
        one.apply(c.AgentDown(1, 1))
        steps, plan = plan_steps(one, one.cluster(gone={1}))
        assert plan.rebuild.stripes == one.size * (M + K) // one.agents
        return worst(steps)

    check(step)
    large = big(LARGE, scattered=True)
    large.apply(c.AgentDown(1, 1))
    steps, plan = plan_steps(large, large.cluster(gone={1}))
    assert worst(steps).lines <= LINES_MAX
    assert len(steps) > 10
    assert 0 < plan.rebuild.stripes < large.size / 4


def test_the_next_stripe_of_a_plan_costs_a_block_of_them() -> None:
    def step(one: Big) -> Work:
        one.apply(c.AgentDown(1, 1))
        stripes = iter(plan_steps(one, one.cluster(gone={1}))[1].rebuild)
        return worst([work_of(lambda: next(stripes)) for _ in range(2000)])

    check(step)


def test_choosing_what_to_repack_costs_what_is_chosen() -> None:
    def step(one: Big) -> Work:
        ledger = one.state.ledger
        sparse = ledger.partly_dead.sparsest(ledger.health.is_readable)
        return work_of(lambda: list(islice(sparse, 10)))

    check(step)
    check(step, scattered=True)


def test_what_cannot_be_read_does_not_stand_in_the_way_of_what_is_repacked() -> None:
    def step(one: Big) -> Work:
        for slot in (0, 1, 2):  # of rotation, all but the stripes on 3 to 7 and beyond
            one.apply(c.AgentDown(slot, 1))
        ledger = one.state.ledger
        found: list[Any] = []
        work = work_of(
            lambda: found.extend(islice(ledger.partly_dead.sparsest(ledger.health.is_readable), 5))
        )
        assert len(found) == 5
        return work

    check(step)


@pytest.mark.parametrize("path", ["/flat", "/deep", "/"])
def test_a_recursive_delete_detaches_and_leaves_the_rest_to_sweeps(path: str) -> None:
    def delete(one: Big) -> Work:
        return work_of(lambda: one.delete(path, recursive=True))

    def sweep(one: Big) -> Work:
        one.delete(path, recursive=True)
        found = [work_of(lambda: one.apply(c.Sweep(SWEEP_ENTRIES))) for _ in range(2)]
        assert one.state.doomed
        return worst(found)

    check(delete)
    check(sweep)


@pytest.mark.parametrize("path", ["/", "/flat", "/deep"])
def test_a_summary_is_read_and_not_counted(path: str) -> None:
    check(lambda one: work_of(lambda: one.state.summary(path)))


def test_a_chunk_of_a_snapshot_costs_a_chunk() -> None:
    check(lambda one: worst(list(islice(drained(s.snapshot(one.state)), 400))))


def test_a_chunk_of_a_snapshot_costs_a_chunk_also_when_all_stripes_are_freed() -> None:
    def step(one: Big) -> Work:
        one.delete("/deep", recursive=True)
        while one.state.doomed:
            one.apply(c.Sweep(SWEEP_ENTRIES))
        assert len(one.state.ledger.freed_ms) == one.size
        return worst(drained(s.snapshot(one.state)))

    check(step)


def test_a_chunk_of_a_snapshot_is_taken_in_at_the_cost_of_a_chunk() -> None:
    """Also all that the state keeps up to date: a new leader begins with it."""

    def step(one: Big) -> Work:
        restorer = s.Restorer(NamespaceState())
        return worst([work_of(lambda c=c: restorer.take(c)) for c in s.snapshot(one.state)])

    check(step, tables_grow=True)


def test_a_new_leader_has_all_it_needs() -> None:
    """Its first report and its first plan come from what it applied or restored."""

    def step(one: Big) -> Work:
        one.apply(c.AgentDown(1, 1))
        copy = NamespaceState()
        restorer = s.Restorer(copy)
        for chunk in s.snapshot(one.state):
            restorer.take(chunk)
        one.state = copy
        report = work_of(lambda: counted(copy))
        assert counted(copy) == recount(copy)
        return worst([report, *plan_steps(one, one.cluster(gone={1}))[0]])

    check(step)


PAST: dict[str, Callable[[Big], c.Command]] = {
    "snapshot": lambda b: c.CreateSnapshot(b.session, b.next_sequence(), ("/flat",), "new"),
    "snapshot of all": lambda b: c.CreateSnapshot(b.session, b.next_sequence(), ("/",), "new"),
    "clone": lambda b: c.Clone(b.session, b.next_sequence(), "/flat", "/deep/flat"),
    "rollback": lambda b: c.Rollback(b.session, b.next_sequence(), "/flat", "old"),
    "replace": lambda b: c.Replace(b.session, b.next_sequence(), (c.Swap("/flat", "/x", "old"),)),
    "delete of a snapshot": lambda b: c.DeleteSnapshots(
        b.session, b.next_sequence(), "/flat", ("old",)
    ),
    "delete with snapshots": lambda b: c.Delete(b.session, b.next_sequence(), "/flat", True, True),
    "first put after a snapshot": lambda b: c.Commit(
        (), (c.Put(b.session, b.next_sequence(), False, (c.NewFile("/flat/1x", 1, 1, b"1"),)),)
    ),
}


@pytest.mark.parametrize("make", PAST.values(), ids=PAST)
def test_the_past_costs_the_same_however_much_is_in_it(make: Callable[[Big], c.Command]) -> None:
    def step(one: Big) -> Work:
        one.apply(c.CreateSnapshot(one.session, one.next_sequence(), ("/flat",), "old"))
        one.apply(c.Clone(one.session, one.next_sequence(), "/flat", "/x"))
        command = make(one)
        return work_of(lambda: one.apply(command))

    check(step)


def test_as_many_files_as_may_be_pruned_at_once_are_one_step() -> None:
    """More names are in more nodes, each of which is copied: as many as there are names."""
    one = big(LARGE)
    one.apply(c.CreateSnapshot(one.session, one.next_sequence(), ("/flat",), "old"))
    names = tuple(str(LARGE // PRUNED_MAX * number) for number in range(PRUNED_MAX))
    command = c.Prune(one.session, one.next_sequence(), "/flat", names)
    assert work_of(lambda: one.apply(command)).lines <= LINES_MAX


def test_a_page_of_a_directory_that_is_written_to_costs_a_page() -> None:
    def step(one: Big) -> Work:
        found = []
        for number in range(5):
            one.put(c.NewFile(f"/flat/new-{number}", 1, 1, b"1"))
            found.append(work_of(lambda: one.state.page("/flat", after="2", limit=500)))
        return worst(found)

    check(step)


def test_a_diff_costs_what_differs_and_own_bytes_come_in_pages() -> None:
    def diff(one: Big) -> Work:
        one.apply(c.CreateSnapshot(one.session, one.next_sequence(), ("/flat",), "old"))
        for number in range(20):  # in a leaf or two, so that as much differs at both sizes
            one.put(c.NewFile(f"/flat/2000-{number}", 1, 1, b"1"))
        query = q.Diff("/flat", "old", "", "", q.WALK_STEPS_MAX)
        assert len(answers.answer(one.state, query).changes) == 20
        return work_of(lambda: answers.answer(one.state, query))

    def usage(one: Big) -> Work:
        return work_of(lambda: answers.answer(one.state, q.Usage("/", "", q.WALK_STEPS_MAX)))

    check(diff)
    check(usage)


def test_bytes_that_only_snapshots_hold_are_counted_in_slices() -> None:
    def step(one: Big) -> Work:
        one.apply(c.CreateSnapshot(one.session, one.next_sequence(), ("/",), "old"))
        one.put(c.NewFile("/flat/x", 1, 1, b"1"))
        return worst(drained(held_by_snapshots(one.state)))

    check(step, tables_grow=True)  # what is shared is remembered


def test_commits_and_reaps_cost_what_they_name() -> None:
    def commit(one: Big) -> Work:
        puts = tuple(
            c.Put(one.session, one.next_sequence(), False, (c.NewFile(f"/flat/x{n}", 1, n, b"1"),))
            for n in range(512)
        )
        return work_of(lambda: one.apply(c.Commit((), puts)))

    def reap(one: Big) -> Work:
        one.delete("/deep", recursive=True)
        while len(one.state.ledger.freed_ms) < REAP_STRIPES_MAX:
            one.apply(c.Sweep(SWEEP_ENTRIES))
        due = tuple(islice(one.state.ledger.freed_ms, REAP_STRIPES_MAX))
        return work_of(lambda: one.apply(c.Reap(due)))

    def rename(one: Big) -> Work:
        command = c.Rename(one.session, one.next_sequence(), "/flat", "/deep/flat", False)
        return work_of(lambda: one.apply(command))

    check(commit, tables_grow=True)
    check(reap, tables_grow=True)
    check(rename)


def with_tokens(count: int) -> NamespaceState:
    state = NamespaceState()
    for number in range(count):
        # Those that expire first come last, so that the order of none is that of another.
        issue = c.IssueToken(f"q{number * 7919 % count}", ("/a", "/b"), True, 2 * count - number)
        state.apply(issue, now_ms=1000, elapsed_ms=1000)
        if number % 2:
            revoke = c.RevokeToken(f"q{number * 7919 % count}")
            state.apply(revoke, now_ms=1000, elapsed_ms=1000)
    return state


TOKENS: dict[str, Callable[[NamespaceState], Any]] = {
    "issue": lambda state: state.apply(
        c.IssueToken("new", ("/a",), True, 5), now_ms=1000, elapsed_ms=1000
    ),
    "revoke": lambda state: state.apply(c.RevokeToken("q0"), now_ms=1000, elapsed_ms=1000),
    "revoke, and forget others": lambda state: state.apply(
        c.RevokeToken("q0"), now_ms=10**12, elapsed_ms=1000
    ),
    "a part of the revoked": lambda state: state.tokens.revoked_after(100, limit=100),
    "a page": lambda state: answers.answer(state, q.Tokens("q1", 100)),
    "the weight of all": lambda state: state.bytes_used,
}


def check_tokens(step: Callable[[NamespaceState], Work]) -> None:
    small, large = (step(with_tokens(count)) for count in (1000, 20_000))
    assert large.lines <= min(LINES_MAX, SLACK * small.lines + 500)
    # A list that is full is copied when one more comes: 8 bytes of each.
    assert large.peak_bytes <= SLACK * small.peak_bytes + 250_000


@pytest.mark.parametrize("run", TOKENS.values(), ids=TOKENS)
def test_tokens_cost_the_same_however_many_there_are(run: Callable[[NamespaceState], Any]) -> None:
    check_tokens(lambda state: work_of(lambda: run(state)))


def test_a_chunk_of_a_copy_has_a_chunk_of_the_tokens() -> None:
    check_tokens(lambda state: worst(drained(s.snapshot(state))))


# The durable tier


def tiered(one: Big) -> Big:
    """All files lie in a tier too, and a long journal says how they came there."""
    one.state.journal = j.Journal()
    one.apply(c.AttachTier("file:///t", 1, 0))
    ids = list(one.state.files)
    for at in range(0, len(ids), KEEP_ROWS_MAX):
        one.apply(keep_of(one, ids[at : at + KEEP_ROWS_MAX]))
    return one


def keep_of(one: Big, ids: list[int]) -> c.Keep:
    first = one.state.tier.last_segment + 1
    segments = tuple((first + n, f"seg/{first + n}", 1000) for n in range(10))
    return c.Keep(1, segments, tuple((id_, first + n % 10, n, 5, 0) for n, id_ in enumerate(ids)))


def change(one: Big, count: int) -> None:
    for number in range(count):
        one.apply(c.Mkdirs(one.session, one.next_sequence(), f"/new/{number}"))


def whole_horizon(one: Big) -> c.Horizon:
    tier = one.state.tier
    return c.Horizon(1, tier.number + 1, tier.change, 0, 0, 0)


TIER: dict[str, Callable[[Big], c.Command]] = {
    "attach": lambda b: c.AttachTier("file:///t", 2, 0),
    "detach": lambda b: c.DetachTier(),
    "keep": lambda b: keep_of(b, list(b.state.files)[:KEEP_ROWS_MAX]),
    "mark": lambda b: c.Mark(),
    "unmark": lambda b: c.Unmark(),
    "horizon": whole_horizon,
    "policy": lambda b: c.SetPolicy("/flat", "durability", "sync"),
    "no policy": lambda b: c.RemovePolicy("/deep", ""),
    "first put after a mark": PAST["first put after a snapshot"],
    "delete": lambda b: c.Delete(b.session, b.next_sequence(), "/", True),
    "sweep": lambda b: c.Sweep(SWEEP_ENTRIES),
}


@pytest.mark.parametrize("make", TIER.values(), ids=TIER)
def test_a_tier_costs_the_same_however_much_is_in_it(make: Callable[[Big], c.Command]) -> None:
    def step(one: Big) -> Work:
        tiered(one)
        change(one, one.size // 3)
        one.apply(c.SetPolicy("/deep", "durability", "async"))
        one.apply(c.Mark())
        one.apply(c.Delete(one.session, one.next_sequence(), "/deep", True))
        command = make(one)
        return work_of(lambda: one.apply(command))

    check(step, tables_grow=True)


def test_what_only_a_mark_held_is_swept_by_and_by() -> None:
    def step(one: Big) -> Work:
        tiered(one)
        one.apply(c.Mark())
        one.delete("/", recursive=True)
        assert not one.state.doomed, "the mark has it"
        unmark = work_of(lambda: one.apply(c.Unmark()))
        sweeps = [work_of(lambda: one.apply(c.Sweep(SWEEP_ENTRIES))) for _ in range(2)]
        assert one.state.doomed
        return worst([unmark, *sweeps])

    check(step)


def test_a_chunk_of_a_picture_costs_a_chunk() -> None:
    def walk(one: Big) -> Work:
        tiered(one).apply(c.Mark())
        return worst(drained(picture.rows(one.state)))

    def take(one: Big) -> Work:
        tiered(one).apply(c.Mark())
        painter = picture.Painter(NamespaceState())
        chunks = picture.rows(one.state)
        return worst([work_of(lambda c=c: painter.take(c)) for c in chunks])

    def durable(one: Big) -> Work:
        one.apply(c.SetPolicy("/deep/1", "durability", "memory"))
        tiered(one).apply(c.Mark())
        return worst(drained(picture.durable_files(one.state)))

    check(walk, tables_grow=True)
    check(take, tables_grow=True)
    check(durable, tables_grow=True)


def test_a_chunk_of_a_copy_has_a_chunk_of_the_tier() -> None:
    def step(one: Big) -> Work:
        tiered(one).apply(c.Mark())
        one.delete("/flat", recursive=True)
        return worst(drained(s.snapshot(one.state)))

    check(step, tables_grow=True)


def steps_of(work: Coroutine[Any, Any, Any]) -> Iterator[None]:
    """What runs between two waits that let others have their turn."""
    while True:
        try:
            work.send(None)
        except StopIteration:
            return
        yield


PUT_FILES = 1500
"""Of one put: an upload may have thousands."""


def test_the_files_of_a_round_are_sorted_and_packed_in_slices() -> None:
    def sort(one: Big) -> Work:
        records = [FileRecord(n, 1, 0, 0, b"x", ()) for n in range(one.size)]
        return worst(drained(steps_of(carrier.sort(records, MIB))))

    def pack(one: Big) -> Work:
        async def work() -> None:
            packer = Packer()
            for n in range(one.size):
                await packer.add(n, b"x")

        return worst(drained(steps_of(work())))

    check(sort, tables_grow=True)
    check(pack, tables_grow=True)


def test_what_the_drain_asks_for_comes_in_slices() -> None:
    def journal(one: Big) -> Work:
        tiered(one)
        since = one.state.tier.change
        change(one, one.size // 3)
        own = one.state.journal
        assert own is not None
        return work_of(lambda: own.after(since, upto=own.last, limit=500))

    def cold(one: Big) -> Work:
        tiered(one).apply(c.Mark())
        copy = NamespaceState()
        picture.restore_picture(copy, picture.rows(one.state))
        return work_of(lambda: copy.tier.newest_cold(below=1 << 60, limit=100))

    def status(one: Big) -> Work:
        tiered(one)
        return work_of(lambda: answers.answer(one.state, q.TierState()))

    def increment(one: Big) -> Work:
        tiered(one).apply(c.SetPolicy("/flat", "durability", "memory"))
        own, tier = one.state.journal, one.state.tier
        assert own is not None
        one.apply(c.Horizon(tier.epoch, tier.number + 1, tier.change, 0, 0, 0))
        change(one, cut.SLICE_FILES + one.size // 3)
        for at in range(0, one.size, PUT_FILES):
            one.put(*(c.NewFile(f"/put/{n}", 1, n, b"1") for n in range(at, at + PUT_FILES)))
        return worst(drained(steps_of(cut.increment(one.state, own))))

    check(journal)
    check(increment, tables_grow=True)  # lists of what changed are copied
    check(cold, tables_grow=True)  # a page of the table is sorted
    check(status)
