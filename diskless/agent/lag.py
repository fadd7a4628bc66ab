"""How late this agent's event loop is: how long everything on it waits for its turn.

A late timer shows that something else blocked the loop. Readings are kept as counts by size for the
last window and the one before, so the cost is constant.
"""

import math
from collections.abc import Callable

from diskless.agent.ticking import GRID_S, Steps, left_s
from diskless.model import LoopLag

PERIOD_S = GRID_S
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
        due_s = self._due_s()

        def measure() -> float:
            nonlocal due_s
            self.note(self._now_s() - due_s)
            due_s = self._due_s()
            return PERIOD_S

        await Steps(measure, first_s=PERIOD_S).run()

    def _due_s(self) -> float:
        now_s = self._now_s()
        return now_s + left_s(PERIOD_S, now_s)

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
        """Computed at most once a second, because every heartbeat asks for it."""
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
        """The quantile of the readings, rounded up by at most a fifth."""
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
