"""What the page asks for when somebody looks closer: files, snapshots, events, checkpoints.

Each is a request of the gateway's, with the rights that the token has there; nothing can be
changed this way. Every answer is a page of bounded size, and searches stop at a limit.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from diskless.agent.router import Router
from diskless.dashboard.checkpoints import Checkpoints, Payload
from diskless.errors import BadRequest
from diskless.gateway.handlers import ClientHandlers
from diskless.gateway.visitor import Visitor
from diskless.identity.handshake import Principal
from diskless.model import slot_name
from diskless.namespace import queries as q
from diskless.namespace.tier import is_cold
from diskless.protocol import history, operating, tier
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind

ENTRIES_MAX = 200
"""Of a page of anything."""
STRIPES_MAX = 64
"""Of a file, of which it is told where they are."""


class Api:
    def __init__(self, *, handlers: ClientHandlers, namespace: Router) -> None:
        self._handlers = handlers
        self._namespace = namespace
        self.checkpoints = Checkpoints(self._ask_with_bytes, namespace)

    @property
    def answers(
        self,
    ) -> dict[str, Callable[[web.BaseRequest, Principal], Awaitable[web.StreamResponse]]]:
        return {
            "/api/list": self._list,
            "/api/path": self._path,
            "/api/events": self._events,
            "/api/queries": self._queries,
            "/api/query": self._query,
            "/api/batches": self._batches,
        }

    async def _ask(self, visitor: Visitor, kind: Kind, meta: msgspec.Struct) -> Any:
        return (await self._ask_with_bytes(visitor, kind, meta))[0]

    async def _ask_with_bytes(
        self, visitor: Visitor, kind: Kind, meta: msgspec.Struct
    ) -> tuple[Any, Payload]:
        """What the gateway would answer. Raises what it would."""
        visitor.rights.check(kind, meta)
        answer = self._handlers.handle(visitor, kind, meta, b"")
        return answer if isinstance(answer, tuple) else await answer

    async def _list(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        path, after = request.query.get("path", "/"), request.query.get("after", "")
        page = await self._ask(_visitor(principal), Kind.LIST, m.List(path, after, ENTRIES_MAX))
        return _json(page)

    async def _path(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        """What is known of a path: its policy, snapshots, and where its bytes are."""
        path, visitor = request.query.get("path", "/"), _visitor(principal)
        status = await self._ask(visitor, Kind.STAT, m.Stat(path))
        found: dict[str, Any] = {"status": status}
        if not visitor.rights.covers(path):
            return _json(found)  # it only leads to what the token is for
        found["policy"] = await self._ask(visitor, Kind.POLICY, tier.Policy(path))
        if status.directory:
            found["summary"] = await self._ask(visitor, Kind.SUMMARY, m.Summary(path))
            snapshots = history.Snapshots(path, 0, ENTRIES_MAX)
            found["snapshots"] = await self._ask(visitor, Kind.SNAPSHOTS, snapshots)
        else:
            visitor.rights.check(Kind.OPEN, m.Open(path))
            found["places"] = _places(await self._namespace.query(q.Open(path)))
        return _json(found)

    async def _events(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        wanted = operating.Events(
            after=_number(request, "after"),
            limit=ENTRIES_MAX,
            who=request.query.get("who", ""),
            path=request.query.get("path", ""),
            before=request.query.get("before", ""),
        )
        return _json(await self._ask(_visitor(principal), Kind.EVENTS, wanted))

    async def _queries(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        return _json(await self.checkpoints.all(_visitor(principal)))

    async def _query(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        path = request.query.get("path", "/")
        return _json(await self.checkpoints.one(_visitor(principal), path))

    async def _batches(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        path = request.query.get("path", "/")
        return _json(await self.checkpoints.closer(_visitor(principal), path))


def _visitor(principal: Principal) -> Visitor:
    return Visitor(0, principal)


def _number(request: web.BaseRequest, name: str) -> int:
    text = request.query.get(name, "0")
    if not text.isdecimal() or len(text) > 18:
        raise BadRequest(f"{name} is a number")
    return int(text)


def _places(opened: q.OpenedFile) -> dict[str, Any]:
    record = opened.record
    where = "tier" if is_cold(record) else "inline" if record.inline is not None else "stripes"
    return {
        "where": where,
        "stripes": [
            {
                "id": stripe.id,
                "data_shards": stripe.data_shards,
                "agents": [slot_name(place.slot) for place in stripe.places],
            }
            for stripe in opened.stripes[:STRIPES_MAX]
        ],
        "more": max(len(opened.stripes) - STRIPES_MAX, 0),
    }


def _json(content: Any) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content),
        headers={"Content-Type": "application/json", "Cache-Control": "no-store"},
    )
