"""What Spark's own checkpoint managers leave behind is known for what it is."""

from typing import Any

from diskless.client import Client
from diskless.launch.local import LocalCluster
from tests.support import leader


def test_a_temporary_file_of_sparks_own_manager_is_noted(
    spark: Any, jvm: Any, cluster: LocalCluster, client: Client, path: str
) -> None:
    conf = spark._jsc.hadoopConfiguration()
    client.mkdirs(path)
    jvm.io.diskless.spark.Suites.leaveTemporary(f"{cluster.uri}{path[1:]}", conf)
    (left,) = client.list(path)
    assert left.path.endswith(".tmp")
    state = leader(cluster).replica.state
    assert left.path in state.temporaries.by_path
