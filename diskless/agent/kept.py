"""Stripes that are kept for clients that may resume an upload, and for how long.

An upload holds its stripes while it is open. If its client may still resume with them, on this
agent or another one, they are kept for another `keep_s`. After that they may be dropped. Only the
lowest number of each writer matters: a fence is a number below which a writer has nothing
unfinished. Nothing here waits or sends; heartbeats report it.
"""

from collections import deque
from collections.abc import Callable, Iterable

from diskless.agent.ports import Hold

KEPT_PER_WRITER_MAX = 1024
"""Numbers that are remembered with their own time. If there are more, the two oldest are merged."""


class Kept:
    def __init__(self, *, keep_s: float, now_s: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._now_s = now_s
        # By writer: (counter, until_s), both rising. A higher number that expires before a
        # lower one is redundant.
        self._kept: dict[tuple[int, int], deque[tuple[int, float]]] = {}

    def keep(self, holds: Iterable[Hold]) -> None:
        """Keeps these, and all higher numbers of the same writers, for `keep_s` from now on."""
        until_s = self._now_s() + self._keep_s
        for hold in holds:
            kept = self._kept.setdefault((hold.slot, hold.incarnation), deque())
            while kept and kept[-1][0] >= hold.counter:
                kept.pop()
            kept.append((hold.counter, until_s))
            if len(kept) > KEPT_PER_WRITER_MAX:
                lowest, _ = kept.popleft()
                kept[0] = (lowest, kept[0][1])

    def holds(self) -> list[Hold]:
        """The lowest number of each writer that is still kept."""
        now_s = self._now_s()
        for writer, kept in list(self._kept.items()):
            while kept and kept[0][1] <= now_s:
                kept.popleft()
            if not kept:
                del self._kept[writer]
        return [Hold(*writer, kept[0][0]) for writer, kept in self._kept.items()]
