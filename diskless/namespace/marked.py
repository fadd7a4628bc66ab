"""One moment of the namespace, held while it changes: what a whole picture is walked from.

A mark is one reference more to the tree's root, which keeps all below it as it was; and of the
tables, what the rows were that have changed since. So to set it costs the same whatever there
is. It is replicated, as everything that counts references must be. What only the mark holds
is swept when it goes.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from diskless.namespace import commands as c
from diskless.namespace.history import Snapshot
from diskless.namespace.tokens import Token
from diskless.namespace.tree import Directory
from diskless.namespace.weights import MARK_BYTES, name_bytes, policy_bytes

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState


class Marked(Struct, eq=False):
    change: int
    op: int
    """The last place in the log all of which is in the picture."""
    time_ms: int
    last_file: int
    last_snapshot: int
    tokens_version: int
    root: Directory
    policies: dict[str, dict[str, str]]
    forgotten: dict[int, Snapshot] = {}
    """Snapshots that are off the table since; the references to their roots are the mark's."""
    names: dict[int, str] = {}
    """What renamed snapshots were called."""
    tokens: dict[str, Token | None] = {}
    """What tokens were that have changed; None if there was none."""
    bytes_used: int = MARK_BYTES

    def note_forgotten(self, snapshot: Snapshot) -> bool:
        """Whether the mark takes over the reference to the snapshot's root."""
        if snapshot.id > self.last_snapshot:
            return False
        self.forgotten[snapshot.id] = snapshot
        self.bytes_used += snapshot.bytes_used
        return True

    def note_renamed(self, snapshot: Snapshot) -> None:
        """To be told before a snapshot gets another name."""
        if snapshot.id <= self.last_snapshot and snapshot.id not in self.names:
            self.names[snapshot.id] = snapshot.name
            self.bytes_used += name_bytes(snapshot.name)

    def note_token(self, name: str, before: Token | None) -> None:
        if name not in self.tokens:
            self.tokens[name] = before
            self.bytes_used += name_bytes(name) if before is None else before.bytes_used


def run(state: "NamespaceState", command: c.Mark | c.Unmark) -> c.Done:
    """Of a mark there is one: the next takes the place of the last."""
    had = unmark(state)
    if isinstance(command, c.Unmark):
        return c.Done(changed=had)
    mark(state)
    return c.Done(state.op, state.clock_ms)


def mark(state: "NamespaceState") -> None:
    state.tree.root.refs += 1
    marked = Marked(
        change=state.tier.change,
        op=state.op - 1,  # others may follow at the same place
        time_ms=state.clock_ms,
        last_file=state.last_file,
        last_snapshot=state.history.last,
        tokens_version=state.tokens.version,
        root=state.tree.root,
        policies=state.policies.table,
    )
    marked.bytes_used += sum(policy_bytes(*row) for row in marked.policies.items())
    hold(state, marked)


def hold(state: "NamespaceState", marked: Marked) -> None:
    state.marked = marked
    state.tokens.watcher = marked.note_token


def unmark(state: "NamespaceState") -> bool:
    """Whether there was a mark."""
    marked = state.marked
    if marked is None:
        return False
    state.marked = state.tokens.watcher = None
    state.leave([marked.root, *(snapshot.root for snapshot in marked.forgotten.values())])
    return True
