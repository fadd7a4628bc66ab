"""The log's clocks, and the watch over a machine's own."""

import itertools

import pytest

from diskless.namespace.replication.clocks import (
    ClockWatch,
    ElapsedClock,
    WallClocks,
    answered_by,
)
from diskless.namespace.replication.staging import NEVER

DAY_MS = 86_400_000
FOREVER = -NEVER


def clocks_of(voters: int, *offsets: int | None) -> WallClocks:
    clocks = WallClocks(voters=voters, quorum=voters // 2 + 1)
    for slot, offset in enumerate(offsets):
        if offset is not None:
            clocks.heard(slot, 1000 + offset, 1000)
    return clocks


@pytest.mark.parametrize("offsets", set(itertools.permutations((0, 7, DAY_MS))))
def test_of_three_wall_clocks_the_middle_one_counts(offsets: tuple[int, ...]) -> None:
    assert clocks_of(3, *offsets).read(1000) == 1007


@pytest.mark.parametrize("offsets", set(itertools.permutations((0, 7, 9, DAY_MS))))
def test_of_an_even_number_the_lower_one_in_the_middle_counts(offsets: tuple[int, ...]) -> None:
    assert clocks_of(5, *offsets, None).read(1000) == 1007


@pytest.mark.parametrize("ahead", [DAY_MS, -DAY_MS])
def test_two_clocks_are_enough_for_three_voters_and_one_that_is_ahead_moves_nothing(
    ahead: int,
) -> None:
    assert not clocks_of(3, 5).are_enough
    clocks = clocks_of(3, 5, ahead)
    assert clocks.are_enough
    assert clocks.read(1000) == max(1000 + min(5, ahead), 0)


def test_what_was_heard_a_while_ago_still_tells_the_time() -> None:
    assert clocks_of(3, 3, 5, 9).read(61_000) == 61_005


def test_wall_time_stands_rather_than_going_back() -> None:
    clocks = clocks_of(3, 500, 500, 500)
    assert clocks.read(1000) == 1500
    for slot in range(3):
        clocks.heard(slot, 1100, 1100)
    assert [clocks.read(now) for now in (1100, 1499, 1501)] == [1500, 1500, 1501]


def test_elapsed_time_counts_while_a_leader_leads() -> None:
    clock = ElapsedClock(step_ms_max=1000)
    clock.hear(70)
    clock.begin(5000)
    assert clock.at(5400, led_until=FOREVER) == 470
    assert clock.count(5400, led_until=FOREVER) == 470
    assert clock.count(5400, led_until=FOREVER) == 470, "no moment counts twice"
    assert clock.count(6000, led_until=5500) == 570, "nobody followed it any more"
    assert clock.count(6100, led_until=FOREVER) == 670
    assert clock.count(90_000, led_until=FOREVER) == 1670, "it stood still itself"
    clock.hear(100)
    assert clock.ms == 1670


def test_clocks_that_part_are_noticed_once_and_then_agree_again() -> None:
    watch = ClockWatch(tolerance_ms=10)
    assert not watch.look(100, 5100)
    assert watch.look(200, 5210)
    assert watch.look(300, 5290)
    assert not watch.look(301, 9000)
    assert watch.agree_since == 302
    assert watch.look(400, 9099)


def test_many_small_steps_are_one_large_step() -> None:
    watch = ClockWatch(tolerance_ms=10)
    watch.look(0, 0)
    assert [watch.look(now, now + 4 * now) for now in range(1, 4)] == [True, True, False]


def test_the_newest_time_that_a_quorum_answered_needs_one_less_than_a_quorum_of_others() -> None:
    assert answered_by([NEVER, 5, 9], 2) == 9
    assert answered_by([NEVER, NEVER, 9, 3, 7], 3) == 7
    assert answered_by([NEVER, NEVER, NEVER], 2) == NEVER


def test_skews_are_told_against_the_median() -> None:
    assert clocks_of(5, 10, 0, 5, -90).skews() == (10, 0, 5, -90, None)
    assert clocks_of(3).skews() == (None, None, None)
    assert clocks_of(3).tell(1000) == 0
    assert clocks_of(3, 3, 5, 9).tell(1000) == 1005
