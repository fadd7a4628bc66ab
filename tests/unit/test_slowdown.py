"""What a chaos run tells of its slow agents, from samples and events alone."""

import pytest

from diskless.chaos.report import slowdown_line
from diskless.chaos.slowdown import Slowdown, measure
from diskless.chaos.timeline import Event, Sample


def samples(rates: dict[float, float], end_s: float = 20.0) -> list[Sample]:
    """One each half second; a rate holds from its time on."""
    made = []
    for number in range(int(2 * end_s) + 1):
        at_s = number / 2
        rate = [rate for from_s, rate in sorted(rates.items()) if from_s < at_s or not from_s][-1]
        made.append(
            Sample(at_s=at_s, margin=2, up=6, per_s=rate, commit_ms=1, slowest_ms=1, errors=0)
        )
    return made


def fault(kind: str, at_s: float, until_s: float | None, *slots: int) -> Event:
    return Event(at_s=at_s, kind=kind, text=kind, slots=slots or (2,), until_s=until_s)


def only(events: list[Event], rates: dict[float, float], *, bound: bool = True) -> Slowdown:
    (found,) = measure(events, samples(rates), ended_s=18.0, bound=bound)
    return found


@pytest.mark.parametrize(("rate", "kept"), [(100.0, True), (80.0, True), (79.0, False)])
def test_the_time_until_it_is_noticed_does_not_count(rate: float, kept: bool) -> None:
    found = only([fault("slow", 5, 12)], {0: 100, 5: 1, 8: rate, 12: 3})
    assert (found.before_per_s, found.during_per_s) == (100, rate)
    assert (found.share, found.kept) == (rate / 100, kept)


def test_one_that_lasted_to_the_end_ended_with_the_run() -> None:
    assert only([fault("slow", 5, None)], {0: 100, 8: 90, 18: 1}).share == 0.9


@pytest.mark.parametrize(
    "other", [fault("kill", 7, None, 3), fault("pause", 8, 13, 3), fault("slow", 7, 13, 3)]
)
def test_what_another_fault_cost_is_not_held_against_it(other: Event) -> None:
    slow = fault("slow", 5, 18)
    found = measure([slow, other], samples({0: 100, 8: 1, 15: 95}), ended_s=18.0, bound=True)[0]
    assert found.share == 0.95


def test_too_little_to_see_is_no_verdict() -> None:
    found = only([fault("slow", 5, 8)], {0: 100})
    assert (found.share, found.kept) == (None, None)
    assert "not measured" in slowdown_line(found, "operations")
    assert only([fault("slow", 0.5, 12)], {0: 100}).share is None, "nothing before it"
    assert only([fault("slow", 5, 12)], {0: 0}).share is None


def test_the_bound_is_for_one_agent_and_even_traffic() -> None:
    rates = {0: 100.0, 5: 10.0}
    assert only([fault("slow", 5, 12, 1, 2)], rates).kept is None
    assert only([fault("slow", 5, 12)], rates, bound=False).kept is None
    missed = only([fault("slow", 5, 12)], rates)
    assert slowdown_line(missed, "operations") == (
        "slow, at 5.0 s: slow: 100 operations/s before, 10 from 3 s after it began: 0.10 of it "
        "(bound 0.8: MISSED)"
    )
