"""A cluster with TLS between its agents: it serves, heals, and renews its certificates."""

import threading

from diskless.config import MIB
from diskless.errors import DisklessError
from tests.cluster.test_lanes import all_up, lanes
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, CALM, content, eventually, is_whole, kill, leader, on_loop


def test_a_cluster_with_tls_serves_and_survives_k_losses(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(agents=7, tuning=BRISK, tls=True)
    client = connect(cluster)
    client.write("/a", content(8 * MIB))
    eventually(lambda: all_up(cluster))
    kill(cluster, 0, 3)
    assert client.read("/a") == content(8 * MIB)
    cluster.revive(0, 3)
    eventually(lambda: is_whole(client, 7))
    assert client.read("/a") == content(8 * MIB)
    refused = {why for node in cluster.nodes.values() for why in node.refusals.counts}
    assert refused <= {("grpc", "no call")}, "agents that were killed may have been about to call"


def test_certificates_are_renewed_under_load_and_no_operation_fails(
    start: StartCluster, connect: Connect
) -> None:
    """Streams that break after it come up again with the new certificates."""
    cluster = start(agents=7, tuning=CALM, tls=True)
    client, writer = connect(cluster), connect(cluster)
    done, failed = threading.Event(), []
    operations = 0

    def work() -> None:
        nonlocal operations
        while not done.is_set():
            data = content(2 * MIB, operations)
            try:
                writer.write(f"/load/{operations}", data)
                assert writer.read(f"/load/{operations}") == data
            except (DisklessError, OSError, AssertionError) as error:
                failed.append(error)
            operations += 1

    def break_streams() -> None:
        for node in cluster.nodes.values():
            for _, link in list(node.peers._links.values()):
                link.interrupt("to open it again")

    load = threading.Thread(target=work)
    load.start()
    try:
        for _ in range(3):
            seen = operations
            cluster.renew(*cluster.nodes)
            eventually(lambda seen=seen: operations > seen + 3)
            on_loop(cluster, break_streams)
            eventually(lambda seen=seen: operations > seen + 6)
    finally:
        done.set()
        load.join()
    assert failed == []
    client.write("/after", b"1")
    eventually(lambda: all(lanes(cluster, leader(cluster).slot)))
    assert client.read("/after") == b"1"
