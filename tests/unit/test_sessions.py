"""Processes that outlive a command: found again, ended, and never mistaken for others."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from diskless.client.descriptor import Descriptor
from diskless.launch import sessions
from diskless.launch.record import RayRecord, Session, boot_id, has_ended

DAEMON = """
import os, sys, time
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def daemon() -> Iterator[tuple[Session, psutil.Process]]:
    """A process whose session's leader has ended, as daemons are, and that leader."""
    leader = subprocess.Popen(
        [sys.executable, "-c", DAEMON], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    began_s = sessions.since_boot_s(leader.pid)
    assert leader.stdout is not None
    child = psutil.Process(int(leader.stdout.readline()))
    leader.wait()
    leader.stdout.close()
    yield Session(leader.pid, began_s), child
    if child.is_running():
        child.kill()


def is_dead(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_what_a_session_has_left_is_ended_also_without_its_leader(
    daemon: tuple[Session, psutil.Process],
) -> None:
    session, child = daemon
    assert not sessions.is_alive(session)
    sessions.stop(session)
    assert is_dead(child)


def test_a_session_of_an_earlier_boot_is_no_session_of_today(
    daemon: tuple[Session, psutil.Process],
) -> None:
    """Its number may be that of a daemon, whose leader is gone and cannot be compared."""
    session, child = daemon
    sessions.stop(msgspec.structs.replace(session, boot="an earlier boot"))
    assert not is_dead(child)


@pytest.mark.parametrize(("boot", "ended"), [("an earlier boot", True), (boot_id(), False)])
def test_a_cluster_of_an_earlier_boot_has_ended(boot: str, ended: bool) -> None:
    """Even where its number is that of a process of ours again."""
    holder = Session(os.getpid(), sessions.since_boot_s(os.getpid()), boot)
    ray = RayRecord(host=socket.gethostname(), holder=holder).to_dict()
    assert has_ended(Descriptor(cluster="c", name="n", key="s", ray=ray)) == ended


def test_a_number_that_has_gone_to_another_process_is_left_alone(tmp_path: Path) -> None:
    session = sessions.start(["sleep", "1000"], env=os.environ, log=tmp_path / "log")
    assert session.since_boot_s is not None
    earlier = msgspec.structs.replace(session, since_boot_s=session.since_boot_s - 60)
    try:
        assert not sessions.is_alive(earlier)
        sessions.stop(earlier)
        assert sessions.is_alive(session)
    finally:
        sessions.stop(session)
    assert not sessions.is_alive(session)


@pytest.mark.parametrize("step_s", [-86400, 3600])
def test_a_session_outlives_a_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """As that of a machine is when it goes on after a pause. The system then tells other start
    times of all processes."""
    session = sessions.start(["sleep", "1000"], env=os.environ, log=tmp_path / "log")
    process = psutil.Process(session.pid)
    booted_s = psutil.boot_time()
    with monkeypatch.context() as patch:
        patch.setattr(psutil._psplatform, "boot_time", lambda: booted_s + step_s)
        assert psutil.boot_time() == booted_s + step_s
        assert sessions.is_alive(session)
        sessions.stop(session)
    assert is_dead(process)
