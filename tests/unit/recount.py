"""The model of what the indices keep up to date: everything counted from scratch, each
stripe and shard for itself."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from diskless.model import AgentInfo, Place, ShardName, Stripe
from diskless.namespace import weights
from diskless.namespace.ledger import Ledger
from diskless.namespace.sparse import BUCKETS
from diskless.namespace.state import NamespaceState
from diskless.namespace.survey import survey
from diskless.namespace.tier import is_cold
from diskless.repair import Cluster, RepairPlan, Single


def hosts_left(shard_hosts: list[str], needed: int) -> int:
    """How many hosts may die: takes the fullest, again and again."""
    lost = -1
    left = list(shard_hosts)
    while len(left) >= needed:
        lost += 1
        if not left:
            break
        worst = max(set(left), key=left.count)
        left = [host for host in left if host != worst]
    return lost


def live_stripes(ledger: Ledger) -> list[Stripe]:
    return [e.stripe for id_, e in ledger.entries.items() if id_ not in ledger.freed_ms]


def recount(state: NamespaceState, damaged: Collection[ShardName] = ()) -> dict[str, Any]:
    here = {
        Place(agent.slot, agent.incarnation): agent.host
        for agent in state.agents.values()
        if agent.up
    }
    standings = {"total": 0, "healthy": 0, "degraded": 0, "lost": 0}
    margins: dict[int, tuple[int, int]] = {}
    placed: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    at: Counter[Place] = Counter()
    for stripe in live_stripes(state.ledger):
        placed.update(place.slot for place in stripe.places)
        at.update(stripe.places)
        shard_bytes = -(-stripe.payload_bytes // stripe.data_shards)
        sizes.update({place.slot: shard_bytes for place in stripe.places})
        on = [
            here[place]
            for index, place in enumerate(stripe.places)
            if place in here and (stripe.id, index) not in damaged
        ]
        spare = len(on) - stripe.data_shards
        standings["total"] += 1
        standings[
            "lost" if spare < 0 else "healthy" if spare >= stripe.parity_shards else "degraded"
        ] += 1
        found = max(spare, -1), hosts_left(on, stripe.data_shards)
        known = margins.get(stripe.parity_shards, found)
        margins[stripe.parity_shards] = min(known[0], found[0]), min(known[1], found[1])
    return {
        "standings": standings,
        "margins": {
            parity: tuple(
                min(parity, *(found[at] for other, found in margins.items() if other >= parity))
                for at in (0, 1)
            )
            for parity in margins
        },
        "placed": dict(placed),
        "bytes": dict(sizes),
        "at": dict(at),
    }


def counted(state: NamespaceState, damaged: Collection[ShardName] = ()) -> dict[str, Any]:
    """The same from the indices."""
    ill = state.ledger.live_among(stripe for stripe, _ in damaged)
    tally = state.health.tally(damaged, ((entry.group, entry.stripe) for entry in ill))
    return {
        "standings": tally.standings,
        "margins": {
            parity: (tally.margin(parity), tally.margin_hosts(parity)) for parity in tally.classes
        },
        "placed": {slot: n for slot, n in state.health.shards_placed.items() if n},
        "bytes": {slot: n for slot, n in state.health.bytes_placed.items() if n},
        "at": dict(state.health.shards_at),
    }


def planned(ledger: Ledger, cluster: Cluster) -> RepairPlan:
    """The plan from the indices, all its steps at once."""
    steps = survey(ledger, cluster)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            plan: RepairPlan = done.value
            return plan


def lists_of(plan: RepairPlan) -> dict[str, Any]:
    lists = {
        "lost": plan.lost, "waiting": plan.waiting, "stuck": plan.stuck,
        "rebuild": plan.rebuild, "reshape": plan.reshape,
    }  # fmt: skip
    return {
        name: (list(stripes), stripes.stripes, stripes.payload_bytes)
        for name, stripes in lists.items()
    }


def check_plan(ledger: Ledger, cluster: Cluster) -> None:
    model = RepairPlan(cluster)
    for id_, entry in ledger.entries.items():
        if id_ not in ledger.freed_ms:
            model.add(Single(entry.stripe, entry.number, entry.priority))
    assert lists_of(planned(ledger, cluster)) == lists_of(model)


def check_sparse(ledger: Ledger) -> None:
    """Every stripe that is partly dead is there, sparsest first up to a bucket."""
    shares = {
        entry.stripe.id: entry.live_bytes / entry.stripe.payload_bytes
        for entry in ledger.entries.values()
        if 0 < entry.live_bytes < entry.stripe.payload_bytes
    }
    found = list(ledger.partly_dead.sparsest(lambda group: True))
    assert sorted(id_ for _, id_ in found) == sorted(shares)
    assert all(least <= shares[id_] < least + 1 / BUCKETS for least, id_ in found)
    assert [least for least, _ in found] == sorted(least for least, _ in found)
    readable = {id_ for _, id_ in ledger.partly_dead.sparsest(ledger.health.is_readable)}
    assert readable == {
        id_ for id_ in shares if ledger.health.is_readable(ledger.entries[id_].group)
    }


def check_tier(state: NamespaceState) -> None:
    """What is known of the tier against a count over all files: whose bytes are in which segment,
    and who has them there alone."""
    tier = state.tier
    kept = {id_: tier.parts(id_) for id_ in tier.places}
    assert kept.keys() <= set(state.files), "a place of a file that is gone"
    live: Counter[int] = Counter()
    for parts in kept.values():
        for place in parts:
            live[place.segment] += place.stored_bytes
    assert tier.parts_kept == sum(len(parts) for parts in kept.values() if len(parts) > 1)
    assert {number: one.live_bytes for number, one in tier.segments.items()} == live
    assert tier.live_bytes == live.total()
    names = [one.name for one in tier.segments.values()]
    assert tier.segments_bytes_used == sum(map(weights.segment_bytes, names))
    cold = {id_: file.record.size for id_, file in state.files.items() if is_cold(file.record)}
    assert dict(tier.cold) | dict(tier.evicted) == cold
    assert not tier.cold.keys() & tier.evicted.keys()
    assert tier.cold_bytes == sum(tier.cold.values())
    assert tier.evicted_bytes == sum(tier.evicted.values())
    assert tier.attached or not (kept or cold)


def cluster_of(
    agents: dict[int, AgentInfo], *, data_shards: int, parity_shards: int, **more: Any
) -> Cluster:
    return Cluster(
        agents=dict(agents), data_shards=data_shards, parity_shards=parity_shards, **more
    )
