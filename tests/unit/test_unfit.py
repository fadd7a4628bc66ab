"""For how long nodes are passed over on which agents did not start."""

from diskless.launch.seats import RayNode
from diskless.launch.unfit import UNFIT_S_MAX, UNFIT_S_MIN, UnfitNodes

NODE = RayNode("a", "host-a", "10.0.0.1")


def test_a_node_is_passed_over_for_twice_as_long_each_time_up_to_a_limit() -> None:
    unfit, now_s, waits = UnfitNodes(), 100.0, []
    for _ in range(8):
        unfit.note(NODE, "it is full", now_s=now_s)
        began_s = now_s
        while unfit.look(["a"], now_s=now_s):
            now_s += 1
        waits.append(now_s - began_s)
    assert waits[:3] == [UNFIT_S_MIN, 2 * UNFIT_S_MIN, 4 * UNFIT_S_MIN]
    assert waits[-1] == UNFIT_S_MAX


def test_it_says_why() -> None:
    unfit = UnfitNodes()
    said = unfit.note(NODE, "it is full", now_s=0)
    assert unfit.look(["a", "b"], now_s=1) == {"a": said}
    assert "it is full" in said
    assert NODE.host in said


def test_a_node_that_left_and_came_back_starts_from_the_beginning() -> None:
    unfit = UnfitNodes()
    for _ in range(3):
        unfit.note(NODE, "it is full", now_s=0)
    assert unfit.look([], now_s=1) == {}
    unfit.note(NODE, "it is full", now_s=1)
    assert unfit.look(["a"], now_s=1 + UNFIT_S_MIN) == {}
