"""The verbs of queries on a whole cluster: k agents and the leader die while they work, and a
checkpoint that comes from the tier goes back as any other."""

import threading
from collections.abc import Callable

import pytest

from diskless.client import Client
from diskless.errors import CheckpointInUse, DisklessError
from diskless.spark import queries
from diskless.spark.queries.access import files_below
from tests.cluster.test_tier import Clusters, clusters, drained  # noqa: F401 - a fixture
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, eventually, leader
from tests.unit.test_queries import checkpoint, commit, plan, put

BATCHES, BACK = 12, 4
ROUNDS = 200
"""Half of them at most before agents die."""


def below(client: Client, top: str) -> set[str]:
    return set(files_below(client, top))


def roll_back(client: Client, n: int) -> None:
    done = queries.rollback(client, {"/ck/q": BACK, "/ck/r": BACK})
    client.rollback_cut(done.snapshot)


def cut(client: Client, n: int) -> None:
    queries.cut(client, f"cut-{n}", ["/ck/q", "/ck/r"])
    queries.cut_back(client, f"cut-{n}")


def listed(client: Client, n: int) -> None:
    assert {one.path: one.last_batch for one in queries.ls(client)} == dict.fromkeys(
        ("/ck/q", "/ck/r"), BATCHES - 1
    )


VERBS: dict[str, Callable[[Client, int], object]] = {
    "rollback": roll_back,
    "clone": lambda client, n: queries.clone(client, "/ck/q", f"/canary/{n}", batch=BACK),
    "cut": cut,
    "trace": lambda client, n: queries.trace(client, "/ck/q", BACK),
    "show": lambda client, n: queries.show(client, "/ck/q"),
    "ls": listed,
}


@pytest.mark.parametrize("verb", VERBS)
def test_k_agents_and_the_leader_die_during_a_verb_of_a_query(
    start: StartCluster, connect: Connect, verb: str
) -> None:
    """Each round happened or did not, and a checkpoint is whole whenever one looks at it."""
    cluster = start(tuning=BRISK)
    client = connect(cluster, timeout_s=60)
    client._caller.application = ""
    for top in ("/ck/q", "/ck/r"):
        put(client, top, checkpoint(BATCHES))
    whole = {frozenset(checkpoint(BATCHES)), frozenset(checkpoint(BACK + 1))}
    done: list[int] = []
    failed: list[BaseException] = []
    killed, stop = threading.Event(), threading.Event()

    def work() -> None:
        try:
            for n in range(ROUNDS):
                if n == ROUNDS // 2:
                    killed.wait()
                if stop.is_set():
                    return
                VERBS[verb](client, n)
                done.append(n)
        except DisklessError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: failed or len(done) >= 2)
    cluster.kill(leader(cluster).slot, 5)
    before = len(done)
    killed.set()
    eventually(lambda: failed or len(done) > before, 60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not failed
    for top in ("/ck/q", "/ck/r"):
        assert below(client, top) in whole
    if verb == "clone":
        assert {one.path for one in client.list("/canary")} == {f"/canary/{n}" for n in done}
        assert below(client, f"/canary/{done[-1]}") == checkpoint(BACK + 1).keys()
    assert {one.path for one in client.list("/ck")} == {"/ck/q", "/ck/r"}


def test_a_lease_outlives_its_leader_and_ends_by_silence_alone(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=BRISK)
    operator, first, second = (connect(cluster) for _ in range(3))
    operator._caller.application = ""
    put(operator, "/q", checkpoint(2))
    first.write("/q/offsets/2", plan(2))
    cluster.kill(leader(cluster).slot)
    with pytest.raises(CheckpointInUse, match="/q is in use by"):
        second.write("/q/offsets/3", plan(3))

    def taken() -> bool:
        try:
            second.write("/q/offsets/3", plan(3))
        except CheckpointInUse:
            return False
        return True

    eventually(taken, 60)
    with pytest.raises(CheckpointInUse):
        first.write("/q/commits/2", commit(2))


def test_a_restored_checkpoint_goes_back_and_a_restore_of_that_has_it(
    clusters: Clusters,  # noqa: F811
) -> None:
    cluster = clusters.start()
    client = clusters.connect(cluster)
    put(client, "/ck/q", checkpoint(BATCHES))
    drained(client)
    cluster.kill(*list(cluster.nodes))
    again = clusters.restore()
    client = clusters.connect(again)
    assert below(client, "/ck/q") == checkpoint(BATCHES).keys()
    queries.rollback(client, {"/ck/q": BACK}, force=True)
    assert below(client, "/ck/q") == checkpoint(BACK + 1).keys()
    assert client.read(f"/ck/q/offsets/{BACK}") == plan(BACK)
    drained(client)
    again.kill(*list(again.nodes))
    client = clusters.connect(clusters.restore())
    assert below(client, "/ck/q") == checkpoint(BACK + 1).keys()
    assert below(client, f"/ck/q/.snapshot/before-batch-{BACK}") == checkpoint(BATCHES).keys()
