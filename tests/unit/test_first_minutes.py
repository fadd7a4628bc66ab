"""What a new user meets first: every line says what to do next."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import diskless
from diskless.cli import exits, up
from diskless.cli.verb import Context
from diskless.client.descriptor import Descriptor, save
from diskless.config import GIB, MIB, ClusterSettings
from diskless.launch import footprint
from diskless.model import BalanceStatus
from diskless.operate.running import Started
from tests.unit.test_cli import Cli, cli  # noqa: F401 - a fixture

ROOT = Path(diskless.__file__).parents[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("verb", [["status"], ["ls", "/"], ["down"], ["logs"], ["spark-conf"]])
def test_before_up_a_verb_says_how_to_start(
    cli: Cli,  # noqa: F811
    home: Path,
    verb: list[str],
) -> None:
    result = cli(*verb)
    assert result.status == exits.NO_CLUSTER
    assert "`diskless up`" in result.err
    assert len(result.err.splitlines()) == 1
    assert "`diskless up --name night`" in cli("--cluster", "night", *verb).err


def test_a_cluster_that_is_down_says_how_to_bring_it_back(
    cli: Cli,  # noqa: F811
    home: Path,
) -> None:
    save(Descriptor(cluster="c", name="default", key="00", parked=True,
                    settings={"tier": "file:///mnt/t"}))  # fmt: skip
    result = cli("status")
    assert result.status == exits.UNAVAILABLE
    assert "`diskless up --restore file:///mnt/t`" in result.err


def chosen(**options: object) -> int | None:
    given = {"name": None, "given": None, "agents": None, "ray_address": "", "reset": False}
    return up._memory(**(given | options))


def test_up_leaves_half_of_a_laptop_to_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "total_bytes", lambda: 8 * GIB)
    memory = chosen()
    assert memory is not None
    assert 128 * MIB <= memory < ClusterSettings().memory_bytes
    settings = ClusterSettings(memory_bytes=memory)
    assert footprint.needed_bytes(settings) <= 4 * GIB
    assert chosen(agents=12) == 128 * MIB
    assert chosen(given="1GiB") == GIB
    assert chosen(ray_address="auto") is None, "other hosts are not known here"
    save(Descriptor(cluster="c", name="default", key="00"))
    assert chosen() is None, "it has what it has"
    assert chosen(reset=True) == memory


def told(settings: ClusterSettings, capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    ray = {"requested": "auto" if changes.pop("foreign", False) else ""}
    known = Descriptor(cluster="c", name=settings.name, key="00", ray=ray)
    fresh = bool(changes.pop("fresh", True))
    started = Started(descriptor=known, fresh=fresh, agents_up=settings.agents, **changes)
    up._tell(Context(), settings, started, [])
    return capsys.readouterr().out


def test_up_says_what_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "free_bytes", lambda: 6 * GIB)
    settings = ClusterSettings()
    assert "memory: up to 5.0 GiB of this host" in told(settings, capsys)
    assert "6.0 GiB are free now\n" in told(settings, capsys)
    assert "up to 690.0 MiB for each agent" in told(settings, capsys, foreign=True)
    monkeypatch.setattr(footprint, "free_bytes", lambda: 2 * GIB)
    assert "too little, so use fewer agents or a smaller --memory" in told(settings, capsys)


def test_an_up_that_grows_says_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ClusterSettings(agents=8)

    def grown(**news: Any) -> str:
        return told(settings, capsys, fresh=False, added=[6, 7], balance=BalanceStatus(**news))

    assert "has grown by agent-6, agent-7" in grown()
    assert "balance" not in grown()
    said = grown(state="moving", bytes_left=GIB, eta_s=41.6)
    assert "balance: 1.0 GiB move to agents with more room in about 42 s; `diskless status`" in said
    assert "in the background; " in grown(state="waiting", bytes_left=GIB)


def test_up_twice_says_that_it_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    said = told(ClusterSettings(), capsys, fresh=False)
    assert "is up already" in said
    assert "`diskless status`" in said
    assert "`diskless status --cluster n`" in told(ClusterSettings(name="n"), capsys, fresh=False)


# The installation


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci/install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Collecting grpcio>=1.76", "resolving grpcio"),
        ("Downloading https://index/ray-2.60.0-cp311-linux.whl (72 MB)", "downloading ray"),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("Installing build dependencies: started", "installing"),
        ("Requirement already satisfied: pip", ""),
        ("", ""),
    ],
)
def test_the_installation_says_what_it_does(install: ModuleType, line: str, said: str) -> None:
    assert install.describe(line) == said


def test_a_failed_installation_shows_what_pip_said(tmp_path: Path) -> None:
    """With a pip that fails, in a Python that has one."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho Collecting x\necho 'ERROR: no room' >&2\nexit 7\n")
    fake.chmod(0o755)
    script = [sys.executable, str(ROOT / ".ci/install.py"), str(fake)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert "ERROR: no room" in done.stdout
    fake.write_text("#!/bin/sh\necho Collecting x\n")
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Installed in 0 s" in done.stdout
