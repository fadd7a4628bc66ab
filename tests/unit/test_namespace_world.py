"""What the tests of the namespace share: a small world to command, and a canonical dump.

`World` holds a state with agents and one session, and numbers requests and stripes.
`dump` shows everything that a state knows, as plain data in a fixed form, so that two
states are equal exactly if their dumps are. The tests here are about the dump itself.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from diskless.errors import DisklessError
from diskless.model import AgentInfo, Extent, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace import weights
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, Node

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

    def mkdirs_of(self, path: str) -> c.Mkdirs:
        return c.Mkdirs(self.session, self.next_sequence(), path)

    def rename_of(self, source: str, target: str, *, overwrite: bool = False) -> c.Rename:
        return c.Rename(self.session, self.next_sequence(), source, target, overwrite)

    def delete_of(self, path: str, *, recursive: bool = False) -> c.Delete:
        return c.Delete(self.session, self.next_sequence(), path, recursive)

    # -- and doing them ---------------------------------------------------------

    def put(self, path: str, data: bytes = b"x", *, overwrite: bool = False) -> c.Done:
        return self.do(self.commit_of(inline_file(path, data), overwrite=overwrite))

    def put_in(self, path: str, stripe: Stripe, offset: int = 0, length: int | None = None) -> int:
        """Puts a file into part of a stripe (all of it by default); returns its id."""
        extent = Extent(stripe.id, offset, stripe.payload_bytes if length is None else length)
        command = self.commit_of(file_in(path, extent), stripes=[stripe], overwrite=True)
        return self.do(command).number

    def mkdirs(self, path: str) -> c.Done:
        return self.do(self.mkdirs_of(path))

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> c.Done:
        return self.do(self.rename_of(source, target, overwrite=overwrite))

    def delete(self, path: str, *, recursive: bool = False) -> c.Done:
        return self.do(self.delete_of(path, recursive=recursive))

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


def walk(directory: Directory, above: str = "") -> Iterator[tuple[str, Node]]:
    """A directory and all that is below it, with paths; checks links and sums on the way."""
    yield above or "/", directory
    files, directories, size = 0, 1, 0
    for name, child in directory.children.items():
        assert child.name == name
        if isinstance(child, Directory):
            assert child.parent is directory
            yield from walk(child, f"{above}/{name}")
            files, directories = files + child.files, directories + child.directories
            size += child.bytes
        else:
            yield f"{above}/{name}", child
            files, size = files + 1, size + child.record.size
    assert (directory.files, directory.directories, directory.bytes) == (files, directories, size)
    assert directory.names() == sorted(directory.children)


def dump_tree(state: NamespaceState) -> dict[str, tuple[Any, ...]]:
    """Every path with what it is."""
    assert state.tree.root.parent is None
    found: dict[str, tuple[Any, ...]] = {}
    for path, node in walk(state.tree.root):
        if isinstance(node, Directory):
            found[path] = ("directory", node.mtime_ms)
        else:
            assert state.files[node.record.id] is node
            found[path] = ("file", node.record)
    return dict(sorted(found.items()))


def dump_doomed(state: NamespaceState) -> tuple[Any, ...]:
    """What was deleted and is not taken apart yet, in the order in which it will be."""
    return state.doomed.files, [
        [(path, None if isinstance(node, Directory) else node.record) for path, node in walk(root)]
        for root in state.doomed.roots
    ]


def dump(state: NamespaceState, *, sessions: bool = True) -> dict[str, Any]:
    """Everything that `state` knows. Where order has a meaning, it is in the dump.

    Without `sessions` it leaves out the table of answers, which also remembers refusals.
    """
    ledger = state.ledger
    return {
        "tree": dump_tree(state),
        "doomed": dump_doomed(state),
        "files": {id_: file.name for id_, file in state.files.items()},
        "stripes": {
            id_: (entry.stripe, entry.live_bytes, dict(sorted(entry.files.items())))
            for id_, entry in sorted(ledger.entries.items())
        },
        "freed": list(ledger.freed_ms.items()),
        "doubted": list(ledger.doubted_ms.items()),
        "fences": dict(sorted(ledger.fences.items())),
        "reaped": {who: sorted(numbers) for who, numbers in sorted(ledger.reaped.items())},
        "partly_dead": sorted(ledger.partly_dead),
        "ledger_counts": (ledger.live_bytes, ledger.payload_bytes, ledger.stored_bytes),
        "health": dump_health(state),
        "sessions": dump_sessions(state) if sessions else None,
        "agents": dict(sorted(state.agents.items())),
        "boots": {slot: list(boots.items()) for slot, boots in sorted(state._boots.items())},
        "roster_version": state.roster_version,
        "clock_ms": state.clock_ms,
        "elapsed_ms": state.elapsed_ms,
        "lost_ms": state.lost_ms,
        "bytes": (state.bytes_logical, state.bytes_inline, state.bytes_max),
        "weights": {
            kind: weight
            for kind, weight in weights.by_kind(state).items()
            if sessions or kind != "answers"
        },
        "demotable": list(state.demotable_ms.items()),
        "last_file": state._last_file,
    }  # fmt: skip


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
        "tree", "doomed", "ledger", "health", "sessions", "agents", "files", "clock_ms",
        "elapsed_ms", "lost_ms", "bytes_inline", "bytes_max", "extents", "demotable_ms",
        "roster_version", "_boots", "_last_file", "_sweep_at_once",
    }  # fmt: skip
    assert set(vars(state.ledger)) == {
        "entries", "freed_ms", "doubted_ms", "fences", "reaped", "partly_dead", "health",
        "places", "live_bytes", "payload_bytes", "stored_bytes", "_last_number",
    }  # fmt: skip
    assert set(vars(state.tree)) == {"root"}
    assert set(vars(state.doomed)) == {"roots", "files", "directories", "name_bytes"}
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
