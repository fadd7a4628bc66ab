"""Who writes to which checkpoint: one application at a time.

Two jobs on one checkpoint overwrite each other's state before Spark notices. So the first put
below a checkpoint takes a lease for its application, and each further one renews it; another
application's put is refused. A checkpoint is a directory with a file `metadata` in it, and a put
below it is one below its `offsets`, `commits`, `state` or `sources`. A lease is over when nothing
was heard for `LEASE_MS` of the log's elapsed time, or when its application says so. Sessions
without an application neither take leases nor are bound by them.

An application may only have been held up: it goes on with a batch that was taken back while it was
silent. So one whose lease was over when its checkpoint went back is *barred* there, until it says
that its query has ended, or another application has the lease.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from diskless import paths
from diskless.errors import CheckpointInUse
from diskless.namespace import btree
from diskless.namespace import commands as c
from diskless.namespace.history import as_utc
from diskless.namespace.tree import Directory, File, Spot
from diskless.namespace.weights import LEASE_BYTES, name_bytes

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

LEASE_MS = 6_000
BARRED = -1
"""In place of when it was last heard of."""
LEASES_MAX = 4096
"""Beyond it those go that are over, or the one that was not renewed for longest."""
KEPT_MAX = 256
"""Checkpoints that one command speaks of."""
APPLICATION_CHARS_MAX = 200
_BELOW = frozenset(("offsets", "commits", "state", "sources"))
_COMMITS = "commits"
_METADATA = "metadata"


class Lease(Struct, gc=False):
    application: str
    since_ms: int
    """Wall time, for people."""
    used_ms: int
    """Of the log's elapsed time, or BARRED."""

    @property
    def barred(self) -> bool:
        return self.used_ms == BARRED


class LeaseStatus(Struct, frozen=True, array_like=True):
    path: str
    application: str
    since_ms: int
    silent_ms: int


class Leases:
    def __init__(self) -> None:
        self.by_path: dict[str, Lease] = {}
        self.bytes_used = 0
        self.committed: dict[str, int] = {}
        """Checkpoints and their last batches, since somebody last looked: this replica's own, and
        not part of the state. Only while any path has a policy."""

    def take(self, state: "NamespaceState", session: int, spots: list[Spot]) -> None:
        """For a put that nothing else keeps from happening. Raises CheckpointInUse, and has
        changed nothing then."""
        if len(spots) == 1 and _BELOW.isdisjoint(spots[0].parts):
            return  # as most puts outside of checkpoints
        application = state.sessions.application(session)
        if len(spots) == 1 and application:
            lease = self.by_path.get(_first_root(spots[0].parts))
            if lease is not None and lease.application == application and not lease.barred:
                lease.used_ms = state.elapsed_ms  # as nearly always below one
                if not state.policies.table:
                    return
        found = [(spot, depth) for spot in spots if (depth := _depth_of(spot))]
        if application and found:
            roots = {paths.join(spot.parts[:depth]): None for spot, depth in found}
            for root in roots:
                self.check(state, root, application)
            for root in roots:
                self._renew(state, root, application)
        if found and state.policies.table:
            self._note_committed(found)

    def _note_committed(self, found: list[tuple[Spot, int]]) -> None:
        for spot, depth in found:
            parts = spot.parts
            if parts[depth] == _COMMITS and parts[-1].isdecimal():
                if len(self.committed) >= LEASES_MAX:
                    self.committed.pop(next(iter(self.committed)))
                self.committed[paths.join(parts[:depth])] = int(parts[-1])

    def check(self, state: "NamespaceState", root: str, application: str) -> None:
        """Raises CheckpointInUse if another application has the lease of a checkpoint, or this one
        is barred there."""
        lease = self.by_path.get(root)
        if lease is not None and lease.application == application and lease.barred:
            raise CheckpointInUse(
                f"{root} went back while {application} was silent, so this query may not go on "
                "there: start it again, and it reads the checkpoint anew"
            )
        if lease is None or lease.application == application or _is_over(state, lease):
            return
        silent_s = (state.elapsed_ms - lease.used_ms) / 1000
        raise CheckpointInUse(
            f"{root} is in use by {lease.application}, since "
            f"{as_utc(lease.since_ms):%Y-%m-%d %H:%M:%S} UTC, heard {silent_s:.1f} s ago: stop "
            f"that query; its lease is over {LEASE_MS // 1000} s after its last sign"
        )

    def check_free(self, state: "NamespaceState", path: str) -> None:
        """Raises CheckpointInUse if any application has a lease at or below a path, or on what it
        is a part of."""
        above = [root for root in paths.above([path]) if root in self.by_path]
        for root in (*above, *self._at_or_below(path)):
            self.check(state, root, "")

    def bar(self, state: "NamespaceState", path: str, session: int) -> None:
        """For what has just gone back, by a command of this session, although some application
        that was silent too long to keep its lease may still write there."""
        own = state.sessions.application(session)
        above = [root for root in paths.above([path]) if root in self.by_path]
        for root in (*above, *self._at_or_below(path)):
            lease = self.by_path[root]
            if lease.application != own and _is_over(state, lease):
                lease.used_ms = BARRED

    def keep(self, state: "NamespaceState", command: c.KeepLeases) -> c.Done:
        """Renews those of a session's application, takes them where nobody else has them, and ends
        others of it. The answer's number says how many it has of those that it wanted."""
        application = state.sessions.application(command.session)
        kept = 0
        for root in command.roots[:KEPT_MAX] if application else ():
            directory = state.tree.find(root)
            if isinstance(directory, Directory) and _is_checkpoint(directory):
                with suppress(CheckpointInUse):
                    self.check(state, root, application)
                    self._renew(state, root, application)
                    kept += 1
        for root in command.over[:KEPT_MAX]:
            lease = self.by_path.get(root)
            if lease is not None and lease.application == application:
                self._drop(root)
        return c.Done(kept, changed=False)

    def page(self, state: "NamespaceState", path: str, limit: int) -> list[LeaseStatus]:
        """Those at or below a path that are not over."""
        found = []
        for root in self._at_or_below(path):
            lease = self.by_path[root]
            if not _is_over(state, lease):
                silent_ms = state.elapsed_ms - lease.used_ms
                found.append(LeaseStatus(root, lease.application, lease.since_ms, silent_ms))
        return sorted(found, key=lambda one: one.path)[:limit]

    def restore(self, path: str, lease: Lease) -> None:
        """The next one of a copy of the table."""
        self.by_path[path] = lease
        self.bytes_used += _bytes(path, lease)

    def _renew(self, state: "NamespaceState", root: str, application: str) -> None:
        lease = self.by_path.get(root)
        if lease is not None and lease.application == application:
            lease.used_ms = state.elapsed_ms
            return
        if lease is not None:
            self._drop(root)
        self.restore(root, Lease(application, state.clock_ms, state.elapsed_ms))
        self._drop_ended(state)

    def _drop_ended(self, state: "NamespaceState") -> None:
        """When the table is full: all that are over, or else the one that was heard of longest
        ago. New leases are rare, and a full table more so."""
        if len(self.by_path) <= LEASES_MAX:
            return
        for root in [root for root, lease in self.by_path.items() if _is_over(state, lease)]:
            self._drop(root)
        while len(self.by_path) > LEASES_MAX:
            self._drop(min(self.by_path, key=lambda root: self.by_path[root].used_ms))

    def _drop(self, root: str) -> None:
        self.bytes_used -= _bytes(root, self.by_path.pop(root))

    def _at_or_below(self, path: str) -> Iterator[str]:
        above = path.rstrip("/") + "/"
        return (root for root in self.by_path if root == path or root.startswith(above))


def _is_over(state: "NamespaceState", lease: Lease) -> bool:
    return lease.barred or state.elapsed_ms - lease.used_ms > LEASE_MS


def _bytes(path: str, lease: Lease) -> int:
    return LEASE_BYTES + name_bytes(path) + name_bytes(lease.application)


def _first_root(parts: tuple[str, ...]) -> str:
    """The first directory of a path that may be a checkpoint, by the name below it."""
    for depth, part in enumerate(parts):
        if part in _BELOW and depth:
            return paths.join(parts[:depth])
    return ""


def _depth_of(spot: Spot) -> int:
    """How deep the checkpoint is that a put is below; 0 for most puts outside of one, at the cost
    of a look at the parts of its path."""
    parts = spot.parts
    if _BELOW.isdisjoint(parts):
        return 0
    for depth in range(1, min(len(parts) - 1, len(spot.trail) - 1) + 1):
        if parts[depth] in _BELOW and _is_checkpoint(spot.trail[depth]):
            return depth
    return 0


def _is_checkpoint(directory: Directory) -> bool:
    return isinstance(btree.find(directory.node, _METADATA), File)
