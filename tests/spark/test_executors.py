"""On `local-cluster`, where executors are JVMs of their own and get the jar by `spark.jars`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diskless.launch.local import LocalCluster
from tests.support import start_cluster

TIMEOUT_S = 240


@pytest.mark.slow  # test_streams.py has executors too; this adds tables and RDDs
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_executors_read_write_and_checkpoint() -> None:
    with start_cluster() as cluster:
        done = run(cluster)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout


def run(cluster: LocalCluster) -> "subprocess.CompletedProcess[str]":
    script = Path(__file__).parent / "executors.py"
    return subprocess.run(
        [sys.executable, str(script), cluster.uri],
        check=False, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ,
    )  # fmt: skip
