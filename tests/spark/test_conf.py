"""What Spark is told, and what nobody else may see of it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from diskless.launch.local import LocalCluster
from diskless.node import gateway_port
from tests.support import start_cluster


def test_the_secret_is_on_no_command_line(spark: Any, cluster: LocalCluster) -> None:
    assert spark.conf.get("spark.hadoop.fs.diskless.secret") == cluster.secret  # it has arrived
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert any(b"SparkSubmit" in line for line in lines)
    assert not any(cluster.secret.encode() in line for line in lines)


def test_the_line_of_the_readme_needs_no_import_of_its_own() -> None:
    line = "import diskless; print(diskless.spark.configure.__name__); diskless.nothing"
    done = subprocess.run([sys.executable, "-c", line], check=False, capture_output=True, text=True)
    assert done.stdout == "configure\n"
    assert "has no attribute 'nothing'" in done.stderr


def test_an_agent_is_found_again_where_spark_was_told_it_is() -> None:
    with start_cluster(agents=3, data_shards=2, parity_shards=1) as cluster:
        before = {slot: node.gateway_address for slot, node in cluster.nodes.items()}
        for slot in before:
            cluster.kill(slot)
            cluster.revive(slot)
        wanted = {s: gateway_port(cluster.cluster_id, s) for s in before}
        for slot, node in cluster.nodes.items():
            if before[slot].endswith(f":{wanted[slot]}"):  # unless another program had it
                assert node.gateway_address == before[slot]
        assert any(before[slot].endswith(f":{wanted[slot]}") for slot in before)
