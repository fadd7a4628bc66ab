"""The nodes of a Ray, and how an agent is tied to one.

Ray's soft affinity is no affinity for actors that ask for no CPU, so it is hard: Ray
restarts an agent where it was and nowhere else, and gives it up when that node is gone.
Which node it gets is decided in `seats`; who brings it to another one, in `rehoster`.
"""

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskless.launch.seats import RayNode


def living_nodes() -> list[RayNode]:
    return sorted(
        RayNode(node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"]
    )


def affinity(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)
