"""Logs of agents: noted, found and read on from where they were, without Ray."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskless.cli.logs import _chosen
from diskless.launch import log_lines, logs, rundir
from diskless.launch.logs import Position

CLUSTER = "0123456789abcdef"
FIRST = "2026-01-31 17:00:00,001 INFO diskless.node agent serves slot=agent-3"
SECOND = "2026-01-31 17:00:00,002 ERROR diskless.node background work ended"
TRACE = "Traceback (most recent call last):"
THIRD = "2026-01-31 17:00:01,000 WARNING diskless.node slow"


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(rundir, "run_dir", lambda _: tmp_path)
    return tmp_path


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def noted(directory: Path, slot: int, *paths: Path) -> None:
    write(directory / f"agent-{slot}.logs", *map(str, paths))


def test_a_process_notes_where_its_errors_go(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from diskless.launch import logs;"
        "logs.note(Path(sys.argv[1]), 3)"
    )
    for life in ("a", "b", "b"):
        with open(tmp_path / f"{life}.err", "wb") as file:
            subprocess.run([sys.executable, "-c", program, str(tmp_path)], stderr=file, check=True)
    told = (tmp_path / "agent-3.logs").read_text().splitlines()
    assert told == [str(tmp_path / "a.err"), str(tmp_path / "b.err"), str(tmp_path / "b.err")]


def test_every_life_is_read_and_what_comes_after_it(directory: Path) -> None:
    first, second = write(directory / "1", FIRST), write(directory / "2", SECOND, TRACE)
    noted(directory, 3, first, second)
    assert logs.slots_here(CLUSTER) == [3]
    lines, position = logs.read(CLUSTER, 3)
    assert lines == [FIRST, SECOND, TRACE]
    assert logs.read(CLUSTER, 3, position) == ([], position)
    with second.open("a") as file:
        file.write(THIRD)  # not a whole line yet
    assert logs.read(CLUSTER, 3, position)[0] == []
    with second.open("a") as file:
        file.write("\n")
    third = write(directory / "3", FIRST)
    noted(directory, 3, first, second, third)
    lines, position = logs.read(CLUSTER, 3, position)
    assert lines == [THIRD, FIRST]
    assert position == Position(str(third), len(FIRST) + 1)


def test_of_a_large_log_the_end_is_read(directory: Path) -> None:
    noted(directory, 3, write(directory / "1", FIRST), write(directory / "2", *[SECOND] * 100))
    lines, _ = logs.read(CLUSTER, 3, bytes_max=5 * len(SECOND))
    assert 4 <= len(lines) <= 5
    assert lines[-1] == SECOND


def test_files_that_are_gone_are_passed_over(directory: Path) -> None:
    noted(directory, 3, directory / "gone", write(directory / "2", FIRST))
    lines, position = logs.read(CLUSTER, 3)
    assert lines == [FIRST]
    os.unlink(directory / "2")
    assert logs.read(CLUSTER, 3, position) == ([], position)
    assert logs.read(CLUSTER, 4) == ([], Position())


def test_a_traceback_belongs_to_its_line_and_times_are_in_order() -> None:
    found = _chosen({1: [TRACE, SECOND, TRACE], 0: [FIRST, THIRD]}, "debug")
    assert [(agent, text) for _, agent, _, text in found] == [
        ("agent-0", FIRST),
        ("agent-1", f"{SECOND}\n{TRACE}"),
        ("agent-0", THIRD),
    ]
    assert [text for _, _, _, text in _chosen({0: [FIRST, SECOND, THIRD]}, "warning")] == [
        SECOND,
        THIRD,
    ]


def test_json_lines_are_read_like_text() -> None:
    record = logging.LogRecord("diskless.x", logging.WARNING, __file__, 1, "a %s", ("b",), None)
    record.created, record.msecs = 1_769_878_800.002, 2.0
    line = log_lines.JsonLines().format(record)
    fields = json.loads(line)
    assert (fields["level"], fields["message"], fields["name"]) == ("WARNING", "a b", "diskless.x")
    ((when, agent, level, text),) = _chosen({2: [line]}, "warning")
    assert (agent, level, text) == ("agent-2", "WARNING", line)
    assert when.endswith(",002")


def test_a_process_logs_as_its_environment_asks() -> None:
    program = (
        "import logging; from diskless.launch import log_lines; log_lines.set_up();"
        "log = logging.getLogger('diskless.x'); log.info('small'); log.error('large')"
    )
    env = os.environ | {"DISKLESS_LOG": "error", "DISKLESS_LOG_FORMAT": "json"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["message"] == "large"
