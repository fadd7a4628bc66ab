"""All commands of the namespace mixed at random: with the same ones all states stay the same.

What one kind of command leaves behind is what another finds. So nothing here has a model of what
should happen: whatever happens, it happens to all replicas, to those too that got their state by
transfer in between; nothing but an answer leaves `apply`; sums are what a recount says; and a
picture with the journal after it is what was there.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from diskless import policy
from diskless.agent.leading.backlog import Backlog
from diskless.model import PRIORITIES, DrillStatus, Extent, Place, Stripe, TierOptions
from diskless.namespace import commands as c
from diskless.namespace import journal as journals
from diskless.namespace import picture, snapshot, weights
from diskless.namespace import queries as q
from diskless.namespace.events import EventLog
from diskless.namespace.journal import Journal
from diskless.namespace.plans import is_plan, offsets_above
from diskless.namespace.replay import Replayer
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File
from tests.unit.recount import check_sparse, counted, recount
from tests.unit.test_namespace_world import (
    agent_up,
    check_counts,
    dump,
    dump_policies,
    walk,
)

K = 2
AGENTS = 5
STEPS = 400
WAITS = 8
"""A seed with which effects wait for plans."""
TOPS = ("/c", "/d", "/c/inner", "/offsets")
LOGS = ("offsets", "commits", "state", "state/d", "sources", "data")
VALUES: dict[str, tuple[str, ...]] = {
    policy.DURABILITY: (*policy.DURABILITIES, "never"),
    policy.PARITY: ("0", "1", "2", "3"),
    policy.PRIORITY: ("0", "5", "9", "10"),
    policy.QUOTA: ("1B", "20KiB", "1MiB", "1GiB", "0"),
    policy.KEEP_IN_MEMORY: ("1", "100", "none"),
    policy.PIN: ("yes", "no"),
    policy.HISTORY_IN: ("memory", "tier", "nowhere"),
    policy.HISTORY: ("none", "every 1m keep 1h; every 1h keep 7d", "every 0s keep 1h"),
    "colour": ("red",),
}


def copy_of(state: NamespaceState) -> NamespaceState:
    copy = NamespaceState(sweep_at_once=state._sweep_at_once, parity_shards=state.parity_shards)
    restorer = snapshot.Restorer(copy)
    for chunk in snapshot.snapshot(state):
        restorer.take(chunk)
    return copy


class Mix:
    """Makes commands that often mean something to a state, and often do not."""

    def __init__(self, seed: int, state: NamespaceState) -> None:
        self.random = random.Random(seed)
        self.state = state
        self.stripes = 0
        self.sequences: dict[int, int] = {}
        self.sent: list[c.Command] = []
        self.script: list[c.Command] = []

    # -- things to speak of -------------------------------------------------------

    def one(self, *things: Any) -> Any:
        return self.random.choice(things)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def path(self) -> str:
        if self.chance(0.02):
            return self.one("/", "", "a", "/a/../b", "/c/.snapshot/s0", "//", "/c/")
        top = self.one(*TOPS)
        if self.chance(0.15):
            return f"{top}/metadata"
        return f"{top}/{self.one(*LOGS)}/{self.random.randrange(4)}"

    def place(self) -> str:
        """A path where a directory may be."""
        top = self.one(*TOPS, "/new", "/more")
        return str(top) if self.chance(0.4) else f"{top}/{self.one(*LOGS)}"

    def there(self) -> str:
        """A path that leads to something, mostly."""
        found = [path for path, _ in walk(self.state.tree.root)]
        return self.random.choice(found) if self.chance(0.85) else self.path()

    def directory(self) -> str:
        found = [p for p, node in walk(self.state.tree.root) if isinstance(node, Directory)]
        return self.random.choice(found) if self.chance(0.85) else self.path()

    def kept(self) -> tuple[str, str]:
        found = [(one.path, one.name) for one in self.state.history.by_id.values()]
        return self.random.choice(found) if found and self.chance(0.9) else (self.path(), "s9")

    def numbers(self) -> tuple[int, int]:
        known = list(self.state.sessions._sessions)
        session = self.random.choice(known) if known and self.chance(0.97) else 99
        step = 1 if self.chance(0.97) else self.random.randrange(4)
        self.sequences[session] = self.sequences.get(session, 0) + step
        return session, self.sequences[session]

    def file_id(self) -> int:
        known = list(self.state.files)
        return self.random.choice(known) if known and self.chance(0.95) else 10**6

    def stripe(self, size: int) -> Stripe:
        self.stripes += 1
        parity = self.random.randrange(K + 1) if self.chance(0.3) else K
        data = 1 if not parity else self.random.randrange(1, 3)
        slots = self.random.sample(range(AGENTS), data + parity)
        lives = {slot: agent.incarnation for slot, agent in self.state.agents.items()}
        places = tuple(Place(slot, lives.get(slot, 1)) for slot in slots)
        return Stripe(f"0.{lives.get(0, 1)}.{self.stripes}", data, parity, size, places)

    # -- commands -----------------------------------------------------------------

    def command(self) -> c.Command:
        if self.script:
            return self.script.pop(0)
        if self.sent and self.chance(0.03):
            return self.random.choice(self.sent[-20:])
        made: c.Command = self.random.choices(MAKERS, WEIGHTS)[0](self)
        self.sent.append(made)
        return made

    def commit(self) -> c.Command:
        stripes: list[Stripe] = []
        puts = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            files = []
            for _ in range(self.random.choice((1, 1, 1, 1, 2, 3, 0))):
                size = self.random.choice((0, 1, 100, 5000))
                if size and self.chance(0.5):
                    stripes.append(self.stripe(size + self.random.choice((0, 50))))
                    extents = (Extent(stripes[-1].id, 0, size),)
                    files.append(c.NewFile(self.path(), size, 7, None, extents))
                else:
                    files.append(c.NewFile(self.path(), size, 7, bytes(size)))
            puts.append(
                c.Put(*self.numbers(), self.chance(0.8), tuple(files), not self.chance(0.1))
            )
        return c.Commit(tuple(stripes), tuple(puts))

    def relocate(self) -> c.Command:
        stripes, made = [], []
        for _ in range(3):
            file = self.state.files.get(self.file_id())
            if file is None or not file.record.size:
                continue
            stripes.append(self.stripe(file.record.size))
            late = self.chance(0.1)
            extents = (Extent(stripes[-1].id, 0, file.record.size),)
            made.append(c.Move(file.record.id, file.record.layout + late, extents))
        return c.Relocate(tuple(stripes), tuple(made))

    def move_shards(self) -> c.Command:
        known = list(self.state.ledger.entries.values())
        moves = []
        for entry in self.random.sample(known, min(2, len(known))):
            slot = self.random.randrange(AGENTS)
            agent = self.state.agents[slot]
            place = (self.random.randrange(3), Place(slot, agent.incarnation))
            moves.append(c.ShardMove(entry.stripe.id, entry.stripe.version, (place,)))
        return c.MoveShards(tuple(moves))

    def evict(self) -> c.Command:
        rows = []
        for _ in range(4):
            id_ = self.file_id()
            file = self.state.files.get(id_)
            rows.append((id_, file.record.layout if file and self.chance(0.9) else 3))
        return c.Evict(tuple(rows), self.chance(0.5))

    def keep(self) -> c.Command:
        segment = self.state.tier.last_segment + self.random.randrange(2)
        rows = tuple(
            (self.file_id(), segment, 10 * n, self.random.randrange(1, 9), 0) for n in range(6)
        )
        uri = self.one("", self.state.tier.uri, self.state.tier.uri, "file:///other")
        return c.Keep(1, ((segment, f"segments/{segment}", 100),), rows, uri)

    def keep_all(self) -> c.Command:
        segment = self.state.tier.last_segment + 1
        rows = tuple((id_, segment, n, 1, 0) for n, id_ in enumerate(self.state.files))
        return c.Keep(1, ((segment, f"segments/{segment}", 100),), rows)

    def horizon(self) -> c.Command:
        tier = self.state.tier
        change = self.one(tier.change, tier.change, tier.change - 2, tier.change + 1)
        return c.Horizon(
            tier.epoch, tier.number + 1, change, self.state.op, self.state.clock_ms,
            self.state.last_file if change == tier.change else tier.horizon_file,
        )  # fmt: skip

    def attach(self) -> c.Command:
        uri = self.one("file:///a", "file:///a", "file:///b")
        options = TierOptions(durability=self.one("", "", "barrier", "memory", "sync"))
        return c.AttachTier(uri, self.random.randrange(1, 4), self.random.randrange(3), "", options)

    def set_policy(self) -> c.Command:
        key = self.random.choice(list(VALUES))
        path = self.one(*TOPS, "/", self.path(), self.place())
        return c.SetPolicy(path, key, self.random.choice(VALUES[key]))

    def remove_policy(self) -> c.Command:
        known = list(self.state.policies.table)
        path = self.random.choice(known) if known and self.chance(0.9) else self.path()
        return c.RemovePolicy(path, self.one("", *VALUES))

    def snapshot(self) -> c.Command:
        chosen = tuple(self.directory() for _ in range(self.one(1, 1, 1, 2)))
        name = self.one("", f"s{self.random.randrange(6)}")
        return c.CreateSnapshot(*self.numbers(), chosen, name, len(chosen) > 1 or self.chance(0.1))

    def rollback(self) -> c.Command:
        cuts = list(self.state.history._cuts)
        if cuts and self.chance(0.3):
            name = self.random.choice(cuts)
            return c.Rollback(*self.numbers(), "/", name, True, self.chance(0.5))
        return c.Rollback(*self.numbers(), *self.kept(), False, self.chance(0.5))

    def prune(self) -> c.Command:
        path = self.directory()
        below = [p for p, node in walk(self.state.tree.root) if isinstance(node, File)]
        prefix = path.rstrip("/") + "/"
        names = [p[len(prefix) :] for p in below if p.startswith(prefix)][:3]
        return c.Prune(*self.numbers(), path, (*names, self.one("0", "x/y", "..", "state")))

    def replace(self) -> c.Command:
        swaps = []
        for _ in range(self.one(1, 1, 2)):
            path, since = self.kept()
            source = self.one(self.directory(), f"{path}.new", "/new")
            swaps.append(c.Swap(path, source, since))
        return c.Replace(*self.numbers(), tuple(swaps), force=self.chance(0.5))

    def swap(self) -> c.Command:
        """All that it takes to put something else in the place of a directory."""
        path, name = self.directory(), f"w{self.random.randrange(10**6)}"
        new = f"{path}.new"
        others = [self.commit()] if self.chance(0.3) else []
        self.script += [
            c.Clone(*self.numbers(), path, new),
            c.Prune(*self.numbers(), new, ("0", "1", "offsets/0", "data/1", "metadata")),
            *others,
            c.Replace(*self.numbers(), (c.Swap(path, new, name),), force=self.chance(0.7)),
        ]
        return c.CreateSnapshot(*self.numbers(), (path,), name)

    def keep_leases(self) -> c.Command:
        roots = tuple(self.one(*TOPS) if self.chance(0.95) else "//" for _ in range(2))
        return c.KeepLeases(*self.numbers(), roots, (self.one(*TOPS),) if self.chance(0.3) else ())

    def agent_up(self) -> c.Command:
        slot = self.random.randrange(AGENTS)
        return agent_up(slot, f"b{self.random.randrange(3)}", host=f"h{slot % 3}")

    def agent_down(self) -> c.Command:
        slot = self.random.randrange(AGENTS)
        agent = self.state.agents.get(slot)
        return c.AgentDown(slot, agent.incarnation if agent else 1)

    def limit(self) -> c.Command:
        used = self.state.bytes_used
        return c.Limit(self.one(0, 0, 0, 0, 0, used, used + 500, used + 5000, used + 10**6, 1))

    def reap(self) -> c.Command:
        return c.Reap((*list(self.state.ledger.freed_ms)[: self.random.randrange(4)], "0.1.9999"))


MAKERS: list[Callable[[Mix], c.Command]] = []
WEIGHTS: list[int] = []


def makes(weight: int, maker: Callable[[Mix], c.Command]) -> None:
    MAKERS.append(maker)
    WEIGHTS.append(weight)


makes(40, Mix.commit)
makes(6, lambda m: c.Mkdirs(*m.numbers(), m.place()))
makes(8, lambda m: c.Rename(*m.numbers(), m.there(), m.one(m.path(), m.place()), m.chance(0.5)))
makes(4, lambda m: c.Delete(*m.numbers(), m.there(), m.chance(0.5), m.chance(0.5)))
makes(6, Mix.snapshot)
makes(2, lambda m: c.RenameSnapshot(*m.numbers(), *m.kept(), f"s{m.random.randrange(6)}"))
makes(2, lambda m: c.DeleteSnapshots(*m.numbers(), *(lambda p, n: (p, (n,)))(*m.kept())))
makes(4, lambda m: c.Clone(*m.numbers(), m.there(), m.one(m.path(), m.place())))
makes(6, Mix.swap)
makes(3, Mix.rollback)
makes(4, Mix.prune)
makes(2, Mix.replace)
makes(5, Mix.keep_leases)
makes(3, lambda m: c.OpenSession(m.one("", "q"), m.one("", "app-1", "app-2", "a" * 300)))
makes(6, Mix.relocate)
makes(3, Mix.move_shards)
makes(1, lambda m: c.Doubt(((0, m.random.randrange(3)),)))
makes(1, lambda m: c.Fence(0, m.random.randrange(3), m.stripes - 5))
makes(3, Mix.reap)
makes(4, lambda m: c.Sweep(m.random.randrange(1, 5)))
makes(7, Mix.agent_up)
makes(2, Mix.agent_down)
makes(1, lambda m: c.AgentSlow(m.random.randrange(AGENTS), 1, m.chance(0.5)))
makes(1, lambda m: c.AgentEnds(m.random.randrange(AGENTS), 1, m.one("a", "b"), m.one(0, 30)))
makes(1, lambda m: c.Drain(m.random.randrange(AGENTS), m.chance(0.5)))
makes(2, Mix.limit)
makes(2, lambda m: c.IssueToken(m.one("t", "u"), (m.path(),), True, m.one(0, 1, 10**9)))
makes(1, lambda m: c.RevokeToken(m.one("t", "u")))
makes(10, Mix.set_policy)
makes(4, Mix.remove_policy)
makes(3, Mix.attach)
makes(2, lambda m: c.DetachTier())
makes(1, lambda m: c.Close(True))
makes(12, lambda m: c.Close(False))
makes(1, lambda m: c.Drilled(DrillStatus(sound=m.chance(0.5), problem="p" * 600)))
makes(8, Mix.keep)
makes(4, Mix.keep_all)
makes(8, Mix.horizon)
makes(10, Mix.evict)
makes(2, lambda m: c.Mark())
makes(1, lambda m: c.Unmark())


def check(state: NamespaceState) -> None:
    check_counts(state)
    check_sparse(state.ledger)
    assert recount(state) == counted(state)
    assert weights.total(state) == sum(weights.by_kind(state).values()) == state.bytes_used
    ranks = {
        id_: rank
        for rank in PRIORITIES
        for id_ in state.tier.newest_cold(below=1 << 60, limit=10**6, priority=rank)
    }
    graded = {id_: policy.priority_of(state.files[id_].record.grade) for id_ in state.tier.cold}
    assert ranks == graded
    for file in state.files.values():
        asked = policy.parity_of(file.record.grade, K)
        least = min(
            (state.ledger.get(one.stripe).parity_shards for one in file.record.extents), default=K
        )
        assert (file.record.id in state.thin) == (least < asked), file.record


class Barrier:
    """What must be waited for, by what was there when: nothing that is put beside plans is
    acknowledged, and no plan is opened, while one of them is where the tier has it not."""

    def __init__(self, state: NamespaceState) -> None:
        self.state = state
        self.backlog = Backlog(world=self, now_s=lambda: 0.0)
        self.at: dict[int, dict[str, int]] = {}
        self.waited = 0

    def note(self, command: c.Command, results: tuple[c.Result, ...]) -> None:
        tier = self.state.tier
        if isinstance(command, c.AttachTier | c.DetachTier) and not tier.horizon_change:
            self.at.clear()
        here = {
            path: node.record.id
            for path, node in walk(self.state.tree.root)
            if isinstance(node, File) and "/offsets/" in path
        }
        self.at[tier.change] = here
        if not tier.attached:
            return
        if tier.horizon_change and tier.horizon_change not in self.at:
            return  # within a commit, of which nobody has seen the middle
        safe = self.at.get(tier.horizon_change, {})
        late = {path for path, id_ in here.items() if safe.get(path) != id_}
        for path in sorted(late):
            if self.asks(path):
                assert self.backlog.before_answer(q.OpenMany((path,))) > tier.horizon_change, path
        if isinstance(command, c.Commit):
            for put, result in zip(command.puts, results, strict=True):
                if isinstance(result, c.Done):
                    self.check(put, late)

    def asks(self, path: str) -> bool:
        state = self.state
        default = state.tier.default_durability
        return state.policies.durability(path, default=default) == policy.BARRIER

    def check(self, put: c.Put, late: set[str]) -> None:
        for file in put.files:
            if not self.asks(file.path) or not self.state.tree.find(file.path):
                continue
            beside = [plan for plan in late if is_beside(file.path, plan)]
            # A plan of a checkpoint within another has effects of its own, which wait.
            if beside and not is_plan(self.state.tree, file.path):
                self.waited += 1
                held = self.backlog.after(c.Commit((), (put,)))
                assert held is not None, (file.path, beside)
                held.close()  # type: ignore[attr-defined]


def is_beside(path: str, plan: str) -> bool:
    """Whether a path is below a checkpoint that a plan is of, and is no plan of it."""
    return any(
        path.startswith(above.removesuffix("offsets")) and not path.startswith(f"{above}/")
        for above in offsets_above(plan)
    )


class Untrimmed(Journal):
    def trim(self, change: int) -> None:
        pass


def what_a_tier_keeps(state: NamespaceState) -> dict[str, Any]:
    return {
        "tree": files_below(state.tree.root),
        "snapshots": [
            (one.id, one.path, one.name, one.time_ms, one.cut, one.cut_size, files_below(one.root))
            for one in state.history.by_id.values()
        ],
        "policies": dump_policies(state.policies.table),
        "tokens": sorted(state.tokens.by_name.items()),
        "last": (state.last_file, state.history.last, state.tier.change),
    }


def files_below(root: Directory) -> list[tuple[Any, ...]]:
    return [
        (path, node.mtime_ms)
        if isinstance(node, Directory)
        else (path, node.record.id, node.record.size, node.record.mtime_ms, node.record.checksum)
        for path, node in walk(root)
    ]


def check_replay(state: NamespaceState, told: list[bytes]) -> None:
    """A picture of an earlier moment and all changes since make what is there."""
    again = NamespaceState(sweep_at_once=3, parity_shards=K)
    picture.restore_picture(again, told)
    replayer = Replayer(again)
    assert state.journal is not None
    if not state.journal.covers(again.tier.change):
        return  # The tier was detached, or another one attached, in between.
    since = again.tier.change
    for entry in state.journal.after(since, upto=state.tier.change, limit=10**6):
        replayer.apply(journals.decode(entry))
    assert what_a_tier_keeps(again) == what_a_tier_keeps(state)


def run(seed: int, steps: int = STEPS) -> int:
    """How many answers had to wait for a plan."""
    states = [NamespaceState(sweep_at_once=3, parity_shards=K) for _ in range(2)]
    first = states[0]
    first.journal = Untrimmed()
    events = EventLog()
    told: list[bytes] = []
    barrier = Barrier(first)
    mix = Mix(seed, first)
    now_ms, elapsed_ms = 10**9, 1000
    begin = [agent_up(slot, "b0", host=f"h{slot % 3}") for slot in range(AGENTS)]
    opened = [c.OpenSession("q", name) for name in ("", "app-1", "app-2")]
    for step in range(steps):
        command = (begin + opened)[step] if step < AGENTS + 3 else mix.command()
        command = c.decode(c.encode(command))
        now_ms += mix.random.choice((0, 5, 1000))
        elapsed_ms += mix.random.choice((0, 5, 900, 900, 7000)) if mix.chance(0.3) else 1
        if mix.chance(0.03):
            states[-1] = copy_of(states[mix.random.randrange(len(states))])
        answers = [
            state.apply(command, now_ms=now_ms, elapsed_ms=elapsed_ms, op=step + 1)
            for state in states
        ]
        assert all(answer == answers[0] for answer in answers), (step, command, answers)
        assert c.decode_results(c.encode(answers[0])) == answers[0]
        events.note(
            step + 1, command, answers[0], time_ms=now_ms, elapsed_ms=elapsed_ms, who_of=str
        )
        barrier.note(command, answers[0])
        if isinstance(command, c.Mark) and first.tier.attached:
            told = list(picture.rows(first))
        if step % 10 == 0 or step == steps - 1:
            for state in states:
                check(state)
            assert dump(states[1]) == dump(first), (step, command)
            if told and first.tier.attached:
                check_replay(first, told)
    assert len(list(events.newest_first())) > steps / 2
    return barrier.waited


@pytest.mark.parametrize("seed", range(12))
def test_all_commands_mixed_leave_all_replicas_the_same(seed: int) -> None:
    waited = run(seed)
    assert waited or seed != WAITS, "nothing here shows that plans are waited for"
