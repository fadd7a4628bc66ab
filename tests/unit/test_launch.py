"""cluster/launch.py: what it is told, what it remembers, and what it must not destroy."""

import importlib
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from diskless.client import descriptor
from diskless.client.descriptor import Descriptor
from diskless.errors import BadSettings, LaunchFailed
from diskless.launch import sessions

CLUSTER = Path(__file__).parents[2] / "cluster"

Begin = Callable[[str, str], Any]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(CLUSTER))
    return importlib.import_module("launch")


@pytest.fixture
def begin(launch: ModuleType, tmp_path: Path) -> Iterator[Begin]:
    """Has the state remember a process of that name, started for that head."""
    state = launch.State(tmp_path / "state")

    def start(name: str, head: str) -> Any:
        state.start(name, ["sleep", "1000"], os.environ, head)
        return dict(state.sessions())[name]

    yield start
    for _, session in list(state.sessions()):
        sessions.stop(session)


def launcher(launch: ModuleType, tmp_path: Path, **head: Any) -> Any:
    config = launch.Config()
    for key, value in head.items():
        setattr(config.head, key, value)
    config.diskless.name = "no-such"
    return launch.Launcher(config, launch.State(tmp_path / "state"))


# What it is told.


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[head]\nhost = 7\n", "head.host"),
        ('[head]\nhost = ""\n', "head.host"),
        ('[head]\nhost = "a b"\n', "head.host"),
        ("[head]\nray_port = 99999\n", "head.ray_port"),
        ("[head]\nray_port = 0\n", "head.ray_port"),
        ('[head]\nspark_port = "7077"\n', "head.spark_port"),
        ("[head]\nspark_ui_port = -1\n", "head.spark_ui_port"),
        ("[head]\nspark_port = 6380\n", "6380"),
        ("[ray]\ntoken = 3\n", "ray.token"),
        ("[spark]\nworkers = -1\n", "spark.workers"),
        ("[spark]\ncores = 0\n", "spark.cores"),
        ('[spark]\nmemory = "lots"\n', "spark.memory"),
        ('[diskless]\nname = "No Name"\n', "No Name"),
        ('[diskless]\nmemory = "lots"\n', "'lots' is not a size"),
        ('[diskless]\nmemory = "1KiB"\n', "memory"),
        ("[diskless]\ndata_shards = 0\n", "data shards"),
        ("[diskless]\nparity_shards = 99\n", "parity shards"),
        ("[diskless]\nagents = 3\n", "agents"),
        ("[diskless]\nagents = 100000\n", "agents"),
        ('[diskless]\ntls_cert = "/d/cert.pem"\n', "--tls-key is not given"),
        ('[ray]\ntls_cert = "/d/cert.pem"\n', "tls_cert, tls_key and tls_ca"),
        ("[dikless]\n", "dikless"),
        ("head = 3\n", "head"),
        ("[head\n", "cluster.toml"),
        ("\udcff\n", "cluster.toml"),
    ],
)
def test_each_wrong_setting_gets_one_line_that_names_it(
    launch: ModuleType, tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(BadSettings) as refused:
        launch.load_config(path)
    assert named in str(refused.value)
    assert "cluster.toml" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_what_is_said_of_tls_and_chaos_reaches_up_and_ray(
    launch: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("[diskless]\n")
    assert launch.load_config(path).diskless.security == [], "`up` decides, by the hosts"
    own = 'tls_cert = "/c"\ntls_key = "/k"\ntls_ca = "/a"\n'
    path.write_text(f"[ray]\n{own}[diskless]\ntls = true\nchaos = true\n{own}")
    config = launch.load_config(path)
    files = ["--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a"]
    assert config.diskless.security == ["--tls", *files, "--chaos"]
    assert config.ray.tls == {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": "/c",
        "RAY_TLS_SERVER_KEY": "/k",
        "RAY_TLS_CA_CERT": "/a",
    }


def test_the_sample_is_sound_and_a_missing_file_is_said(launch: ModuleType, tmp_path: Path) -> None:
    assert launch.load_config(CLUSTER / "cluster.toml").diskless.agents >= 3
    with pytest.raises(BadSettings, match=r"none\.toml"):
        launch.load_config(tmp_path / "none.toml")


# What it remembers.


def test_a_record_that_was_cut_short_is_named_in_one_line(
    launch: ModuleType, tmp_path: Path
) -> None:
    state = launch.State(tmp_path)
    (tmp_path / "ray.session").write_bytes(b'{"pid":12')
    with pytest.raises(LaunchFailed, match=r"ray\.session"):
        list(state.sessions())


def test_what_runs_already_is_not_started_twice(
    launch: ModuleType, begin: Begin, tmp_path: Path
) -> None:
    first = begin("ray", "a:1")
    with pytest.raises(LaunchFailed, match="runs already"):
        begin("ray", "a:1")
    assert launch.State(tmp_path / "state").alive("ray") == first


def test_a_head_that_runs_keeps_its_memory_when_it_is_launched_again(
    launch: ModuleType, begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it Ray's control store could not be restarted without ending every agent."""
    again = launcher(launch, tmp_path)
    ray = begin("ray", again.config.ray_address)
    master = begin("spark-master", again.config.master)
    memories = [tmp_path / "state" / name for name in ("gcs", "spark-recovery")]
    for memory in memories:
        memory.mkdir()
    monkeypatch.setattr(again, "_await_port", lambda *_: None)  # sleepers do not listen
    again.head()
    assert all(memory.exists() for memory in memories)
    assert sessions.is_alive(ray)
    assert sessions.is_alive(master)


def test_a_master_that_runs_keeps_its_memory_when_ray_is_launched_anew(
    launch: ModuleType, begin: Begin, tmp_path: Path
) -> None:
    it = launcher(launch, tmp_path)
    begin("spark-master", it.config.master)
    it._gcs.mkdir()
    it._spark_recovery.mkdir()
    it._check_memory()
    assert (it._gcs.exists(), it._spark_recovery.exists()) == (False, True)


def test_a_second_change_of_heads_does_not_forget_the_node_of_the_first(
    launch: ModuleType, begin: Begin, tmp_path: Path
) -> None:
    """Its agents would go on forever, and no `down` would find them."""
    eldest = begin("ray", "a:1")
    launch.State(tmp_path / "state").rename("ray", "ray-old")
    begin("ray", "b:1")
    third = launcher(launch, tmp_path, host="10.0.0.9")
    third._token.write_text("token")
    with pytest.raises(LaunchFailed, match=r"no-such\.json is missing"):
        third.worker("10.0.0.8")
    known = dict(launch.State(tmp_path / "state").sessions())
    assert known["ray-old"] == eldest
    assert set(known) == {"ray", "ray-old"}


def test_agents_whose_start_was_interrupted_are_ended_by_down(
    launch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = launcher(launch, tmp_path)
    called = []

    def killed(verb: str, *_: str) -> None:
        called.append(verb)
        if verb == "up":
            descriptor.save(Descriptor(cluster="c", name="no-such", key="s"))
            raise KeyboardInterrupt

    monkeypatch.setattr(it, "_diskless", killed)
    with pytest.raises(KeyboardInterrupt):
        it.agents()
    it.down(discard=False)
    assert called == ["up", "down"]
    assert not it._state.spark_defaults.exists()


def test_what_runs_can_be_ended_where_java_is_gone(
    launch: ModuleType, begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java() -> Path:
        raise BadSettings("no Java here")

    session = begin("ray", "a:1")
    monkeypatch.setattr(launch, "find_java", no_java)
    options = ["--config", str(CLUSTER / "cluster.toml"), "--state", str(tmp_path / "state")]
    assert "no Java" in str(CliRunner().invoke(launch.main, [*options, "head"]).exception)
    assert CliRunner().invoke(launch.main, [*options, "down"]).exit_code == 0
    assert not sessions.is_alive(session)


# Paths with spaces.


def test_what_a_shell_or_spark_splits_at_spaces_is_quoted(
    launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spaced = tmp_path / "my home"
    it = launch.Launcher(launch.Config(), launch.State(spaced))
    options = shlex.split(it._spark_env("127.0.0.1")["SPARK_MASTER_OPTS"])
    assert f"-Dspark.deploy.recoveryDirectory={spaced}/spark-recovery" in options
    it.show_env()
    said = capsys.readouterr().out
    done = subprocess.run(
        ["sh", "-c", f'{said}printf %s "$RAY_AUTH_TOKEN_PATH"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == str(spaced / "ray.token")
