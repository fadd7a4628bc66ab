"""What must hold in every schedule, checked while it runs and at its end.

Linearizability. The log is a total order of all writes; a read stands after the last
entry that the voter had applied when it read. The checker shows for this order that

1. every voter applied the same commands at the same places, with the same results
   (`applied`), so there is one order and not several;
2. executed in this order by the model, every command and every read gives the answer
   that the voters, and so the clients, gave (`applied`, `wrote`, `read`), a repeated
   command the answer of its first execution;
3. an operation that began after another one was answered stands after it (`began`
   notes how far the order must have come; `wrote` and `read` compare);
4. no command is acknowledged before a majority has answered for it, by what came out of the
   network and not by what the leader counts (`answered`, `acknowledged`).

A total order that is legal for the model (2) and respects real time (3) is what
linearizability asks for, so no search for one is needed. Unanswered commands may
stand anywhere or nowhere. As every voter ends with all of the order (`finish`), no
acknowledged command is lost, and by 2 none ran twice.

Sharing. Where the state shares what snapshots and clones have in common, the model copies; at
the end every path is compared (`_compare`), all references are counted again, and all voters
weigh the same and share the same (`finish`, `restored`).

Durability. A put below a path that asks for `barrier` is answered, and a plan opened, when the
plans before it are within the horizon; one that asks for `sync` when it is itself (`_durable`, by
the histories of paths). What was evicted has a place in the tier. One application at a time writes
to a checkpoint, quotas hold, and a directory is replaced only if it is what its snapshot shows:
that is the model's (2).

Time. Neither clock of the log goes back; no more time elapses in it than in truth
(`elapsed`), and its wall time is never ahead while at most one voter's clock is wrong
(`applied`). `schedule.churn` sees to it that time elapses at all.
"""

from collections.abc import Callable, Iterator
from typing import Any

from diskless.namespace import btree
from diskless.namespace import commands as c
from diskless.namespace.journal import Journal
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File
from diskless.namespace.views import PathStatus
from tests.sim.dump import dump
from tests.sim.model import SNAPSHOTS, Model, Node, Position, answer_of
from tests.sim.plans import need_of_opening, need_of_put
from tests.unit.test_namespace_world import check_counts

Clocks = tuple[int, int]
"""Wall and elapsed time of an entry."""

WALL_SLACK_MS = 500
ELAPSED_SLACK_MS = 50
"""Clocks drift by 2 %, and right ones are a little apart."""
ENTRIES_MAX = 1000
SWEEP_AT_ONCE = 2
"""So little that there is nearly always something left to sweep."""


class Violation(AssertionError):
    """The protocol broke a promise."""


def mutations_of(command: c.Command) -> list[tuple[int, int]]:
    """The (session, sequence) of each mutation in a command."""
    match command:
        case c.Commit(puts=puts):
            return [(put.session, put.sequence) for put in puts]
        case c.Mkdirs() | c.Rename() | c.Delete() | c.KeepLeases():
            return [(command.session, command.sequence)]
    return [(command.session, command.sequence)] if isinstance(command, c.Past) else []


def new_state() -> NamespaceState:
    return NamespaceState(sweep_at_once=SWEEP_AT_ONCE)


class Checker:
    def __init__(self, *, wall_ms: int, liars: int) -> None:
        """`wall_ms` is what a right wall clock says at the beginning, `liars` are wrong."""
        self.true_ms: Callable[[], float] = lambda: 0.0
        self.wall_ms = wall_ms
        self.liars = liars
        self.model = Model()
        self.order: list[list[tuple[Clocks, bytes, Any]]] = []  # op - 1 -> its commands
        self.decoded: dict[bytes, c.Command] = {}
        self.frontier: Position = (0, 0)
        self.answers: dict[tuple[int, int], int] = {}  # (view, voter) -> the newest op it has
        self.reads = self.writes = self.snapshots = 0

    def decode(self, command: bytes) -> c.Command:
        known = self.decoded.get(command)
        if known is None:
            known = self.decoded[command] = c.decode(command)
        return known

    # -- voters ------------------------------------------------------------------

    def applied(
        self, slot: int, op: int, index: int, clocks: Clocks, command: bytes, results: Any
    ) -> None:
        order = self.order
        if op == len(order) + 1 and index == 0:
            self._time(op, clocks)
            order.append([])
        if op > len(order):
            raise Violation(f"voter {slot} applied op {op} after nobody applied {op - 1}")
        row = order[op - 1]
        if index < len(row):
            if row[index] != (clocks, command, results):
                raise Violation(
                    f"voter {slot} applied at {op}.{index} {self.decode(command)} -> {results}, "
                    f"another {self.decode(row[index][1])} -> {row[index][2]}"
                )
            return
        if index > len(row) or op < len(order):
            raise Violation(f"voter {slot} applied more commands at op {op} than another")
        row.append((clocks, command, results))
        found = tuple(map(answer_of, results))
        expected = self.model.execute((op, index), clocks, self.decode(command), found)
        if found != expected:
            raise Violation(f"op {op}.{index} {self.decode(command)}: {found}, not {expected}")

    def _time(self, op: int, clocks: Clocks) -> None:
        before = self.order[-1][0][0] if self.order else (0, 0)
        if any(now < then for now, then in zip(clocks, before, strict=True)):
            raise Violation(f"op {op}: time went back from {before} to {clocks}")
        ahead = clocks[0] - self.wall_ms - self.true_ms()
        if self.liars <= 1 and ahead > WALL_SLACK_MS:
            raise Violation(f"op {op}: its wall time is {ahead:.0f} ms ahead")
        self.elapsed(clocks[1])

    def elapsed(self, elapsed_ms: int) -> None:
        """What a leader takes to have elapsed."""
        if elapsed_ms > 1.02 * self.true_ms() + ELAPSED_SLACK_MS:
            raise Violation(f"{elapsed_ms} ms have elapsed after {self.true_ms():.0f} in truth")

    def restored(self, slot: int, op: int, state: NamespaceState) -> None:
        self.snapshots += 1
        if op > len(self.order):
            raise Violation(f"voter {slot} got a snapshot of op {op}, which nobody applied")
        if dump(state) != dump(self.replay(op)):
            raise Violation(f"voter {slot} got a snapshot of op {op} that is another state")

    def replay(self, op: int) -> NamespaceState:
        state = new_state()
        state.journal = Journal()
        for number, row in enumerate(self.order[:op], 1):
            for (time_ms, elapsed_ms), command, _ in row:
                decoded = self.decode(command)
                state.apply(decoded, now_ms=time_ms, elapsed_ms=elapsed_ms, op=number)
        return state

    def answered(self, view: int, voter: int, op: int) -> None:
        """A voter's word that it has a view's log up to `op` has reached the leader."""
        self.answers[view, voter] = max(op, self.answers.get((view, voter), 0))

    def acknowledged(
        self, view: int, leader: int, op: int, holders: tuple[int, ...], quorum: int
    ) -> None:
        """The leader of a view answers a client, and says who had the command by then."""
        for voter in holders:
            if voter != leader and self.answers.get((view, voter), 0) < op:
                raise Violation(f"op {op}: voter {voter} never said that it has it in view {view}")
        if leader not in holders or len(holders) < quorum:
            raise Violation(f"op {op} was acknowledged with {holders} of {quorum} needed voters")

    # -- clients -----------------------------------------------------------------

    def began(self) -> Position:
        """What an operation that begins now must come after."""
        return self.frontier

    def wrote(self, command: c.Command, results: Any, began: Position) -> None:
        self.writes += 1
        if isinstance(command, c.RevokeToken) and not self.model.is_revoked(command.name):
            raise Violation(f"{command} was acknowledged but not executed")
        for session, sequence in mutations_of(command):
            self._wrote(command, session, sequence, results[0], began)

    def _wrote(
        self, command: c.Command, session: int, sequence: int, result: c.Result, began: Position
    ) -> None:
        known = self.model.sessions.get(session, {}).get(sequence)
        if known is None:
            raise Violation(f"{command} was acknowledged but not executed")
        answer, position = known
        if answer_of(result) != answer:
            raise Violation(f"{command} was answered {result}, but at {position} {answer}")
        if position <= began:
            raise Violation(f"{command} stands at {position} though it began after {began}")
        self.frontier = max(self.frontier, position)
        if isinstance(command, c.Commit) and isinstance(result, c.Done):
            path = command.puts[0].files[0].path
            self._durable(f"{command} was acknowledged", need_of_put(self.model, path, position))

    def _durable(self, what: str, change: int) -> None:
        if change > self.model.tier.horizon:
            horizon = self.model.tier.horizon
            raise Violation(f"{what} before change {change} was durable: {horizon} is")

    def read(self, path: str, answer: PathStatus | None, op: int, began: Position) -> None:
        self.reads += 1
        position = (op, 1 << 30)
        if position < began:
            raise Violation(f"stale read of {path} at op {op}: {began} was acknowledged before")
        expected = self.model.read(path, position)
        found: Any = None
        if answer is not None:
            record = answer.record
            found = "dir" if record is None else (record.id, record.checksum, record.mtime_ms)
        if found != expected:
            raise Violation(f"read of {path} at op {op}: {found}, not {expected}")
        if isinstance(found, tuple):
            need = need_of_opening(self.model, path, position)
            self._durable(f"{path} was opened at op {op}", need)
        self.frontier = max(self.frontier, position)

    # -- the end -----------------------------------------------------------------

    def finish(self, states: dict[int, tuple[int, NamespaceState]]) -> None:
        replayed = self.replay(len(self.order))
        expected = dump(replayed)
        self._compare(replayed)
        for slot, (op, state) in states.items():
            if op != len(self.order):
                raise Violation(f"voter {slot} ended at op {op} of {len(self.order)}")
            if state.bytes_used != replayed.bytes_used:
                raise Violation(f"voter {slot} weighs {state.bytes_used}, {replayed.bytes_used}")
            if dump(state) != expected:
                raise Violation(f"voter {slot} ended with another state at op {op}")
            self._compare_journals(slot, state, replayed)

    def _compare_journals(self, slot: int, state: NamespaceState, other: NamespaceState) -> None:
        """A voter may lack what was done before it got its state, and nothing since."""
        own, every = state.journal, other.journal
        assert own is not None
        assert every is not None
        since = max(own.since, every.since)
        if state.tier.attached and not own.last == every.last == state.tier.change:
            raise Violation(f"voter {slot} has written down {own.last} of {every.last} changes")
        if since <= own.last:
            rows = [one.after(since, upto=own.last, limit=ENTRIES_MAX) for one in (own, every)]
            if rows[0] != rows[1]:
                raise Violation(f"voter {slot} has written down other changes since {since}")

    def _compare(self, state: NamespaceState) -> None:
        """Every path there is, those below snapshots too, with the model's; and what is counted
        with what there is."""
        found = dict(shown(state.tree.root, ""))
        for kept in state.history.by_id.values():
            top = f"{kept.path.rstrip('/')}{SNAPSHOTS}{kept.name}"
            found |= {top: "dir", **dict(shown(kept.root, top))}
        expected = {path: node for path, node in self.model.nodes.items() if path}
        for (path, name), one in self.model.kept.items():
            top = path + SNAPSHOTS + name
            expected |= {top + below: node for below, node in one.nodes.items()}
        if found != expected:
            other = sorted(set(found.items()) ^ set(expected.items()), key=str)
            raise Violation(f"the state and the model end with other paths: {other}")
        check_counts(state)
        known = state.tokens.by_name.values()
        tokens = {token.name: (token.paths, token.revoked_ms > 0) for token in known}
        if tokens != self.model.tokens:
            raise Violation(f"the state and the model end with other tokens: {tokens}")
        policies = state.policies.table
        if (policies, state.tier.change) != (self.model.tier.policies, self.model.tier.change):
            raise Violation(f"the state and the model end with other policies: {policies}")
        leases = {
            path: (one.application, one.used_ms) for path, one in state.leases.by_path.items()
        }
        if leases != self.model.leases.held:
            raise Violation(f"the state and the model end with other leases: {leases}")
        self._compare_evicted(state)
        who = {number: state.sessions.who(number) for number in self.model.who}
        if who != self.model.who:
            raise Violation(f"the sessions are others' than the model's: {who}")

    def _compare_evicted(self, state: NamespaceState) -> None:
        """Whatever has no bytes here has some in the tier."""
        for file in state.files.values():
            id_, there = file.record.id, file.record.inline is None
            if there != (id_ in state.tier.evicted) or (there and state.tier.place(id_) is None):
                raise Violation(f"file {id_} has no bytes here, and none in the tier")


def shown(directory: Directory, top: str) -> Iterator[tuple[str, Node]]:
    """All below a directory, as the model has it."""
    entries, _ = btree.page(directory.node, after="", limit=ENTRIES_MAX)
    for name, node in entries:
        path = f"{top}/{name}"
        if isinstance(node, File):
            yield path, (node.record.id, node.record.checksum, node.record.mtime_ms)
        else:
            yield path, "dir"
            yield from shown(node, path)
