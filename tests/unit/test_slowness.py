"""Who is slow, going by the leader's beats: measured against the others, and not in a hurry."""

from collections.abc import Mapping

import pytest

from diskless.agent.leading.slowness import (
    LATE_S,
    SLOW_AFTER_S,
    WELL_AFTER_S,
    WELL_AFTER_S_MAX,
    Slowness,
)

pytestmark = pytest.mark.usefixtures("slow_agents")

QUICK_S = 0.002
BEAT_S = 0.25


class Leader:
    """Slot 0, which beats the others; `slow` is what its verdicts add up to."""

    def __init__(self, agents: int = 6, slow_max: int = 2) -> None:
        self.slowness = Slowness(judge=0, slow_max=slow_max)
        self.agents = agents
        self.slow: set[int] = set()
        self.now_s = 1000.0

    def beat(self, seconds: float, took_s: Mapping[int, float]) -> None:
        """Beats everybody for a while; answers take as long as given, or no time."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            for slot in range(1, self.agents):
                self.one(slot, took_s.get(slot, QUICK_S))
            self.now_s += max(BEAT_S, *took_s.values()) if took_s else BEAT_S

    def one(self, slot: int, took_s: float) -> bool | None:
        verdict = self.slowness.note(
            slot,
            began_s=self.now_s,
            ended_s=self.now_s + took_s,
            slow=slot in self.slow,
            slow_others=len(self.slow - {slot}),
        )
        if verdict is not None:
            (self.slow.add if verdict else self.slow.remove)(slot)
        return verdict


def test_one_that_answers_much_later_is_slow_until_it_has_been_quick_for_longer() -> None:
    leader = Leader()
    leader.beat(5, {})
    leader.beat(SLOW_AFTER_S / 2, {3: 0.3})
    assert not leader.slow
    leader.beat(2 * SLOW_AFTER_S, {3: 0.3})
    assert leader.slow == {3}
    leader.beat(WELL_AFTER_S / 2, {})
    leader.beat(0.1, {3: 0.3})
    leader.beat(WELL_AFTER_S / 2, {})
    assert leader.slow == {3}, "it was slow again in between"
    leader.beat(WELL_AFTER_S, {})
    assert not leader.slow


def test_a_single_late_answer_is_nothing_however_late() -> None:
    leader = Leader()
    for _ in range(20):
        leader.beat(0.1, {3: 0.9})
        assert leader.slowness.suspects(3), "the next beat does not wait"
        leader.beat(0.1, {})
        assert not leader.slowness.suspects(3)
    assert not leader.slow


@pytest.mark.parametrize("others", [5, 2])
def test_if_all_answer_late_nobody_is_slow(others: int) -> None:
    leader = Leader(agents=others + 1)
    leader.beat(20, dict.fromkeys(range(1, others + 1), 0.3))
    assert not leader.slow


def test_what_is_late_is_measured_by_the_others() -> None:
    leader = Leader()
    far = dict.fromkeys(range(1, 6), 0.06)
    leader.beat(10, far | {2: 0.2})
    assert not leader.slow
    leader.beat(10, far | {2: 0.3})
    assert leader.slow == {2}


def test_an_answer_that_takes_a_moment_is_not_late() -> None:
    leader = Leader()
    leader.beat(10, {2: LATE_S * 0.9})
    assert not leader.slow


def test_no_more_than_k_are_slow_at_once() -> None:
    leader = Leader(agents=9)
    leader.beat(10, {2: 0.3, 4: 0.3, 6: 0.3})
    assert len(leader.slow) == 2
    leader.beat(10, {6: 0.3})
    assert leader.slow == {6}


def test_one_that_is_slow_again_and_again_must_be_quick_for_longer_each_time() -> None:
    leader = Leader()
    waited_s = []
    for _ in range(6):
        leader.beat(2, {1: 0.3})
        assert leader.slow == {1}
        began_s = leader.now_s
        while leader.slow:
            leader.beat(BEAT_S, {})
        waited_s.append(leader.now_s - began_s)
    assert waited_s == sorted(waited_s)
    assert waited_s[0] < 2 * WELL_AFTER_S
    assert WELL_AFTER_S_MAX <= waited_s[-1] < 2 * WELL_AFTER_S_MAX


def test_what_was_measured_of_a_life_that_is_over_is_forgotten() -> None:
    leader = Leader()
    leader.beat(SLOW_AFTER_S / 2, {3: 0.3})
    leader.slowness.forget(3)
    leader.beat(SLOW_AFTER_S / 2, {3: 0.3})
    assert not leader.slow
    assert leader.slowness.suspects(3)
    leader.slowness.forget(3)
    assert not leader.slowness.suspects(3)


def test_a_prompt_beat_counts_as_one_that_was_compared_with_the_others() -> None:
    compared, prompt = Leader(), Leader()
    for leader in (compared, prompt):
        leader.beat(1, {})
        leader.one(3, 0.3)
        assert leader.slowness.suspects(3)
    compared.one(3, LATE_S)
    prompt.slowness.note_prompt(3, took_s=LATE_S)
    for leader in (compared, prompt):
        assert not leader.slowness.suspects(3)
        leader.beat(SLOW_AFTER_S / 2, {3: 0.3})
        assert not leader.slow, "it was prompt meanwhile"
        leader.beat(SLOW_AFTER_S, {3: 0.3})
        assert leader.slow == {3}
