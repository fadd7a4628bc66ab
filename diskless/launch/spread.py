"""Which Ray node each agent runs on, and what an operator should know about that.

With as many nodes as agents, a placement group spreads them strictly: no two agents on
one node, also after restarts. With fewer, agents take turns over the nodes. Ray's soft
affinity is no affinity for actors that ask for no CPU, so it is hard: an agent whose node
is gone stays dead until `diskless chaos revive` puts it elsewhere.
"""

import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from diskless.config import ClusterSettings
from diskless.errors import LaunchFailed

GROUP_TIMEOUT_S = 30.0
BUNDLE = {"CPU": 0.001}
"""Ray wants a bundle to ask for something; agents themselves ask for nothing."""


class RayNode(NamedTuple):
    id: str
    hostname: str
    address: str

    @property
    def host(self) -> str:
        return f"{self.hostname}/{self.address}"

    @property
    def here(self) -> bool:
        return self.hostname == socket.gethostname()


def living_nodes() -> list[RayNode]:
    return sorted(
        RayNode(node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"]
    )


def on_one_host(nodes: Iterable[RayNode]) -> bool:
    return len({node.host for node in nodes}) == 1


def make_group(name: str, *, agents: int, nodes: Sequence[RayNode]) -> None:
    """Reserves a node for each agent, if there are enough. Raises LaunchFailed."""
    if len(nodes) < max(agents, 2):
        return
    group = placement_group([BUNDLE] * agents, strategy="STRICT_SPREAD", name=name,
                            lifetime="detached")  # fmt: skip
    if not group.wait(GROUP_TIMEOUT_S):
        raise LaunchFailed(f"Ray did not spread {agents} agents over {len(nodes)} nodes")


def remove_group(name: str) -> None:
    group = _group(name)
    if group is not None:
        remove_placement_group(group)


def strategy_for(slot: int, *, group: str, taken: Counter[str], pinned: bool) -> Any:
    """How Ray must schedule an agent, given how many agents each node (by id) has.

    `pinned` ties it to a node also where there is only one yet.
    """
    found = _group(group)
    if found is not None:
        return PlacementGroupSchedulingStrategy(found, placement_group_bundle_index=slot)
    nodes = living_nodes()
    if len(nodes) == 1 and not pinned:
        return "DEFAULT"
    chosen = min(nodes, key=lambda node: (taken[node.id], node.id))
    taken[chosen.id] += 1
    return affinity(chosen.id)


def affinity(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def _group(name: str) -> PlacementGroup | None:
    try:
        return ray.util.get_placement_group(name)
    except ValueError:
        return None


def advise(settings: ClusterSettings, hosts: Sequence[str]) -> list[str]:
    """What the loss of a host means, given the host of each agent."""
    k = settings.parity_shards
    counts = Counter(hosts)
    if len(counts) == 1:
        return [
            "failure domains are processes on one host: any "
            f"{_agents(k)} may die, but losing the host loses everything"
        ]
    worst = max(counts.values())
    if worst > k:
        return [
            f"{len(counts)} hosts for {len(hosts)} agents: a host has up to {worst} of them, "
            f"and only {k} may die at once: use more hosts, or a larger k"
        ]
    if worst > 1:
        return [f"a host has up to {worst} agents: {k // worst} of the hosts may die at once"]
    return []


def _agents(count: int) -> str:
    return "agent" if count == 1 else f"{count} agents"
