"""All that an agent serves over HTTP, put together: metrics, the page, and what it asks for."""

from collections.abc import Callable

import msgspec

from diskless.agent.memory import Memory
from diskless.agent.router import Router
from diskless.dashboard import assets
from diskless.dashboard.api import Api
from diskless.dashboard.door import HttpDoor
from diskless.dashboard.feed import STREAM_BYTES, STREAMS_MAX, STREAMS_SHARE, Feed
from diskless.dashboard.own import Own
from diskless.dashboard.scrape import Scrape
from diskless.dashboard.series import BYTES
from diskless.errors import Unavailable
from diskless.gateway.handlers import ClientHandlers
from diskless.identity.claims import Keyring
from diskless.identity.handshake import Doorkeeper, Principal
from diskless.identity.refusals import Refusals
from diskless.model import ClusterStatus, slot_name
from diskless.namespace import queries as q


class Page:
    def __init__(
        self,
        own: Own,
        *,
        slot: int,
        keyring: Keyring,
        doorkeeper: Doorkeeper,
        refusals: Refusals,
        memory: Memory,
        handlers: ClientHandlers,
        namespace: Router,
        wall_ms: Callable[[], int],
        is_ready: Callable[[], bool],
    ) -> None:
        self._own = own
        self._namespace = namespace
        self._is_ready = is_ready

        def check(principal: Principal) -> None:
            doorkeeper.check(principal.claims)

        streams_bytes = memory.part(STREAMS_SHARE, STREAMS_MAX * STREAM_BYTES)
        feed = self.feed = Feed(
            agent=slot_name(slot),
            ask=self._ask,
            check=check,
            wall_ms=wall_ms,
            streams_max=streams_bytes // STREAM_BYTES,
        )
        api = self.api = Api(handlers=handlers, namespace=namespace)
        self.door = HttpDoor(
            {"/metrics": Scrape(own).answer, "/api/live": self.feed.answer, **api.answers},
            keyring=keyring,
            doorkeeper=doorkeeper,
            refusals=refusals,
            memory=memory,
            is_ready=is_ready,
            assets=assets.load(),
        )
        memory.meter(
            lambda: {"caches": BYTES, "replies": STREAM_BYTES * feed.watching},
            lambda: (0, BYTES + STREAM_BYTES * feed.watching),
        )

    async def _ask(self) -> ClusterStatus:
        if not self._is_ready():
            raise Unavailable("this agent has not joined the cluster yet")
        report = self._own.cluster()
        if report is not None:
            return report
        return msgspec.json.decode(await self._namespace.query(q.Report()), type=ClusterStatus)
