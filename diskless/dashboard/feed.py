"""What watching browsers are told as it happens: one look at the cluster for all of them.

An agent asks the leader for its report, often while somebody watches and seldom otherwise, keeps
the last hour, and sends what changed to every stream. A browser that does not keep up gets the
newest and not what lies between: nothing is kept for it. Without a leader the page says so, with
what the namespace needs.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from diskless.dashboard.series import Series, as_object
from diskless.errors import DisklessError, Unauthorized, Unavailable
from diskless.identity.handshake import Principal
from diskless.model import ClusterStatus, TierReport

log = logging.getLogger(__name__)

WATCHED_S = 0.3
UNWATCHED_S = 10.0
CROWD = 32
"""Agents from which on each asks less often while nobody watches: a report is longer the more they
are, and the leader makes one for each of them."""
DETAILS_S = 2.0
"""How often details are told, which change all the time; what matters is told at once."""
ASK_TIMEOUT_S = 2.0
STREAMS_MAX = 200
STREAM_BYTES = 64 * 1024
"""That may wait for a browser before nothing more is written to it."""
STREAMS_SHARE = 1 / 16
"""Of the agent's memory, for all streams."""
STALL_S = 20.0
"""For so long a browser need not read before its stream is ended."""
PING_S = 5.0
"""Silence after which a stream is sent a comment, so that both sides notice a broken one."""


def unwatched_s(agents: int) -> float:
    """How long one of so many pauses while nobody watches."""
    return UNWATCHED_S * max(agents / CROWD, 1.0)


class Feed:
    def __init__(
        self,
        *,
        agent: str,
        ask: Callable[[], Awaitable[ClusterStatus]],
        check: Callable[[Principal], None],
        wall_ms: Callable[[], int],
        streams_max: int = STREAMS_MAX,
    ) -> None:
        """`ask` gets the leader's report; it raises DisklessError. `check` raises Unauthorized if
        a token is not good any more."""
        self._agent = agent
        self._ask = ask
        self._check = check
        self._wall_ms = wall_ms
        self.series = Series()
        self.streams_max = streams_max
        self.watching = 0
        self._number = 0
        self._unwatched_s = UNWATCHED_S
        self._wake = asyncio.Event()
        self._gist: object = None
        self._failed = ""
        self._told_s = 0.0
        self._news = asyncio.Event()
        """Set, and replaced, when something is said."""
        self._said: dict[str, bytes] = {}
        """The newest message of each kind, and when it was said."""
        self._numbers: dict[str, int] = {}

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            try:
                await self._look()
            except Exception as error:  # otherwise nobody would be told any more
                if repr(error) != self._failed:  # it may come three times a second
                    self._failed = repr(error)
                    log.exception("no look at the cluster")
                self._miss("InternalError", "this agent cannot read the report: its log says why")
            pause_s = WATCHED_S if self.watching else self._unwatched_s
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), pause_s)
            except TimeoutError:
                continue

    async def _look(self) -> None:
        now_ms = self._wall_ms()
        try:
            status = await asyncio.wait_for(self._ask(), ASK_TIMEOUT_S)
        except (DisklessError, TimeoutError) as error:
            reason = error.reason if isinstance(error, DisklessError) else "DeadlineExceeded"
            self._miss(reason, str(error) or f"no leader has answered within {ASK_TIMEOUT_S:g} s")
            return
        self._unwatched_s = unwatched_s(len(status.agents))
        newest = self.series.marks[-1] if self.series.marks else None
        point = self.series.note(status, time_ms=now_ms, now_s=time.monotonic())
        if not self.watching:
            return  # the first who does has all of it said again
        said: dict[str, Any] = {}
        gist, now_s = _gist(status), time.monotonic()
        if gist != self._gist or now_s - self._told_s >= DETAILS_S or "status" not in self._said:
            self._gist, self._told_s = gist, now_s
            said["status"] = {"agent": self._agent, "status": status}
        if point is not None:
            said["point"] = point
        if self.series.marks and self.series.marks[-1] is not newest:
            said["marks"] = list(self.series.marks)
        self._say(**said)

    def _miss(self, reason: str, told: str) -> None:
        self.series.missed(self._wall_ms())
        self._say(status={"agent": self._agent, "error": reason, "message": told})

    def _say(self, **said: Any) -> None:
        changed = False
        for kind, content in said.items():
            message = f"event: {kind}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"
            if message != self._said.get(kind):
                self._number += 1
                self._said[kind], self._numbers[kind] = message, self._number
                changed = True
        if changed:
            self._news.set()
            self._news = asyncio.Event()

    def _forget(self) -> None:
        """What was said last is not true any more, or not for sure: the next look says it."""
        self._said.clear()
        self._numbers.clear()

    # -- one browser ----------------------------------------------------------------

    async def answer(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        """A stream of server-sent events: the hour first, then what changes."""
        if self.watching >= self.streams_max:
            raise Unavailable(f"{self.streams_max} streams are open at this agent already")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        if not self.watching:
            self._forget()  # it may be some seconds old
        self.watching += 1
        self._wake.set()
        try:
            await self._stream(response, principal)
        except (ConnectionError, TimeoutError, Unauthorized):
            pass  # it is gone, does not read, or may not any more
        finally:
            self.watching -= 1
        return response

    async def _stream(self, response: web.StreamResponse, principal: Principal) -> None:
        whole = msgspec.json.encode(as_object(self.series))
        await self._write(response, b"event: series\ndata: " + whole + b"\n\n")
        seen = -1
        while True:
            news = [
                self._said[kind]
                for kind, number in sorted(self._numbers.items(), key=lambda item: item[1])
                if number > seen and (seen >= 0 or kind == "status")
            ]
            seen, more = self._number, self._news
            self._check(principal)
            if news:
                await self._write(response, b"".join(news))
            try:
                await asyncio.wait_for(more.wait(), PING_S)
            except TimeoutError:
                await self._write(response, b": \n\n")

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        """Raises TimeoutError if the browser does not take it."""
        async with asyncio.timeout(STALL_S):
            await response.write(data)


def _gist(status: ClusterStatus) -> object:
    """What nobody shall wait for: a change of this is told at once."""
    return (
        status.leader,
        status.margin,
        [agent.state for agent in status.agents],
        [voter.lag is None for voter in status.voters],
        status.stripes.lost,
        (status.repair.state, status.repair.unprotectable, status.repair.lost),
        status.repair.at_stake > 0,
        _tier_gist(status.tier) if status.tier is not None else None,
    )


def _tier_gist(tier: TierReport) -> object:
    return tier.state, tier.eviction.state, tier.drill
