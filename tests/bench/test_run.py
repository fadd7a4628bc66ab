"""`diskless bench run` for real, as small as it gets."""

import json
import operator
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from diskless.bench import figures, works
from diskless.bench.clusters import PartFailed, in_process
from diskless.cli import exits
from tests.support import eventually

TINY = (
    "repetitions=2",
    "tiny_puts=5",
    "concurrent_puts=32",
    "bursts=1",
    "bulk_files=1",
    "bulk_mib=2",
    "memory_mib=2",
    "shapes=2+1",
)
MARK, VALUE = "DISKLESS_BENCH_TEST", secrets.token_hex(8)
"""All that a run starts inherits it."""
SYSTEMS = {
    works.diskless("2+1"),
    works.DISK,
    works.DISK_FSYNC,
    works.TMPFS,
    works.REDIS,
}


def bench(out: Path, *arguments: str) -> tuple[int, Any, str]:
    """Exit status, the JSON on stdout if there is any, and what was said on stderr."""
    settings = [word for setting in TINY for word in ("--set", setting)]
    command = [sys.executable, "-m", "diskless.cli", "bench", "run", "--out", str(out), *settings]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=os.environ | {MARK: VALUE},
    )
    said = json.loads(done.stdout) if "--json" in arguments and done.stdout else None
    return done.returncode, said, done.stderr


def test_the_plain_limits_are_measured_written_and_judged(tmp_path: Path) -> None:
    status, said, errors = bench(tmp_path, "--only", "limits", "--json")
    assert status in (exits.OK, exits.BOUND_MISSED), errors
    result = figures.decode((tmp_path / "bench-result.json").read_bytes())
    found = {(entry.work, entry.system) for entry in result.series}
    assert {(works.COPY, works.MEMCPY), (works.UNARY, works.PLAIN)} <= found
    assert (works.ENCODE, works.diskless("2+1")) in found
    assert all(len(entry.samples) == 2 for entry in result.series)
    assert all(sample > 0 for entry in result.series for sample in entry.samples)
    assert said["result"]["seconds"].keys() == {"limits"}
    assert (tmp_path / "bench-report.md").read_text().startswith("# Benchmark report")


def test_an_unknown_part_is_refused_before_anything_starts(tmp_path: Path) -> None:
    status, _, errors = bench(tmp_path, "--only", "limitless")
    assert status == exits.USAGE
    assert errors.count("\n") == 1
    assert "choose of limits, store" in errors


def test_a_run_that_is_ended_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diskless.cli", "bench", "run", "--out", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--only", "limits", "--set", "repetitions=1000"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {MARK: VALUE},
    ) as running:
        assert running.stderr is not None
        assert any("repetition 2" in line for line in running.stderr)
        running.terminate()  # the parent alone, as a supervisor would
        assert running.wait(30) == 128 + signal.SIGTERM
    eventually(lambda: not _marked())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting it", "repetition 1"])
def test_ctrl_c_ends_clusters_and_servers_and_says_nothing_more(
    tmp_path: Path, moment: str
) -> None:
    command = [sys.executable, "-m", "diskless.cli", "bench", "run", "--out", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--only", "store", "--set", "shapes=2+1", "--set", "memory_mib=2"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {MARK: VALUE},
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        assert any(moment in line for line in running.stderr)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        said = running.stderr.read()
        assert running.wait(60) == exits.INTERRUPTED
    assert "Traceback" not in said
    eventually(lambda: not _marked())


def test_a_function_runs_in_a_process_of_its_own() -> None:
    assert in_process(operator.add, 1, 2) == 3
    assert in_process(os.getpid) != os.getpid()


def test_what_fails_in_a_process_of_its_own_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PartFailed, match=r"^ValueError: invalid literal"):
        in_process(int, "x")
    assert "Traceback" in capfd.readouterr().err
    with pytest.raises(PartFailed, match="ended with 3"):
        in_process(os._exit, 3)


@pytest.mark.slow
def test_every_store_does_the_same_work_and_nothing_is_left_running(tmp_path: Path) -> None:
    status, said, errors = bench(tmp_path, "--only", "store", "--json")
    assert status in (exits.OK, exits.BOUND_MISSED), errors
    assert not said["result"]["notes"]
    result = figures.decode((tmp_path / "bench-result.json").read_bytes())
    for work in (works.TINY_SERIAL, works.TINY_MANY, works.BURST, works.BULK_WRITE):
        assert {entry.system for entry in result.series if entry.work == work} == SYSTEMS
    survived = result.find(works.SURVIVED, works.diskless("2+1"))
    assert survived is not None
    assert survived.samples == [1]
    assert "with one more" in survived.note
    assert survived.note != "with one more this file was still read"
    assert (tmp_path / "bench-stores.png").read_bytes().startswith(b"\x89PNG")
    eventually(lambda: not _marked())


def _marked() -> list[str]:
    """The processes, of anybody's children, that have the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == VALUE:
                found.append(f"{process.pid} {process.name()}")
    return found
