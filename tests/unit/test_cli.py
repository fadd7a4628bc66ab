"""The command line without Ray: parsing, help, output, exit statuses, and every verb that
speaks to a cluster, against a live one in this process."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import diskless
from diskless.agent.replica import Replica
from diskless.cli import bench as bench_verbs
from diskless.cli import chaos as chaos_verbs
from diskless.cli import exits, run
from diskless.cli import policy as policy_verbs
from diskless.cli import query as query_verbs
from diskless.cli import snapshot as snapshot_verbs
from diskless.cli import tier as tier_verbs
from diskless.cli import tls as tls_verbs
from diskless.cli import token as token_verbs
from diskless.cli.edge import VERBS
from diskless.cli.status import balance_lines, repair_lines
from diskless.client import descriptor
from diskless.config import KIB, MIB
from diskless.errors import BY_REASON, NoQuorum, NotLeader
from diskless.identity.claims import Credential
from diskless.launch.local import LocalCluster
from diskless.launch.record import RayRecord, Session
from diskless.model import BalanceStatus, RepairStatus
from diskless.namespace import queries as q
from tests.support import content, eventually, kill, leader, on_loop, stripes_of

CHAOS = [["chaos", verb] for verb in chaos_verbs.command.commands]
BENCH = [["bench", verb] for verb in bench_verbs.command.commands]
SNAPSHOT = [["snapshot", verb] for verb in snapshot_verbs.command.commands]
TLS = [["tls", verb] for verb in tls_verbs.command.commands]
TOKEN = [["token", verb] for verb in token_verbs.command.commands]
POLICY = [["policy", verb] for verb in policy_verbs.command.commands]
TIER = [["tier", verb] for verb in tier_verbs.command.commands]
QUERY = [["query", verb] for verb in query_verbs.command.commands]
GROUPS = ("chaos", "bench", "snapshot", "tls", "token", "policy", "tier", "query")
COMMANDS = [*([verb] for verb in VERBS if verb not in GROUPS), *CHAOS, *BENCH, *SNAPSHOT]
COMMANDS += [*TLS, *TOKEN, *POLICY, *TIER, *QUERY]
PROGRAM = [sys.executable, "-m", "diskless.cli"]


@dataclass
class Outcome:
    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Runs a verb in this process."""

    def call(*arguments: object) -> Outcome:
        capfdbinary.readouterr()
        status = run([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Outcome(status, out, err.decode())

    return call


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster:
        yield cluster


@pytest.fixture
def store(
    shared: LocalCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """An empty directory of a live cluster, which is the default one meanwhile."""
    monkeypatch.setenv("DISKLESS_CLUSTER", shared.settings.name)
    path = "/" + re.sub(r"\W", "-", request.node.name)
    yield path
    with shared.connect() as client:
        client.delete(path, recursive=True)


# Parsing, help, errors.


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_ends_with_examples_and_exit_statuses(cli: Cli, command: list[str]) -> None:
    outcome = cli(*command, "--help")
    assert outcome.status == exits.OK
    _, examples = outcome.text.split("Examples:\n")
    examples, statuses = examples.split("Exit statuses:\n")
    assert f"diskless {' '.join(command)}" in examples
    assert "  0    done" in statuses
    assert "  130  interrupted" in statuses
    assert "--json" in outcome.text


def test_the_program_lists_every_verb_and_every_status(cli: Cli) -> None:
    text = cli("--help").text
    assert all(f"  {verb} " in text for verb in VERBS)
    assert all(f"  {code} " in text for code in exits.MEANING)


def test_every_error_has_an_exit_status_that_help_explains() -> None:
    assert {error.exit_code for error in BY_REASON.values()} <= exits.MEANING.keys()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lss"], "no such command 'lss'"),
        (["ls", "--foo"], "no such option '--foo'"),
        (["put"], "missing argument 'LOCAL...'"),
        (["put", "x"], "missing argument"),
        (["status", "--timeout", "0"], "--timeout"),
        (["ls", "relative"], "'relative' is not an absolute path"),
        (["ls", "/a/../b"], "'..'"),
        (["ls", "s3://bucket"], "not an absolute path"),
        (["ls", "--cluster", "No Name"], "is no cluster name"),
        (["chaos", "kill", "x"], "'x' is not a slot"),
        (["chaos", "kill", "-1"], "no such option"),
        (["chaos", "run", "--faults", "kill,flood"], "'flood' is not one of kill, pause"),
        (["chaos", "run", "--faults", ""], "'nothing' is not one of"),
        (["chaos", "run", "--workload", "sql"], "'sql' is not one of"),
        (["chaos", "run", "--duration", "0"], "--duration"),
        (["chaos", "run", "--largest", "lots"], "'lots' is not a size"),
        (["up", "--agents", "4", "-m", "2", "-k", "2"], "max(m+k, 2k+1) = 5"),
        (["up", "--agents", "many"], "'many' is not a valid integer"),
        (["up", "-m", "0"], "m = 0"),
        (["up", "-m", "25", "--agents", "40"], "m = 25"),
        (["up", "-k", "0"], "k = 0"),
        (["up", "-k", "9", "--agents", "40"], "k = 9"),
        (["up", "--agents", "1000"], "at most 256"),
        (["up", "--memory", "lots"], "'lots' is not a size"),
        (["up", "--memory", "1MiB"], "too little"),
        (["up", "--name", "No Name"], "cluster name 'No Name'"),
        (["up", "--ray-address", "ray://here:1"], "HOST:PORT"),
        (["down", "--name", "a/b"], "is no cluster name"),
    ],
)
def test_a_mistake_costs_one_line_and_exit_status_2(
    cli: Cli, arguments: list[str], says: str
) -> None:
    before = sorted(descriptor.home().iterdir()) if descriptor.home().exists() else []
    outcome = cli(*arguments)
    assert outcome.status == exits.USAGE
    assert outcome.out == b""
    assert outcome.err.startswith("diskless: ")
    assert outcome.err.count("\n") == 1
    assert says in outcome.err
    after = sorted(descriptor.home().iterdir()) if descriptor.home().exists() else []
    assert after == before, "something was started"


def test_errors_are_json_with_json(cli: Cli) -> None:
    outcome = cli("ls", "relative", "--json")
    error = json.loads(outcome.err)
    assert error["error"] == "BadRequest"
    assert error["exit_status"] == outcome.status == exits.USAGE
    assert "absolute" in error["message"]
    assert json.loads(cli("lss", "--json").err)["error"] == "Usage"
    assert "leave --json out" in json.loads(cli("get", "/a", "-", "--json").err)["message"]


def test_a_bug_costs_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISKLESS_DEBUG", raising=False)
    monkeypatch.setattr("diskless.cli.verb.Context.targets", lambda *_: 1 / 0)
    outcome = cli("ls")
    assert outcome.status == exits.FAILED
    assert outcome.err.count("\n") == 1
    assert "ZeroDivisionError" in outcome.err


# Finding the cluster.


def test_an_unknown_cluster_says_how_to_start_it(cli: Cli) -> None:
    for verb in (["ls"], ["status"], ["down"], ["chaos", "kill", "1"]):
        outcome = cli(*verb, "--cluster", "nowhere")
        assert outcome.status == exits.NO_CLUSTER
        assert "diskless up --name nowhere" in outcome.err


def test_the_cluster_option_may_stand_before_the_verb_or_after_it(
    cli: Cli, shared: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = shared.settings.name
    monkeypatch.setenv("DISKLESS_CLUSTER", "nowhere")
    assert cli("ls").status == exits.NO_CLUSTER
    assert cli("--cluster", name, "ls").status == exits.OK
    assert cli("ls", "-c", name).status == exits.OK
    assert cli("-c", "elsewhere", "ls", "-c", name).status == exits.OK
    assert cli("ls", f"diskless://{name}/").status == exits.OK


def test_host_and_port_need_a_token(
    cli: Cli, shared: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gateway = shared.nodes[1].gateway_address
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path / "nothing is known here"))
    assert cli("ls", "-c", gateway).status == exits.NO_CLUSTER
    token = tmp_path / "token"
    token.write_text(shared.token("/") + "\n")
    assert cli("ls", "-c", gateway, "--token-file", str(token)).status == exits.OK
    monkeypatch.setenv("DISKLESS_TOKEN", shared.token("/"))
    assert cli("ls", "-c", gateway).status == exits.OK
    forged = Credential(shared.keyring.client("x").text, bytes(32)).token
    monkeypatch.setenv("DISKLESS_TOKEN", forged)
    assert cli("ls", "-c", gateway).status == exits.UNAUTHORIZED


def test_a_token_narrows_what_a_verb_may_do(
    cli: Cli, shared: LocalCluster, store: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(shared.token(store))
    name = shared.settings.name
    by_token = ("-c", name, "--token-file", str(token))
    assert cli("mkdir", f"{store}/own", *by_token).status == exits.OK
    outcome = cli("mkdir", "/elsewhere", *by_token)
    assert outcome.status == exits.FORBIDDEN
    assert f"/elsewhere is not covered by the token 'client', which is for {store}" in outcome.err
    assert cli("drain", "0", *by_token).status == exits.FORBIDDEN
    missing = cli("ls", "-c", name, "--token-file", str(tmp_path / "none"))
    assert missing.status == exits.USAGE
    assert "none" in missing.err


def test_one_run_speaks_to_one_cluster(cli: Cli, store: str) -> None:
    outcome = cli("mv", f"{store}/a", "diskless://other/a")
    assert outcome.status == exits.USAGE
    assert "one cluster at a time" in outcome.err


def _describe(name: str, pid: int, *, host: str, since_boot_s: float | None = None) -> None:
    known = descriptor.Descriptor(
        cluster="00" * 8,
        name=name,
        key="s",
        settings=diskless.ClusterSettings(name=name).to_dict(),
        gateways=[descriptor.Peer(0, "127.0.0.1:1", "", "h", True)],
        ray=RayRecord(host=host, holder=Session(pid, since_boot_s)).to_dict(),
    )
    descriptor.save(known)


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_dead_cluster_says_so_at_once_and_can_be_cleared(cli: Cli, dead_pid: int) -> None:
    _describe("dead", pid=dead_pid, host=os.uname().nodename)
    for verb in (["ls"], ["status"], ["up", "--name", "dead"], ["chaos", "kill", "1"]):
        outcome = cli(*verb, "--cluster", "dead")
        assert outcome.status == exits.UNAVAILABLE, verb
        assert "is dead" in outcome.err
        assert "diskless down --discard --cluster dead" in outcome.err
    outcome = cli("down", "--cluster", "dead")
    assert outcome.status == exits.FILES_EXIST
    assert "--discard" in outcome.err
    assert cli("down", "--cluster", "dead", "--discard").status == exits.OK
    assert not descriptor.descriptor_path("dead").exists()


def test_up_replaces_a_dead_cluster_only_with_reset(cli: Cli, dead_pid: int) -> None:
    _describe("dead", pid=dead_pid, host=os.uname().nodename)
    outcome = cli("up", "--name", "dead")
    assert outcome.status == exits.UNAVAILABLE
    assert "diskless up --reset --cluster dead" in outcome.err
    assert descriptor.descriptor_path("dead").exists()
    # A Ray that nobody runs: the old cluster is gone by then, and the new one fails to start.
    outcome = cli("up", "--name", "dead", "--reset", "--ray-address", "127.0.0.1:1")
    assert outcome.status in (exits.UNAVAILABLE, exits.LAUNCH_FAILED)
    assert not descriptor.descriptor_path("dead").exists()


def test_reset_spares_a_cluster_that_is_alive_and_holds_files(
    cli: Cli, shared: LocalCluster, store: str
) -> None:
    name = shared.settings.name
    known = descriptor.load(name)
    with shared.connect() as client:
        client.write(f"{store}/a", b"a")
    assert "the process that made it" in cli("up", "--name", name, "--reset").err
    try:
        descriptor.save(msgspec.structs.replace(known, ray=RayRecord(requested="auto").to_dict()))
        outcome = cli("up", "--name", name, "--reset")
    finally:
        descriptor.save(known)
    assert outcome.status == exits.FILES_EXIST
    assert f"diskless down --discard --cluster {name}" in outcome.err


def test_a_process_that_got_the_number_of_our_ray_is_left_alone(cli: Cli) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        _describe("reused", pid=stranger.pid, host=os.uname().nodename, since_boot_s=1.0)
        assert cli("down", "--cluster", "reused", "--discard").status == exits.OK
        assert stranger.poll() is None
        stranger.kill()


def test_up_that_was_killed_half_way_can_be_ended_without_discard(cli: Cli, dead_pid: int) -> None:
    _describe("half", pid=dead_pid, host=os.uname().nodename)
    descriptor.save(msgspec.structs.replace(descriptor.load("half"), gateways=[]))
    assert "never came up" in cli("ls", "--cluster", "half").err
    assert cli("down", "--cluster", "half").status == exits.OK


def test_a_cluster_of_another_process_is_not_ended_from_here(
    cli: Cli, shared: LocalCluster
) -> None:
    outcome = cli("down", "--discard", "--cluster", shared.settings.name)
    assert outcome.status == exits.USAGE
    assert "the process that made it" in outcome.err
    assert descriptor.descriptor_path(shared.settings.name).exists()


# Files.


def test_a_file_goes_in_and_comes_out(cli: Cli, store: str, tmp_path: Path) -> None:
    data = content(5 * MIB + 3)
    (tmp_path / "a").write_bytes(data)
    put = cli("put", tmp_path / "a", f"{store}/a")
    assert put.status == exits.OK
    assert "stored 1 file, 5.0 MiB" in put.text
    assert cli("get", f"{store}/a", tmp_path / "b").status == exits.OK
    assert (tmp_path / "b").read_bytes() == data
    assert cli("get", f"{store}/a", "-").out == data
    assert cli("cat", f"{store}/a", f"{store}/a").out == data + data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_cat_with_json_is_base64(cli: Cli, store: str, tmp_path: Path) -> None:
    data = content(2 * MIB + 1)
    (tmp_path / "a").write_bytes(data)
    cli("put", tmp_path / "a", f"{store}/a")
    (entry,) = cli("cat", "--json", f"{store}/a").json
    assert (entry["path"], entry["size"]) == (f"{store}/a", len(data))
    assert base64.b64decode(entry["base64"]) == data


def test_standard_input_is_stored(cli: Cli, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert cli("put", "-", f"{store}/in").status == exits.OK
    assert cli("cat", f"{store}/in").out == b"from a pipe"
    assert cli("put", "-", f"{store}/").status == exits.USAGE


def test_nothing_is_replaced_without_force(cli: Cli, store: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    cli("put", tmp_path / "a", f"{store}/a")
    (tmp_path / "a").write_bytes(b"two")
    assert cli("put", tmp_path / "a", f"{store}/a").status == exits.EXISTS
    assert cli("cat", f"{store}/a").out == b"one"
    outcome = cli("get", f"{store}/a", tmp_path / "a")
    assert outcome.status == exits.EXISTS
    assert "-f" in outcome.err
    assert (tmp_path / "a").read_bytes() == b"two"
    assert cli("put", "-f", tmp_path / "a", f"{store}/a").status == exits.OK
    assert cli("cat", f"{store}/a").out == b"two"


def test_a_tree_goes_in_and_comes_out(cli: Cli, store: str, tmp_path: Path) -> None:
    tree = {"a": 0, "b": 1, "sub/c": 20 * KIB, "sub/deep/d": 3 * MIB, "sub/e": 300 * KIB}
    for name, size in tree.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content(size, name))
    (tmp_path / "in" / "empty").mkdir()
    assert cli("put", tmp_path / "in", store).status == exits.WRONG_KIND
    assert cli("put", "-r", tmp_path / "in", f"{store}/t").status == exits.OK
    assert cli("get", f"{store}/t", tmp_path / "x").status == exits.WRONG_KIND
    got = cli("get", "-r", "--json", f"{store}/t", tmp_path / "out")
    assert {entry["path"].removeprefix(f"{store}/t/") for entry in got.json} == set(tree)
    for name, size in tree.items():
        assert (tmp_path / "out" / name).read_bytes() == content(size, name)
    assert (tmp_path / "out" / "empty").is_dir()
    listed = cli("ls", "-R", f"{store}/t").text.splitlines()
    assert f"{store}/t/empty/" in listed
    assert f"{store}/t/sub/deep/d" in listed


def test_many_small_files_go_into_an_existing_directory(
    cli: Cli, store: str, tmp_path: Path
) -> None:
    names = [f"f{number:03}" for number in range(60)]
    for name in names:
        (tmp_path / name).write_bytes(content(900, name))
    cli("mkdir", store)
    sources = [tmp_path / name for name in names]
    assert cli("put", *sources, store).status == exits.OK
    assert len(cli("ls", store).text.splitlines()) == len(names)
    (counted,) = cli("du", "--json", store).json
    assert (counted["files"], counted["bytes"]) == (60, 60 * 900)
    assert cli("put", *sources[:2], f"{store}/f000").status == exits.USAGE


def test_links_and_sockets_in_a_tree_are_skipped_aloud(
    cli: Cli, store: str, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_bytes(b"a")
    (tmp_path / "t" / "dangling").symlink_to("nowhere")
    (tmp_path / "t" / "up").symlink_to(tmp_path)
    outcome = cli("put", "-r", tmp_path / "t", f"{store}/t")
    assert outcome.status == exits.OK
    assert outcome.err.count("skipped") == 2
    assert cli("ls", f"{store}/t").text.split() == [f"{store}/t/a"]


def test_a_missing_local_file_is_named(cli: Cli, store: str, tmp_path: Path) -> None:
    outcome = cli("put", tmp_path / "no", f"{store}/no")
    assert outcome.status == exits.NOT_FOUND
    assert outcome.err == f"diskless: {tmp_path / 'no'}: No such file or directory\n"


def test_a_device_is_written_to_and_not_replaced(cli: Cli, store: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cli("put", tmp_path / "a", f"{store}/a")
    assert cli("get", f"{store}/a", "/dev/null").status == exits.OK
    assert Path("/dev/null").is_char_device()


def test_paths_are_listed_moved_and_deleted(cli: Cli, store: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert cli("mkdir", "--json", f"{store}/d", f"{store}/d").json[1]["created"] is False
    cli("put", tmp_path / "a", f"{store}/a")
    cli("put", tmp_path / "a", f"{store}/b")
    assert cli("ls", store).text == f"{store}/a\n{store}/b\n{store}/d/\n"
    assert re.search(rf"^ +3  \d{{4}}-.* {store}/a$", cli("ls", "-l", store).text, re.MULTILINE)
    assert cli("mv", f"{store}/a", f"{store}/b").status == exits.EXISTS
    assert cli("mv", "-f", f"{store}/a", f"{store}/b").status == exits.OK
    assert cli("mv", f"{store}/b", f"{store}/d").status == exits.OK
    assert cli("stat", f"{store}/d/b", "--json").json[0]["size"] == 3
    assert "size      3" in cli("stat", f"{store}/d/b").text
    assert cli("rm", f"{store}/d").status == exits.WRONG_KIND
    assert cli("rm", "-r", f"{store}/d").status == exits.OK
    assert cli("rm", f"{store}/d").status == exits.NOT_FOUND
    assert cli("rm", "-f", f"{store}/d").status == exits.OK
    assert cli("ls", store, "--json").json == []
    for verb in (["ls"], ["stat"], ["cat"], ["du"]):
        assert cli(*verb, f"{store}/d").status == exits.NOT_FOUND, verb


def test_an_unreadable_file_names_stripe_and_agents_and_leaves_nothing_here(
    cli: Cli, tmp_path: Path
) -> None:
    with diskless.local_cluster(agents=4, data_shards=2, parity_shards=1) as cluster:
        (tmp_path / "a").write_bytes(content(2 * MIB))
        here = ("--cluster", cluster.settings.name)
        while True:  # Two of its three agents shall go, and only one voter with them.
            cli("put", "-f", tmp_path / "a", "/a", *here)
            on = {place.slot for place in stripes_of(cluster, "/a")[0].places}
            if 3 in on:
                break
        gone = [min(on - {3, leader(cluster).slot}), 3]
        kill(cluster, *gone)
        outcome = cli("get", "/a", tmp_path / "b", *here)
        assert outcome.status == exits.UNREADABLE
        assert re.search(r"stripe \S+: 1 of 2 required .*gone: agent-\d, agent-\d", outcome.err)
        assert all(f"agent-{slot}" in outcome.err for slot in gone)
        assert not (tmp_path / "b").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert json.loads(cli("cat", "--json", "/a", *here).err)["error"] == "TooFewShards"
        assert "some data cannot be read now" in cli("status", *here).text


# Status.


def test_status_has_what_operators_are_promised(cli: Cli, store: str) -> None:
    status = cli("status", "--json").json
    for key in ("name", "cluster_id", "data_shards", "parity_shards", "leader", "margin",
                "files", "bytes_logical", "bytes_stored"):  # fmt: skip
        assert key in status
    assert set(status["stripes"]) == {"total", "healthy", "degraded", "lost"}
    assert set(status["repair"]) == {
        "state", "stripes_left", "bytes_left", "bytes_done", "bytes_per_s", "eta_s",
        "waiting", "unprotectable", "lost", "lost_files", "share", "slower",
        "at_stake",
    }  # fmt: skip
    assert set(status["upkeep"]) == {
        "pace", "pace_why", "scrub_bytes_per_s", "roll_stripes_per_s", "thin_s", "thin_why",
    }  # fmt: skip
    for agent in status["agents"]:
        for key in ("slot", "state", "pid", "node", "address", "incarnation", "shards",
                    "bytes_used", "bytes_max"):  # fmt: skip
            assert key in agent


def test_status_is_a_table_of_agents(cli: Cli, store: str) -> None:
    text = cli("status").text
    assert "margin 1" in text
    assert re.search(r"^agent-2 +up +1 ", text, re.MULTILINE)


def test_status_shows_the_namespace_and_its_voters(cli: Cli, store: str) -> None:
    cli("mkdir", store)
    status = cli("status", "--json").json
    assert status["commits_per_s"] > 0
    assert {voter["slot"] for voter in status["voters"]} == {"agent-0", "agent-1", "agent-2"}
    text = cli("status").text
    assert re.search(
        r"^namespace: view \d+, op \d+, [\d.]+ commits/s, log \d+ entries, ", text, re.MULTILINE
    )
    assert re.search(r"^voters: .*agent-\d leader", text, re.MULTILINE)


def _is_cut_off(replica: Replica) -> bool:
    """Whether it knows, and has no lease any more to answer by."""
    try:
        replica.answer(q.Stat("/"))
    except (NoQuorum, NotLeader):
        return replica.cut_off() is not None
    return False


@pytest.mark.parametrize("leader_lives", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_with_k_plus_1_voters_lost_every_verb_says_what_the_namespace_needs(
    cli: Cli, leader_lives: bool
) -> None:
    with diskless.local_cluster(agents=6, data_shards=2, parity_shards=2) as cluster:
        voters, leads = set(range(5)), leader(cluster).slot
        rest = sorted(voters - {leads})
        lost = rest[:3] if leader_lives else [leads, *rest[:2]]
        cluster.kill(*lost)
        voting = [cluster.nodes[slot].replica for slot in voters - set(lost)]
        eventually(lambda: on_loop(cluster, lambda: all(map(_is_cut_off, voting))))
        here = ("--cluster", cluster.settings.name, "--timeout", "5")
        names = ", ".join(f"agent-{slot}" for slot in sorted(lost))
        for verb in (["status"], ["mkdir", "/d"], ["log"]):
            outcome = cli(*verb, *here)
            assert outcome.status == exits.DEADLINE, verb
            assert "NoQuorum: the namespace needs 3 of 5 voters and has 2" in outcome.err
            assert names in outcome.err


# The event log.


@pytest.mark.parametrize(
    ("news", "lines"),
    [
        ({}, []),
        (
            {"state": "rebuilding", "stripes_left": 3, "bytes_left": 3 * MIB},
            ["repair: rebuilding, 3 stripes and 3.0 MiB left, 0 B/s"],
        ),
        (
            {"state": "reshaping", "stripes_left": 3, "bytes_left": 3 * MIB,
             "bytes_per_s": 2 * MIB, "eta_s": 1.5, "lost": 2},
            [
                "repair: reshaping, 3 stripes and 3.0 MiB left, 2.0 MiB/s, about 1.5 s",
                "repair: 2 stripes are lost: too few of their shards are left",
            ],
        ),
        (
            {"state": "rebuilding", "stripes_left": 1, "share": 0.45, "slower": 2.91},
            [
                "repair: rebuilding, 1 stripes and 0 B left, 0 B/s",
                "repair: takes 45% of the time while clients are at work, whose commands take "
                "2.9 times as long as without it",
            ],
        ),
        ({"waiting": 4}, ["repair: 4 stripes wait for agents that may come back"]),
        ({"unprotectable": 4}, ["repair: 4 stripes cannot be protected: no agent has room"]),
    ],
)  # fmt: skip
def test_status_tells_of_repair_while_there_is_something_to_tell(
    news: dict[str, Any], lines: list[str]
) -> None:
    assert repair_lines(RepairStatus(**news)) == lines


@pytest.mark.parametrize(
    ("news", "line"),
    [
        ({"state": "idle"}, ""),
        ({"state": "waiting"}, ""),
        ({"state": "moving", "bytes_left": 3 * MIB}, "balance: 3.0 MiB left, 0 B/s ("),
        (
            {"state": "moving", "bytes_left": 3 * MIB, "bytes_per_s": MIB, "eta_s": 3.0},
            "balance: 3.0 MiB left, 1.0 MiB/s, about 3 s (fullest agent 80%, mean 60%",
        ),
        ({"state": "waiting", "bytes_left": 3 * MIB}, "balance: 3.0 MiB wait until all agents are"),
        ({"state": "settled"}, "balance: as even as hosts and m+k allow (fullest agent 80%"),
    ],
)
def test_status_tells_what_moves_to_agents_with_more_room(news: dict[str, Any], line: str) -> None:
    found = balance_lines(BalanceStatus(**news, fullest_share=0.8, mean_share=0.6))
    assert len(found) == bool(line)
    assert "".join(found).startswith(line)


# Maintenance.


def test_an_agent_is_drained_and_taken_into_service_again(
    cli: Cli, shared: LocalCluster, store: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(content(MIB))
    for n in range(4):
        cli("put", tmp_path / "a", f"{store}/{n}")
    drained = cli("drain", "agent-1", "--json")
    assert drained.json == {
        "slot": "agent-1", "draining": True, "changed": True, "shards_left": 0,
    }  # fmt: skip
    assert "draining: agent-1" in cli("status").text
    assert not any(
        place.slot == 1
        for n in range(4)
        for stripe in stripes_of(shared, f"{store}/{n}")
        for place in stripe.places
    )
    refused = cli("drain", "2")
    assert refused.status == exits.TOO_FEW_AGENTS
    assert "1 agents would be left" in refused.err
    assert "takes shards again" in cli("drain", "1", "--undo").text
    assert cli("drain", "1", "--undo", "--json").json["changed"] is False
    assert "agent-1 drains" in cli("log").text


def test_a_restart_names_slots_or_is_rolling(cli: Cli, store: str) -> None:
    for arguments in ([], ["1", "--rolling"]):
        assert cli("restart", *arguments).status == exits.USAGE
    assert "lives and ends in the process" in cli("restart", "1").err


def test_log_tells_what_happened(cli: Cli, store: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 2048)
    cli("put", tmp_path / "a", f"{store}/a")
    cli("mv", f"{store}/a", f"{store}/b\n")
    cli("rm", f"{store}/b\n")
    lines = cli("log").text.splitlines()
    said = [re.sub(r"^ *\d+  \d{4}-\d\d-\d\d [\d:]{8}  \S+ +", "", line) for line in lines]
    said = [text for text in said if not text.startswith("session")]
    assert said[-3:] == [
        f"put {store}/a 2.0 KiB", f"rename {store}/a to {store}/b?", f"delete {store}/b?",
    ]  # fmt: skip
    (event,) = cli("log", "-n", "1", "--json").json
    assert event["kind"] == "delete"
    assert event["text"] == f"delete {store}/b\n"
    assert event["op"] > 0
    assert cli("log", "-n", "0", "--json").json == []
    assert cli("log", "-n", "-1").status == exits.USAGE


def test_log_follows_and_shows_nothing_twice(shared: LocalCluster, store: str) -> None:
    with (
        shared.connect() as client,
        subprocess.Popen(
            [*PROGRAM, "log", "--follow", "--json", "-n", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as following,
    ):
        assert following.stdout is not None
        first = json.loads(following.stdout.readline())
        client.write(f"{store}/1", b"1")
        client.write(f"{store}/2", b"2")
        seen = [first]
        while seen[-1]["text"] != f"put {store}/2 1 B":
            seen.append(json.loads(following.stdout.readline()))
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=60)
    ops = [event["op"] for event in seen]
    assert ops == sorted(ops)
    assert [event["text"] for event in seen].count(f"put {store}/1 1 B") == 1
    assert following.returncode == exits.INTERRUPTED
    assert err == b""


# As a process.


def test_ctrl_c_ends_quietly(store: str) -> None:
    with subprocess.Popen(
        [*PROGRAM, "status", "--watch", "--json", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["margin"] == 1
        assert json.loads(watching.stdout.readline())["margin"] == 1
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=60)
    assert watching.returncode == exits.INTERRUPTED
    assert err == b""


def test_a_reader_that_goes_away_ends_it_quietly(cli: Cli, store: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(8 * MIB))
    cli("put", tmp_path / "a", f"{store}/a")
    with subprocess.Popen(
        [*PROGRAM, "cat", f"{store}/a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as cat:
        assert cat.stdout is not None
        cat.stdout.read(10)
        cat.stdout.close()
        assert cat.stderr is not None
        err = cat.stderr.read()
        cat.wait(60)
    assert cat.returncode == exits.BROKEN_PIPE
    assert err == b""


def test_verbs_that_need_no_ray_do_not_import_it(store: str) -> None:
    code = (
        "import sys; from diskless.cli import run; status = run(sys.argv[1:]); "
        "sys.exit(f'imported {slow}' if (slow := {'ray', 'grpc', 'pyeclib', 'rich', 'psutil'} "
        "& sys.modules.keys()) else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, "ls", "/"], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_up_with_other_settings_says_which_differ(cli: Cli, shared: LocalCluster) -> None:
    outcome = cli("up", "--name", shared.settings.name, "--memory", "128MiB")
    assert outcome.status == exits.CLUSTER_EXISTS
    assert "memory_bytes 268435456, not 134217728" in outcome.err


def test_up_takes_what_it_is_not_told_from_the_cluster(cli: Cli, shared: LocalCluster) -> None:
    outcome = cli("up", "--name", shared.settings.name)
    assert outcome.status == exits.OK
    assert b"is up already: 3 agents, 1+1" in outcome.out


def test_up_adds_no_agents_to_a_cluster_of_another_process(cli: Cli, shared: LocalCluster) -> None:
    outcome = cli("up", "--name", shared.settings.name, "--agents", "4")
    assert outcome.status == exits.USAGE
    assert "lives and ends in the process that made it" in outcome.err
