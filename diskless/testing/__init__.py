"""For tests of your own programs: a cluster in the test's process, whose agents can be killed.

    from diskless.testing import Cluster

    with Cluster() as cluster:
        with cluster.kills(seed=1):
            train("diskless:///runs/1")          # your own code, unchanged
        assert cluster.connect().read("/runs/1/done") == b"yes"

With pytest, `pytest_plugins = ["diskless.testing.fixtures"]` in a conftest.py gives the fixtures
`diskless_cluster` and `make_diskless_cluster`. Nothing here imports pytest, Ray or Spark.
"""

from diskless.testing.cluster import Cluster, Killer

__all__ = ["Cluster", "Killer"]
