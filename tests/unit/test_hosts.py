"""cluster/hosts.py runs as root, and kills: it must never take what is not its own for a host."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cluster import hosts
from cluster.hosts import Host
from diskless.errors import DisklessError
from diskless.launch import sessions
from diskless.launch.record import Session


@pytest.fixture
def anchor(tmp_path: Path) -> Iterator[Session]:
    """An anchor that has no namespace of its own, as one that is still about to make it."""
    session = sessions.start(["sleep", "1000"], env=os.environ, log=tmp_path / "log")
    yield session
    sessions.stop(session)


class Harmless(Host):
    """Should what is tested here be broken, the tests end, and not the machine."""

    def kill(self) -> int:
        raise AssertionError(f"{self.name} is about to kill every process of this machine")


def host_with(anchor: Session, directory: Path) -> Host:
    host = Harmless(1, directory)
    (directory / f"{host.name}.anchor").write_bytes(msgspec.json.encode(anchor))
    return host


def test_processes_of_this_machine_are_never_those_of_a_host(
    anchor: Session, tmp_path: Path
) -> None:
    host = host_with(anchor, tmp_path)
    with pytest.raises(DisklessError, match="no network of its own"):
        list(host.processes())


def test_a_host_whose_anchors_number_has_gone_to_a_stranger_is_gone(
    anchor: Session, tmp_path: Path
) -> None:
    earlier = msgspec.structs.replace(anchor, since_boot_s=1.0)
    host = host_with(earlier, tmp_path)
    with pytest.raises(DisklessError, match="is gone"):
        host.command("true")
    with pytest.raises(DisklessError, match="is gone"):
        list(host.processes())
    host.end()
    assert sessions.is_alive(anchor)


def test_a_host_that_was_only_begun_can_be_ended(anchor: Session, tmp_path: Path) -> None:
    host = host_with(anchor, tmp_path)
    host.end()
    assert not sessions.is_alive(anchor)
    assert not list(tmp_path.glob("*.anchor"))


def test_an_up_that_finds_hosts_leaves_them_alone(
    anchor: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_with(anchor, tmp_path)
    monkeypatch.setattr(hosts, "permitted", lambda: "")
    monkeypatch.setattr(hosts, "Host", Harmless)
    monkeypatch.setattr(hosts, "_PLAN", tmp_path / "plan.json")
    up = ["up", "--dir", str(tmp_path)]
    monkeypatch.setattr(hosts, "BRIDGE", "lo")  # as if there were a bridge, but no plan
    assert "already" in str(CliRunner().invoke(hosts.main, up).exception)
    assert not (tmp_path / "plan.json").exists()
    monkeypatch.setattr(hosts, "BRIDGE", "no-such")  # a plan, but no bridge yet
    (tmp_path / "plan.json").write_text("another's")
    assert "already" in str(CliRunner().invoke(hosts.main, up).exception)
    assert (tmp_path / "plan.json").read_text() == "another's"
    assert sessions.is_alive(anchor)
