"""Made-up time for a simulation in one thread: what one of all who are in it has worked, and what
it waited, which takes none.
"""

import asyncio
import selectors
import time
from collections.abc import Callable


class Watch:
    """Whose CPU is spent in this thread: the leader's, but for what runs within `others`."""

    def __init__(self) -> None:
        self._others = _Others()

    def leader_s(self) -> float:
        return time.thread_time() - self._others.spent_s

    def others(self) -> "_Others":
        return self._others


class _Others:
    """One for all blocks, as each would cost the leader: they lie within each other."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._began_s = 0.0
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._began_s = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.spent_s += time.thread_time() - self._began_s


class MadeUpLoop(asyncio.SelectorEventLoop):
    """Its time passes while the leader works, and jumps while it would wait."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._worked_s = watch.leader_s()
        self._now_s = 0.0
        super().__init__(_Jumping(self.pass_time))

    def time(self) -> float:
        return self._now_s

    def pass_time(self, idle_s: float) -> None:
        worked_s = self._watch.leader_s()
        self._now_s += worked_s - self._worked_s + idle_s
        self._worked_s = worked_s


class _Jumping(selectors.DefaultSelector):
    def __init__(self, pass_time: Callable[[float], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nobody is left who could do anything"
        ready = super().select(0)
        self._pass_time(0.0 if ready else timeout)
        return ready
