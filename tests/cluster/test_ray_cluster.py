"""A real cluster: Ray, agents as processes, SIGKILL, the command line as users run it.

One cluster serves most tests, because Ray takes seconds to start. A revived agent comes
back empty and the next test does not wait until what it held is rebuilt, so every test
that kills writes its own files first and revives afterwards. What the death of leaders
means for the namespace is tested in test_ray_leader.py, repair in test_ray_repair.py.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from diskless.cli import exits
from diskless.client import Client, connect, descriptor
from diskless.config import KIB, MIB
from diskless.errors import Unauthorized
from diskless.identity.claims import Credential
from diskless.launch.record import record_of
from diskless.model import parse_slot
from diskless.rpc.services import NAMESPACE
from tests.support import (
    Program,
    content,
    eventually,
    is_living,
    is_whole,
    ray_program,
    session_of,
    states,
)

SETTINGS = ("--agents", "6", "-m", "4", "-k", "2", "--memory", "128MiB")
VOTERS = 5
SIZES = (0, 1, 700, 20 * KIB, 300 * KIB, 3 * MIB + 5)

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """A cluster of six agents, 4+2, on a Ray of its own."""
    with ray_program(*SETTINGS) as (program, started):
        assert "is up: 6 agents, 4+2" in started.stdout
        assert "failure domains are processes on one host" in started.stderr
        yield program


@pytest.fixture
def client(program: Program) -> Iterator[Client]:
    with connect(program.name) as client:
        yield client


# Up.


def test_a_second_up_is_a_no_op(program: Program) -> None:
    before = [agent["pid"] for agent in program.ok("status")["agents"]]
    again = program.run("up", *SETTINGS)
    assert again.returncode == 0
    assert "is up already" in again.stdout
    assert program.ok("up", *SETTINGS)["started"] is False
    assert [agent["pid"] for agent in program.ok("status")["agents"]] == before


def test_up_with_other_settings_is_refused(program: Program) -> None:
    line = program.refused(exits.CLUSTER_EXISTS, "up", *SETTINGS[:-1], "256MiB")
    assert "memory_bytes 134217728, not 268435456" in line


def test_every_agent_is_a_process_of_its_own_that_serves(program: Program, client: Client) -> None:
    eventually(lambda: is_whole(client, 6))
    status = program.ok("status")
    assert status["parity_shards"] == 2
    pids = [agent["pid"] for agent in status["agents"]]
    assert len(set(pids)) == 6
    assert all("AgentActor" in " ".join(psutil.Process(pid).cmdline()) for pid in pids)
    assert {psutil.Process(pid).nice() for pid in pids} == {0}


def test_the_descriptor_and_the_sockets_are_private(program: Program) -> None:
    path = descriptor.descriptor_path(program.name)
    known = descriptor.load(program.name)
    token = Path(record_of(known).token)
    assert path.stat().st_mode & 0o777 == token.stat().st_mode & 0o777 == 0o600
    assert len(known.gateways) == 6
    for peer in known.gateways:
        assert Path(peer.socket).stat().st_mode & 0o777 == 0o600
        assert Path(peer.socket).parent.stat().st_mode & 0o777 == 0o700


def test_everything_listens_on_loopback_only(program: Program) -> None:
    holder = record_of(descriptor.load(program.name)).holder.pid
    addresses = {
        connection.laddr.ip
        for pid in session_of(holder)
        for connection in psutil.Process(pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


# The doors.


def test_a_wrong_token_is_refused_on_tcp(program: Program) -> None:
    known = descriptor.load(program.name)
    gateway = known.gateways[1].gateway
    guessed = Credential(known.keyring.client("q").text, bytes(32)).token
    line = program.refused(
        exits.UNAUTHORIZED, "--cluster", gateway, "ls", env={"DISKLESS_TOKEN": guessed}
    )
    assert "is not an agent of cluster" in line
    assert guessed not in line
    with pytest.raises(Unauthorized):
        connect(gateway, token=guessed, timeout_s=60)


def test_a_stranger_is_refused_on_grpc(program: Program) -> None:
    with grpc.insecure_channel(program.agent(0).address) as channel:
        exchange = channel.stream_stream(NAMESPACE.method)
        with pytest.raises(grpc.RpcError) as refused:
            next(iter(exchange(iter([b""]), timeout=60)))
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


# Losses.

REGARDLESS = ("--max-down", "6")
"""Other tests' files may not be protected again yet, and are of no concern here."""


def write_files(client: Client, directory: str) -> dict[str, bytes]:
    files = {f"{directory}/{size}": content(size, directory) for size in SIZES}
    for path, data in files.items():
        client.write(path, data)
    return files


def lose(program: Program, client: Client, *slots: int) -> None:
    """Files outlive the death of those agents, and new ones can be written meanwhile."""
    directory = f"/lost-{secrets.token_hex(4)}"
    files = write_files(client, directory)
    names = [str(slot) for slot in slots]
    killed = program.ok("chaos", "kill", *names, "--stay-dead", *REGARDLESS)["killed"]
    try:
        eventually(lambda: not any(is_living(victim["pid"]) for victim in killed))
        for path, data in files.items():
            assert client.read(path) == data
        late = content(2 * MIB, slots)
        client.write(f"{directory}/late", late)  # Narrower, but protected.
        assert client.read(f"{directory}/late") == late
    finally:
        program.ok("chaos", "revive", *names)
    for path, data in files.items():
        assert client.read(path) == data


@pytest.mark.parametrize("pair", [(0, 1), (2, 5)], ids=str)
def test_two_killed_agents_cost_no_byte(
    program: Program, client: Client, pair: tuple[int, int]
) -> None:
    lose(program, client, *pair)


def test_the_leader_and_its_successor_killed_cost_no_byte(program: Program, client: Client) -> None:
    leader = parse_slot(program.ok("status")["leader"])
    lose(program, client, leader, (leader + 1) % VOTERS)


def test_three_killed_agents_fail_loudly_and_never_wrongly(
    program: Program, client: Client, tmp_path: Path
) -> None:
    eventually(lambda: set(states(client)) == {"up"})  # so that all have shards of it
    files = write_files(client, "/triple")
    program.ok("chaos", "kill", "agent-1", "agent-3", "agent-5", "--stay-dead", *REGARDLESS)
    try:
        line = program.refused(exits.UNREADABLE, "get", f"/triple/{SIZES[-1]}", str(tmp_path / "x"))
        assert "3 of 4 required shards readable (gone: agent-1, agent-3, agent-5)" in line
        assert not (tmp_path / "x").exists()
        assert client.read("/triple/700") == files["/triple/700"]  # Inline: every voter has it.
    finally:
        program.ok("chaos", "revive", "1", "3", "5")
    again = write_files(client, "/after-triple")
    assert all(client.read(path) == data for path, data in again.items())
    program.ok("rm", "-r", "/triple")


def test_ray_restarts_a_killed_agent_and_it_joins_as_a_later_incarnation(
    program: Program,
) -> None:
    before = program.agent(4)
    program.ok("chaos", "kill", "4", *REGARDLESS)
    killed_s = time.monotonic()
    eventually(lambda: program.agent(4).incarnation > before.incarnation)
    eventually(lambda: program.agent(4).state == "up")
    print(f"rejoined after {time.monotonic() - killed_s:.1f} s")
    after = program.agent(4)
    assert after.pid != before.pid
    assert is_living(after.pid)


def test_revive_leaves_a_running_agent_alone(program: Program) -> None:
    before = program.agent(2)
    (revived,) = program.ok("chaos", "revive", "2")["revived"]
    assert revived["pid"] == before.pid
    assert program.agent(2).incarnation == before.incarnation


def test_chaos_refuses_what_it_should(program: Program) -> None:
    assert "there is no agent-6" in program.refused(exits.USAGE, "chaos", "kill", "6")
    assert "there is no agent-6" in program.refused(exits.USAGE, "chaos", "revive", "agent-6")
    assert "twice" in program.refused(exits.USAGE, "chaos", "kill", "1", "agent-1")


# The command line, on a real cluster.


def test_a_tree_goes_in_and_comes_out(program: Program, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    files = {f"in/f{size}": content(size) for size in SIZES} | {"in/sub/g": content(9 * MIB)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert len(program.ok("put", "-r", str(tmp_path / "in"), "/cli/")) == len(files)
    program.ok("mv", "/cli/in", "/cli/moved")
    program.ok("get", "-r", "/cli/moved", str(tmp_path / "out"))
    for name, data in files.items():
        assert (tmp_path / "out" / name.removeprefix("in/")).read_bytes() == data
    (counted,) = program.ok("du", "/cli")
    assert counted["bytes"] == sum(map(len, files.values()))
    program.ok("rm", "-r", "/cli")
    program.refused(exits.NOT_FOUND, "ls", "/cli")


# Down.


def test_down_refuses_while_files_exist_and_discard_leaves_nothing(
    program: Program, client: Client
) -> None:
    client.write("/precious", b"1")
    line = program.refused(exits.FILES_EXIST, "down")
    assert "--discard" in line
    assert client.read("/precious") == b"1"
    client.close()

    known = descriptor.load(program.name)
    record = record_of(known)
    directory = Path(known.gateways[0].socket).parent
    agents = [agent["pid"] for agent in program.ok("status")["agents"]]
    assert set(agents) < set(session_of(record.holder.pid))

    program.ok("down", "--discard")
    assert session_of(record.holder.pid) == []
    assert not any(is_living(pid) for pid in agents)
    assert not directory.exists()
    assert not descriptor.descriptor_path(program.name).exists()
    assert not Path(record.token).exists()
    assert "no cluster" in program.refused(exits.NO_CLUSTER, "status")


# Somebody else's Ray.


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def foreign_ray(tmp_path: Path) -> Iterator[str]:
    """A Ray as users start it: no token, memory monitor on."""
    directory = Path("/tmp") / f"dr-{secrets.token_hex(3)}"  # Ray wants a short path.
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port", "0", "--include-dashboard", "false", "--num-cpus", "2"),
        *("--ray-client-server-port", str(free_port()), "--object-store-memory", str(80 * MIB)),
        *("--disable-usage-stats", "--temp-dir", str(directory)),
    ]
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env["RAY_AUTH_MODE"] = "disabled"  # also where somebody's home has a token of Ray's
    with open(tmp_path / "ray.log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env,
            start_new_session=True,
        )  # fmt: skip
    address = directory / "ray_current_cluster"
    try:
        eventually(
            lambda: process.poll() is not None or (address.exists() and address.read_text()), 60
        )
        assert process.poll() is None, (tmp_path / "ray.log").read_text()
        yield address.read_text().strip()
    finally:
        for pid in session_of(process.pid):
            psutil.Process(pid).kill()
        process.wait(10)
        subprocess.run(["rm", "-rf", str(directory)], check=True)


def test_on_an_attached_ray_only_what_is_ours_is_ended(foreign_ray: str) -> None:
    program = Program(f"a-{secrets.token_hex(3)}")
    small = ("--agents", "3", "-m", "1", "-k", "1", "--memory", "64MiB")
    started = program.ok("up", *small, "--ray-address", foreign_ray)
    try:
        assert any("memory monitor" in line for line in started["advice"])
        assert any("niceness" in line for line in started["advice"])
        pids = [agent["pid"] for agent in program.ok("status")["agents"]]
        sockets = [Path(peer.socket) for peer in descriptor.load(program.name).gateways]
        assert all(path.exists() for path in sockets)
        elsewhere = {"DISKLESS_HOME": f"{descriptor.home()}-2"}
        line = program.refused(
            exits.CLUSTER_EXISTS, "up", *small, "--ray-address", foreign_ray, env=elsewhere
        )
        assert "is not known here" in line
        assert program.ok("status")["margin"] == 1, "a refused `up` ended somebody's agents"
    finally:
        program.ok("down", "--discard")
    assert not any(is_living(pid) for pid in pids)
    assert not any(path.exists() for path in sockets)
    again = program.ok("up", *small, "--ray-address", foreign_ray)
    assert again["started"], "the Ray, or names in it, did not survive `down`"
    program.ok("down")


def test_an_address_where_no_ray_is_starts_nothing() -> None:
    program = Program("nowhere")
    line = program.refused(exits.UNAVAILABLE, "up", "--ray-address", "127.0.0.1:1")
    assert "no Ray answers at 127.0.0.1:1" in line
    assert not descriptor.descriptor_path("nowhere").exists()
