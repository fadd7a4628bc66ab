"""The deadline of what is done and not durable."""

from collections.abc import Callable

import pytest

from diskless.client.attempts import Attempts
from diskless.errors import NotDurable, TierBehind


def test_bytes_that_are_sent_again_do_not_put_off_the_end_of_what_waits_for_the_tier() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    attempts = Attempts("write /big", timeout_s=5.0, clock=lambda: now[0], sleep=sleep)

    def again() -> None:
        attempts.progressed()
        now[0] += 1.2
        attempts.failed(NotDurable("behind"))

    with pytest.raises(TierBehind):
        _repeat(again, times=20)
    assert now[0] < 10.0


def _repeat(what: Callable[[], None], *, times: int) -> None:
    for _ in range(times):
        what()
