"""Changes made again from a journal: the same trees, snapshots, policies, tokens and ids.

It works on a state of its own, which nobody else changes: no sessions, no limits on room, and
puts make cold files, whose bytes are in the tier alone. All voters of a cluster that begins
with a restored state run the same over the same entries, so they begin alike.
"""

from typing import Any

from diskless.errors import DisklessError
from diskless.model import FileRecord, TierOptions
from diskless.namespace import commands as c
from diskless.namespace import edits, grading, past, registry
from diskless.namespace.btree import Leaf, in_order
from diskless.namespace.journal import Entry, TokensForgotten, What, Written
from diskless.namespace.sessions import EPOCH_SESSION_BITS
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File, Tree

SWEEP_ENTRIES = 800
"""Of what deletes left, taken apart with each entry."""
EPOCH_FILE_BITS = 40
"""Where the epoch is in the ids of files; `sessions` says where in the numbers of sessions."""
_NO_OPTIONS = TierOptions()


class Diverged(Exception):
    """A change cannot be made again: this is not the state that it was made to, or not the next."""


class Replayer:
    """Takes a state from the picture of one moment to a later one, change by change."""

    def __init__(self, state: NamespaceState) -> None:
        """`state` is empty, or was filled by `picture.Painter`."""
        self.state = state
        state.tier.attached = True
        state.trusts = True

    def apply(self, entry: Entry) -> None:
        """Raises Diverged; the state is of no use then."""
        state = self.state
        if entry.change != state.tier.change + 1:
            raise Diverged(f"change {entry.change} does not follow {state.tier.change}")
        state.op, state.clock_ms, state.tier.change = entry.op, entry.time_ms, entry.change
        try:
            self._make(entry.what)
        except DisklessError as error:
            raise Diverged(f"change {entry.change}, {type(entry.what).__name__}: {error}") from None
        if state.doomed:
            state.sweep(SWEEP_ENTRIES)

    def _make(self, what: What) -> None:
        state = self.state
        match what:
            case Written():
                self._write(what)
            case c.Mkdirs() | c.Rename() | c.Delete():
                edits.run(state, what)
            case TokensForgotten():
                state.tokens.forget(now_ms=state.clock_ms)
            case c.IssueToken() | c.RevokeToken() | c.SetPolicy() | c.RemovePolicy():
                registry.make(state, what)
            case _:
                past.run(state, what)

    def _write(self, what: Written) -> None:
        state = self.state
        epoch = what.first >> EPOCH_FILE_BITS
        if epoch > state.last_file >> EPOCH_FILE_BITS:  # The cluster was restored in between.
            state.begin_epoch(files=epoch << EPOCH_FILE_BITS, sessions=0)
        if what.files and what.first != state.last_file + 1:
            raise Diverged(f"file {what.first} does not follow {state.last_file}")
        for path, size, checksum in what.files:
            inline = None if size else b""
            record = FileRecord(state.next_file(), size, state.clock_ms, checksum, inline)
            spot = state.tree.spot(path, overwrite=what.overwrite)
            file, replaced = state.tree.put(spot, record, now_ms=state.clock_ms)
            state.take(file)
            if replaced is not None and not replaced.refs:
                state.let_go([replaced.record])


def drop_missing(state: NamespaceState) -> int:
    """Takes files out of the tree and of snapshots whose bytes are neither here nor in the
    tier, as those below paths of `durability=memory` are after a restore. How many names went.

    Walks everything if there are any: for a state that serves nobody yet.
    """
    tier = state.tier
    missing = {id_ for id_ in tier.cold if id_ not in tier.places}
    if not missing:
        return 0
    whole: set[Any] = set()
    gone = _drop_below(state, state.tree, missing, whole)
    for snapshot in state.history.by_id.values():
        view = Tree.over(snapshot.root, state.tree.counts)
        gone += _drop_below(state, view, missing, whole)
        snapshot.root = view.root
    state.history.count_again()
    while state.doomed:
        state.sweep(SWEEP_ENTRIES)
    return gone


def _drop_below(state: NamespaceState, tree: Tree, missing: set[int], whole: set[Any]) -> int:
    found = _names_of(tree.root, missing, whole)
    for path, mtime_ms in found:
        state.give_up(tree.delete(path, recursive=False, now_ms=mtime_ms))
    return len(found)


class _Frame:
    """A thing on the way of a walk, with what is left of it and how much was found before."""

    __slots__ = ("before", "left", "mtime_ms", "path", "thing")

    def __init__(self, thing: Any, path: str, mtime_ms: int, before: int) -> None:
        self.thing, self.path, self.before = thing, path, before
        self.mtime_ms = thing.mtime_ms if isinstance(thing, Directory) else mtime_ms
        if isinstance(thing, Leaf):
            self.left = iter(list(in_order(thing).items()))
        else:
            below = (thing.node,) if isinstance(thing, Directory) else thing.children
            self.left = iter([("", one) for one in below])


def _names_of(root: Directory, missing: set[int], whole: set[Any]) -> list[tuple[str, int]]:
    """The paths below a root that lead to such files, each with its directory's time. Shared
    things that lead to none are `whole`, and are not walked again."""
    found: list[tuple[str, int]] = []
    stack = [_Frame(root, "", 0, 0)]
    while stack:
        frame = stack[-1]
        name, thing = next(frame.left, ("", None))
        if thing is None:
            stack.pop()
            if frame.thing.refs > 1 and len(found) == frame.before:
                whole.add(frame.thing)
            continue
        path = f"{frame.path}/{name}" if name else frame.path
        if type(thing) is not File:
            if thing not in whole:
                stack.append(_Frame(thing, path, frame.mtime_ms, len(found)))
        elif thing.record.id in missing:
            found.append((path, frame.mtime_ms))
    return found


def found(
    state: NamespaceState,
    *,
    uri: str,
    epoch: int,
    number: int,
    rewound: bool,
    options: TierOptions = _NO_OPTIONS,
) -> int:
    """Makes a restored state the first of a new cluster's: with the tier that it came from,
    whose manifest `number` is this cluster's own, and no sessions. Ids of files and numbers of
    sessions begin with the epoch, so that none that was given before means anything else. How
    many names were dropped, of files that the tier has not.

    If some were, or if the chain has been `rewound`, to an earlier manifest than its last, the
    next manifest is whole: this is not the state that the last one speaks of.
    """
    tier = state.tier
    dropped = drop_missing(state)
    grading.grade_all(state)
    state.trusts = False
    tier.attached, tier.uri, tier.epoch, tier.number = True, uri, epoch, number
    tier.options = options
    tier.horizon_change, tier.horizon_time_ms = tier.change, state.clock_ms
    tier.change += rewound or dropped > 0
    state.begin_epoch(files=epoch << EPOCH_FILE_BITS, sessions=epoch << EPOCH_SESSION_BITS)
    tier.horizon_file = state.last_file
    state.op = tier.horizon_op = 0
    if state.journal is not None:
        state.journal.restart(tier.change)
    return dropped
