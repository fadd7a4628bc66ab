"""The audit file: what is in it, rotation, broken disks, and looking back through it."""

import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diskless.agent import audit as module
from diskless.agent.audit import REFUSED_PER_S_MAX, AuditFile
from diskless.errors import Forbidden, Unauthorized
from diskless.model import Event
from diskless.namespace.lookback import Events, EventsFound, Look
from tests.support import eventually
from tests.unit.test_lookback import all_pages, row

Start = Callable[..., AuditFile]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noted is written in the end, however busy the machine is."""
    monkeypatch.setattr(module, "FLUSH_TIMEOUT_S", 60.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begins a life of an agent's audit file; all are closed in the end."""
    begun: list[AuditFile] = []

    def call(**options: Any) -> AuditFile:
        usual = {"directory": str(tmp_path / "audit"), "slot": 3, "wall_ms": lambda: 77_000}
        begun.append(AuditFile(**(usual | options)))
        begun[-1].start()
        return begun[-1]

    yield call
    for one in begun:
        one.close()


def files(tmp_path: Path) -> list[Path]:
    """The newest first."""
    return sorted((tmp_path / "audit").glob("audit-agent-3.log*"))


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """All that lies there, the oldest first."""
    text = "".join(path.read_text() for path in reversed(files(tmp_path)))
    return [json.loads(line) for line in text.splitlines()]


def look(audit: AuditFile, query: Events) -> EventsFound:
    return audit.look_back(Look(query))


def everything(audit: AuditFile, **wanted: Any) -> list[Event]:
    return all_pages(lambda before: look(audit, Events(0, 50, **wanted, before=before)))


def test_every_event_is_a_line_of_json(start: Start, tmp_path: Path) -> None:
    audit, events = start(), row(50)
    for event in events:
        audit.note(event)
    audit.flush()
    assert lines(tmp_path) == [
        {"op": e.op, "time_ms": e.time_ms, "kind": e.kind, "text": e.text, "who": e.who,
         "paths": list(e.paths)}
        for e in events
    ]  # fmt: skip
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert audit.dropped == 0


def test_a_later_life_goes_on_with_the_file(start: Start, tmp_path: Path) -> None:
    for event in row(3):
        one = start()
        one.note(event)
        one.close()
    assert [line["text"] for line in lines(tmp_path)] == ["put 0", "put 1", "put 2"]


def test_files_are_rotated_and_take_no_more_than_they_may(start: Start, tmp_path: Path) -> None:
    audit, events = start(file_bytes_max=1000, files_max=3), row(300)
    for event in events:
        audit.note(event)
        audit.flush()
    found = files(tmp_path)
    assert [path.name for path in found] == [
        "audit-agent-3.log", "audit-agent-3.log.1", "audit-agent-3.log.2",
    ]  # fmt: skip
    assert all(path.stat().st_size <= 1000 for path in found)
    kept = [line["text"] for line in lines(tmp_path)]
    assert len(kept) > 10
    assert kept == [event.text for event in events[-len(kept) :]]
    assert [event.text for event in everything(audit)] == kept


def test_a_broken_disk_costs_lines_that_are_counted_and_told_of(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    (tmp_path / "audit").write_text("a file where the directory should be")
    audit, events = start(), row(30)
    for event in events[:20]:
        audit.note(event)
    eventually(lambda: audit.dropped == 20)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "audit not written" in caplog.text
    (tmp_path / "audit").unlink()
    for event in events[20:]:
        audit.note(event)
    audit.flush()
    assert [line["text"] for line in lines(tmp_path)] == [
        "20 lines were not written here", *(event.text for event in events[20:]),
    ]  # fmt: skip
    assert audit.dropped == 20


def test_a_link_in_the_place_of_the_file_is_not_followed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    (tmp_path / "audit" / "audit-agent-3.log").symlink_to(elsewhere)
    audit = start()
    audit.note(row(1)[0])
    audit.flush()
    assert audit.dropped == 1
    assert elsewhere.read_text() == ""


def test_a_line_that_was_cut_off_hurts_no_other(start: Start, tmp_path: Path) -> None:
    """As a full disk leaves it."""
    audit, events = start(), row(4)
    for event in events[:2]:
        audit.note(event)
    audit.close()
    with files(tmp_path)[0].open("ab") as file:
        file.write(b'{"op":99,"ti')
    audit = start()
    for event in events[2:]:
        audit.note(event)
    assert everything(audit) == events


def test_what_the_disk_is_too_slow_for_is_dropped_and_the_loop_never_waits(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_MAX", 100)
    held, write = threading.Event(), os.write

    def slow(handle: int, data: bytes) -> int:
        held.wait(30)
        return write(handle, data)

    monkeypatch.setattr(module.os, "write", slow)
    audit, events = start(), row(2000)
    for event in events:
        audit.note(event)
    assert audit.dropped >= 2000 - 2 * 100
    assert audit.bytes_used <= 100 * module.events.EVENT_BYTES
    held.set()
    audit.flush()
    audit.note(Event(10**6, 1, "put", "the last"))
    audit.flush()
    assert lines(tmp_path)[-1]["text"] == "the last"
    lost = [line["text"] for line in lines(tmp_path) if line["kind"] == "lost"]
    assert sum(int(text.split()[0]) for text in lost) == audit.dropped


def test_a_stuck_disk_does_not_keep_an_agent_from_ending(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.05)
    held, write = threading.Event(), os.write

    def stuck(handle: int, data: bytes) -> int:
        held.wait(30)
        return write(handle, data)

    monkeypatch.setattr(module.os, "write", stuck)
    audit = start()
    audit.note(row(1)[0])
    audit.close()
    assert audit._thread.is_alive()
    held.set()


def test_a_copied_state_leaves_a_gap_and_the_file_says_so(start: Start, tmp_path: Path) -> None:
    audit = start()
    audit.gap(7)
    audit.note(Event(9, 1, "put", "put /a"))
    audit.gap(8)
    audit.gap(20)
    audit.flush()
    found = lines(tmp_path)
    assert [(line["op"], line["kind"]) for line in found] == [(7, "gap"), (9, "put"), (20, "gap")]
    assert "up to 7" in found[0]["text"]
    assert "10 to 20" in found[2]["text"]


def test_refused_attempts_are_written_with_a_limit(start: Start, tmp_path: Path) -> None:
    now_ms = 5000
    audit = start(wall_ms=lambda: now_ms)
    for _ in range(100):
        audit.refused("gateway", Unauthorized("the key of 'q1' is wrong"), "1.2.3.4:5")
    now_ms = 6000
    audit.refused("gateway", Forbidden("/a is not covered"), "1.2.3.4:5")
    audit.flush()
    found = lines(tmp_path)
    assert len(found) == REFUSED_PER_S_MAX + 1
    assert {line["kind"] for line in found} == {"refused"}
    assert found[0]["text"] == "gateway: 1.2.3.4:5: Unauthorized: the key of 'q1' is wrong"
    assert found[-1]["text"] == (
        f"gateway: 1.2.3.4:5: Forbidden: /a is not covered, and {100 - REFUSED_PER_S_MAX} "
        "more before"
    )


# Looking back.


@pytest.mark.parametrize("limit", [1, 7, 50, 500])
def test_pages_go_back_through_all_files(start: Start, limit: int) -> None:
    audit, events = start(file_bytes_max=4000, files_max=50), row(300)
    for event in events:
        audit.note(event)
        if event.op % 5 == 0:
            audit.flush()
    found = all_pages(lambda before: look(audit, Events(0, limit, before=before)))
    assert found == events


def test_a_page_looks_through_a_bounded_part_of_the_files(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES_MAX", 2000)
    monkeypatch.setattr(module, "BLOCK_BYTES", 128)
    audit, events = start(file_bytes_max=5000, files_max=50), row(300)
    for event in events:
        audit.note(event)
    first = look(audit, Events(0, 50, who="nobody"))
    assert first.events == []
    assert first.before
    assert everything(audit) == events
    assert everything(audit, who="q1") == [event for event in events if event.who == "q1"]
    assert everything(audit, who="nobody") == []


def test_a_look_goes_on_where_the_memory_of_a_leader_ends(start: Start) -> None:
    """Its oldest op may be remembered in part."""
    audit, events = start(), row(300)
    for event in events:
        audit.note(event)
    for remembered in range(0, 60, 7):
        one = Look(Events(0, 1000))
        one.take(reversed(events[len(events) - remembered :]))
        assert audit.look_back(one).events == events


def test_a_page_of_another_leader_is_gone_on_with(start: Start) -> None:
    """Its files are others, with other places in them and a line of its own here and there."""
    first, second, events = start(slot=1), start(slot=2, file_bytes_max=900, files_max=99), row(200)
    second.gap(1)
    for event in events:
        first.note(event)
        second.note(event)
        if event.op == 30:
            first.note(Event(30, 1, "lost", "lines"))
    asked = 0

    def ask(before: str) -> EventsFound:
        nonlocal asked
        asked += 1
        return look((first, second)[asked % 2], Events(0, 13, before=before))

    found = [event for event in all_pages(ask) if event.kind == "put"]
    assert found == events


def test_files_that_are_rotated_meanwhile_cost_nothing_but_what_went(start: Start) -> None:
    audit, events = start(file_bytes_max=2000, files_max=4), row(600)
    for event in events[:100]:
        audit.note(event)
        audit.flush()
    newest = look(audit, Events(0, 10))
    assert newest.events == events[90:100]
    for event in events[100:110]:
        audit.note(event)
    second = look(audit, Events(0, 10, before=newest.before))
    assert second.events == events[80:90]
    for event in events[110:]:
        audit.note(event)
        audit.flush()
    gone = look(audit, Events(0, 10, before=second.before))
    assert gone == EventsFound([], "")


def test_a_place_that_is_none_is_the_end(start: Start, tmp_path: Path) -> None:
    audit = start()
    for event in row(5):
        audit.note(event)
    assert len(everything(audit)) == 5
    (file,) = files(tmp_path)
    for place in (f"9.0.3.{file.stat().st_ino}.-7.0", "9.0.3.0.-1.-1", "-1.-1.3.-1.-1.-1"):
        assert look(audit, Events(0, 10, before=place)).events == []


def test_without_files_there_is_nothing(start: Start) -> None:
    assert look(start(), Events(0, 10)) == EventsFound([], "")
