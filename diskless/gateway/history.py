"""What requests about the past mean: snapshots, clones, rollbacks, and what has changed."""

from collections.abc import Awaitable

import msgspec

from diskless.agent.router import Router
from diskless.errors import Forbidden, NotFound
from diskless.gateway.backend import Answer, Buffer, Handlers, PersonalHandlers
from diskless.gateway.visitor import Visitor
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.compare import Change, DiffPage
from diskless.namespace.usage import UsagePage
from diskless.namespace.views import SnapshotStatus
from diskless.protocol import checkpoints, history
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind


class HistoryHandlers:
    """A part of the gateway's backend."""

    def __init__(self, namespace: Router) -> None:
        self._namespace = namespace
        self.handlers: Handlers = {
            Kind.SNAPSHOT: self._snapshot,
            Kind.RENAME_SNAPSHOT: self._rename_snapshot,
            Kind.DELETE_SNAPSHOTS: self._delete_snapshots,
            Kind.CLONE: self._clone,
            Kind.PRUNE: self._prune,
            Kind.REPLACE: self._replace,
            Kind.LEASES: self._leases,
            Kind.KEEP_LEASES: self._keep_leases,
            Kind.DIFF: self._diff,
            Kind.USAGE: self._usage,
        }
        self.personal: PersonalHandlers = {
            Kind.SNAPSHOTS: self._snapshots,
            Kind.ROLLBACK: self._rollback,
        }

    async def _snapshot(self, meta: history.Snapshot, _: Buffer) -> Answer:
        done = await self._namespace.run(
            c.CreateSnapshot(meta.session, meta.sequence, tuple(meta.paths), meta.name, meta.cut)
        )
        return history.Snapshotted(meta.name or await self._name_of(done.number)), ()

    async def _rollback(self, visitor: Visitor, meta: history.Rollback, _: Buffer) -> Answer:
        if meta.cut and visitor.rights.bound:
            await self._check_cut(visitor, meta.name)
        done = await self._namespace.run(
            c.Rollback(meta.session, meta.sequence, meta.path, meta.name, meta.cut, meta.guarded)
        )
        return history.RolledBack(await self._name_of(done.number) if done.number else ""), ()

    async def _check_cut(self, visitor: Visitor, name: str) -> None:
        """Raises Forbidden if a cut has a directory that the token does not cover."""
        found, after, more = False, 0, True
        while more:
            page: q.SnapshotsListed = await self._namespace.query(
                q.Snapshots("", after, q.PAGE_ENTRIES_MAX)
            )
            inside = [one.path for one in page.entries if one.cut == name]
            if not all(map(visitor.rights.covers, inside)):  # whose they are is not told
                raise Forbidden(f"cut {name!r} has directories that your token does not cover")
            found = found or bool(inside)
            more = page.more
            after = page.entries[-1].number if page.entries else after
        if not found:
            raise NotFound(f"there is no cut {name!r}")

    async def _name_of(self, number: int) -> str:
        """Of the snapshot that a command made; "" if it has been deleted since."""
        try:
            return str((await self._namespace.query(q.SnapshotNumber(number))).name)
        except NotFound:
            return ""

    async def _rename_snapshot(self, meta: history.RenameSnapshot, _: Buffer) -> Answer:
        await self._namespace.run(
            c.RenameSnapshot(meta.session, meta.sequence, meta.path, meta.old, meta.new)
        )
        return m.Empty(), ()

    async def _delete_snapshots(self, meta: history.DeleteSnapshots, _: Buffer) -> Answer:
        await self._namespace.run(
            c.DeleteSnapshots(meta.session, meta.sequence, meta.path, tuple(meta.names))
        )
        return m.Empty(), ()

    async def _clone(self, meta: history.Clone, _: Buffer) -> Answer:
        await self._namespace.run(c.Clone(meta.session, meta.sequence, meta.source, meta.target))
        return m.Empty(), ()

    async def _prune(self, meta: history.Prune, _: Buffer) -> Answer:
        done = await self._namespace.run(
            c.Prune(meta.session, meta.sequence, meta.path, tuple(meta.names))
        )
        return history.Pruned(done.number), ()

    async def _replace(self, meta: history.Replace, _: Buffer) -> Answer:
        swaps = tuple(c.Swap(swap.path, swap.source, swap.since) for swap in meta.swaps)
        await self._namespace.run(c.Replace(meta.session, meta.sequence, swaps, force=meta.force))
        return m.Empty(), ()

    async def _leases(self, meta: checkpoints.Leases, _: Buffer) -> Answer:
        # The log's time stands still while nothing is done: a command that does nothing moves it.
        await self._namespace.run(c.Sweep(0))
        found = await self._namespace.query(q.LeasesOf(meta.path))
        infos = [checkpoints.LeaseInfo(*msgspec.structs.astuple(one)) for one in found]
        return checkpoints.LeaseList(infos), ()

    async def _keep_leases(self, meta: checkpoints.KeepLeases, _: Buffer) -> Answer:
        done = await self._namespace.run(
            c.KeepLeases(meta.session, meta.sequence, tuple(meta.roots), tuple(meta.over))
        )
        return checkpoints.LeasesKept(done.number), ()

    def _snapshots(
        self, visitor: Visitor, meta: history.Snapshots, _: Buffer
    ) -> Answer | Awaitable[Answer]:
        if visitor.rights.bound and not meta.path:
            return self._covered_snapshots(visitor, meta)

        def reply(page: q.SnapshotsListed) -> Answer:
            return history.SnapshotList([_info(one) for one in page.entries], page.more), ()

        return self._namespace.ask(q.Snapshots(meta.path, meta.after, meta.limit), reply)

    async def _covered_snapshots(self, visitor: Visitor, meta: history.Snapshots) -> Answer:
        """A page of all that the token covers. Pages that have none of those are passed over:
        an empty one is the end for a client. They are large, whatever the client asks for:
        there may be thousands of others' snapshots."""
        after, more = meta.after, True
        shown: list[history.SnapshotInfo] = []
        while more and not shown:
            page: q.SnapshotsListed = await self._namespace.query(
                q.Snapshots("", after, q.PAGE_ENTRIES_MAX)
            )
            shown = [_info(one) for one in page.entries if visitor.rights.covers(one.path)]
            more = page.more and bool(page.entries)
            after = page.entries[-1].number if page.entries else after
        limit = max(meta.limit, 1)
        return history.SnapshotList(shown[:limit], more or len(shown) > limit), ()

    def _diff(self, meta: history.Diff, _: Buffer) -> Answer | Awaitable[Answer]:
        def reply(page: DiffPage) -> Answer:
            return history.Changes([_change(one) for one in page.changes], page.cursor), ()

        return self._namespace.ask(q.Diff(meta.path, meta.a, meta.b, meta.after, meta.limit), reply)

    def _usage(self, meta: history.Usage, _: Buffer) -> Answer | Awaitable[Answer]:
        def reply(page: UsagePage) -> Answer:
            return history.Used(page.own_bytes, page.cursor), ()

        return self._namespace.ask(q.Usage(meta.path, meta.after, q.WALK_STEPS_MAX), reply)


def _info(found: SnapshotStatus) -> history.SnapshotInfo:
    return history.SnapshotInfo(
        path=found.path,
        name=found.name,
        time_ms=found.time_ms,
        op=found.op,
        cut=found.cut,
        files=found.files,
        directories=found.directories,
        bytes=found.bytes,
        id=found.number,
    )


def _change(found: Change) -> history.Change:
    return history.Change(
        found.kind, found.path, found.is_directory, found.bytes_before, found.bytes_after
    )
