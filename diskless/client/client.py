"""The Python client: files in, files out, and the namespace's operations.

A Client may be used by many threads at once; it has no threads of its own. All paths are
absolute. Every method raises the classes of diskless.errors, among them
DeadlineExceeded when no agent could answer in `timeout_s`. For the methods that
transfer much (`read`, `write`, those of many, files) that bounds silence, not the whole.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import TracebackType
from typing import IO, Literal, cast

from msgspec.structs import replace

from diskless.checksum import FileChecksum, file_checksum
from diskless.client.caller import Caller
from diskless.client.connection import Buffer
from diskless.client.descriptor import resolve
from diskless.client.fetch import PREFETCH_BYTES, Content, format_checksum, verify
from diskless.client.files import PUT_BYTES_MAX, Reader, Writer, read_bytes
from diskless.client.many import read_many
from diskless.client.policies import PolicyTable
from diskless.client.tier import TierAdmin
from diskless.client.upload import Frames, Upload
from diskless.config import KIB
from diskless.errors import BadRequest, DisklessError, NoCluster, NotFound, UploadLost
from diskless.identity.claims import Claims, Role
from diskless.model import ClusterStatus, Event
from diskless.notes import NOTES_KEPT, NOTES_PER_MESSAGE, BatchNote, Noted
from diskless.protocol.checkpoints import BatchNotes, LeaseInfo, Leases, NoteBatches
from diskless.protocol.history import (
    Change,
    Clone,
    DeleteSnapshots,
    Diff,
    Prune,
    RenameSnapshot,
    Replace,
    Rollback,
    Snapshot,
    SnapshotInfo,
    Snapshots,
    Swap,
    Usage,
)
from diskless.protocol.messages import (
    Delete,
    Empty,
    Kind,
    List,
    Listing,
    Mkdirs,
    NewFile,
    Peer,
    Put,
    Rename,
    Stat,
    Status,
    Summary,
    Summed,
)
from diskless.protocol.operating import Drain, EventPage, Events
from diskless.protocol.tokens import IssueToken, Revoked, RevokeToken, TokenInfo, Tokens

TIMEOUT_S = 30.0
SMALL_BYTES_MAX = 64 * KIB
"""Files up to this size go straight to the leader."""
LIST_ENTRIES = 1000
"""Entries in one page of a listing."""
EVENTS_PER_PAGE = 2000
EVENTS = 1000
"""Events that are asked for, unless the caller says how many."""
RESTARTS_MAX = 2
"""How often `write` sends everything again when an agent lost what it had sealed."""
PRUNED_AT_ONCE = 256
"""Files that one request deletes: as many as an agent takes."""
BUFFER_BYTES = 16 * KIB
"""What a file opened for reading fetches for small reads: a block of a shard."""


def connect(
    uri: str = "diskless:///", *, token: str = "", timeout_s: float = TIMEOUT_S
) -> "Client":
    """A client of the cluster that a URI, a name or HOST:PORT means, with the rights of a token
    (of `diskless token create`), else of $DISKLESS_TOKEN, else of the cluster's descriptor.

    Raises NoCluster, Unauthorized, or DeadlineExceeded if no agent answers.
    """
    descriptor = resolve(uri, token=token)
    if not descriptor.gateways:
        raise NoCluster(f"cluster {descriptor.name} has no gateways: start it with `diskless up`")
    caller = Caller(descriptor, timeout_s=timeout_s)
    caller.call(Kind.ROSTER, Empty(), what=f"connect {descriptor.name}")
    return Client(caller)


class Client:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.tier = TierAdmin(caller)
        self.policies = PolicyTable(caller)

    # Content.

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file, or of the part of it that exists from `offset` on.

        Raises NotFound, PathIsDirectory, TooFewShards, CorruptData.
        """
        if offset < 0 or (length is not None and length < 0):
            raise BadRequest(f"read {path}: offset {offset}, length {length}")
        wanted = PREFETCH_BYTES if length is None else min(length, PREFETCH_BYTES)
        content = Content(self._caller, path, prefetch=0 if offset else wanted, what=f"read {path}")
        size = content.status.size
        end = size if length is None else min(offset + length, size)
        count = max(end - offset, 0)
        checksum = FileChecksum() if count == size > len(content.first) else None
        data = read_bytes(lambda target: content.read_into(target, offset, checksum), count)
        if checksum is not None:
            verify(content.status, checksum.value())
        return data

    def read_many(
        self, paths: Iterable[str], *, on_error: Literal["raise", "omit", "return"] = "raise"
    ) -> dict[str, bytes | DisklessError]:
        """The bytes of several files by their paths; small ones come in as few requests as hold
        them. They are not of one moment: each is a whole version of its own.

        Raises what a file is refused with, unless it is to be left out, or returned in its place.
        """
        contents: dict[str, bytes | DisklessError] = {}
        for path, content in read_many(self._caller, list(paths), self.read):
            if isinstance(content, DisklessError):
                if on_error == "raise":
                    raise content
                if on_error == "omit":
                    continue
            contents[path] = content
        return contents

    def write(self, path: str, data: Buffer, *, overwrite: bool = False) -> Status:
        """Stores a file, or raises and leaves what was there before.

        Raises AlreadyExists, unless it may overwrite; CapacityExceeded, TooFewAgents.
        """
        return self.write_many({path: data}, overwrite=overwrite)[0]

    def write_many(
        self, files: Mapping[str, Buffer], *, overwrite: bool = False
    ) -> Sequence[Status]:
        """Stores several files that become visible in one step, or none of them."""
        views = {path: memoryview(data).cast("B") for path, data in files.items()}
        what = f"write {next(iter(files), '')}"
        if sum(len(view) for view in views.values()) <= PUT_BYTES_MAX:
            new = [_new_file(path, view) for path, view in views.items()]
            return self._put(new, list(views.values()), overwrite=overwrite, what=what)
        return self._upload(views, overwrite=overwrite, what=what)

    def open(
        self, path: str, mode: Literal["rb", "wb", "xb"] = "rb", *, overwrite: bool | None = None
    ) -> IO[bytes]:
        """A file object. A written file appears when it is closed, and not after an exception.

        `wb` replaces a file that is there, `xb` refuses to (unless `overwrite` says).
        """
        if mode == "rb":
            found = Content(self._caller, path, prefetch=PREFETCH_BYTES, what=f"read {path}")
            return io.BufferedReader(Reader(self._caller, found), BUFFER_BYTES)
        if mode not in ("wb", "xb"):
            raise BadRequest(f"open {path}: mode {mode!r} is none of rb, wb, xb")
        replaces = mode == "wb" if overwrite is None else overwrite

        def put(file: NewFile, data: memoryview) -> Status:
            return self._put([file], [data], overwrite=replaces, what=f"write {path}")[0]

        return cast(IO[bytes], Writer(self._caller, path, overwrite=replaces, put=put))

    def _put(
        self, files: Sequence[NewFile], views: Sequence[memoryview], *, overwrite: bool, what: str
    ) -> Sequence[Status]:
        meta = Put(session=0, sequence=0, files=list(files), overwrite=overwrite)
        parts = [view for view in views if len(view)]
        bulk = sum(len(view) for view in parts) > SMALL_BYTES_MAX
        reply = self._caller.mutate(Kind.PUT, meta, parts, what=what, bulk=bulk)
        return cast(list[Status], reply.meta.files)

    def _upload(
        self, views: Mapping[str, memoryview], *, overwrite: bool, what: str
    ) -> Sequence[Status]:
        """Everything is at hand, so a lost upload can begin again, under the same ticket."""
        ends = list(accumulate(len(view) for view in views.values()))
        first = next(iter(views), "")
        upload = Upload(self._caller, what=what, path=first, ends=ends)
        for restarts_left in range(RESTARTS_MAX, -1, -1):
            try:
                return _send(upload, views, overwrite=overwrite)
            except UploadLost:
                upload.abort()
                if not restarts_left:
                    raise
                upload = Upload(
                    self._caller, what=what, path=first, ends=ends, ticket=upload.ticket
                )
            except BaseException:
                upload.abort()
                raise
        raise AssertionError("unreachable")

    # Namespace.

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Moves a file or a directory, atomically. Raises NotFound, AlreadyExists."""
        meta = Rename(0, 0, source, target, overwrite)
        self._caller.mutate(Kind.RENAME, meta, what=f"rename {source} to {target}")

    def delete(self, path: str, *, recursive: bool = False, with_snapshots: bool = False) -> bool:
        """Whether there was something to delete. Raises DirectoryNotEmpty; HasSnapshots, unless
        those at and below the path may go with it."""
        meta = Delete(0, 0, path, recursive, with_snapshots)
        reply = self._caller.mutate(Kind.DELETE, meta, what=f"delete {path}")
        return bool(reply.meta.deleted)

    def mkdirs(self, path: str, *, parents: bool = True) -> bool:
        """Whether the directory was made, and not there before. Without `parents` the one above
        must be there: else it raises NotFound. Raises PathIsFile."""
        meta = Mkdirs(0, 0, path, parents)
        return bool(self._caller.mutate(Kind.MKDIRS, meta, what=f"mkdirs {path}").meta.created)

    def stat(self, path: str) -> Status:
        """Raises NotFound."""
        reply = self._caller.call(Kind.STAT, Stat(path), what=f"stat {path}")
        return cast(Status, reply.meta)

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def list(self, path: str) -> Iterator[Status]:
        """The entries of a directory, by name; a file lists itself. Raises NotFound at once."""
        return self._pages(path, self._list_page(path, ""))

    def summary(self, path: str) -> Summed:
        """How many files, directories and bytes there are at and under a path."""
        reply = self._caller.call(Kind.SUMMARY, Summary(path), what=f"summary {path}")
        return cast(Summed, reply.meta)

    # The past.

    def snapshot(self, path: str, name: str = "") -> str:
        """Keeps a directory as it is now, which costs no bytes, under a name that is made up if
        it is empty; returns the name. It can be read below `PATH/.snapshot/NAME`.

        Raises NotFound, PathIsFile, AlreadyExists for a name that is taken.
        """
        return self._snapshot([path], name, cut=False)

    def snapshot_cut(self, paths: Sequence[str], name: str = "") -> str:
        """Keeps several directories as they are at one moment, all under one name."""
        return self._snapshot(list(paths), name, cut=True)

    def _snapshot(self, paths: Sequence[str], name: str, *, cut: bool) -> str:
        meta = Snapshot(session=0, sequence=0, paths=list(paths), name=name, cut=cut)
        what = f"snapshot {', '.join(paths)}"
        return str(self._caller.mutate(Kind.SNAPSHOT, meta, what=what).meta.name)

    def snapshots(self, path: str = "") -> Iterator[SnapshotInfo]:
        """The snapshots of a directory, or all that there are; the oldest first."""
        after, more = 0, True
        while more:
            meta = Snapshots(path, after)
            page = self._caller.call(Kind.SNAPSHOTS, meta, what=f"snapshots {path}").meta
            yield from page.snapshots
            more = page.more and bool(page.snapshots)
            after = page.snapshots[-1].id if more else 0

    def rename_snapshot(self, path: str, old: str, new: str) -> None:
        meta = RenameSnapshot(0, 0, path, old, new)
        self._caller.mutate(Kind.RENAME_SNAPSHOT, meta, what=f"rename snapshot {old} of {path}")

    def delete_snapshots(self, path: str, *names: str) -> None:
        """All of them or, with NotFound, none. What only they held is freed by and by."""
        meta = DeleteSnapshots(0, 0, path, list(names))
        self._caller.mutate(Kind.DELETE_SNAPSHOTS, meta, what=f"delete snapshots of {path}")

    def clone(self, source: str, target: str) -> None:
        """Gives a file or a directory, also one below `.snapshot`, a second life of its own at
        `target`, which costs no bytes. Raises NotFound, AlreadyExists."""
        self._caller.mutate(
            Kind.CLONE, Clone(0, 0, source, target), what=f"clone {source} to {target}"
        )

    def rollback(self, path: str, name: str, *, guarded: bool = False) -> str:
        """Brings a directory back to a snapshot of it, in one step. What was there becomes a
        snapshot, whose name is returned: rolling back to that undoes it. If it is `guarded`, it
        is refused with CheckpointInUse while a query writes at or below it."""
        meta = Rollback(session=0, sequence=0, path=path, name=name, guarded=guarded)
        return str(self._caller.mutate(Kind.ROLLBACK, meta, what=f"rollback {path}").meta.before)

    def rollback_cut(self, name: str, *, guarded: bool = False) -> str:
        """Brings all directories of a cut back to it, in one step; see `rollback`. If it is
        `guarded`, it is refused with CheckpointInUse while a query writes to one of them."""
        meta = Rollback(session=0, sequence=0, name=name, cut=True, guarded=guarded)
        return str(self._caller.mutate(Kind.ROLLBACK, meta, what=f"rollback {name}").meta.before)

    def prune(self, path: str, names: Sequence[str]) -> int:
        """Deletes files below a directory, each by its path from there; how many were there.
        So many at a time (`PRUNED_AT_ONCE`), not all in one step."""
        deleted = 0
        for first in range(0, len(names), PRUNED_AT_ONCE):
            meta = Prune(0, 0, path, list(names[first : first + PRUNED_AT_ONCE]))
            deleted += self._caller.mutate(Kind.PRUNE, meta, what=f"prune {path}").meta.deleted
        return deleted

    def replace(self, swaps: Sequence[Swap], *, force: bool = False) -> None:
        """Puts directories in the places of others, all in one step: `Swap(path, source, since)`
        makes `path` what `source` is, which is gone then. Raises CheckpointInUse, and changes
        nothing, if one of them is not any more what its snapshot `since` shows; or if a query
        of another application writes to one, unless `force` says that it does not matter."""
        meta = Replace(0, 0, list(swaps), force)
        what = f"replace {', '.join(swap.path for swap in swaps)}"
        self._caller.mutate(Kind.REPLACE, meta, what=what)

    def leases(self, path: str = "/") -> Sequence[LeaseInfo]:
        """The checkpoints at and below a path that applications write to now."""
        reply = self._caller.call(Kind.LEASES, Leases(path), what=f"leases {path}")
        return cast(list[LeaseInfo], reply.meta.leases)

    def batch_notes(self, path: str, limit: int = NOTES_KEPT) -> Noted:
        """What Spark's listener has told of the last batches of the query whose checkpoint is at
        a path; of none if nobody told of any."""
        reply = self._caller.call(Kind.BATCH_NOTES, BatchNotes(path, limit), what=f"notes {path}")
        return cast(Noted, reply.meta)

    def note_batches(self, path: str, query: str, notes: Sequence[BatchNote]) -> None:
        """Tells the cluster of batches, as Spark's listener does. Raises NotFound where there is
        no checkpoint."""
        for at in range(0, len(notes), NOTES_PER_MESSAGE):
            meta = NoteBatches(path, query, list(notes[at : at + NOTES_PER_MESSAGE]))
            self._caller.call(Kind.NOTE_BATCHES, meta, what=f"note batches of {path}")

    def diff(self, path: str, a: str, b: str = "") -> Iterator[Change]:
        """What is other in snapshot `b` of a directory, or in the directory as it is now, than
        in snapshot `a`, by path. Costs as much as differs."""
        after, more = "", True
        while more:
            meta = Diff(path, a, b, after)
            page = self._caller.call(Kind.DIFF, meta, what=f"diff {path}").meta
            yield from page.changes
            after, more = page.after, bool(page.after)

    def own_bytes(self, path: str) -> int:
        """How many bytes at and below a path nothing else names: no snapshot, and no clone."""
        after, own, more = "", 0, True
        while more:
            page = self._caller.call(Kind.USAGE, Usage(path, after), what=f"usage {path}").meta
            own, after, more = own + page.own_bytes, page.after, bool(page.after)
        return own

    def status(self) -> ClusterStatus:
        """The whole cluster, as its leader sees it: what `diskless status` shows."""
        reply = self._caller.call(Kind.STATUS, Empty(), what="status")
        return cast(ClusterStatus, reply.meta)

    def agents(self) -> Sequence[Peer]:
        """The agents and their gateways, as one of them knows them."""
        return cast(list[Peer], self._caller.call(Kind.ROSTER, Empty(), what="agents").meta.agents)

    def events(
        self,
        after: int = 0,
        limit: int = EVENTS,
        *,
        who: str = "",
        path: str = "",
        since_ms: int = 0,
    ) -> Sequence[Event]:
        """The newest commands of the namespace's log after an op, in words, oldest first; only
        those that `who` asked for, that concern `path`, since a time, if these are given.

        The leader remembers some thousands, and none from before it got its memory from
        another voter; older ones come from its audit file, if agents have any.
        """
        return self._look_back(Events(after, limit, who, path, since_ms)).events

    def look_back(
        self, kinds: Sequence[str], *, since_ms: int = 0, limit: int = EVENTS
    ) -> EventPage:
        """As `events`, of some kinds; its `oldest_ms` says how far back the log reaches, and so
        whether there were none or they are not known any more."""
        return self._look_back(Events(0, limit, since_ms=since_ms, kinds=list(kinds)))

    def _look_back(self, wanted: Events) -> EventPage:
        """All pages as one."""
        pages: list[list[Event]] = []
        left, oldest_ms, more = wanted.limit, 0, wanted.limit > 0
        while more:
            wanted = replace(wanted, limit=min(left, EVENTS_PER_PAGE))
            page = self._caller.call(Kind.EVENTS, wanted, what="events").meta
            pages.append(page.events)
            left -= len(page.events)
            oldest_ms = page.oldest_ms or oldest_ms
            wanted, more = replace(wanted, before=page.before), bool(page.before) and left > 0
        events = [event for found in reversed(pages) for event in found]
        return EventPage(events, oldest_ms=oldest_ms)

    # Tokens.

    def issue_token(
        self, name: str, *, paths: Sequence[str], writes: bool = False, expires_s: int = 0
    ) -> bool:
        """Registers a token, which is made elsewhere (`diskless.identity`), so that it is
        listed. Whether it was not known. Raises AlreadyExists if the name is another token's,
        or was revoked; Forbidden unless we are an admin."""
        meta = IssueToken(name, list(paths), writes, expires_s)
        return bool(self._caller.call(Kind.ISSUE_TOKEN, meta, what=f"token {name}").meta.issued)

    def register_token(self, claims: Claims) -> bool:
        """As `issue_token`. Raises BadRequest for claims that are not a client's."""
        if claims.role is not Role.CLIENT:
            raise BadRequest(f"the key of {claims.name!r} is no token: only clients have those")
        return self.issue_token(
            claims.name, paths=claims.paths, writes=claims.writes, expires_s=claims.expires_s
        )

    def tokens(self) -> Iterator[TokenInfo]:
        """The tokens that were registered, and the names that were revoked, by name."""
        after, more = "", True
        while more:
            page = self._caller.call(Kind.TOKENS, Tokens(after), what="tokens").meta
            yield from page.tokens
            more = page.more and bool(page.tokens)
            after = page.tokens[-1].name if more else ""

    def revoke_token(self, name: str) -> Revoked:
        """Makes a token good for nothing, at every agent within a heartbeat, whether it was
        registered or not. Raises Forbidden unless we are an admin."""
        reply = self._caller.call(Kind.REVOKE_TOKEN, RevokeToken(name), what=f"revoke {name}")
        return cast(Revoked, reply.meta)

    def drain(self, slot: int, *, undo: bool = False) -> bool:
        """Begins to move everything off an agent, which gets no new shards from now on;
        or ends that. Whether it was not so before. `status` shows how far it is.

        Raises BadRequest for an unknown slot, TooFewAgents if writes need that agent.
        """
        what = f"drain agent-{slot}"
        return bool(self._caller.call(Kind.DRAIN, Drain(slot, undo), what=what).meta.changed)

    def _list_page(self, path: str, after: str) -> Listing:
        meta = List(path, after, LIST_ENTRIES)
        return cast(Listing, self._caller.call(Kind.LIST, meta, what=f"list {path}").meta)

    def _pages(self, path: str, page: Listing) -> Iterator[Status]:
        while True:
            yield from page.entries
            if not page.more or not page.entries:
                return
            page = self._list_page(path, page.entries[-1].path.rpartition("/")[2])

    # Its own life.

    def close(self) -> None:
        """Closes all connections. Files that are open cannot be used any more."""
        self._caller.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _new_file(path: str, view: memoryview) -> NewFile:
    return NewFile(path, len(view), format_checksum(file_checksum(view)))


def _send(upload: Upload, views: Mapping[str, memoryview], *, overwrite: bool) -> Sequence[Status]:
    """Sends the views as one stream. Nobody changes them: their owner waits for us.

    A file's checksum is taken when its frames are on their way: the agent has them to work on.
    """
    frames = Frames()
    files: list[NewFile] = []
    for path, view in views.items():
        for frame in frames.cut(view, lasting=True):
            upload.append(frame)
        files.append(_new_file(path, view))
    return upload.commit(files, overwrite=overwrite, tail=frames.tail)
