"""A cluster with a durable tier on a real Ray: everything dies, and comes back.

One tier for the tests in their order: each goes on where the one before ended.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diskless.cli import exits
from diskless.client import connect, descriptor
from diskless.config import KIB, MIB
from diskless.errors import NotFound, Restored
from diskless.launch import sessions
from diskless.launch.record import record_of
from tests.support import Program, content, ray_program

SMALL = ("--agents", "3", "-m", "2", "-k", "1", "--memory", "64MiB")
FILES = {f"/kept/{size}": content(size, seed=size) for size in (0, 1, 700, 300 * KIB, 5 * MIB + 3)}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('tier')}"


@pytest.fixture(scope="module")
def program(uri: str) -> Iterator[Program]:
    with ray_program(*SMALL, "--tier", uri) as (program, started):
        assert "is up: 3 agents, 2+1" in started.stdout
        yield program


def end_everything(program: Program) -> None:
    """SIGKILL to all agents and to Ray at once."""
    assert sessions.kill(record_of(descriptor.load(program.name)).holder) > 3


def test_what_was_flushed_survives_the_loss_of_all_agents_and_of_ray(
    program: Program, uri: str
) -> None:
    with connect(program.name) as witness:
        witness.write_many(FILES)
        for batch in range(3):
            witness.write(f"/q1/offsets/{batch}", b"o")
            witness.write(f"/q1/commits/{batch}", b"c")
        witness.write("/q1/offsets/3", b"o")
        assert program.ok("tier", "flush", "--wait")["behind"] == 0
        status = program.ok("status")["tier"]
        assert (status["uri"], status["state"], status["last_error"]) == (uri, "draining", "")
        assert program.ok("tier", "verify", "--full")["sound"] is True

        end_everything(program)
        line = program.refused(exits.UNAVAILABLE, "up")
        assert f"`diskless up --restore {uri} --cluster {program.name}`" in line

        back = program.ok("up", "--restore", uri)
        assert back["restored"]["epoch"] == 2
        assert back["restored"]["checkpoints"] == [{"path": "/q1", "batch": 2}]
        with connect(program.name) as client:
            assert {path: client.read(path) for path in FILES} == FILES
        with pytest.raises(Restored, match="restart the query"):
            witness.write("/late", b"of an earlier life")
    with connect(program.name) as client, pytest.raises(NotFound):
        client.stat("/late")


def test_a_token_of_the_first_life_is_good_in_the_second(program: Program) -> None:
    keyring = descriptor.load(program.name).keyring
    with connect(program.name, token=keyring.client("q", paths=["/kept"]).token) as client:
        assert client.read("/kept/700") == FILES["/kept/700"]


def test_down_brings_all_to_the_tier_and_a_restore_with_another_shape_brings_it_back(
    program: Program, uri: str
) -> None:
    with connect(program.name) as client:
        client.write("/kept/last", b"just before the end")
    ended = program.run("down")
    assert ended.returncode == 0
    assert "all of it in its tier" in ended.stdout
    assert f"--restore {uri}" in program.refused(exits.UNAVAILABLE, "ls", "/")
    assert "is down already" in program.refused(exits.FILES_EXIST, "down")

    back = program.run("up", "--restore", uri, "--agents", "4", "-m", "1", "-k", "1")
    assert back.returncode == 0, back.stderr
    assert "checkpoint /q1: batch 2 committed" in back.stdout
    with connect(program.name) as client:
        assert client.read("/kept/last") == b"just before the end"
        assert {path: client.read(path) for path in FILES} == FILES
    status = program.ok("status")
    assert (status["data_shards"], len(status["agents"]), status["tier"]["epoch"]) == (1, 4, 3)


def test_a_cluster_that_lives_is_not_restored_over(program: Program, uri: str) -> None:
    assert "is alive" in program.refused(exits.CLUSTER_EXISTS, "up", "--restore", uri)


def test_the_tier_of_another_cluster_is_refused_before_anything_starts(
    program: Program, uri: str
) -> None:
    other = Program(f"{program.name}-2")
    line = other.refused(exits.SUPERSEDED, "up", *SMALL, "--tier", uri)
    assert f"is the tier of cluster {program.name}" in line
    assert not descriptor.descriptor_path(other.name).exists()


def test_a_tier_is_taken_off_a_cluster_that_runs_and_added_again(
    program: Program, uri: str
) -> None:
    program.ok("tier", "detach")
    assert "this cluster has no tier" in program.refused(exits.USAGE, "tier", "flush")
    with connect(program.name) as client:
        client.write("/without", b"in memory")
        assert program.run("up", "--tier", uri).returncode == 0
        assert client.read("/kept/last") == b"just before the end"
    flushed = program.ok("tier", "flush", "--wait", "--timeout", "60")
    assert (flushed["uri"], flushed["behind"]) == (uri, 0)
    assert program.ok("tier", "verify", "--full")["sound"] is True
    assert Path(uri.removeprefix("file://")).exists()
