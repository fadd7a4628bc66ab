"""Periodic steps that cost one timer each.

A task that sleeps costs a future, a wake-up and a turn of the loop for every step, and an idle
agent does little else. Waking the process up costs more than the step itself, so pauses that need
not be exact end at common points in time.
"""

import asyncio
import os
import time
from collections.abc import Callable

GRID_S = 0.25
"""Between two points in time at which pauses end. Shorter pauses are not changed."""
_PHASE_S = os.getpid() % 97 / 97 * GRID_S
"""Agents of one host need not wake up all at once."""


def left_s(pause_s: float, now_s: float) -> float:
    """The length of a pause that starts now, rounded by at most half of GRID_S to end at a common
    point in time. On average it is `pause_s`."""
    if pause_s < GRID_S:
        return pause_s
    steps = max(round((now_s + pause_s - _PHASE_S) / GRID_S), 0)
    return max(_PHASE_S + steps * GRID_S - now_s, GRID_S / 2)


async def rest(pause_s: float) -> None:
    """As asyncio.sleep, for as long as `left_s` says."""
    await asyncio.sleep(left_s(pause_s, time.monotonic()))


class Steps:
    """Steps, each of which returns the pause after it. Must be created on the loop that runs it;
    `run` raises what a step raises."""

    def __init__(self, step: Callable[[], float], *, first_s: float) -> None:
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._arm(first_s)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._ended
        finally:
            self._cancel()

    def take(self) -> None:
        """Takes the next step now, and not when it was due."""
        self._cancel()
        if not self._ended.done():
            self._fire()

    def hasten(self, pause_s: float) -> None:
        """Takes the next step after `pause_s` at the latest."""
        timer = self._timer
        if timer is not None and timer.when() > self._loop.time() + pause_s:
            self._cancel()
            self._arm(pause_s)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, pause_s: float) -> None:
        self._timer = self._loop.call_later(left_s(pause_s, time.monotonic()), self._fire)

    def _fire(self) -> None:
        try:
            pause_s = self._step()
        except Exception as error:  # noqa: BLE001 - whoever awaits gets it
            if not self._ended.done():
                self._ended.set_exception(error)
        else:
            if not self._ended.done():
                self._arm(pause_s)
