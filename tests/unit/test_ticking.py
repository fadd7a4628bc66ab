"""Steps that are taken again and again, until somebody ends it or one fails."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from diskless.agent.ticking import GRID_S, Steps, left_s

PAUSE_S = 0.001


async def every(step: Callable[[], None]) -> None:
    def pace() -> float:
        step()
        return PAUSE_S

    await Steps(pace, first_s=PAUSE_S).run()


def test_steps_are_taken_until_the_task_is_cancelled_and_none_after() -> None:
    async def run() -> None:
        taken, enough = [0], asyncio.Event()

        def step() -> None:
            taken[0] += 1
            if taken[0] == 3:
                enough.set()

        task = asyncio.create_task(every(step))
        async with asyncio.timeout(30):
            await enough.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        before = taken[0]
        await asyncio.sleep(0.02)
        assert taken[0] == before

    asyncio.run(run())


def test_a_step_that_fails_ends_it_with_its_error() -> None:
    def step() -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        asyncio.run(every(step))


def test_a_step_may_cancel_the_task_that_takes_it() -> None:
    async def run() -> int:
        taken = 0

        def step() -> None:
            nonlocal taken
            taken += 1
            task.cancel()

        task = asyncio.create_task(every(step))
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.02)
        return taken

    assert asyncio.run(run()) == 1


def test_a_step_that_is_taken_before_its_time_is_not_taken_again_then() -> None:
    async def run() -> list[str]:
        taken: list[str] = []

        def step() -> float:
            taken.append("step")
            return 3600.0

        steps = Steps(step, first_s=0.01)
        steps.take()
        task = asyncio.create_task(steps.run())
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return taken

    assert asyncio.run(run()) == ["step"]


def test_a_step_is_hastened_and_never_put_off() -> None:
    async def run() -> None:
        taken = asyncio.Event()

        def step() -> float:
            taken.set()
            return 3600.0

        steps = Steps(step, first_s=3600.0)
        task = asyncio.create_task(steps.run())
        steps.hasten(0.001)
        steps.hasten(3600.0)
        async with asyncio.timeout(30):
            await taken.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


@pytest.mark.parametrize("pause_s", [0.25, 0.3, 0.5, 1.0, 2.0, 30.0])
def test_pauses_that_begin_anywhere_end_at_moments_that_all_share(pause_s: float) -> None:
    ends = [now_s + left_s(pause_s, now_s) for now_s in (100 + n / 37 for n in range(100))]
    moments = {round((end - ends[0]) / GRID_S, 6) for end in ends}
    assert all(moment == int(moment) for moment in moments)
    for now_s in (100 + n / 37 for n in range(100)):
        assert abs(left_s(pause_s, now_s) - pause_s) <= GRID_S / 2 + 1e-9


def test_one_pause_after_the_other_they_take_as_long_as_they_should() -> None:
    began_s = now_s = 1000.123
    for _ in range(100):
        now_s += left_s(0.5, now_s)
    assert abs((now_s - began_s) / 100 - 0.5) < 0.01


def test_short_pauses_are_what_they_are() -> None:
    assert left_s(0.05, 12.34) == 0.05
