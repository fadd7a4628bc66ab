"""Plans a repair from what the ledger keeps up to date, without looking at what is well.

`survey` is a generator: it yields whenever it has done enough at a stretch, so that whoever
drives it can let others have their turn, and returns the plan. It reads the state as it is
at each step; stripes that come or go meanwhile are the next plan's.
"""

from collections.abc import Generator

from diskless.namespace.ledger import Ledger
from diskless.repair import Cluster, RepairPlan

STRETCH_STEPS = 1000
TRIAGE_STEPS = 10
"""What judging costs beside noting a block of stripes: to find out whether there is an agent
for a shard takes some ten microseconds."""


def survey(ledger: Ledger, cluster: Cluster) -> Generator[None, None, RepairPlan]:
    health = ledger.health
    while not health.settle():
        yield
    plan = RepairPlan(cluster)
    steps = 0
    planned: set[int] = set()
    for groups in health.ailing(data_shards=cluster.data_shards, shares_hosts=cluster.shares_hosts):
        for group in groups:
            if steps >= STRETCH_STEPS:
                steps = 0
                yield
            steps += 1
            if group.stripes and group.id not in planned:
                planned.add(group.id)
                plan.add(group)
                steps += TRIAGE_STEPS + len(group.blocks)
    for entry in list(ledger.live_among(stripe for stripe, _ in cluster.damaged)):
        if steps >= STRETCH_STEPS:
            steps = 0
            yield
        plan.add_damaged(entry.stripe, entry.number, entry.priority)
        steps += 2 * TRIAGE_STEPS
    return plan
