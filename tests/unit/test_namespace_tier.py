"""Random commands with a durable tier beside them: the machine of `test_namespace_machine`, and
all that a tier adds. What was walked of a marked moment while commands went on, and the changes
that were written down since, must be the namespace at each of its positions; and a namespace
that begins with what they say goes on like any other.
"""

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from diskless import policy
from diskless.namespace import commands as c
from diskless.namespace import journal as j
from diskless.namespace import picture
from diskless.namespace.replay import Replayer, found
from diskless.namespace.snapshot import Restorer
from diskless.namespace.snapshot import snapshot as transfer
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Kept
from diskless.namespace.tree import Directory, File
from tests.unit.test_namespace_machine import SWEEP_AT_ONCE, NamespaceMachine, any_paths, paths
from tests.unit.test_namespace_world import check_counts, walk

URI = "file:///tier"
durabilities = st.sampled_from(policy.VALUES[policy.DURABILITY])
Facts = dict[str, Any]


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


class TierMachine(NamespaceMachine):
    def __init__(self) -> None:
        super().__init__()
        self.usual_rows = picture.CHUNK_ROWS_MAX
        picture.CHUNK_ROWS_MAX = 1
        self.policies: dict[str, str] = {}
        self.kept: dict[int, Kept] = {}  # of files that are gone, too
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
        refused = bad or (value == policy.SYNC and not self.state.tier.attached)
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
        refused = bool(tier.cold) or policy.SYNC in self.policies.values()
        (result,) = self.apply(c.DetachTier())
        assert isinstance(result, c.Refused) == refused
        if not refused:
            assert result == c.Done(changed=had)
            assert not self.state.tier.attached
            self.kept = {}
            assert self.state.tier.change == tier.change

    @precondition(lambda self: self.state.tier.attached)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """Some files, gone ones among them, in one or two segments, some of them again."""
        tier = self.state.tier
        ids = st.integers(1, self.state.last_file + 1)
        segments = [
            (tier.last_segment + n, f"segment-{tier.last_segment + n}", 1000) for n in (1, 2)
        ]
        rows = tuple(
            (id_, data.draw(st.sampled_from(segments))[0], n * 10, data.draw(st.integers(1, 9)), 1)
            for n, id_ in enumerate(data.draw(st.lists(ids, max_size=6)))
        )
        there = sum(row[0] in self.state.files for row in rows)
        result = self.apply(c.Keep(self.number + 1, tuple(segments), rows))
        assert result == (c.Done(there, changed=there > 0),)
        self.kept |= {id_: Kept(*rest) for id_, *rest in rows if id_ in self.state.files}

    @precondition(lambda self: self.state.tier.attached)
    @rule(back=st.integers(0, 5), late=st.booleans())
    def move_horizon(self, back: int, late: bool) -> None:
        tier, journal = self.state.tier, self.state.journal
        change = max(tier.change - back, tier.horizon_change)
        number = tier.number + (not late)
        command = c.Horizon(tier.epoch, number, change, self.op - 1, self.clock_ms, 0)
        assert self.apply(command) == (c.Done(changed=not late),)
        if not late:
            assert (tier.number, tier.horizon_change) == (number, change)
            assert journal.since >= change
            assert journal.last == tier.change
            self.number = number

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
            self.kept[id_] = Kept(1, n, 1, 0)
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
        shown = {id_: self.state.tier.place(id_) for id_ in self.state.tier.places}
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
