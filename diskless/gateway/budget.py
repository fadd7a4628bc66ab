"""The bytes of client requests, or of replies to them, that an agent holds at once.

A connection reserves the body of a frame before it receives it, and a reply before it has
it made; what is reserved is released when it is gone. Who finds no room waits in one line,
so that a busy connection cannot starve a quiet one; what is granted is already reserved.
No I/O, no clock.
"""

from collections import deque
from collections.abc import Callable

FREE_BYTES = 2048
"""Bodies up to this size need not stand in line: a rename must not queue behind bulk data.
They have a quarter of the budget beside it, and only stand in line when that is used up."""


class Budget:
    """At most `bytes_max` reserved, and no more than the agent has `room` for, except that one
    body larger than that passes alone."""

    def __init__(self, bytes_max: int, room: Callable[[], int]) -> None:
        self.bytes_max = bytes_max
        self.reserved = 0
        self.reserved_small = 0
        self._room = room
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def reserve(self, count: int, granted: Callable[[], None]) -> bool:
        """True if `count` bytes are reserved now; else `granted` is called when they are."""
        if count <= FREE_BYTES and 4 * self.reserved_small < self.bytes_max:
            self.reserved_small += count
            return True
        if not self._waiting and self._fits(count):
            self._take(count)
            return True
        self._waiting.append((granted, count))
        return False

    def release(self, count: int) -> None:
        """Gives back what `reserve(count)` took and lets in those who waited longest."""
        if count <= FREE_BYTES:
            self.reserved_small -= count
            assert self.reserved_small >= 0
        else:
            self.reserved -= count
            assert self.reserved >= 0
        if self._waiting:
            self._let_in()

    def forget(self, granted: Callable[[], None]) -> None:
        """Takes a closed connection out of the line, if it stands there."""
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != granted)
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            granted, count = self._waiting.popleft()
            self._take(count)
            granted()

    def _take(self, count: int) -> None:
        if count <= FREE_BYTES:
            self.reserved_small += count
        else:
            self.reserved += count

    def _fits(self, count: int) -> bool:
        if count <= FREE_BYTES:
            return 4 * self.reserved_small < self.bytes_max
        if self.reserved == 0:
            return True
        return self.reserved + count <= self.bytes_max and count <= self._room()
