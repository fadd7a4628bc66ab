"""What commands do to put a directory that was made ready in the place of another, in one step.

A directory is made ready beside the other: a clone, from which files are pruned, by as many
commands as that takes. Then a swap puts it in the other's place, only if the other is still what
one of its snapshots shows: whatever was written there meanwhile is neither lost nor half there.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diskless import paths
from diskless.errors import BadRequest, CheckpointInUse, PathIsFile
from diskless.namespace import commands as c
from diskless.namespace import grading, quotas, weights
from diskless.namespace.tree import Directory, File, size_of

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

PRUNED_MAX = 256
"""Files of one command: each takes up to 0.05 ms."""
SWAPS_MAX = 128


def prune(state: "NamespaceState", command: c.Prune) -> c.Done:
    """Deletes what is there, without a look at room: as other deletes, it is not refused."""
    if len(command.names) > PRUNED_MAX:
        raise BadRequest(f"{len(command.names)} files to prune: at most {PRUNED_MAX} at once")
    full = [_below(command.path, name) for name in command.names]
    for path in full:
        paths.check_writable(path)
        if isinstance(state.tree.find(path), Directory):
            raise BadRequest(f"{path} is a directory: only files are pruned")
    pruned = 0
    for path in full:
        gone = state.tree.delete(path, recursive=False, now_ms=state.clock_ms)
        state.give_up(gone)
        pruned += gone is not None
    return c.Done(pruned, changed=pruned > 0)


def replace(state: "NamespaceState", command: c.Replace) -> c.Done:
    swaps = command.swaps
    _check_apart(swaps)
    seen: set[int] = set()
    growth = 0
    for swap in swaps:
        if command.checked and not command.force:
            state.leases.check_free(state, swap.path)
        _check(state, swap, checked=command.checked)
        for path in (swap.source, swap.path):
            parts = paths.split(path)
            growth += state.tree.copy_bytes(parts, seen, takes=True)
        growth += weights.entry_bytes(paths.split(swap.path)[-1])
        grading.check_move(state, state.tree.get(swap.source), swap.source, swap.path)
    state.check_room(growth, swaps[0].path)
    quotas.check(state, _growths(state, swaps))
    for swap in swaps:
        new = state.tree.delete(swap.source, recursive=True, now_ms=state.clock_ms)
        assert isinstance(new, Directory)
        state.give_up(state.tree.exchange(swap.path, new, now_ms=state.clock_ms))
        grading.moved(state, new, swap.source, swap.path)
        state.temporaries.gone(swap.source)
        if command.checked and not command.force:
            state.leases.bar(state, swap.path, command.session)
    return c.Done(len(swaps))


def _growths(state: "NamespaceState", swaps: tuple[c.Swap, ...]) -> Iterator[quotas.Growth]:
    for swap in swaps:
        moved, old = size_of(state.tree.get(swap.source)), state.tree.find(swap.path)
        yield swap.source, -moved
        yield swap.path, moved - (size_of(old) if old is not None else 0)


def _check(state: "NamespaceState", swap: c.Swap, *, checked: bool) -> None:
    """Raises what keeps a swap from being made."""
    for path in (swap.path, swap.source):
        paths.check_writable(path)
    kept = state.history.get(swap.path, swap.since)
    if isinstance(state.tree.get(swap.source), File):
        raise PathIsFile(f"{swap.source} is a file: directories replace directories")
    state.history.check_none(swap.source, verb="moved")
    # Whoever changes what is shared copies it first, so the same object is the same content.
    if checked and state.tree.find(swap.path) is not kept.root:
        raise CheckpointInUse(
            f"{swap.path} has been changed since its snapshot {swap.since}, so nothing was "
            "replaced: stop the query that writes there, and try again"
        )


def _check_apart(swaps: tuple[c.Swap, ...]) -> None:
    if not 1 <= len(swaps) <= SWAPS_MAX:
        raise BadRequest(f"{len(swaps)} directories to replace: 1 to {SWAPS_MAX} at once")
    chosen = [path for swap in swaps for path in (swap.path, swap.source)]
    known = set(chosen)
    if len(known) < len(chosen) or paths.ROOT in known:
        raise BadRequest("a directory occurs twice, or is the root: it cannot be replaced")
    for path in chosen:
        if outer := sorted(known & (paths.above([path]) - {path})):
            raise BadRequest(f"{path} lies within {outer[0]}, which is replaced with it")


def _below(top: str, name: str) -> str:
    return f"{top.rstrip('/')}/{name}"
