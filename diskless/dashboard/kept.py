"""Answers that serve all who ask the same, for a while: what watching costs does not grow with
the number of those who watch, and what takes long is not done often."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, NamedTuple, TypeVar

from diskless.errors import Unavailable

FRESH_S = 2.0
"""For so long an answer serves others at least,"""
FRESH_TIMES = 20
"""and for so many times as long as it took to make: all of one kind take a twentieth of a core."""
ANSWERS_MAX = 16
"""That are kept, and that are made at once: those who asked may be gone long before."""

T = TypeVar("T")


class _Answer(NamedTuple):
    task: "asyncio.Task[Any]"
    began_s: float
    until_s: list[float]
    """One number, once it is made."""


class Kept(Generic[T]):
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._answers: OrderedDict[object, _Answer] = OrderedDict()
        self._making: set[asyncio.Task[Any]] = set()

    async def get(self, key: object, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What is kept under a key, or else is made now. Raises what `make` does; then nothing is
        kept. Raises Unavailable while too many are made."""
        known = self._answers.get(key)
        if known is None or self._is_over(known):
            known = self._begin(key, make)
        found: T = await asyncio.shield(known.task)
        return found

    def _begin(self, key: object, make: Callable[[], Coroutine[Any, Any, T]]) -> _Answer:
        if len(self._making) >= ANSWERS_MAX:
            raise Unavailable(
                f"{ANSWERS_MAX} such questions are looked into already: ask again soon"
            )
        made = _Answer(asyncio.create_task(make()), self._now_s(), [])
        self._making.add(made.task)
        made.task.add_done_callback(self._making.discard)
        made.task.add_done_callback(lambda _: made.until_s.append(self._ends_s(made)))
        self._answers[key] = made
        self._answers.move_to_end(key)
        while len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return made

    def _ends_s(self, made: _Answer) -> float:
        now_s = self._now_s()
        return now_s + max(FRESH_S, FRESH_TIMES * (now_s - made.began_s))

    def _is_over(self, known: _Answer) -> bool:
        task = known.task
        if not task.done():
            return False
        failed = task.cancelled() or task.exception() is not None
        return failed or bool(known.until_s and self._now_s() >= known.until_s[0])
