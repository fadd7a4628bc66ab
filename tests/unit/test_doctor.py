"""Each check of `diskless doctor` fails where it should, and says what to do."""

import json
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as altered

import diskless
from diskless.cli import exits, run
from diskless.client.descriptor import Descriptor, descriptor_path, save
from diskless.config import GIB, MIB, ClusterSettings
from diskless.doctor import cluster, machine
from diskless.doctor.findings import Finding, Level
from diskless.launch import footprint
from diskless.launch.local import LocalCluster
from diskless.model import AgentStatus, ClusterStatus, VoterStatus

HERE = machine.Machine(memory_bytes=16 * GIB, free_bytes=12 * GIB, shared_bytes=GIB)
SMALL = ClusterSettings(agents=3, data_shards=2, parity_shards=1, memory_bytes=64 * MIB)


def without(package: str) -> machine.Machine:
    return replace(HERE, installed=lambda name: "" if name == package else "9.9")


def told(finding: Finding, level: Level, *words: str) -> None:
    """What is not well has advice; all of it is one line."""
    assert finding.level is level, finding
    assert bool(finding.advice) == (level is not Level.OK)
    text = f"{finding.found} {finding.advice}"
    assert "\n" not in text
    for word in words:
        assert word in text


def test_versions() -> None:
    told(machine.check_versions(HERE), Level.OK, diskless.__version__)
    told(machine.check_versions(without("ray")), Level.WRONG, "missing", "pip install")
    for version in ("2.9.1", "2.61.0"):
        other = replace(HERE, installed=lambda _, version=version: version)
        told(machine.check_versions(other), Level.WRONG, version, "ray>=2.60,<2.61")
    told(machine.check_versions(replace(HERE, python=(3, 10))), Level.WRONG, "Python 3.11")


def test_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    told(machine.check_java(HERE), Level.WRONG, "does not run", "JAVA_HOME")
    told(machine.check_java(without("pyspark")), Level.WARNING, "only Spark")
    fake = tmp_path / "bin/java"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    fake.chmod(0o755)
    told(machine.check_java(HERE), Level.WRONG, "Java 11", "17 or newer")
    fake.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    told(machine.check_java(HERE), Level.OK)


def test_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told(machine.check_spark(without("pyspark")), Level.WARNING, "diskless[spark]")
    told(machine.check_spark(HERE), Level.WARNING, "not compiled", "diskless jar")
    _, target = machine.planned()
    target.parent.mkdir()
    target.touch()
    told(machine.check_spark(HERE), Level.OK, str(target))
    jars = tmp_path / "spark/jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.13-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    told(machine.check_spark(HERE), Level.WRONG, "3.5.1", "unset SPARK_HOME")


def test_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    told(machine.check_home(home), Level.OK, "diskless up")
    home.mkdir(mode=0o700)
    told(machine.check_home(home), Level.OK)
    key = home / "default.json"
    key.touch()
    for rights in (0o644, 0o640, 0o604):
        key.chmod(rights)
        told(machine.check_home(home), Level.WRONG, f"chmod 600 {key}")
    key.chmod(0o600)
    home.chmod(0o755)
    told(machine.check_home(home), Level.WRONG, f"chmod 700 {home}")
    told(machine.check_home(key), Level.WRONG, "DISKLESS_HOME")


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told(machine.check_home(tmp_path / "file/home"), Level.WRONG, "cannot be made")


def test_cache(tmp_path: Path) -> None:
    told(machine.check_cache(tmp_path / "a/b"), Level.OK)
    (tmp_path / "file").touch()
    told(machine.check_cache(tmp_path / "file/diskless"), Level.WRONG, "XDG_CACHE_HOME")


def test_memory() -> None:
    settings = ClusterSettings()
    told(machine.check_memory(HERE, settings), Level.OK, "6 agents of 512.0 MiB")
    busy = replace(HERE, free_bytes=2 * GIB)
    told(machine.check_memory(busy, settings), Level.WARNING, "--memory")
    laptop = replace(HERE, memory_bytes=4 * GIB, free_bytes=4 * GIB)
    told(machine.check_memory(laptop, settings), Level.WRONG, "fewer agents")


def test_shared_memory() -> None:
    told(machine.check_shared(HERE), Level.OK)
    told(machine.check_shared(replace(HERE, shared_bytes=64 * MIB)), Level.WARNING, "--shm-size")


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told(machine.check_ports(range(port, port + 1)), Level.WARNING, f"{port}", "--metrics-port")
    told(machine.check_ports(range(port, port + 1)), Level.OK)


@pytest.mark.parametrize("gib", [2, 4, 8, 16, 64])
def test_agents_take_at_most_half_of_a_host_by_default(gib: int) -> None:
    settings = ClusterSettings()
    memory = footprint.default_memory(settings, gib * GIB)
    assert memory % footprint.STEP_BYTES == 0
    assert footprint.STEP_BYTES <= memory <= settings.memory_bytes
    if memory > footprint.STEP_BYTES:
        assert footprint.needed_bytes(replace(settings, memory_bytes=memory)) <= gib * GIB / 2
    if gib >= 16:
        assert memory == settings.memory_bytes


# A cluster


def status(**changes: object) -> ClusterStatus:
    agents = [
        AgentStatus(slot=f"agent-{n}", state="up", host=f"h{n}", bytes_used=1, bytes_max=100)
        for n in range(3)
    ]
    voters = [
        VoterStatus(slot=f"agent-{n}", role="follower", lag=0, clock_skew_ms=0) for n in range(3)
    ]
    whole = ClusterStatus(
        name="default", parity_shards=1, margin=1, margin_hosts=1, agents=agents, voters=voters
    )
    return altered(whole, **changes)


def with_first(**changes: object) -> ClusterStatus:
    agents = status().agents
    return status(agents=[altered(agents[0], **changes), *agents[1:]])


def test_agents_that_do_not_serve() -> None:
    told(cluster.check_agents(status()), Level.OK, "3 of 3")
    told(cluster.check_agents(with_first(state="down")), Level.WARNING, "agent-0", "diskless logs")
    told(cluster.check_agents(with_first(state="slow")), Level.WARNING, "agent-0", "CPU")
    gone = status(unhosted={"agent-0": "no other Ray node is free"})
    told(cluster.check_agents(gone), Level.WRONG, "no other Ray node", "add a host")


def test_margin_and_space() -> None:
    told(cluster.check_margin(status()), Level.OK)
    told(cluster.check_margin(status(margin=0)), Level.WARNING, "repair")
    told(cluster.check_margin(status(margin=-1)), Level.WRONG, "cannot be read")
    told(cluster.check_full(status()), Level.OK)
    told(cluster.check_full(with_first(bytes_used=88)), Level.WARNING, "agent-0", "88%")


@pytest.mark.parametrize(
    ("skew_ms", "level"),
    [(1_000, Level.OK), (-5_000, Level.WARNING), (5_000, Level.WARNING), (-90_000, Level.WRONG)],
)
def test_clocks_of_hosts(skew_ms: int, level: Level) -> None:
    voters = status().voters
    voters = [*voters[:2], altered(voters[2], clock_skew_ms=skew_ms)]
    found = cluster.check_clocks(status(voters=voters, time_ms=1000), here_ms=1000)
    told(found, level, *(() if level is Level.OK else ("agent-2 (h2)", "chrony")))
    found = cluster.check_clocks(status(time_ms=10**6), here_ms=10**6 + skew_ms)
    told(found, level, *(() if level is Level.OK else ("this host",)))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_descriptor_that_is_none(home: Path) -> None:
    (none,) = cluster.examine("default")
    told(none, Level.OK, "diskless up")
    descriptor_path("default").write_text("{")
    (garbage,) = cluster.examine("default")
    told(garbage, Level.WRONG, "cannot be read", "delete it")


def test_a_cluster_that_is_down_or_dead(home: Path) -> None:
    down = Descriptor(cluster="c", name="default", key="00", parked=True,
                      settings={"tier": "file:///t"})  # fmt: skip
    save(down)
    (found,) = cluster.examine("default")
    told(found, Level.WRONG, "diskless up --restore file:///t")
    save(altered(down, parked=False, ray={"host": "h"}))
    (found,) = cluster.examine("default")
    told(found, Level.WRONG, "never came up")


def test_a_running_cluster_and_one_that_does_not_answer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.5)
    with diskless.local_cluster(agents=3, data_shards=2, parity_shards=1) as running:
        name = running.settings.name
        with running.connect() as client:
            client.write("/a", b"1")
        findings = cluster.examine(name)
        assert [f.check for f in findings] == ["descriptor", "agents", "margin", "space", "clocks"]
        assert {f.level for f in findings} == {Level.OK}
        assert "within" in findings[-1].found
        later = cluster.examine(name, now_s=lambda: 0.0)
        told(later[-1], Level.WRONG, "this host", "behind")
        kept = descriptor_path(name).read_bytes()
    descriptor_path(name).write_bytes(kept)
    told(cluster.examine(name)[-1], Level.WRONG, "does not answer")


def test_a_voter_whose_clock_is_ahead_is_named(home: Path) -> None:
    settings = ClusterSettings(name="ahead", agents=3, data_shards=2, parity_shards=1)
    clocks = {1: lambda: time.time_ns() // 1_000_000 + 90_000}
    with LocalCluster(settings, wall_clocks=clocks) as running, running.connect() as client:
        client.write("/a", b"1")  # The leader reads its own clock when it logs something.
        found = cluster.examine("ahead")[-1]
        told(found, Level.WRONG, "agent-1 (localhost) is 90.0 s ahead of", "chrony")


def test_the_verb(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.split()[0] not in ("ok", "warning")] == []
    descriptor_path("default").write_text("{")
    descriptor_path("default").chmod(0o600)
    assert run(["doctor", "--json"]) == exits.UNWELL
    answer = json.loads(capsys.readouterr().out)
    assert answer["level"] == "wrong"
    assert [f["check"] for f in answer["findings"] if f["level"] == "wrong"] == ["descriptor"]
    assert run(["doctor", "--cluster", "no such name"]) == exits.USAGE
