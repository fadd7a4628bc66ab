"""An event loop whose time is virtual: nothing waits, and the same coroutines always take the
same turns. Only for code without sockets and threads."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Stuck(AssertionError):
    """Everybody waits for something that no one will do."""


class _Selector(selectors.SelectSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is left to happen")
        self.loop.turns += 1
        self.loop.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now_s = 0.0
        self.turns = 0
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    async def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a schedule cannot be replayed with threads in it")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()
