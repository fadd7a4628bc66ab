"""The loop's lag: what was noted lately, and no more than that."""

import asyncio
import time

import pytest

from diskless.agent.lag import PERIOD_S, WINDOW_S, LagMeter
from diskless.model import LoopLag


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_nothing_noted_is_no_lag() -> None:
    assert LagMeter(Clock()).read() == LoopLag(0.0, 0.0, 0.0)


def test_quantiles_are_right_to_a_fifth_and_the_most_is_exact() -> None:
    meter = LagMeter(Clock())
    for n in range(1, 1001):
        meter.note(n / 1000)
    lag = meter.read()
    assert 500 <= lag.p50_ms <= 600
    assert lag.p99_ms == pytest.approx(1000) or 990 <= lag.p99_ms <= 1000
    assert lag.max_ms == 1000


@pytest.mark.parametrize("late_s", [-1.0, 0.0, 1e-9, 1e-4, 0.02, 99.0, 1e9])
def test_any_reading_is_taken(late_s: float) -> None:
    meter = LagMeter(Clock())
    meter.note(late_s)
    lag = meter.read()
    assert lag.p50_ms <= lag.max_ms == round(1000 * max(late_s, 0.0), 1)


def test_what_is_long_past_is_forgotten() -> None:
    clock = Clock()
    meter = LagMeter(clock)
    meter.note(5.0)
    clock.now_s += WINDOW_S
    meter.note(0.001)
    assert meter.read().max_ms == 5000, "it may have been a moment ago"
    clock.now_s += WINDOW_S
    meter.note(0.001)
    assert meter.read().max_ms == 1


def test_a_loop_that_is_held_up_is_seen_to_be_late() -> None:
    async def main() -> LoopLag:
        meter = LagMeter(time.monotonic)
        task = asyncio.create_task(meter.run())
        await asyncio.sleep(0)
        time.sleep(6 * PERIOD_S)  # noqa: ASYNC251 - to hold it up is the point
        while meter.read() == LoopLag():
            await asyncio.sleep(PERIOD_S)
        task.cancel()
        return meter.read()

    assert asyncio.run(asyncio.wait_for(main(), 30)).max_ms >= 4500 * PERIOD_S
