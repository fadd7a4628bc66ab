"""Refusals: counted by door and reason, and told of now and then."""

import logging

import pytest

from diskless.errors import BadFrame, Forbidden, Unauthorized
from diskless.identity import refusals
from diskless.identity.refusals import LOG_INTERVAL_S, Refusals, Seldom, one_line


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_refusals_are_counted_by_door_and_reason() -> None:
    found = Refusals()
    found.note("grpc", Unauthorized("a", why="wrong key"), "somebody")
    found.note("grpc", Unauthorized("b", why="wrong key"), "another")
    found.note("grpc", Unauthorized("c"), None)
    found.note("gateway", Forbidden("d"), ("127.0.0.1", 1))
    assert found.by_reason() == {
        "gateway": {"Forbidden": 1},
        "grpc": {"Unauthorized": 1, "wrong key": 2},
    }


def test_a_flood_of_refusals_is_a_line_now_and_then_that_says_how_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    found = Refusals(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            found.note("lane", BadFrame("what"), "somebody")
        found.note("lane", Unauthorized("no", why="wrong key"), "somebody")
        assert len(caplog.messages) == 2
        clock.s += LOG_INTERVAL_S
        found.note("lane", BadFrame("what"), "somebody")
    assert caplog.messages[-1].endswith("times=1000")
    assert found.counts["lane", "BadFrame"] == 1001


def test_what_is_remembered_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "KEYS_MAX", 3)
    seldom = Seldom(10.0, Clock())
    assert [seldom.due(n) for n in range(100)] == [1] * 100
    assert len(seldom._spoken_s) == len(seldom._since) == 3
    assert [seldom.due(n) for n in range(97, 100)] == [0, 0, 0]


def test_what_others_say_is_one_line_and_not_long() -> None:
    assert one_line("a\nb\r\n\x1b[31mc") == "a b ?[31mc"
    assert len(one_line("x" * 10_000)) == refusals.TEXT_CHARS_MAX
