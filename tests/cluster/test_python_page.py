"""docs/python.md: every example runs as it is printed, and checkpoints survive kills.

dask, torch and what Ray's libraries need are not dependencies of diskless: where they are missing
these tests are skipped, and `pip install` in the reason says how to have them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diskless
from diskless.testing import Cluster

PAGE = Path(diskless.__file__).parents[1] / "docs/python.md"
PAGE_TIMEOUT_S = 100
RANKS = 2
PACKAGES = {"dask.dataframe": "'dask[dataframe]'", "upath": "universal-pathlib"}
"""Those that are not called like their modules."""
AT_ONCE = "\nimport os\nos._exit(0)\n"
"""Ends a program that has read Parquet. Arrow lets go of a file that is a Python object on a
thread of its own, after the read has returned: if the interpreter is ending just then, Arrow aborts
it, with a local file too (apache/arrow issue 33975; 2 of 120 programs here)."""


def examples(heading: str) -> str:
    """The Python of a section, as one program."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert blocks, heading
    return "\n".join(blocks)


def run(program: str, tmp_path: Path, **environment: str) -> str:
    """In a process of its own, as a user would, with the cluster of the test."""
    file = tmp_path / "example.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def needs(*modules: str) -> None:
    for module in modules:
        advice = f"not installed: pip install {' '.join(PACKAGES.get(one, one) for one in modules)}"
        pytest.importorskip(module, reason=f"{module} is {advice}")


def test_the_first_example(diskless_cluster: Cluster, tmp_path: Path) -> None:
    text = PAGE.read_text()
    first = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert first is not None
    run(first[1], tmp_path)


def test_pandas(diskless_cluster: Cluster, tmp_path: Path) -> None:
    run(examples("pandas") + AT_ONCE, tmp_path)


def test_the_fixture(tmp_path: Path) -> None:
    """With a conftest.py of a user, who knows nothing of ours."""
    blocks = re.findall(
        r"^```python\n(.*?)^```",
        PAGE.read_text().partition("## Testing your own job")[2],
        re.MULTILINE | re.DOTALL,
    )
    (tmp_path / "conftest.py").write_text(blocks[0])
    (tmp_path / "test_job.py").write_text(blocks[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_dask(diskless_cluster: Cluster, tmp_path: Path) -> None:
    needs("dask", "dask.dataframe")
    run(examples("Dask"), tmp_path)


@pytest.mark.slow
def test_torch(diskless_cluster: Cluster, tmp_path: Path) -> None:
    needs("torch")
    run(examples("PyTorch"), tmp_path)


@pytest.mark.slow
def test_lightning(diskless_cluster: Cluster, tmp_path: Path) -> None:
    """Agents are killed while it trains and saves, k at a time."""
    needs("torch", "lightning")
    with diskless_cluster.kills(seed=5) as killer:
        run(examples("Lightning"), tmp_path)
    assert killer.killed
    with diskless_cluster.connect() as client:
        assert "/runs/fit/last.ckpt" in [entry.path for entry in client.list("/runs/fit")]


@pytest.mark.slow
def test_hugging_face(diskless_cluster: Cluster, tmp_path: Path) -> None:
    needs("datasets", "transformers")
    run(examples("Hugging Face"), tmp_path, HF_HUB_OFFLINE="1", HOME=str(tmp_path))


@pytest.mark.slow
def test_universal_pathlib(diskless_cluster: Cluster, tmp_path: Path) -> None:
    needs("upath")
    run(examples("universal_pathlib"), tmp_path)


@pytest.mark.slow
def test_ray_tune(diskless_cluster: Cluster, tmp_path: Path) -> None:
    needs("pydantic", "tensorboardX")
    # Ray leaves a token in the home of whoever starts it, which every later Ray would demand.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    run(examples("Ray Train and Tune"), tmp_path, **quiet)


SAVED_BY_MANY = """
import os, sys, warnings
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

STEPS, SIZE = 6, 2_000_000


def tensor(step, mesh):
    return distribute_tensor(torch.arange(SIZE) + float(step), mesh, [Shard(0)])


def rank(number, ranks, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    for step in range(STEPS):
        dcp.save({"w": tensor(step, mesh)}, checkpoint_id=f"diskless:///train/{step}")
    for step in range(STEPS):
        again = {"w": tensor(-1, mesh)}
        dcp.load(again, checkpoint_id=f"diskless:///train/{step}")
        assert torch.equal(again["w"].to_local(), tensor(step, mesh).to_local()), step
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else RANKS
    torch.multiprocessing.spawn(rank, (ranks, STORE), nprocs=ranks)
    print("all steps are there")
"""


@pytest.mark.slow
def test_a_distributed_checkpoint_survives_kills_during_its_saves(
    diskless_cluster: Cluster, tmp_path: Path
) -> None:
    """Two ranks save shards of one tensor while agents are killed, the leader among them."""
    needs("torch")
    head = f"RANKS, STORE = {RANKS}, {str(tmp_path / 'store')!r}\n"
    with diskless_cluster.kills(seed=11) as killer:
        said = run(head + SAVED_BY_MANY, tmp_path)
    assert said == "all steps are there\n"
    assert len(killer.killed) >= 3
    with diskless_cluster.connect() as client:
        assert [entry.path for entry in client.list("/train")] == [f"/train/{n}" for n in range(6)]


@pytest.mark.slow
def test_more_than_k_losses_during_a_save_fail_loudly(
    diskless_cluster: Cluster, tmp_path: Path
) -> None:
    needs("torch")
    import torch
    import torch.distributed.checkpoint as dcp

    diskless_cluster.kill(0, 1, 2)
    with pytest.raises(dcp.CheckpointException):
        dcp.save({"w": torch.zeros(1_000_000)}, checkpoint_id="diskless:///lost")
