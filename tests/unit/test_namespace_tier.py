"""Random commands with a durable tier beside them: the machine of `test_namespace_machine`, and
all that a tier adds. What was walked of a marked moment while commands went on, and the changes
that were written down since, must be the namespace at each of its positions; and a namespace
that begins with what they say goes on like any other.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from diskless import policy
from diskless.agent.leading.salvager import Salvager
from diskless.model import Extent, FileRecord
from diskless.namespace import answers, picture
from diskless.namespace import commands as c
from diskless.namespace import journal as j
from diskless.namespace import queries as q
from diskless.namespace.behind import pieces_behind
from diskless.namespace.replay import Replayer, found
from diskless.namespace.snapshot import Restorer
from diskless.namespace.snapshot import snapshot as transfer
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Kept, is_cold, row_of
from diskless.namespace.tree import Directory, File
from tests.unit.recount import counted
from tests.unit.test_namespace_machine import (
    SWEEP_AT_ONCE,
    NamespaceMachine,
    any_paths,
    paths,
    slots,
)
from tests.unit.test_namespace_world import check_counts, walk

URI = "file:///tier"
durabilities = st.sampled_from(policy.DURABILITIES)
Facts = dict[str, Any]
T = TypeVar("T")


def new_state() -> NamespaceState:
    return NamespaceState(sweep_at_once=SWEEP_AT_ONCE)


def below(root: Directory) -> dict[str, Any]:
    """Every path with what is the same wherever the bytes lie."""
    shown: dict[str, Any] = {}
    for path, node in walk(root):
        if isinstance(node, File):
            record = node.record
            shown[path] = (record.id, record.size, record.mtime_ms, record.checksum)
        else:
            shown[path] = node.mtime_ms
    return shown


def facts(state: NamespaceState) -> Facts:
    """All that a restore brings back."""
    return {
        "tree": below(state.tree.root),
        "snapshots": [
            (one.id, one.path, one.name, one.time_ms, one.op, one.cut, one.cut_size,
             below(one.root))
            for one in state.history.by_id.values()
        ],
        "last": (state.last_file, state.history.last, state.tokens.version),
        "policies": dict(state.policies.table),
        "tokens": dict(state.tokens.by_name),
    }  # fmt: skip


def restored(chunks: list[bytes], entries: list[bytes] = ()) -> NamespaceState:  # type: ignore[assignment]
    state = new_state()
    picture.restore_picture(state, chunks)
    replayer = Replayer(state)
    for entry in entries:
        replayer.apply(j.decode(entry))
    return state


class Led:
    """A leader's replica, as far as the salvager knows it."""

    def __init__(self, machine: "TierMachine") -> None:
        self._machine = machine

    @property
    def state(self) -> NamespaceState:
        return self._machine.state

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        return self._machine.apply(command)


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Of what waits for nothing but its turn."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


class TierMachine(NamespaceMachine):
    def __init__(self) -> None:
        super().__init__()
        self.usual_rows = picture.CHUNK_ROWS_MAX
        picture.CHUNK_ROWS_MAX = 1
        self.policies: dict[str, str] = {}
        self.kept: dict[int, tuple[Kept, ...]] = {}  # of files that are gone, too
        self.epoch = 0
        self.number = 0
        self.entries: dict[int, bytes] = {}  # by change, whatever the journal has forgotten
        self.facts: dict[int, Facts] = {}
        self.walk: Iterator[bytes] | None = None
        self.chunks: list[bytes] = []
        self.base: tuple[int, list[bytes]] | None = None  # a whole picture, and of what change
        self.state.journal = j.Journal()

    def teardown(self) -> None:
        try:
            self.every_position_can_be_replayed()
        finally:
            picture.CHUNK_ROWS_MAX = self.usual_rows
            super().teardown()

    def apply(self, command: c.Command) -> tuple[c.Result, ...]:
        before = self.state.tier.change
        results = super().apply(command)
        tier, journal = self.state.tier, self.state.journal
        assert journal is not None
        assert tier.change >= before
        if tier.attached and journal.covers(before):
            found = journal.after(before, upto=tier.change, limit=1000)
            self.entries |= {j.decode(entry).change: entry for entry in found}
            assert len(found) == tier.change - before
        if tier.attached:
            self.facts[tier.change] = facts(self.state)
        return results

    @initialize()
    def form(self) -> None:
        super().form()
        if not self.state.tier.attached:
            self.attach()
        self.take_a_whole_picture()

    # -- commands ---------------------------------------------------------------

    @rule(path=any_paths, value=durabilities)
    def set_policy(self, path: str, value: str) -> None:
        bad = not path.startswith("/") or path in ("/a/", "/a/../b")
        refused = bad or (value in policy.NEED_A_TIER and not self.state.tier.attached)
        (result,) = self.apply(c.SetPolicy(path, policy.DURABILITY, value))
        assert isinstance(result, c.Refused) == refused
        if isinstance(result, c.Done):
            assert result.changed == (self.policies.get(path) != value)
            self.policies[path] = value

    @rule(path=paths, key=st.sampled_from(["", policy.DURABILITY]))
    def remove_policy(self, path: str, key: str) -> None:
        had = self.policies.pop(path, None) is not None
        assert self.apply(c.RemovePolicy(path, key)) == (c.Done(int(had), changed=had),)

    @rule()
    def attach(self) -> None:
        if not self.state.tier.attached:
            self.epoch += 1
            self.walk = self.base = None
            assert self.apply(c.AttachTier(URI, self.epoch, self.number)) == (c.Done(),)
            assert not self.state.journal.covers(self.state.tier.horizon_change)
        else:
            again = c.AttachTier(URI, self.state.tier.epoch, self.state.tier.number)
            assert self.apply(again) == (c.Done(changed=False),)
            (result,) = self.apply(c.AttachTier("file:///other", 9, 9))
            assert isinstance(result, c.Refused)

    @rule(now=st.integers(0, 9).map(lambda n: n == 9))
    def detach(self, now: bool) -> None:
        if not now:
            return
        tier = self.state.tier
        had = tier.attached
        held = any(value in self.policies.values() for value in policy.NEED_A_TIER)
        refused = tier.only_there > 0 or held
        (result,) = self.apply(c.DetachTier())
        assert isinstance(result, c.Refused) == refused
        if not refused:
            assert result == c.Done(changed=had)
            assert not self.state.tier.attached
            self.kept = {}
            if had:  # nobody would unmark it: there is no drain any more
                assert self.state.marked is None
                self.walk = None
            assert self.state.tier.change == tier.change

    @precondition(lambda self: self.state.tier.attached)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """Some files, gone ones among them, in one or two segments, some of them again."""
        ids = st.integers(1, self.state.last_file + 1)
        self.keep_these(data, data.draw(st.lists(ids, max_size=6)))

    def keep_these(self, data: st.DataObject, ids: list[int]) -> None:
        tier = self.state.tier
        segments = [
            (tier.last_segment + n, f"segment-{tier.last_segment + n}", 1000) for n in (1, 2)
        ]
        told: dict[int, tuple[Kept, ...]] = {}
        rows: list[tuple[int, ...]] = []
        for n, id_ in enumerate(ids):
            spans = self._spans(id_) if data.draw(st.booleans()) else [(0, 0)]
            parts = [
                Kept(data.draw(st.sampled_from(segments))[0], n * 10 + at, 1 + at, 1, *span)
                for at, span in enumerate(spans)
            ]
            rows += [(id_, *row_of(part)) for part in parts]
            told[id_] = tuple(parts)
        there = sum(id_ in self.state.files for id_ in told)
        result = self.apply(c.Keep(self.number + 1, tuple(segments), tuple(rows)))
        assert result == (c.Done(there, changed=there > 0),)
        self.kept |= {id_: parts for id_, parts in told.items() if id_ in self.state.files}

    def _spans(self, id_: int) -> list[tuple[int, int]]:
        """Start and size of three parts of a file, if it has as many bytes."""
        file = self.state.files.get(id_)
        size = file.record.size if file is not None else 30
        return [(0, 1), (1, 1), (2, size - 2)] if size > 2 else [(0, 0)]

    @precondition(lambda self: self.state.tier.attached and self.state.files)
    @rule(data=st.data())
    def keep_too_little(self, data: st.DataObject) -> None:
        """Parts that are not all of a file: whatever is kept may be let go of in memory."""
        id_ = data.draw(st.sampled_from(sorted(self.state.files)))
        number = self.state.tier.last_segment + 1
        size = self.state.files[id_].record.size
        wrong = [[(0, size + 1)], [(1, size)], [(0, 1), (2, size)], [(0, 1), (1, size)]]
        spans = data.draw(st.sampled_from([*wrong, [(0, size - 1)]] if size > 1 else wrong))
        rows = tuple((id_, number, n, 1, 1, *span) for n, span in enumerate(spans))
        (result,) = self.apply(c.Keep(self.number + 1, ((number, "s", 9),), rows))
        assert isinstance(result, c.Refused)

    @precondition(lambda self: self.state.tier.attached)
    @rule(back=st.integers(0, 5), late=st.booleans())
    def move_horizon(self, back: int, late: bool) -> None:
        tier, journal = self.state.tier, self.state.journal
        change = max(tier.change - back, tier.horizon_change)
        number = tier.number + (not late)
        reached = self.state.last_file - back if tier.places else 0
        command = c.Horizon(tier.epoch, number, change, self.op - 1, self.clock_ms, reached)
        assert self.apply(command) == (c.Done(changed=not late),)
        if not late:
            assert (tier.number, tier.horizon_change) == (number, change)
            assert journal.since >= change
            assert journal.last == tier.change
            self.number = number

    @precondition(lambda self: self.state.files)
    @rule(data=st.data(), late=st.booleans(), returns=st.booleans())
    def evict(self, data: st.DataObject, late: bool, returns: bool) -> None:
        """Any files, gone ones among them: only those whose bytes the tier has for certain go, and
        what shows of them stays as it is."""
        tier, files = self.state.tier, self.state.files
        ids = data.draw(st.lists(st.sampled_from([*files, 10**6]), max_size=4, unique=True))
        layouts = {id_: files[id_].record.layout if id_ in files else 0 for id_ in ids}
        before, places = facts(self.state), dict(self.kept)
        due = [
            id_
            for id_ in ids
            if not late and id_ in files and id_ <= tier.horizon_file and id_ in places
            and tier.attached and files[id_].record.size and not is_cold(files[id_].record)
        ]  # fmt: skip
        command = c.Evict(tuple((id_, layouts[id_] - late) for id_ in ids), returns)
        assert self.apply(command) == (c.Done(len(due), changed=bool(due)),)
        assert all(is_cold(files[id_].record) for id_ in due)
        assert all((id_ in tier.evicted) is not returns for id_ in due)
        assert facts(self.state) == before
        assert self.apply(command) == (c.Done(0, changed=False),)

    # -- more losses than files survive ---------------------------------------------

    @precondition(lambda self: self.state.tier.attached)
    @rule(data=st.data(), size=st.integers(1, 20), back=st.integers(0, 5))
    def lose_more_than_k(self, data: st.DataObject, size: int, back: int) -> None:
        """Agents die with what they had, at once, and more than stripes survive. What the tier
        has for certain is read there, left to it, and comes back from there; the rest is lost: it
        is counted, and nobody gets anything for it."""
        for slot, up in list(self.up.items()):  # who is only away has lost nothing
            if not up:
                self.repeat_agent_up(slot, self.lives[slot])
        self.commit_a_flush(data, size)
        ids = st.sampled_from(sorted(self.state.files))
        self.keep_these(
            data, data.draw(st.lists(ids, min_size=1, max_size=6)) if self.state.files else []
        )
        self.move_horizon(back, late=False)
        for slot in data.draw(st.lists(slots, min_size=2, max_size=3, unique=True)):
            self.start_agent(slot)
        lost = {stripe for stripe in self.live_extents() if self.is_lost(stripe)}
        assert counted(self.state)["standings"]["lost"] == len(lost)
        hit = [r for r in self.records() if any(e.stripe in lost for e in r.extents)]
        for record in hit:
            self.check_read_behind(record, lost)
        before = facts(self.state)
        freed = finish(Salvager(replica=Led(self)).salvage(sorted(lost)))
        nowhere = [record for record in hit if not self.is_in_the_tier(record.id)]
        left = {extent.stripe for record in nowhere for extent in record.extents} & lost
        assert counted(self.state)["standings"]["lost"] == len(left), "only what is nowhere"
        assert sum(freed.values()) == len(lost - left)
        assert facts(self.state) == before
        saved = [record for record in hit if self.is_in_the_tier(record.id)]
        for record in nowhere:
            assert self.state.files[record.id].record == record
        for record in saved:
            assert is_cold(self.state.files[record.id].record)
            assert record.id in self.state.tier.cold, "it comes back by itself"
            assert self.segment_at(record.id, 0) == answers.answer(
                self.state, q.TierParts(record.id)
            )[0].segment  # fmt: skip
        if saved:
            self.bring_back(data, [record.id for record in saved])

    def is_lost(self, id_: str) -> bool:
        stripe = self.state.ledger.get(id_)
        there = [place for place in stripe.places if place.incarnation == self.lives[place.slot]]
        return len(there) < stripe.data_shards

    def is_in_the_tier(self, id_: int) -> bool:
        return id_ in self.kept and id_ <= self.state.tier.horizon_file

    def segment_at(self, id_: int, at: int) -> str:
        """Of which object of the tier a byte is, as it was told to be kept."""
        part = next(p for p in self.kept[id_] if not p.size or p.start <= at < p.start + p.size)
        return f"segment-{part.segment}"

    def check_read_behind(self, record: FileRecord, lost: set[str]) -> None:
        """What a reader is told of each extent of which too few shards are left."""
        at = 0
        for extent in record.extents:
            if extent.stripe in lost and not self.is_shared(record, extent):
                pieces = answers.answer(self.state, q.Behind(extent))
                assert (pieces is not None) == self.is_in_the_tier(record.id), extent
                for piece in pieces or ():
                    told = (piece.id, piece.size, piece.checksum, piece.offset, piece.length)
                    want = (record.id, record.size, record.checksum, at, extent.length)
                    assert told == want
                    assert piece.place.segment == self.segment_at(record.id, at)
            at += extent.length

    def is_shared(self, record: FileRecord, extent: Extent) -> bool:
        """Whether another extent has some of the same bytes, as no writer ever makes them."""
        same = [e for one in self.records() for e in one.extents if e.stripe == extent.stripe]
        return (
            sum(
                e.offset < extent.offset + extent.length and extent.offset < e.offset + e.length
                for e in same
            )
            > 1
        )

    def bring_back(self, data: st.DataObject, ids: list[int]) -> None:
        """What the hydrator does."""
        records = [self.state.files[id_].record for id_ in ids]
        stripe = self.new_stripe(data, sum(record.size for record in records))
        if self.errors_of_stripe(stripe):
            return
        moves, at = [], 0
        for record in records:
            moves.append(c.Move(record.id, record.layout, (Extent(stripe.id, at, record.size),)))
            at += record.size
        assert self.apply(c.Relocate((stripe,), tuple(moves))) == (c.Done(len(ids)),)
        self.known.add(stripe.id)
        assert not self.state.tier.cold.keys() & set(ids)

    @rule()
    def mark(self) -> None:
        (done,) = self.apply(c.Mark())
        assert isinstance(done, c.Done)
        self.walk, self.chunks = picture.rows(self.state), []
        self.marked = facts(self.state)

    @rule()
    def unmark(self) -> None:
        had = self.state.marked is not None
        assert self.apply(c.Unmark()) == (c.Done(changed=had),)
        self.walk = None

    @precondition(lambda self: self.walk is not None)
    @rule(chunks=st.integers(1, 4))
    def walk_on(self, chunks: int) -> None:
        """The picture is made in pieces while the namespace goes on."""
        assert self.walk is not None
        held = self.state.marked
        assert held is not None
        for _ in range(chunks):
            chunk = next(self.walk, None)
            if chunk is None:
                assert facts(restored(self.chunks)) == self.marked
                if self.state.tier.attached:
                    self.base = held.change, self.chunks
                self.walk = None
                return
            self.chunks.append(chunk)

    @rule()
    def take_a_whole_picture(self) -> None:
        if self.walk is None:
            self.mark()
        self.walk_on(100_000)

    @rule()
    def copy_the_state(self) -> None:
        """It goes on as a voter that got it by transfer, and has written nothing down."""
        copy = new_state()
        restorer = Restorer(copy)
        for chunk in transfer(self.state):
            restorer.take(chunk)
        self.state = copy
        self.state.journal = j.Journal()
        self.state.journal.restart(copy.tier.change)
        self.walk = picture.rows(copy) if copy.marked is not None else None
        self.chunks = []

    # -- what the tier is for -----------------------------------------------------

    def journal_of(self, change: int) -> list[bytes]:
        """What is needed from the base to a change."""
        assert self.base is not None
        return [self.entries[n] for n in range(self.base[0] + 1, change + 1)]

    def positions(self) -> list[int]:
        """Those that were seen and can be returned to."""
        if self.base is None:
            return []
        change, found = self.base[0], []
        while change in self.facts or change in self.entries:
            found += [change] if change in self.facts else []
            change += 1
            if change not in self.entries:
                break
        return found

    def every_position_can_be_replayed(self) -> None:
        positions = self.positions()
        if not positions or self.base is None:
            return
        state = restored(self.base[1])
        replayer = Replayer(state)
        for change in positions:
            for entry in self.journal_of(change)[state.tier.change - self.base[0] :]:
                replayer.apply(j.decode(entry))
            assert facts(state) == self.facts[change]
            check_counts(state)

    @precondition(lambda self: self.base is not None and self.state.tier.attached)
    @rule(data=st.data())
    def lose_everything(self, data: st.DataObject) -> None:
        """All agents are gone: a new cluster begins with what is in the tier, at a position of
        its choice, and has no sessions, stripes or agents."""
        positions = [n for n in self.positions() if n <= self.state.tier.change]
        if not positions or positions[-1] != self.state.tier.change:
            return  # A voter that had a gap has led, and made no whole picture yet.
        assert self.base is not None
        before = facts(self.state)
        state = restored(self.base[1], self.journal_of(positions[-1]))
        assert facts(state) == before
        self.kept = {}
        for n, id_ in enumerate(list(state.tier.cold)):
            state.tier.add_segment(1, "segment-1", 1000)
            state.tier.keep(id_, Kept(1, n, 1, 0))
            self.kept[id_] = (Kept(1, n, 1, 0),)
        self.epoch += 1
        rewound = data.draw(st.booleans())
        number = self.number + 1
        assert found(state, uri=URI, epoch=self.epoch, number=number, rewound=rewound) == 0
        self.number += 1
        self.begin_with(state)

    def begin_with(self, state: NamespaceState) -> None:
        self.state = state
        self.state.journal = j.Journal()
        self.state.journal.restart(state.tier.change)
        self.copy_the_twin()
        for table in (self.lives, self.up, self.fences, self.counters, self.who):
            table.clear()
        for rows in (self.known, self.offered, self.history):
            rows.clear()
        self.elapsed_ms = self.op = 0
        self.clock_ms = state.clock_ms  # of the last change, and not of the last command
        self.session = self.epoch << 48
        self.walk = self.base = None
        self.form()

    # -- what always holds --------------------------------------------------------

    @invariant()
    def policies_are_what_was_set(self) -> None:
        table = {path: own[policy.DURABILITY] for path, own in self.state.policies.table.items()}
        assert table == self.policies

    @invariant()
    def places_are_where_files_were_kept_last_wherever_they_moved_since(self) -> None:
        shown = {id_: self.state.tier.parts(id_) for id_ in self.state.tier.places}
        assert shown == {id_: kept for id_, kept in self.kept.items() if id_ in self.state.files}

    @invariant()
    def a_mark_holds_no_more_than_it_says(self) -> None:
        """On a copy: without it all is as if it had never been."""
        copy = new_state()
        restorer = Restorer(copy)
        for chunk in transfer(self.state):
            restorer.take(chunk)
        copy.apply(c.Unmark(), now_ms=0, elapsed_ms=0)
        while copy.doomed:
            copy.apply(c.Sweep(100), now_ms=0, elapsed_ms=0)
        check_counts(copy)
        assert facts(copy) == facts(self.state)


TierMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],  # It traces every line.
    print_blob=True,
)
TestTier: Any = TierMachine.TestCase


# Mutants


def _beyond_the_horizon(state: NamespaceState, extent: Extent) -> Any:
    """Readers are sent to bytes of which nobody knows yet whether they will stay."""
    tier = state.tier
    reached, tier.horizon_file = tier.horizon_file, 1 << 62
    try:
        return pieces_behind(state, extent)
    finally:
        tier.horizon_file = reached


def _nothing_behind(state: NamespaceState, extent: Extent) -> Any:
    """What is lost in memory is not looked for in the tier."""
    return None


def _one_forgotten(self: Salvager, stripe: str) -> dict[int, int]:
    return dict(list(_files_of(self, stripe).items())[1:])


async def _left_for_good(self: Salvager, files: dict[int, int]) -> None:
    """What was lost here is not to come back."""
    await self._replica.execute(c.Evict(tuple(files.items()), returns=False))


_files_of = Salvager._files_of


@pytest.mark.parametrize(
    ("owner", "part", "mutant"),
    [
        (answers, "pieces_behind", _beyond_the_horizon),
        (answers, "pieces_behind", _nothing_behind),
        (Salvager, "_files_of", _one_forgotten),
        (Salvager, "_leave", _left_for_good),
    ],
)
def test_a_wrong_answer_to_more_losses_than_k_is_noticed(
    owner: Any, part: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, part, mutant)
    quick = settings(
        TierMachine.TestCase.settings,
        max_examples=100,
        stateful_step_count=20,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(TierMachine, settings=quick)
