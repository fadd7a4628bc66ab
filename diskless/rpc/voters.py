"""The calling side between two voters: a gRPC stream, and the fast lane that it leads to.

Both share one fate: when either is lost both are, and the next message opens both again. So
a voter that died is noticed by whichever tells first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from diskless.errors import Unauthorized
from diskless.rpc.exchange import Link
from diskless.rpc.lane import Lane, Visitor, open_lane
from diskless.rpc.services import LANE_KEY, VOTER_BATCH

log = logging.getLogger(__name__)


class VoterLink:
    """Messages to one voter at one address. None has an answer, and any may be lost."""

    def __init__(
        self,
        open_stream: Callable[[], Awaitable[Any]],
        *,
        peer: str,
        host: str,
        visitor: Visitor,
        count_message: Callable[[], None],
        on_broken: Callable[[], None],
    ) -> None:
        """`on_broken` is told whenever the stream or the lane ends and we did not close it."""
        self._open_stream = open_stream
        self._peer = peer
        self._host = host
        self._visitor = visitor
        self._count_message = count_message
        self._on_broken = on_broken
        self._lane: Lane | None = None
        self._opening: asyncio.Task[None] | None = None
        self._stream = Link(
            self._open_both,
            peer=peer,
            join=VOTER_BATCH.join,
            split=VOTER_BATCH.split,
            count_message=count_message,
            on_broken=self._broke,
        )

    def post(self, message: bytes) -> None:
        lane = self._lane
        if lane is not None and lane.usable:
            self._count_message()
            lane.send(message)
        else:
            self._stream.post(message, len(message))

    def close(self) -> None:
        self._close_lane()
        self._stream.close()

    async def _open_both(self) -> Any:
        assert self._lane is None, "its lane ended with the stream before"
        stream = await self._open_stream()
        self._opening = asyncio.create_task(self._open_lane(stream))
        return stream

    async def _open_lane(self, stream: Any) -> None:
        try:
            port = int(dict(await stream.initial_metadata())[LANE_KEY])
            self._lane = await open_lane(self._host, port, self._visitor, self._lane_lost)
        except Unauthorized as error:
            log.warning("no agent peer=%s error=%s", self._peer, error)
        except grpc.aio.AioRpcError:
            return  # the stream itself tells
        except (KeyError, ValueError, OverflowError, OSError) as error:
            log.info("no lane, its stream serves peer=%s error=%r", self._peer, error)

    def _lane_lost(self) -> None:
        self._lane = None
        self._stream.interrupt("the lane was lost")

    def _broke(self) -> None:
        self._close_lane()
        self._on_broken()

    def _close_lane(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        lane, self._lane, self._opening = self._lane, None, None
        if lane is not None:
            lane.close()
