"""A drill restores a tier beside the cluster that goes on with it, and says what it found."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from diskless import cli
from diskless.cli import exits
from diskless.cli.status import summary_lines
from diskless.client import Client
from diskless.config import MIB, ClusterSettings, TierSettings
from diskless.errors import NotFound
from diskless.launch.local import LocalCluster
from diskless.operate.drill import drill
from tests.support import STRIPED, content, eventually, kill, leader

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def tier(tmp_path: Path) -> str:
    return f"file://{tmp_path}/tier"


@pytest.fixture
def drained(tier: str) -> Iterator[tuple[LocalCluster, Client]]:
    """A cluster whose files are all in its tier: small and large ones, and a snapshot's."""
    settings = ClusterSettings(
        name="drained", agents=4, data_shards=2, parity_shards=1, tuning=STRIPED,
        memory_bytes=128 * MIB,
    )  # fmt: skip
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(settings, tier=tier))
        client = stack.enter_context(cluster.connect())
        for n in range(20):
            client.write(f"/checkpoint/{n}", content(1000 + n, n))
        client.write("/large", content(9 * MIB))
        client.policies.set("/passing", "durability", "memory")
        client.write("/passing/f", content(1000))  # left out: a restored cluster has to say so
        client.snapshot("/checkpoint", "s")
        client.delete("/checkpoint/0")
        client.tier.flush()
        yield cluster, client


def objects(tier: str) -> dict[str, bytes]:
    root = Path(tier.removeprefix("file://"))
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the verb in this process; its exit status, and all that it said."""

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        status = cli.run(["tier", "drill", *arguments])
        return status, "".join(capsys.readouterr())

    return call


def test_a_drill_changes_nothing_of_the_tier_and_its_result_outlives_the_leader(
    tier: str, drained: tuple[LocalCluster, Client], run: Run
) -> None:
    cluster, client = drained
    before, epoch = objects(tier), client.status().tier.epoch
    status, said = run("--full", "--cluster", "drained")
    assert status == exits.OK, said
    assert said.startswith(f"drill of {tier}: sound: manifest ")
    assert said.count("\n") == 1
    assert "21 files and 9.0 MiB, all read" in said
    assert "a restore would serve after" in said
    assert objects(tier) == before
    found = client.status().tier.drill
    assert found is not None
    assert found.sound
    assert (found.files, found.files_read, found.full) == (21, 21, True)
    kill(cluster, leader(cluster).slot)
    eventually(lambda: leader(cluster))
    report = client.status()
    assert report.tier.drill == found
    assert report.tier.epoch == epoch
    assert [line for line in summary_lines(report) if line.startswith("drill: ")]
    client.write("/after", b"x")
    client.tier.flush()


def test_a_damaged_object_is_named_and_the_status_says_so(
    tier: str, drained: tuple[LocalCluster, Client], tmp_path: Path, run: Run
) -> None:
    _, client = drained
    segment = max((tmp_path / "tier" / "segments").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.chmod(0o600)
    segment.write_bytes(data)
    status, said = run("--full", "--cluster", "drained")
    assert status == exits.UNREADABLE, said
    assert "/large" in said
    found = client.status().tier.drill
    assert found is not None
    assert not found.sound
    assert "/large" in found.problem

    segment.unlink()
    status, said = run("--cluster", "drained", "--json")
    assert status == exits.UNREADABLE, said
    assert segment.name in said


def test_a_drill_needs_no_cluster(
    tier: str, drained: tuple[LocalCluster, Client], run: Run
) -> None:
    cluster, _ = drained
    cluster.close()
    result, problems = drill(TierSettings(uri=tier), full=True)
    assert (result.sound, problems, result.files_read) == (True, [], 21)
    status, said = run(tier)
    assert status == exits.OK, said


def test_where_there_is_no_tier_there_is_nothing_to_drill(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no tier"):
        drill(TierSettings(uri=f"file://{tmp_path}/nothing"), full=False)
