"""Looking back through events: filters, pages, and places where pages begin."""

import random
from collections.abc import Callable

import pytest

from diskless.errors import BadRequest
from diskless.model import Event
from diskless.namespace.lookback import (
    PAGE_BYTES_MAX,
    PAGE_EVENTS_MAX,
    SKEW_MS,
    Events,
    EventsFound,
    Look,
    Place,
)

SEED = 11


def row(count: int) -> list[Event]:
    """Events, the oldest first, of which some share an op."""
    rng, op, found = random.Random(SEED), 0, []
    for number in range(count):
        op += rng.random() < 0.6 or not found
        who = rng.choice(("q1", "q2", ""))
        found.append(Event(op, 1000 * op, "put", f"put {number}", who, (f"/{who}/{number}",)))
    return found


def page(events: list[Event], query: Events) -> EventsFound:
    look = Look(query)
    look.take(reversed(events))
    return look.result(place=look.place() if look.ended else None)


def all_pages(ask: Callable[[str], EventsFound]) -> list[Event]:
    found, before, pages = [], "", 0
    while True:
        answer = ask(before)
        found = [*answer.events, *found]
        before, pages = answer.before, pages + 1
        if not before:
            return found
        assert pages < 10_000


@pytest.mark.parametrize("limit", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("who", ["", "q1"])
def test_pages_add_up_to_what_is_wanted(limit: int, who: str) -> None:
    events = row(300)
    found = all_pages(lambda before: page(events, Events(0, limit, who, before=before)))
    assert found == [event for event in events if who in ("", event.who)]


def test_the_newest_come_first_and_each_page_is_in_order() -> None:
    events = row(30)
    assert page(events, Events(0, 5)).events == events[-5:]
    assert page(events, Events(0, 0)).events == page(events, Events(0, -3)).events == []
    assert len(page(row(3000), Events(0, 10**6)).events) == PAGE_EVENTS_MAX


def test_events_are_chosen_by_op_time_who_and_path() -> None:
    events = row(100)
    last = events[-1].op
    assert page(events, Events(last - 3, 99)).events == [e for e in events if e.op > last - 3]
    since = 1000 * (last - 5)
    assert page(events, Events(0, 99, since_ms=since)).events == [
        e for e in events if e.time_ms >= since
    ]
    assert page(events, Events(0, 99, path="/q2")).events == [e for e in events if e.who == "q2"]
    mine = page(events, Events(0, 99, within=("/q1", "/x"))).events
    assert mine == [e for e in events if e.who == "q1"]


def test_a_look_for_kinds_says_how_far_it_came_whatever_it_found() -> None:
    events = [Event(op, 1000 * op, "down" if op % 7 == 0 else "put", "") for op in range(1, 51)]
    found = page(events, Events(0, 99, kinds=("down", "up")))
    assert [event.op for event in found.events] == [7, 14, 21, 28, 35, 42, 49]
    assert found.oldest_ms == 1000
    assert page(events, Events(0, 99, kinds=("tier",))) == EventsFound([], "", 1000)
    late = page(events, Events(0, 2, kinds=("down",)))
    assert [event.op for event in late.events] == [42, 49]
    assert late.oldest_ms == 36_000, "the page ends before the next one that is wanted"
    assert page([], Events(0, 9)).oldest_ms == 0


def test_within_some_paths_nothing_is_shown_that_is_about_others_too() -> None:
    events = [
        Event(1, 1, "rename", "", "q1", ("/a/x", "/b/x")),
        Event(2, 1, "delete", "", "q1", ("/a",)),
        Event(3, 1, "delete", "", "q1", ("/ab",)),
        Event(4, 1, "delete", "", "q1", ("/",)),
        Event(5, 1, "session", "", "q1"),
    ]
    assert [e.op for e in page(events, Events(0, 9, within=("/a",))).events] == [2]
    assert [e.op for e in page(events, Events(0, 9, within=("/a", "/b"))).events] == [1, 2]
    assert [e.op for e in page(events, Events(0, 9, within=("/",))).events] == [1, 2, 3, 4]


def test_a_look_ends_where_nothing_older_can_be_wanted() -> None:
    """A clock that was behind for a while hides nothing."""
    times = [0, 2 * SKEW_MS, 3 * SKEW_MS - 5, 3 * SKEW_MS, 3 * SKEW_MS - 1, 3 * SKEW_MS + 9]
    events = [Event(op, time_ms, "put", "") for op, time_ms in enumerate(times, 1)]
    seen: list[int] = []

    def noting() -> object:
        for event in reversed(events):
            seen.append(event.op)
            yield event

    look = Look(Events(0, 99, since_ms=3 * SKEW_MS))
    look.take(noting())  # type: ignore[arg-type]
    assert [event.op for event in look.result(place=None).events] == [4, 6]
    assert seen == [6, 5, 4, 3, 2, 1]
    assert look.result(place=look.place()).before == "", "it is over, wherever it stopped"


def test_a_page_fits_in_a_frame_whatever_paths_are_like() -> None:
    paths = tuple(f"/{'я' * 299}{n}" for n in range(8))
    events = [Event(op, 1, "put", "я" * 300, "q1", paths) for op in range(1, 500)]
    found = page(events, Events(0, 1000))
    assert 0 < len(found.events) < 499
    assert sum(6 * 300 * 9 for _ in found.events) <= PAGE_BYTES_MAX
    assert all_pages(lambda before: page(events, Events(0, 1000, before=before))) == events


def test_refused_attempts_are_no_commands() -> None:
    events = [Event(1, 1, "put", ""), Event(1, 1, "refused", ""), Event(1, 1, "gap", "")]
    assert [event.kind for event in page(events, Events(0, 9)).events] == ["put", "gap"]


@pytest.mark.parametrize("text", ["x", "1.2.3.4.5.6.7", "1..2", "-", "1.2 3", "é"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        Look(Events(0, 1, before=text))


def test_a_place_survives_its_trip() -> None:
    place = Place(7, 2, 1, 99, 1234, 1)
    assert Place.parse(str(place)) == place
    assert Place.parse("") == Place()
