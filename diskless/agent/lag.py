"""How late this agent's event loop is: what everything on it waits for before its turn.

A timer that comes late shows that something else held the loop. Kept as counts by size for
the last window and the one before, so that noting and reading cost the same for ever.
"""

import asyncio
import math
from collections.abc import Callable

from diskless.model import LoopLag

PERIOD_S = 0.2
READ_EVERY_S = 1.0
WINDOW_S = 30.0
"""A reading covers between one and two of these."""
FINEST_S = 0.0001
STEPS_PER_DOUBLING = 4
BUCKETS = 80
"""From a tenth of a millisecond to a hundred seconds."""


class _Window:
    __slots__ = ("counts", "max_s", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0
        self.max_s = 0.0


class LagMeter:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._now, self._before = _Window(), _Window()
        self._read_s = -math.inf
        self._last = LoopLag()

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            due_s = self._now_s() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self.note(self._now_s() - due_s)

    def note(self, late_s: float) -> None:
        now_s = self._now_s()
        if now_s - self._began_s >= WINDOW_S:
            self._began_s = now_s
            self._now, self._before = _Window(), self._now
        window = self._now
        window.counts[_bucket(late_s)] += 1
        window.total += 1
        window.max_s = max(window.max_s, late_s)

    def read(self) -> LoopLag:
        """Added up anew once a second: every heartbeat asks for it."""
        now_s = self._now_s()
        if now_s - self._read_s >= READ_EVERY_S:
            self._read_s, self._last = now_s, self._summary()
        return self._last

    def _summary(self) -> LoopLag:
        max_s = max(self._now.max_s, self._before.max_s)
        return LoopLag(
            p50_ms=_ms(min(self._quantile_s(0.5), max_s)),
            p99_ms=_ms(min(self._quantile_s(0.99), max_s)),
            max_ms=_ms(max_s),
        )

    def _quantile_s(self, share: float) -> float:
        """What that share of the readings did not exceed, rounded up by a fifth at most."""
        wanted = math.ceil(share * (self._now.total + self._before.total))
        for bucket in range(BUCKETS):
            wanted -= self._now.counts[bucket] + self._before.counts[bucket]
            if wanted <= 0:
                return FINEST_S * 2 ** (bucket / STEPS_PER_DOUBLING)
        return math.inf


def _bucket(late_s: float) -> int:
    if late_s <= FINEST_S:
        return 0
    return min(math.ceil(STEPS_PER_DOUBLING * math.log2(late_s / FINEST_S)), BUCKETS - 1)


def _ms(seconds: float) -> float:
    return round(1000 * max(seconds, 0.0), 1)
