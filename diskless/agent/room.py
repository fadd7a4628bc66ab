"""A limit on what is processed at once, for callers that can wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from diskless.errors import Unavailable


class Room:
    """First come, first served. A request that is larger than the limit runs alone."""

    def __init__(
        self, bytes_max: int, *, wait_s: float, what: str, count_max: int | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._wait_s = wait_s
        self._what = what
        self._taken = 0
        self._count = 0
        self._line: dict[asyncio.Future[None], int] = {}
        """Who waits, and for how much."""

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Raises Unavailable if there is no room for too long."""
        if self._line or not self._fits(size):
            await self._wait(size)
        else:
            self._enter(size)
        try:
            yield
        finally:
            self._leave(size)

    async def _wait(self, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._line[turn] = size
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if self._line.pop(turn, None) is None:
                self._leave(size)  # It got its turn at this moment.
            else:
                self._admit()
            if isinstance(error, TimeoutError):
                why = f"this agent is busy with {self._what}"
                raise Unavailable(why) from None
            raise

    def _fits(self, size: int) -> bool:
        if self._count_max is not None and self._count >= self._count_max:
            return False
        return not self._taken or self._taken + size <= self._bytes_max

    def _enter(self, size: int) -> None:
        self._taken += size
        self._count += 1

    def _leave(self, size: int) -> None:
        self._taken -= size
        self._count -= 1
        self._admit()

    def _admit(self) -> None:
        while self._line:
            turn, size = next(iter(self._line.items()))
            if not self._fits(size):
                return
            del self._line[turn]
            self._enter(size)
            if not turn.done():  # otherwise the waiter has just given up
                turn.set_result(None)
