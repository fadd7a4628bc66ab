"""Stopping processes: `stop` returns when the last thread stands still, and not before."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from diskless.errors import DeadlineExceeded
from diskless.launch.signals import AT_REST, send, stop, thread_states
from tests.support import eventually

ROUNDS = 10

BUSY = """
import threading

def work():
    while True:
        sum(range(1000))

for _ in range({threads}):
    threading.Thread(target=work).start()
print("ready", flush=True)
"""

BEGETTING = """
import threading
print("ready", flush=True)
while True:
    threading.Thread(target=sum, args=(range(1000),)).start()
"""

WAITS_IN_THE_KERNEL = """
import os, sys, threading

threading.Thread(target=threading.Event().wait).start()
print("ready", flush=True)
# This thread, and so its process, hears no signal but SIGKILL until the child has its program;
# before that the child has to open a pipe that nobody writes into.
fifo = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=fifo)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also a child that waits
        process.communicate()


def at_rest(process: subprocess.Popen[str]) -> bool:
    return set(thread_states(process.pid).values()) <= AT_REST


@pytest.mark.parametrize(
    "program", [BUSY.format(threads=8), BEGETTING], ids=["busy", "begins-threads"]
)
def test_every_thread_stands_still_when_it_returns(start: Start, program: str) -> None:
    processes = [start(program), start(program)]
    pids = [process.pid for process in processes]
    for _ in range(ROUNDS):
        stop(pids)
        assert all(at_rest(process) for process in processes)
        spent = [psutil.Process(pid).cpu_times()[:2] for pid in pids]
        assert all(len(thread_states(pid)) >= 1 for pid in pids)
        assert [psutil.Process(pid).cpu_times()[:2] for pid in pids] == spent
        send(pids, signal.SIGCONT)
        eventually(lambda: not any(at_rest(process) for process in processes))


def test_one_that_has_ended_or_ends_meanwhile_is_as_good_as_stopped(start: Start) -> None:
    ended, ending = start(BUSY.format(threads=2)), start(BUSY.format(threads=2))
    ended.kill()
    eventually(lambda: set(thread_states(ended.pid).values()) == {"Z"})
    threading.Timer(0.001, ending.kill).start()
    stop([ended.pid, ending.pid])
    assert at_rest(ended)
    ended.wait()
    stop([ended.pid])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads are not told apart")
def test_a_thread_that_does_not_stop_is_told_and_stops_later(start: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = start(WAITS_IN_THE_KERNEL, str(fifo))
    eventually(lambda: "D" in thread_states(process.pid).values())
    with pytest.raises(DeadlineExceeded, match=r"of its 2 threads still ran 0\.05 s"):
        stop([process.pid], timeout_s=0.05)
    with fifo.open("w"):
        stop([process.pid])
    assert at_rest(process)
