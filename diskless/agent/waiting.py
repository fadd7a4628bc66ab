"""Commands whose outcomes are awaited, by the numbers under which the protocol has them."""

import asyncio
from collections.abc import Hashable

from diskless.errors import DisklessError
from diskless.namespace import commands as c

Outcome = tuple[c.Result, ...]


class Waiting:
    def __init__(self) -> None:
        self._futures: dict[Hashable, asyncio.Future[Outcome]] = {}
        self._last = 0

    def begin(self) -> tuple[int, asyncio.Future[Outcome]]:
        """The number of a new request, and what it waits for. Whoever has it must `forget` it."""
        self._last += 1
        future = self._futures[self._last] = asyncio.get_running_loop().create_future()
        return self._last, future

    def forget(self, number: int) -> None:
        self._futures.pop(number, None)

    def settle(self, number: Hashable, outcome: Outcome | DisklessError) -> None:
        """Nobody may wait for it any more."""
        future = self._futures.get(number)
        if future is None or future.done():
            return
        if isinstance(outcome, DisklessError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def refuse_all(self, error: DisklessError) -> None:
        for number in list(self._futures):
            self.settle(number, error)
