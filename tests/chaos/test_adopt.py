"""A cluster between two Rays, adopted by the second one slot at a time."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from diskless.cli import exits
from diskless.client import connect, descriptor
from diskless.config import MIB
from diskless.launch.record import record_of
from tests.chaos.ray_hosts import RayHosts
from tests.support import Program, content, eventually, is_whole, states

SMALL = ("--agents", "3", "-m", "2", "-k", "1", "--memory", "64MiB")
DATA = content(2 * MIB + 3)
WAIT_S = 90.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def rays(tmp_path: Path) -> Iterator[tuple[RayHosts, RayHosts]]:
    with ExitStack() as until_done:
        made = []
        for name in ("first", "second"):
            logs = tmp_path / name
            logs.mkdir()
            ray = RayHosts(logs)
            until_done.callback(ray.close)
            ray.start_head()
            made.append(ray)
        yield made[0], made[1]


def test_a_cluster_that_is_half_adopted_is_not_forgotten(
    rays: tuple[RayHosts, RayHosts],
) -> None:
    first, second = rays
    program = Program(f"a-{secrets.token_hex(3)}")
    program.ok("up", *SMALL, "--ray-address", first.ray)
    try:
        with connect(program.name) as client:
            client.write("/kept", DATA)
            program.ok("chaos", "kill", "2", "--stay-dead")
            eventually(lambda: states(client) == ["up", "up", "down"], WAIT_S)
            done = program.ok("adopt", "--ray-address", second.ray)
            assert done == {"adopted": ["agent-2"], "unsupervised": ["agent-0", "agent-1"]}
            assert is_whole(client, 3)
            assert record_of(descriptor.load(program.name)).adopting

            line = program.refused(exits.LAUNCH_FAILED, "down", "--discard")
            assert "agent-0, agent-1 of cluster" in line
            assert states(client) == ["up"] * 3, "nothing was ended"
            assert client.read("/kept") == DATA

            back = program.ok("adopt", "--ray-address", first.ray)
            assert back["unsupervised"] == ["agent-2"]
    finally:
        second.close()
        program.ok("down", "--discard")
    assert not descriptor.descriptor_path(program.name).exists()
