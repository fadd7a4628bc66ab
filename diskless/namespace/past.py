"""What commands do with the past: snapshots, clones and rollbacks.

Each is one step for its whole subtree, whatever its size: a count more on its root. Nothing is
changed before all that could be refused has been looked at.
"""

from typing import TYPE_CHECKING

from diskless import paths
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    CapacityExceeded,
    PathIsFile,
)
from diskless.namespace import commands as c
from diskless.namespace import grading, quotas, swaps, weights
from diskless.namespace import history as h
from diskless.namespace.history import Snapshot
from diskless.namespace.tree import Directory, File, Node, size_of

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

COUNTED_MAX = 1 << 60
"""Clones of clones may show more bytes or files than numbers on the wire can tell."""
CUT_MAX = 256
"""Directories of one cut: all of them go back in one step, of which each takes up to 0.05 ms
where everything on the way to it is shared."""


def run(state: "NamespaceState", command: c.Past) -> c.Done:
    match command:
        case c.CreateSnapshot():
            return create(state, command)
        case c.RenameSnapshot():
            return rename(state, command)
        case c.DeleteSnapshots():
            return delete(state, command)
        case c.Clone():
            return clone(state, command)
        case c.Rollback():
            return rollback(state, command)
        case c.Prune():
            return swaps.prune(state, command)
        case c.Replace():
            return swaps.replace(state, command)


def create(state: "NamespaceState", command: c.CreateSnapshot) -> c.Done:
    """The answer's number is the first snapshot's."""
    chosen, name = list(command.paths), command.name
    _check_paths(chosen, cut=command.cut)
    history = state.history
    roots = [_directory(state, path) for path in chosen]
    if name:
        for path in chosen:
            history.check_new(path, name)
        if command.cut:
            history.check_cut(name)
    else:
        name = history.free_name(h.name_of(state.clock_ms), chosen, cut=command.cut)
    cut = name if command.cut else ""
    history.check_count(len(chosen))
    growth = sum(weights.snapshot_bytes(path, name, cut) for path in chosen)
    state.check_room(growth, chosen[0])
    quotas.check(state, ((path, root.bytes) for path, root in zip(chosen, roots, strict=True)))
    first = history.last + 1
    for path, root in zip(chosen, roots, strict=True):
        root.refs += 1
        _keep(state, path, name, root, cut=cut, cut_size=len(chosen))
    return c.Done(first, state.clock_ms)


def rename(state: "NamespaceState", command: c.RenameSnapshot) -> c.Done:
    snapshot = state.history.get(command.path, command.old)
    if command.new != command.old:
        state.history.check_new(command.path, command.new)
        growth = weights.name_bytes(command.new) - weights.name_bytes(command.old)
        if growth > 0:
            state.check_room(growth, command.path)
        if state.marked is not None:
            state.marked.note_renamed(snapshot)
        state.history.rename(snapshot, command.new)
    return c.Done(snapshot.id, changed=command.new != command.old)


def delete(state: "NamespaceState", command: c.DeleteSnapshots) -> c.Done:
    """All of them or none; the answer's number says how many."""
    names = dict.fromkeys(command.names)
    found = [state.history.get(command.path, name) for name in names]
    state.forget(found)
    return c.Done(len(found), changed=bool(found))


def clone(state: "NamespaceState", command: c.Clone) -> c.Done:
    source, target = command.source, command.target
    node = _real(state, source)
    paths.check_writable(target)
    if target == source or target.startswith(source.rstrip("/") + "/"):
        raise BadRequest(f"{source} cannot be cloned into itself, to {target}")
    state.tree.check_parent(target, verb="cloned")
    if state.tree.find(target) is not None:
        raise AlreadyExists(f"{target} exists already")
    parts = paths.split(target)
    _check_countable(state, [node], target)
    growth = weights.entry_bytes(parts[-1]) + state.tree.copy_bytes(parts, set())
    state.check_room(growth, target)
    quotas.check(state, [(target, size_of(node))])
    grading.check_move(state, node, source, target)
    node.refs += 1
    state.tree.attach(target, node, now_ms=state.clock_ms)
    grading.moved(state, node, source, target)
    state.temporaries.cloned(target, command.session)
    return c.Done()


def rollback(state: "NamespaceState", command: c.Rollback) -> c.Done:
    """What was there becomes a snapshot, whose number is the answer's: 0 if nothing was."""
    history = state.history
    if command.cut:
        found = history.of_cut(command.name)
    else:
        found = [history.get(command.path, command.name)]
    if command.guarded:
        for snapshot in found:
            state.leases.check_free(state, snapshot.path)
    before = [_check_place(state, snapshot) for snapshot in found]
    places = [one.path for one in found]
    name = history.free_name(f"before-{command.name}", places, cut=command.cut)
    history.check_count(len(found))
    _check_countable(state, [one.root for one in found], places[0])
    cut = name if command.cut else ""
    state.check_room(_growth_of_rollback(state, found, name, cut), places[0])
    quotas.check(state, ((one.path, one.root.bytes) for one in found))
    first = history.last + 1
    kept = sum(node is not None for node in before)
    for snapshot in found:
        snapshot.root.refs += 1
        old = state.tree.exchange(snapshot.path, snapshot.root, now_ms=state.clock_ms)
        if isinstance(old, Directory):
            _keep(state, snapshot.path, name, old, cut=cut, cut_size=kept)
        if command.guarded:
            state.leases.bar(state, snapshot.path, command.session)
    return c.Done(first if kept else 0, state.clock_ms)


def _growth_of_rollback(state: "NamespaceState", found: list[Snapshot], name: str, cut: str) -> int:
    seen: set[int] = set()
    growth = 0
    for snapshot in found:
        parts = paths.split(snapshot.path)
        growth += weights.snapshot_bytes(snapshot.path, name, cut)
        growth += weights.entry_bytes(parts[-1] if parts else "")
        growth += state.tree.copy_bytes(parts, seen, takes=True)
    return growth


def _check_paths(chosen: list[str], *, cut: bool) -> None:
    if not chosen or (len(chosen) > 1 and not cut):
        raise BadRequest("a snapshot is of one directory: a cut is of several")
    if len(chosen) > CUT_MAX:
        raise BadRequest(f"a cut of {len(chosen)} directories: at most {CUT_MAX}")
    for path in chosen:
        paths.check_writable(path)
    known = set(chosen)
    if len(known) < len(chosen):
        raise BadRequest("a directory occurs twice in one cut")
    for path in chosen:
        inside = paths.above([path]) | ({paths.ROOT} if path != paths.ROOT else set())
        if outer := sorted(known & (inside - {path})):
            raise BadRequest(f"{path} lies within {outer[0]}, which is in the same cut")


def _directory(state: "NamespaceState", path: str) -> Directory:
    node = state.tree.get(path)
    if isinstance(node, File):
        raise PathIsFile(f"{path} is a file: snapshots are of directories")
    return node


def _check_place(state: "NamespaceState", snapshot: Snapshot) -> Node | None:
    """What a rollback finds in its place. Raises what stands in its way."""
    node = state.tree.find(snapshot.path)
    if isinstance(node, File):
        raise PathIsFile(f"{snapshot.path} is a file now: a directory cannot replace it")
    if node is None:
        state.tree.check_parent(snapshot.path, verb="rolled back")
    return node


def _check_countable(state: "NamespaceState", more: list[Node], path: str) -> None:
    found = [state.tree.root, *(node for node in more if isinstance(node, Directory))]
    most = max(
        sum(one.bytes for one in found),
        sum(one.files for one in found),
        sum(one.directories for one in found),
    )
    if most > COUNTED_MAX:
        raise CapacityExceeded(f"{path}: there would be more files or bytes than can be counted")


def _real(state: "NamespaceState", source: str) -> Node:
    """What a path leads to, below `.snapshot` too: itself, and not the picture of a snapshot's
    root that readers get."""
    if not paths.leads_to_snapshots(source):
        return state.tree.get(source)
    parts = paths.split(source)
    below = len(parts) - parts.index(paths.SNAPSHOTS) - 1
    if below == 0:
        raise BadRequest(f"{source} is a list of snapshots: name one of them")
    if below == 1:
        return state.history.get(paths.join(parts[:-2]), parts[-1]).root
    return state.get(source)


def _keep(
    state: "NamespaceState", path: str, name: str, root: Directory, *, cut: str, cut_size: int
) -> None:
    state.history.add(
        Snapshot(
            id=state.history.last + 1,
            path=path,
            name=name,
            root=root,
            time_ms=state.clock_ms,
            op=state.op,
            cut=cut,
            cut_size=cut_size if cut else 0,
        )
    )
