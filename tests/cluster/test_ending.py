"""An agent that ends takes no part from the moment on that its replica is closed."""

import asyncio
from typing import Any

import pytest

from diskless.errors import NotLeader, Unavailable
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from tests.conftest import StartCluster
from tests.support import leader, on_loop


@pytest.mark.parametrize("query", [q.Report(), q.Stat("/")])
def test_a_leader_that_ended_answers_nothing(start: StartCluster, query: q.Query) -> None:
    """Its doors are still open for a while: who asks shall turn to another one."""
    cluster = start(agents=4, data_shards=2, parity_shards=1)
    replica = leader(cluster).replica
    on_loop(cluster, replica.close)
    with pytest.raises(NotLeader):
        on_loop(cluster, lambda: replica.answer(query))
    assert not on_loop(cluster, lambda: replica.leads or replica.leads_majority)
    with pytest.raises(NotLeader):
        cluster.run(replica.execute(c.OpenSession()))


def test_who_waits_for_a_leader_that_ends_is_told(start: StartCluster) -> None:
    cluster = start(agents=4, data_shards=2, parity_shards=1)
    node = leader(cluster)

    async def end_meanwhile() -> Any:
        waiting = asyncio.create_task(node.replica.execute(c.OpenSession()))
        await asyncio.sleep(0)  # sent, and nobody can have answered
        node.replica.close()
        async with asyncio.timeout(10.0):
            return await waiting

    with pytest.raises(Unavailable):
        cluster.run(end_meanwhile())
