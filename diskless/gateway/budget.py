"""The bytes of client requests that an agent holds at once, shared out first come, first served.

A connection reserves the body of a frame before it receives it and releases it when
the request is answered. Who finds no room waits in one line, so that a busy connection
cannot starve a quiet one; what is granted is already reserved. No I/O, no clock.
"""

from collections import deque
from collections.abc import Callable

FREE_BYTES = 2048
"""Bodies up to this size need no reservation: the limits on connections and on requests
in flight bound them, and a rename must not queue behind bulk data."""


class Budget:
    """At most `bytes_max` reserved, except that one body larger than that passes alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reserved = 0
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def reserve(self, count: int, granted: Callable[[], None]) -> bool:
        """True if `count` bytes are reserved now; else `granted` is called when they are."""
        if count <= FREE_BYTES:
            return True
        if not self._waiting and self._fits(count):
            self.reserved += count
            return True
        self._waiting.append((granted, count))
        return False

    def release(self, count: int) -> None:
        """Gives back what `reserve(count)` took and lets in those who waited longest."""
        if count <= FREE_BYTES:
            return
        self.reserved -= count
        assert self.reserved >= 0
        self._let_in()

    def forget(self, granted: Callable[[], None]) -> None:
        """Takes a closed connection out of the line, if it stands there."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] != granted)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            granted, count = self._waiting.popleft()
            self.reserved += count
            granted()

    def _fits(self, count: int) -> bool:
        return self.reserved == 0 or self.reserved + count <= self.bytes_max
