"""What requests about files and directories by their names mean."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from diskless.agent.router import Router
from diskless.errors import NotFound
from diskless.gateway.backend import Answer, Buffer, Handlers, PersonalHandlers
from diskless.gateway.statuses import path_status, way_status
from diskless.gateway.visitor import Visitor
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind


class TreeHandlers:
    """A part of the gateway's backend."""

    def __init__(self, namespace: Router) -> None:
        self._namespace = namespace
        self.handlers: Handlers = {
            Kind.MKDIRS: self._mkdirs,
            Kind.RENAME: self._rename,
            Kind.DELETE: self._delete,
            Kind.SUMMARY: self._summary,
        }
        self.personal: PersonalHandlers = {Kind.STAT: self._stat, Kind.LIST: self._list}

    def _ask(
        self, query: q.Query, reply: Callable[[Any], Struct | bytes]
    ) -> Answer | Awaitable[Answer]:
        """An answer without bytes."""
        return self._namespace.ask(query, lambda answer: (reply(answer), ()))

    def _stat(self, visitor: Visitor, meta: m.Stat, _: Buffer) -> Answer | Awaitable[Answer]:
        if visitor.rights.covers(meta.path):
            return self._ask(q.Stat(meta.path), path_status)
        return self._ask(q.Stat(meta.path), way_status)

    def _list(self, visitor: Visitor, meta: m.List, _: Buffer) -> Answer | Awaitable[Answer]:
        if not visitor.rights.covers(meta.path):
            return self._list_ways(visitor, meta)

        def reply(page: q.Listed) -> m.Listing:
            return m.Listing([path_status(entry) for entry in page.entries], page.more)

        return self._ask(q.Page(meta.path, meta.after, meta.limit), reply)

    async def _list_ways(self, visitor: Visitor, meta: m.List) -> Answer:
        """Of a directory above a token's paths, what leads to them: a few names, whatever else
        there is."""
        way_status(await self._namespace.query(q.Stat(meta.path)))
        names = [name for name in visitor.rights.ways(meta.path) if name > meta.after]
        found: list[m.Status] = []
        for name in names:
            path = f"{meta.path.rstrip('/')}/{name}"
            try:
                entry = await self._namespace.query(q.Stat(path))
            except NotFound:
                continue
            if entry.record is None or visitor.rights.covers(path):
                found.append(path_status(entry))
        limit = max(meta.limit, 1)
        return m.Listing(found[:limit], len(found) > limit), ()

    def _summary(self, meta: m.Summary, _: Buffer) -> Answer | Awaitable[Answer]:
        def reply(found: Any) -> m.Summed:
            return m.Summed(found.files, found.directories, found.bytes)

        return self._ask(q.Summarize(meta.path), reply)

    async def _mkdirs(self, meta: m.Mkdirs, _: Buffer) -> Answer:
        done = await self._namespace.run(
            c.Mkdirs(meta.session, meta.sequence, meta.path, meta.parents)
        )
        return m.Created(done.changed), ()

    async def _rename(self, meta: m.Rename, _: Buffer) -> Answer:
        await self._namespace.run(
            c.Rename(meta.session, meta.sequence, meta.source, meta.target, meta.overwrite)
        )
        return m.Empty(), ()

    async def _delete(self, meta: m.Delete, _: Buffer) -> Answer:
        done = await self._namespace.run(
            c.Delete(meta.session, meta.sequence, meta.path, meta.recursive, meta.snapshots)
        )
        return m.Deleted(done.changed), ()
