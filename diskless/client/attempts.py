"""How long and how often an operation is tried: one deadline, small growing pauses.

An attempt gets only a part of the time, so that one silent agent cannot use it all up.
Progress (a piece of a large transfer arrived) starts the clock again: for a stream the
deadline bounds silence, not length.
"""

import random
import time
from collections.abc import Callable

from diskless.errors import (
    Closing,
    CorruptData,
    DeadlineExceeded,
    DisklessError,
    Garbled,
    MemoryFull,
    NoQuorum,
    NotDurable,
    ShardsAway,
    TierBehind,
)
from diskless.protocol.frames import pack_within

ATTEMPTS_MIN = 6
"""Attempts that fit in the time even if all agents are silent."""
GARBLED_MAX = 6
"""Damaged frames, without progress between them, after which an operation is given up: agents
that fail are passed over, so they came by several ways."""
CAUSES = (NoQuorum, ShardsAway, NotDurable, Closing, MemoryFull)
"""They say why the cluster cannot answer now; others only that it does not."""
PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 0.25


class Attempts:
    """The tries of one operation; `what` names it and its path in errors."""

    def __init__(
        self,
        what: str,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._failures = 0
        self._garbled = 0
        self._cause: DisklessError | None = None

    @property
    def deadline(self) -> float:
        """Of the current attempt."""
        return min(self._end, self._clock() + self._timeout_s / ATTEMPTS_MIN)

    @property
    def within(self) -> int:
        """The same as a request tells it, so that an agent that is well says in time why it
        cannot answer, and is not taken for a silent one."""
        return pack_within(self.deadline - self._clock())

    @property
    def _end(self) -> float:
        return self._began + self._timeout_s

    def progressed(self) -> None:
        self._began = self._clock()
        self._failures = 0
        self._garbled = 0
        self._cause = None

    def failed(self, error: DisklessError) -> None:
        """Pauses before the next attempt. Raises DeadlineExceeded if there is no time for it,
        CorruptData if frames do not get through as they were sent."""
        pause = self._pause()
        self._failures += 1
        in_time = self._clock() + pause < self._end
        if isinstance(error, Garbled):
            self._garbled += 1
            if not in_time or self._garbled >= GARBLED_MAX:
                raise CorruptData(
                    f"{self._what}: damaged on its way in {self._garbled} of {self._failures} "
                    f"attempts, look at the network and at this host's memory; last: {error}"
                ) from error
        if isinstance(error, CAUSES):
            self._cause = error
        error = self._cause or error  # It explains what the others only show.
        if not in_time:
            final = TierBehind if isinstance(error, NotDurable) else DeadlineExceeded
            raise final(
                f"{self._what}: gave up after {self._clock() - self._began:.1f} s, "
                f"{self._failures} attempts; last error: {error.reason}: {error}"
            ) from error
        if pause:
            self._sleep(pause)

    def _pause(self) -> float:
        """The first failure costs no pause: another agent is most likely well."""
        if not self._failures:
            return 0.0
        pause = min(PAUSE_S_MIN * float(2 ** (self._failures - 1)), PAUSE_S_MAX)
        return pause * random.uniform(0.5, 1.0)
