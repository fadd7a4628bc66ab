"""For how long nodes that do not answer are waited for."""

import pytest

from diskless.launch.silences import GAP_S_MAX, PATIENCE_S, Silences
from diskless.launch.spread import RayletReply

CLOSED_S, SILENT_S = PATIENCE_S[RayletReply.ENDED], PATIENCE_S[RayletReply.SILENT]


class Watch:
    def __init__(self) -> None:
        self.silences = Silences()
        self.now_s = 100.0

    def see(self, reply: RayletReply, duration_s: float, *, every_s: float = 1.0) -> set[str]:
        """What is too long in the end."""
        found: set[str] = set()
        for _ in range(int(duration_s / every_s) + 1):
            found = self.silences.look({"a": reply, "b": RayletReply.SERVES}, now_s=self.now_s)
            self.now_s += every_s
        return found


@pytest.mark.parametrize(("reply", "patience_s"), PATIENCE_S.items(), ids=str)
def test_each_is_waited_for_as_long_as_it_is_due(reply: RayletReply, patience_s: float) -> None:
    assert Watch().see(reply, patience_s - 1) == set()
    assert Watch().see(reply, patience_s) == {"a"}


def test_one_that_answers_in_between_has_all_its_time_again() -> None:
    watch = Watch()
    for reply in (RayletReply.SILENT, RayletReply.SERVES, RayletReply.SILENT):
        assert watch.see(reply, SILENT_S - 1) == set()


def test_silence_does_not_count_as_refusal() -> None:
    watch = Watch()
    assert watch.see(RayletReply.SILENT, SILENT_S - 1) == set()
    assert watch.see(RayletReply.ENDED, CLOSED_S - 1) == set()
    assert watch.see(RayletReply.ENDED, 0) == {"a"}


def test_two_looks_that_are_far_apart_say_nothing_about_what_was_in_between() -> None:
    assert Watch().see(RayletReply.SILENT, 3 * SILENT_S, every_s=GAP_S_MAX) == {"a"}
    assert Watch().see(RayletReply.SILENT, 3 * SILENT_S, every_s=GAP_S_MAX + 1) == set()
