"""Processes that outlive the command which started them: started, found again, and stopped.

Each is the leader of a session of its own, by which everything that it started in turn is
found. A process is known by its number, the boot in which it began and how long after, because
numbers are given away again. The time of day has no part in it: it may be set meanwhile.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from diskless.errors import LaunchFailed
from diskless.launch.record import Session, boot_id

STOP_TIMEOUT_S = 8.0
KILL_TIMEOUT_S = 5.0
POLL_S = 0.02
LOG_TAIL_CHARS = 300
TICKS_SLACK_S = 0.05
"""The system counts in ticks of 10 ms, and the difference of two sums is rounded."""

_CHILDREN: dict[int, "subprocess.Popen[bytes]"] = {}
"""Those that this process started: it must reap them when they end."""


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> Session:
    """Starts a command that writes all it says to `log`."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _CHILDREN[process.pid] = process
    return Session(process.pid, since_boot_s(process.pid), boot_id())


def since_boot_s(pid: int) -> float:
    """How long after the boot a process began. psutil tells a time of day, by the clock as it is
    now: the same is taken off again. Raises psutil.NoSuchProcess."""
    return psutil.Process(pid).create_time() - psutil.boot_time()


def is_alive(session: Session) -> bool:
    return _leader(session) is not None


def stop(session: Session) -> None:
    """Ends every process of a session. Raises LaunchFailed if one cannot be ended."""
    if _is_stranger(session):
        return  # All of ours have ended: a session's number is not given away before.
    leader = _leader(session)
    if leader is not None:
        leader.send_signal(signal.SIGTERM)
        wait(lambda: _leader(session) is None, STOP_TIMEOUT_S)
    for process in members(session.pid):
        _kill(process)
    if not wait(lambda: not any(members(session.pid)), KILL_TIMEOUT_S):
        left = ", ".join(str(process.pid) for process in members(session.pid))
        raise LaunchFailed(f"these processes did not end: {left}")


def kill(session: Session) -> int:
    """SIGKILLs every process of a session at once, as a power cut would; how many they were."""
    if _is_stranger(session):
        return 0
    found = list(members(session.pid))
    for process in found:
        _kill(process)
    wait(lambda: _leader(session) is None and not any(members(session.pid)), KILL_TIMEOUT_S)
    return len(found)


def wait(done: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it was done in time."""
    end_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True


def tail(log: Path) -> str:
    """The last words in a log, for one line."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " ".join(lines)[-LOG_TAIL_CHARS:] or "it said nothing"


def _leader(session: Session) -> psutil.Process | None:
    """The leader, if it still is the process that was started."""
    child = _CHILDREN.get(session.pid)
    if child is not None and child.poll() is not None:
        del _CHILDREN[session.pid]
    if _is_stranger(session):
        return None
    try:
        process = psutil.Process(session.pid)
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _is_stranger(session: Session) -> bool:
    """Whether the leader's number has gone, or may have gone, to another process."""
    if not session.of_this_boot:
        return True
    if session.since_boot_s is None:
        return False
    try:
        return abs(since_boot_s(session.pid) - session.since_boot_s) > TICKS_SLACK_S
    except psutil.NoSuchProcess:
        return False


def members(number: int) -> Iterator[psutil.Process]:
    """Living processes of the session that a process leads."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()
