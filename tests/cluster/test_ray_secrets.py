"""No key, token or certificate's key is anywhere but where it must be, after all that makes agents
speak of them: starts, restarts, tickets, renewals, refusals, with the log at its loudest."""

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from diskless.cli import exits
from diskless.client import descriptor
from diskless.client.descriptor import Descriptor
from diskless.identity.claims import parse_token
from diskless.launch import rundir
from diskless.launch.audit import ID_CHARS
from diskless.launch.record import record_of
from tests.support import Program, eventually, ray_program, session_of

SETTINGS = ("--agents", "3", "-m", "1", "-k", "1", "--memory", "64MiB", "--tls")
CHUNK_BYTES = 1 << 20

pytestmark = pytest.mark.timeout(180)


class Run:
    """A cluster, all that its programs said, and what nobody else may know."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.said: list[str] = []
        self.known: Descriptor = descriptor.load(program.name)
        self.token = self.known.keyring.client("q1", paths=["/q1"]).token
        self.key_file = rundir.key_path(self.known.cluster)

    def do(self, *arguments: str, token: str = "", status: int = exits.OK) -> str:
        done = self.program.run(*arguments, env={"DISKLESS_TOKEN": token} if token else None)
        self.said += [done.stdout, done.stderr]
        assert done.returncode == status, done.stderr
        return str(done.stdout)

    def secrets(self) -> dict[str, bytes]:
        """Each in the forms in which a program might let it slip."""
        root = self.known.key
        body = "".join(self.known.authority_key.splitlines()[1:-1])
        credential = parse_token(self.token)
        admin = self.known.keyring.admin()
        return {
            "root key": root.encode(),
            "root key, upper case": root.upper().encode(),
            "root key, raw": bytes.fromhex(root),
            "root key, base64": base64.b64encode(bytes.fromhex(root)),
            "authority's key": body[40:100].encode(),
            "authority's key, raw": base64.b64decode(body)[40:64],
            "token": self.token.encode(),
            "token's key": credential.key,
            "token's key, written": self.token.rpartition(".")[2].encode(),
            "admin's key": admin.key,
            "admin's key, written": admin.token.rpartition(".")[2].encode(),
        }

    def found_in(self, data: bytes) -> list[str]:
        return [what for what, secret in self.secrets().items() if secret in data]

    def processes(self) -> list[psutil.Process]:
        holder = record_of(self.known).holder.pid
        return [psutil.Process(pid) for pid in session_of(holder)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    source = tmp_path_factory.mktemp("files") / "f"
    source.write_text("words " * 50_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISKLESS_LOG", "debug")
        with ray_program(*SETTINGS) as (program, started):
            patch.undo()
            run = Run(program)
            run.said += [started.stdout, started.stderr]
            live(run, source)
            yield run


def live(run: Run, source: Path) -> None:
    run.do("put", str(source), "/q1/f")
    run.do("get", "/q1/f", "-", token=run.token)
    run.do("ls", "/", token=run.token)
    run.do("drain", "1", token=run.token, status=exits.FORBIDDEN)
    run.do("ls", "/", token=run.token[:-2] + "AA", status=exits.UNAUTHORIZED)
    run.do("chaos", "kill", "1")
    run.do("chaos", "revive", "1")
    run.key_file.unlink()
    wait_whole(run)
    run.do("chaos", "kill", "2")
    run.do("chaos", "revive", "2")  # by a ticket: the file was gone
    run.do("tls", "renew")
    run.do("tls", "show", "--json")
    run.do("token", "revoke", "q9")
    run.do("token", "ls")
    run.do("up", *SETTINGS)
    wait_whole(run)
    for verb in ("status", "log"):
        run.do(verb)
        run.do(verb, "--json")
    run.do("up", "--memory", "1MiB", status=exits.USAGE)


def wait_whole(run: Run) -> None:
    eventually(lambda: run.program.ok("status")["margin"] == 1)


def test_the_keys_came_by_a_ticket_where_the_file_was_gone(run: Run) -> None:
    assert run.key_file.stat().st_mode & 0o777 == 0o600
    logs = "".join(path.read_text(errors="replace") for path in log_files(run))
    assert "this host does not have the cluster's keys" in logs


def log_files(run: Run) -> list[Path]:
    directory = rundir.run_dir(run.known.cluster)
    return [path for path in directory.rglob("*") if path.is_file() and path != run.key_file]


def test_nothing_is_in_a_log_or_any_other_file_of_the_cluster(run: Run) -> None:
    paths = log_files(run)
    assert any("worker" in path.name and path.suffix == ".err" for path in paths)
    assert {path: found for path in paths if (found := run.found_in(path.read_bytes()))} == {}


def test_audit_files_tell_who_did_what_and_have_no_key(run: Run) -> None:
    known = f"{run.known.name}-{run.known.cluster[:ID_CHARS]}"
    found = sorted((descriptor.home() / "audit" / known).rglob("audit-agent-*.log"))
    assert [path.name for path in found] == [f"audit-agent-{slot}.log" for slot in range(3)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)
    lines = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    puts = [line for line in lines if line["text"].startswith("put /q1/f ")]
    assert {line["who"] for line in puts} == {"admin"}
    kinds = {line["kind"] for line in lines}
    assert {"put", "token", "session", "gap", "refused"} <= kinds
    refused = " ".join(line["text"] for line in lines if line["kind"] == "refused")
    assert "Forbidden: drain needs the admin's key" in refused
    assert [path for path in found if run.found_in(path.read_bytes())] == []
    status = run.program.ok("status")
    assert status["audit_dropped"] == 0
    assert run.program.ok("log", "--path", "/q1/f", "--who", "admin", "--since", "1h")


def test_nothing_is_in_what_programs_said(run: Run) -> None:
    assert len(run.said) > 20
    assert run.found_in("\n".join(run.said).encode()) == []


def test_nothing_is_in_an_environment_or_an_argument_list(run: Run) -> None:
    seen = 0
    for process in run.processes():
        for name in ("environ", "cmdline"):
            data = Path(f"/proc/{process.pid}/{name}").read_bytes()
            assert run.found_in(data) == [], (process.pid, name)
            seen += bool(data)
    assert seen > 8


def test_rays_own_processes_have_nothing_in_memory(run: Run) -> None:
    """What an actor was told is in the memory of Ray's control store, for as long as it lives."""
    rays = [
        process
        for process in run.processes()
        if re.search("gcs_server|raylet", Path(process.cmdline()[0]).name)
    ]
    assert len(rays) == 2
    known = run.known.cluster.encode()
    told = False
    for process in rays:
        for data in memory_of(process.pid):
            assert run.found_in(data) == [], process.name()
            told |= known in data
    assert told, "the other arguments are there"


def memory_of(pid: int) -> Iterator[bytes]:
    """What a process has in memory that it may have written, in pieces that overlap."""
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except PermissionError:
        pytest.skip("this user may not look into its own processes")
    with os.fdopen(memory, "rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            tail = b""
            for at in range(start, end, CHUNK_BYTES):
                try:
                    piece = os.pread(file.fileno(), min(CHUNK_BYTES, end - at), at)
                except OSError:  # not mapped any more
                    break
                if piece.count(0) == len(piece):
                    tail = b""
                    continue
                yield tail + piece
                tail = piece[-512:]


def test_down_leaves_no_key(run: Run) -> None:
    """The last: it ends the cluster."""
    run.do("down", "--discard")
    assert not rundir.run_dir(run.known.cluster).exists()
    home = descriptor.home()
    left = [path for path in home.rglob("*") if path.is_file() and run.found_in(path.read_bytes())]
    assert left == []
