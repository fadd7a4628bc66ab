"""What is kept for clients that may come back: as long as promised, and in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from diskless.agent.kept import KEPT_PER_WRITER_MAX, Kept
from diskless.agent.ports import Hold

KEEP_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make() -> tuple[Kept, Clock]:
    clock = Clock()
    return Kept(keep_s=KEEP_S, now_s=clock), clock


def test_what_is_kept_is_told_until_its_time_is_up_and_no_longer() -> None:
    kept, clock = make()
    kept.keep([Hold(1, 2, 30)])
    clock.now_s = KEEP_S - 0.001
    assert kept.holds() == [Hold(1, 2, 30)]
    clock.now_s = KEEP_S
    assert kept.holds() == []


def test_coming_back_in_vain_begins_the_time_anew() -> None:
    kept, clock = make()
    for _ in range(5):
        kept.keep([Hold(1, 2, 30)])
        clock.now_s += KEEP_S - 1
        assert kept.holds() == [Hold(1, 2, 30)]
    clock.now_s += 1
    assert kept.holds() == []


def test_writers_and_their_lives_are_kept_apart() -> None:
    kept, clock = make()
    kept.keep([Hold(1, 1, 5), Hold(1, 2, 7)])
    clock.now_s = 4.0
    kept.keep([Hold(2, 1, 9)])
    assert kept.holds() == [Hold(1, 1, 5), Hold(1, 2, 7), Hold(2, 1, 9)]
    clock.now_s = KEEP_S
    assert kept.holds() == [Hold(2, 1, 9)]


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 5)), max_size=60))
def test_the_lowest_number_that_anybody_may_still_come_back_with_is_told(steps) -> None:
    kept, clock = make()
    all_kept: list[tuple[int, float]] = []
    for counter, pause_s in steps:
        clock.now_s += pause_s
        kept.keep([Hold(0, 1, counter)])
        all_kept.append((counter, clock.now_s + KEEP_S))
        lowest = min(number for number, until_s in all_kept if until_s > clock.now_s)
        assert kept.holds() == [Hold(0, 1, lowest)]


def test_too_many_to_remember_are_kept_longer_not_shorter() -> None:
    kept, clock = make()
    for counter in range(3 * KEPT_PER_WRITER_MAX):
        kept.keep([Hold(0, 1, counter)])
        clock.now_s += 0.001
    assert kept.holds() == [Hold(0, 1, 0)]
    assert sum(len(numbers) for numbers in kept._kept.values()) <= KEPT_PER_WRITER_MAX
    clock.now_s += KEEP_S
    assert kept.holds() == []
