"""What commands do with paths: directories made, moved and deleted."""

from typing import TYPE_CHECKING

from diskless import paths
from diskless.namespace import commands as c
from diskless.namespace import grading, quotas, weights
from diskless.namespace.tree import Directory, size_of

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState


def run(state: "NamespaceState", command: c.Mkdirs | c.Rename | c.Delete) -> c.Done:
    match command:
        case c.Mkdirs():
            return mkdirs(state, command)
        case c.Rename():
            return rename(state, command)
        case c.Delete():
            return delete(state, command)


def mkdirs(state: "NamespaceState", command: c.Mkdirs) -> c.Done:
    path = command.path
    paths.check_writable(path)
    if state.tree.find(path) is None:
        if not command.parents:
            state.tree.spot(path, overwrite=False).require_parent()
        growth = state.tree.copy_bytes(paths.split(path), set())
        state.check_room(growth + weights.path_bytes(path), path)
    return c.Done(changed=state.tree.mkdirs(path, now_ms=state.clock_ms))


def rename(state: "NamespaceState", command: c.Rename) -> c.Done:
    """What would be refused without snapshots too is refused for the same reason: a client that
    moves something onto a directory has to hear that it exists."""
    source, target = command.source, command.target
    paths.check_writable(source)
    paths.check_writable(target)
    node, old = state.tree.check_rename(source, target, overwrite=command.overwrite)
    if isinstance(node, Directory):
        state.history.check_none(source, verb="renamed")
    if isinstance(old, Directory):
        state.history.check_none(target, verb="replaced")
    if target != source:
        moved = size_of(node)
        replaced = size_of(old) if old is not None else 0
        quotas.check(state, ((source, -moved), (target, moved - replaced)))
        grading.check_move(state, node, source, target)
    growth = _growth_of_rename(state, source, target, replaces=old is not None)
    if growth > 0:
        state.check_room(growth, target)
    gone = state.tree.rename(source, target, overwrite=command.overwrite, now_ms=state.clock_ms)
    state.give_up(gone)
    grading.moved(state, node, source, target)
    state.temporaries.gone(source)
    return c.Done()


def _growth_of_rename(state: "NamespaceState", source: str, target: str, *, replaces: bool) -> int:
    """A longer name takes room, unless what it replaces frees some; so do copies of what is
    shared with snapshots."""
    seen: set[int] = set()
    growth = state.tree.copy_bytes(paths.split(source), seen, takes=True)
    growth += state.tree.copy_bytes(paths.split(target), seen, takes=replaces)
    if not replaces:
        old, new = (weights.name_bytes(path.rpartition("/")[2]) for path in (source, target))
        growth += new - old
    return growth


def delete(state: "NamespaceState", command: c.Delete) -> c.Done:
    path = command.path
    paths.check_writable(path)
    if not command.snapshots and isinstance(state.tree.find(path), Directory):
        state.history.check_none(path, verb="deleted")
    gone = state.tree.delete(path, recursive=command.recursive, now_ms=state.clock_ms)
    state.give_up(gone)
    state.temporaries.gone(path)
    kept = list(state.history.at_or_below(path)) if command.snapshots else []
    if kept:
        state.forget(kept)
    return c.Done(changed=gone is not None or bool(kept))
