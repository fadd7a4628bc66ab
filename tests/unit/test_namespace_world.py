"""What the tests of the namespace share: a small world to command, and a canonical dump.

`World` holds a state with agents and one session, and numbers requests and stripes.
`dump` shows everything that a state knows, as plain data in a fixed form, so that two
states are equal exactly if their dumps are. The tests here are about the dump itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec import to_builtins

from diskless.errors import DisklessError
from diskless.model import AgentInfo, Extent, Place, Stripe
from diskless.namespace import btree, weights
from diskless.namespace import commands as c
from diskless.namespace.btree import Inner, Leaf
from diskless.namespace.marked import Marked
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File, Node
from diskless.namespace.views import tier_status
from tests.unit.recount import check_tier

DATA_SHARDS, PARITY_SHARDS = 2, 1


def agent_up(slot: int, boot: str = "first", *, host: str = "h") -> c.AgentUp:
    return c.AgentUp(slot, boot, f"{host}:1", f"{host}:2", "/s", host, "node", 7)


def inline_file(path: str, data: bytes = b"x", *, checksum: int = 0) -> c.NewFile:
    return c.NewFile(path, len(data), checksum, data)


def file_in(path: str, *extents: Extent, checksum: int = 0) -> c.NewFile:
    return c.NewFile(path, sum(e.length for e in extents), checksum, None, extents)


class World:
    """A namespace whose clocks stand still until a test moves them."""

    def __init__(self, agents: int = 4) -> None:
        self.state = NamespaceState()
        self.now_ms = 1000
        self.elapsed_ms = 50
        for slot in range(agents):
            self.do(agent_up(slot))
        self.session = self.do(c.OpenSession()).number
        self._sequence = 0
        self._counter = 0

    def apply(self, command: c.Command) -> tuple[c.Result, ...]:
        return self.state.apply(command, now_ms=self.now_ms, elapsed_ms=self.elapsed_ms)

    def do(self, command: c.Command) -> c.Done:
        """The one result of a command; a refusal is raised as its error."""
        (result,) = self.apply(command)
        if isinstance(result, c.Refused):
            raise result.error()
        return result

    def refusal(self, command: c.Command) -> type[DisklessError]:
        """Why a command is refused; checks that the refusal changed nothing."""
        before = dump(self.state, sessions=False)
        (result,) = self.apply(command)
        assert isinstance(result, c.Refused), result
        assert dump(self.state, sessions=False) == before, "a refused command changed the state"
        return type(result.error())

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    # -- commands of this world's session ---------------------------------------

    def put_of(self, *files: c.NewFile, overwrite: bool = False) -> c.Put:
        return c.Put(self.session, self.next_sequence(), overwrite, files)

    def commit_of(
        self, *files: c.NewFile, stripes: Iterable[Stripe] = (), overwrite: bool = False
    ) -> c.Commit:
        return c.Commit(tuple(stripes), (self.put_of(*files, overwrite=overwrite),))

    def mkdirs_of(self, path: str, *, parents: bool = True) -> c.Mkdirs:
        return c.Mkdirs(self.session, self.next_sequence(), path, parents)

    def rename_of(self, source: str, target: str, *, overwrite: bool = False) -> c.Rename:
        return c.Rename(self.session, self.next_sequence(), source, target, overwrite)

    def delete_of(self, path: str, *, recursive: bool = False, snapshots: bool = False) -> c.Delete:
        return c.Delete(self.session, self.next_sequence(), path, recursive, snapshots)

    def snapshot_of(self, *chosen: str, name: str = "", cut: bool = False) -> c.CreateSnapshot:
        return c.CreateSnapshot(self.session, self.next_sequence(), chosen, name, cut)

    def rename_snapshot_of(self, path: str, old: str, new: str) -> c.RenameSnapshot:
        return c.RenameSnapshot(self.session, self.next_sequence(), path, old, new)

    def delete_snapshots_of(self, path: str, *names: str) -> c.DeleteSnapshots:
        return c.DeleteSnapshots(self.session, self.next_sequence(), path, names)

    def clone_of(self, source: str, target: str) -> c.Clone:
        return c.Clone(self.session, self.next_sequence(), source, target)

    def rollback_of(self, path: str, name: str, *, cut: bool = False) -> c.Rollback:
        return c.Rollback(self.session, self.next_sequence(), path, name, cut)

    # -- and doing them ---------------------------------------------------------

    def put(self, path: str, data: bytes = b"x", *, overwrite: bool = False) -> c.Done:
        return self.do(self.commit_of(inline_file(path, data), overwrite=overwrite))

    def put_in(self, path: str, stripe: Stripe, offset: int = 0, length: int | None = None) -> int:
        """Puts a file into part of a stripe (all of it by default); returns its id."""
        extent = Extent(stripe.id, offset, stripe.payload_bytes if length is None else length)
        command = self.commit_of(file_in(path, extent), stripes=[stripe], overwrite=True)
        return self.do(command).number

    def mkdirs(self, path: str, *, parents: bool = True) -> c.Done:
        return self.do(self.mkdirs_of(path, parents=parents))

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> c.Done:
        return self.do(self.rename_of(source, target, overwrite=overwrite))

    def delete(self, path: str, *, recursive: bool = False, snapshots: bool = False) -> c.Done:
        return self.do(self.delete_of(path, recursive=recursive, snapshots=snapshots))

    def snapshot(self, path: str, name: str = "") -> c.Done:
        return self.do(self.snapshot_of(path, name=name))

    def clone(self, source: str, target: str) -> c.Done:
        return self.do(self.clone_of(source, target))

    def rollback(self, path: str, name: str) -> c.Done:
        return self.do(self.rollback_of(path, name))

    # -- stripes ----------------------------------------------------------------

    def stripe(self, payload_bytes: int = 100, *, writer: int = 0) -> Stripe:
        """A new stripe on the first agents, as they live now."""
        self._counter += 1
        agents = self.state.agents
        shards = range(DATA_SHARDS + PARITY_SHARDS)
        places = tuple(Place(slot, agents[slot].incarnation) for slot in shards)
        id_ = f"{writer}.{agents[writer].incarnation}.{self._counter}"
        return Stripe(id_, DATA_SHARDS, PARITY_SHARDS, payload_bytes, places)

    # -- what is there ----------------------------------------------------------

    def files(self) -> dict[str, bytes | tuple[Extent, ...]]:
        return {
            path: record.extents if record.inline is None else record.inline
            for path, (kind, record) in dump_tree(self.state).items()
            if kind == "file"
        }

    def directories(self) -> set[str]:
        return {path for path, (kind, *_) in dump_tree(self.state).items() if kind == "directory"}


def children(directory: Directory) -> dict[str, Node]:
    return dict(btree.page(directory.node, after="", limit=10**9)[0])


def walk(directory: Directory, above: str = "") -> Iterator[tuple[str, Node]]:
    """A directory and all that is below it, with paths; checks sums on the way."""
    yield above or "/", directory
    files, directories, size = 0, 1, 0
    found = children(directory)
    for name, child in found.items():
        if isinstance(child, Directory):
            yield from walk(child, f"{above}/{name}")
            files, directories = files + child.files, directories + child.directories
            size += child.bytes
        else:
            yield f"{above}/{name}", child
            files, size = files + 1, size + child.record.size
    assert (directory.files, directory.directories, directory.bytes) == (files, directories, size)
    assert directory.entries == len(found)
    assert list(found) == sorted(found)


def dump_tree(state: NamespaceState) -> dict[str, tuple[Any, ...]]:
    """Every path with what it is."""
    return _dump_below(state, state.tree.root)


def _dump_below(state: NamespaceState, root: Directory) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for path, node in walk(root):
        if isinstance(node, Directory):
            found[path] = ("directory", node.mtime_ms)
        else:
            assert state.files[node.record.id] is node
            found[path] = ("file", node.record)
    return dict(sorted(found.items()))


def dump_doomed(state: NamespaceState) -> tuple[Any, ...]:
    """What was deleted and is not taken apart yet, in the order in which it will be."""
    return state.doomed.files, [
        (job.files, [shape(thing) for thing in job.pending]) for job in state.doomed.jobs
    ]


def shape(thing: Any) -> Any:
    """A thing of the tree with all that is below it, to the bounds of its nodes."""
    match thing:
        case File():
            return thing.record.id, thing.refs
        case Leaf():
            return thing.refs, [(name, shape(node)) for name, node in sorted(thing.entries.items())]
        case Inner():
            return thing.refs, thing.keys, [shape(child) for child in thing.children]
        case _:
            return thing.refs, thing.mtime_ms, shape(thing.node)


def dump_history(state: NamespaceState) -> list[Any]:
    return [
        (one.id, one.path, one.name, one.time_ms, one.op, one.cut, one.cut_size, shape(one.root))
        for one in state.history.by_id.values()
    ]


def roots_of(state: NamespaceState) -> list[Any]:
    """What the tree, snapshots, deletes and a mark hold, once for each of them."""
    roots = [state.tree.root, *(one.root for one in state.history.by_id.values())]
    roots += [thing for job in state.doomed.jobs for thing in job.pending]
    if (held := state.marked) is not None:
        roots += [held.root, *(one.root for one in held.forgotten.values())]
    return roots


def things_of(state: NamespaceState) -> dict[int, Any]:
    """Every node, directory and file that anything leads to, by identity."""
    pending = roots_of(state)
    found: dict[int, Any] = {}
    while pending:
        thing = pending.pop()
        if id(thing) not in found:
            found[id(thing)] = thing
            pending += below(thing)
    return found


def below(thing: Any) -> list[Any]:
    match thing:
        case File():
            return []
        case Leaf():
            return list(thing.entries.values())
        case Inner():
            return list(thing.children)
        case _:
            return [thing.node]


def check_counts(state: NamespaceState) -> None:
    """References and sums are what a walk from all roots says."""
    found = things_of(state)
    refs = Counter(map(id, roots_of(state)))
    for thing in found.values():
        refs.update(id(one) for one in below(thing))
    assert {key: thing.refs for key, thing in found.items()} == refs
    things = list(found.values())
    counts = state.tree.counts
    leaves = [thing for thing in things if isinstance(thing, Leaf)]
    assert counts.directories == sum(isinstance(thing, Directory) for thing in things)
    assert counts.nodes == len(leaves) + sum(isinstance(thing, Inner) for thing in things)
    assert counts.name_bytes == sum(btree.names_bytes(leaf) for leaf in leaves)
    files = {thing.record.id: thing for thing in things if isinstance(thing, File)}
    assert dict(state.files) == files
    assert state.history.bytes_used == sum(one.bytes_used for one in state.history.by_id.values())
    own = state.policies.table.items()
    assert state.policies.bytes_used == sum(weights.policy_bytes(*row) for row in own)
    check_tier(state)


def dump(state: NamespaceState, *, sessions: bool = True) -> dict[str, Any]:
    """Everything that `state` knows. Where order has a meaning, it is in the dump.

    Without `sessions` it leaves out the table of answers, which also remembers refusals.
    """
    ledger = state.ledger
    return {
        "tree": dump_tree(state),
        "doomed": dump_doomed(state),
        "shape": shape(state.tree.root),
        "history": (state.history.last, dump_history(state)),
        "files": {id_: file.refs for id_, file in state.files.items()},
        "stripes": {
            id_: (entry.stripe, entry.live_bytes, dict(sorted(entry.files.items())))
            for id_, entry in sorted(ledger.entries.items())
        },
        "freed": list(ledger.freed_ms.items()),
        "doubted": list(ledger.doubted_ms.items()),
        "fences": dict(sorted(ledger.fences.items())),
        "reaped": {who: sorted(numbers) for who, numbers in sorted(ledger.reaped.items())},
        "partly_dead": sorted(ledger.partly_dead),
        "ledger_counts": (
            ledger.live_bytes, ledger.payload_bytes, ledger.stored_bytes, ledger.freed_bytes
        ),
        "health": dump_health(state),
        "sessions": dump_sessions(state) if sessions else None,
        "tokens": (state.tokens.version, list(state.tokens.by_name.items())),
        "leases": dump_leases(state),
        "policies": dump_policies(state.policies.table),
        "asked": (
            sorted(state.policies.grades.rows), state.policies.grades_mark,
            state.policies.quotas, state.policies.barriers,
        ),
        "thin": sorted(state.thin),
        "tier": dump_tier(state),
        "mark": dump_mark(state.marked),
        "agents": dict(sorted(state.agents.items())),
        "boots": {slot: list(boots.items()) for slot, boots in sorted(state.roster.boots.items())},
        "roster_version": state.roster_version,
        "clock_ms": state.clock_ms,
        "elapsed_ms": state.elapsed_ms,
        "lost_ms": state.roster.lost_ms,
        "bytes": (state.bytes_logical, state.bytes_inline, state.bytes_max),
        "weights": {
            kind: weight
            for kind, weight in weights.by_kind(state).items()
            if sessions or kind != "answers"
        },
        "demotable": list(state.demotable_ms.items()),
        "last_file": state._last_file,
    }  # fmt: skip


def dump_policies(table: dict[str, dict[str, str]]) -> list[Any]:
    return [(path, list(own.items())) for path, own in table.items()]


def dump_tier(state: NamespaceState) -> tuple[Any, ...]:
    tier = state.tier
    return (
        tier_status(tier), tier.horizon_file, tier.last_segment, tier.segments_bytes_used,
        {number: to_builtins(segment) for number, segment in tier.segments.items()},
        {id_: tier.parts(id_) for id_ in tier.places},
        dict(tier.cold), dict(tier.evicted), tier.drill,
        list(tier.plans.rows()), tier.plans.bytes_used,
    )  # fmt: skip


def dump_leases(state: NamespaceState) -> tuple[Any, ...]:
    """In their order: of two that are as old the first goes."""
    leases = state.leases
    return leases.bytes_used, [(path, to_builtins(one)) for path, one in leases.by_path.items()]


def dump_mark(held: Marked | None) -> tuple[Any, ...] | None:
    if held is None:
        return None
    return (
        held.change, held.op, held.time_ms, held.last_file, held.last_snapshot,
        held.tokens_version, shape(held.root), dump_policies(held.policies),
        [(id_, one.path, one.name, shape(one.root)) for id_, one in held.forgotten.items()],
        list(held.names.items()), list(held.tokens.items()), held.bytes_used,
    )  # fmt: skip


def dump_health(state: NamespaceState) -> tuple[Any, ...]:
    tally = state.health.tally()
    placed = {slot: count for slot, count in state.health.shards_placed.items() if count}
    return tally.standings, tally.margin(99), tally.margin_hosts(99), sorted(placed.items())


def dump_sessions(state: NamespaceState) -> tuple[Any, ...]:
    """The last number given, and each session, the least recently used first."""
    table = state.sessions
    return table._last, [
        (number, session.bare, list(session.items())) for number, session in table._sessions.items()
    ]


# The dump itself


def test_the_dump_shows_every_part_that_a_state_and_its_ledger_have() -> None:
    state = NamespaceState()
    assert set(vars(state)) == {
        "tree", "doomed", "history", "ledger", "roster", "health", "sessions", "tokens", "agents",
        "files", "op", "clock_ms", "elapsed_ms", "bytes_inline", "bytes_max", "extents",
        "demotable_ms", "_last_file", "_sweep_at_once", "_sure_puts", "policies", "tier",
        "marked", "journal", "leases", "thin", "trusts", "parity_shards", "temporaries",
    }  # fmt: skip
    assert set(vars(state.tier)) == {
        "attached", "uri", "options", "epoch", "number", "change", "horizon_change", "horizon_op",
        "horizon_time_ms", "horizon_file", "last_segment", "segments", "places", "cold",
        "cold_bytes", "live_bytes", "segments_bytes_used", "evicted", "evicted_bytes", "closed",
        "drill", "plans", "parts_kept",
    }  # fmt: skip
    assert set(vars(state.tier.plans)) == {"put", "arrived", "floor", "bytes_used"}
    assert set(vars(state.leases)) == {"by_path", "bytes_used", "committed"}
    assert set(vars(state.policies)) == {
        "table", "bytes_used", "grades", "grades_mark", "quotas", "barriers"
    }  # fmt: skip
    assert set(Marked.__struct_fields__) == {
        "change", "op", "time_ms", "last_file", "last_snapshot", "tokens_version", "root",
        "policies", "forgotten", "names", "tokens", "bytes_used",
    }  # fmt: skip
    assert set(vars(state.ledger)) == {
        "entries", "freed_ms", "doubted_ms", "fences", "reaped", "partly_dead", "health",
        "places", "live_bytes", "payload_bytes", "stored_bytes", "_last_number", "uneven",
        "freed_bytes",
    }  # fmt: skip
    assert set(vars(state.tree)) == {"root", "counts", "shape"}
    assert set(vars(state.doomed)) == {"jobs", "files", "_counts"}
    own = {"lapses"}  # what each voter notes for itself
    shown = {"agents", "health", "version", "lost_ms", "boots"}
    assert set(vars(state.roster)) == shown | own
    assert set(vars(state.history)) == {
        "by_id", "bytes_used", "last", "_by_path", "_paths", "_cuts", "_held"
    }  # fmt: skip
    assert set(vars(state.sessions)) == {"_sessions", "_last", "bytes_used"}


def test_an_empty_namespace_has_a_root_and_nothing_else() -> None:
    state = NamespaceState()
    assert dump_tree(state) == {"/": ("directory", 0)}
    assert (state.tree.root.directories, state.files, state.agents) == (1, {}, {})
    assert (state.bytes_logical, state.bytes_inline, state.ledger.stored_bytes) == (0, 0, 0)


def test_equal_commands_give_equal_dumps_and_one_more_command_another() -> None:
    worlds = [World(), World()]
    for world in worlds:
        world.put_in("/a/b", world.stripe())
        world.delete("/a/b")
    first, second = worlds
    assert dump(first.state) == dump(second.state)
    second.mkdirs("/new")
    assert dump(first.state) != dump(second.state)


def test_time_comes_with_commands_and_never_goes_back() -> None:
    world = World()
    world.now_ms = 5000
    assert world.put("/a").time_ms == 5000
    world.now_ms = 3000
    assert world.put("/b").time_ms == 5000
    assert world.state.stat("/b").mtime_ms == world.state.stat("/").mtime_ms == 5000
    world.elapsed_ms = 700
    world.mkdirs("/c")
    world.elapsed_ms = 600
    world.mkdirs("/d")
    assert world.state.elapsed_ms == 700


def test_an_agent_is_recorded_as_it_announced_itself() -> None:
    world = World(agents=0)
    world.do(agent_up(3, "boot", host="east"))
    expected = AgentInfo(3, 1, "boot", "east:1", "east:2", "/s", "east", "node", 7, up=True)
    assert world.state.agents == {3: expected}


@pytest.mark.parametrize(
    ("command", "is_loss"),
    [
        (c.AgentDown(1, 1), True),
        (agent_up(1, "second"), True),
        (agent_up(7), False),
        (c.AgentSlow(1, 1, True), False),
        (c.AgentEnds(1, 1, "SIGTERM 1", 30_000), False),
        (c.Drain(1, True), False),
    ],
)
def test_the_end_of_a_life_is_noted_also_if_the_next_one_was_quicker_than_the_leader(
    command: c.Command, is_loss: bool
) -> None:
    """What a life kept for clients ended with it, whether or not anybody saw it down."""
    world = World()
    world.elapsed_ms = 700
    world.do(command)
    assert world.state.left_ms == (700 if is_loss else 0)


def test_a_life_that_comes_and_goes_is_not_lost_again_and_again() -> None:
    world = World()
    for elapsed_ms in range(1000, 9000, 1000):
        world.elapsed_ms = elapsed_ms
        world.do(c.AgentDown(1, 1))
        assert world.state.left_ms == elapsed_ms
        world.do(agent_up(1))
        assert world.state.left_ms == 0, "back, with all that it had"
    world.do(c.AgentDown(1, 1))
    world.elapsed_ms = 20_000
    world.do(agent_up(1, "second"))
    assert world.state.left_ms == 8000, "clients of the first have known since then"
