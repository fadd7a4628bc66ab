"""The calling side between two agents that have a fast lane beside their gRPC stream.

When either is lost, both are closed, and the next message opens both again. So a dead agent is
noticed by whichever fails first. Some calls use the stream although there is a lane: shards need
the stream, so an agent whose gRPC alone hangs must not appear healthy.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from diskless.errors import Unauthorized
from diskless.rpc.exchange import Join, Link, Split
from diskless.rpc.lane import Lane, Visitor, open_lane
from diskless.rpc.services import LANE_KEY

log = logging.getLogger(__name__)

STREAM_EVERY = 40
"""One of so many batches of calls uses the stream although there is a lane: of a leader's
heartbeats, one in ten failure timeouts. It costs several times as much as on the lane."""


class LanedLink(Link):
    """Calls to one agent at one address, and their answers. They use the lane once it is open."""

    def __init__(
        self,
        open_stream: Callable[[], Awaitable[Any]],
        *,
        peer: str,
        host: str,
        visitor: Visitor,
        join: Join,
        split: Split,
        count_message: Callable[[], None],
        on_broken: Callable[[], None] | None = None,
    ) -> None:
        """`on_broken` is called when the stream or the lane ends and we did not close it."""
        super().__init__(
            self._open_both,
            peer=peer,
            join=join,
            split=split,
            count_message=count_message,
            on_broken=self._broke,
        )
        self._open_first = open_stream
        self._host = host
        self._visitor = visitor
        self._told = on_broken
        self._lane: Lane | None = None
        self._opening: asyncio.Task[None] | None = None
        self._until_stream = STREAM_EVERY

    def close(self) -> None:
        self._close_lane()
        super().close()

    def doubt_stream(self) -> None:
        """Another stream to that agent did not answer: the next call checks this one."""
        self._until_stream = 0

    async def _write(self, stream: Any, data: bytes) -> None:
        lane = self._lane
        self._until_stream -= 1
        # Once it is the stream's turn, it gets all calls until it answers. Otherwise a missing
        # answer would be forgotten with the next answer of the lane.
        if lane is None or self._until_stream <= 0 or not lane.post(data):
            await stream.write(data)

    def _heard_stream(self) -> None:
        self._until_stream = STREAM_EVERY

    async def _open_both(self) -> Any:
        """The stream, which carries everything until the lane is open."""
        assert self._lane is None, "the lane was not closed with the previous stream"
        stream = await self._open_first()
        self._opening = asyncio.create_task(self._open_lane(stream))
        return stream

    async def _open_lane(self, stream: Any) -> None:
        try:
            port = int(dict(await stream.initial_metadata())[LANE_KEY])
            hear = self._take if self._visitor.service else None
            self._lane = await open_lane(self._host, port, self._visitor, self._lane_lost, hear)
        except Unauthorized as error:
            log.warning("no agent peer=%s error=%s", self._peer, error)
        except grpc.aio.AioRpcError:
            return  # the stream reports it
        except (KeyError, ValueError, OverflowError, OSError) as error:
            log.info("no lane, using the stream peer=%s error=%r", self._peer, error)

    def _lane_lost(self) -> None:
        self._lane = None
        self.interrupt("the lane was lost")

    def _broke(self) -> None:
        self._close_lane()
        if self._told is not None:
            self._told()

    def _close_lane(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        lane, self._lane, self._opening = self._lane, None, None
        if lane is not None:
            lane.close()


class VoterLink(LanedLink):
    """Messages to one voter at one address. None has an answer, and any may be lost."""

    def post(self, call: bytes, size: int = 0) -> None:
        lane = self._lane
        if lane is not None and lane.post(call):
            self._count_message()
        else:
            super().post(call, len(call))

    async def _write(self, stream: Any, data: bytes) -> None:
        await stream.write(data)  # a batch; a lane takes single messages
