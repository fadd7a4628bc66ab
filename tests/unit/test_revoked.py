"""What an agent knows of revoked names, and when it may let clients in."""

from diskless.agent.revoked import NAME_BYTES, SWEEP_EVERY, Revoked
from diskless.namespace.tokens import FORGET_SLACK_S


def test_an_agent_knows_the_list_once_it_has_heard_all_of_it() -> None:
    revoked = Revoked(wall_s=lambda: 0.0)
    assert not revoked.known
    revoked.learn([("a", 0), ("b", 0)], upto=2, version=3)
    assert not revoked.known
    assert "a" in revoked
    assert "c" not in revoked
    revoked.learn([("c", 0)], upto=3, version=3)
    assert revoked.known
    revoked.learn([], upto=3, version=9)
    assert revoked.known, "it goes on serving while it hears of more"


def test_an_empty_list_is_a_list() -> None:
    revoked = Revoked(wall_s=lambda: 0.0)
    revoked.learn([], upto=0, version=0)
    assert revoked.known


def test_what_an_earlier_leader_told_is_not_taken_back() -> None:
    revoked = Revoked(wall_s=lambda: 0.0)
    revoked.learn([("a", 0)], upto=5, version=5)
    revoked.learn([], upto=3, version=3)
    assert revoked.version == 5
    assert "a" in revoked


def test_who_listens_hears_of_new_names_only() -> None:
    revoked = Revoked(wall_s=lambda: 0.0)
    heard: list[int] = []
    revoked.on_change(lambda: heard.append(revoked.version))
    revoked.learn([("a", 0)], upto=1, version=1)
    revoked.learn([("a", 0)], upto=1, version=1)
    revoked.learn([], upto=1, version=1)
    revoked.learn([("b", 0)], upto=2, version=2)
    assert heard == [1, 2]


def test_names_whose_tokens_have_expired_are_let_go_and_others_never() -> None:
    now_s = 1000.0
    revoked = Revoked(wall_s=lambda: now_s)
    revoked.learn([("soon", 1001), ("never", 0)], upto=2, version=2)
    now_s = 1002.0 + FORGET_SLACK_S
    names = [(f"q{n}", 0 if n else 999) for n in range(SWEEP_EVERY)]
    revoked.learn(names, upto=SWEEP_EVERY + 2, version=SWEEP_EVERY + 2)
    assert "soon" not in revoked
    assert "q0" not in revoked
    assert "never" in revoked
    assert revoked.bytes_used == NAME_BYTES * len(revoked) == NAME_BYTES * SWEEP_EVERY
