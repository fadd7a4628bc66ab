"""How much memory a cluster on this host may take, and how much there is. Imports no Ray."""

from pathlib import Path

import psutil

from diskless.config import GIB, MIB, ClusterSettings

PROCESS_SHARE = 1.25
"""Of `--memory`: what passes, and the holes in a heap."""
PROCESS_BYTES = 50 * MIB
"""The interpreter and its libraries."""
RAY_BYTES = GIB
"""Ray's own processes and its object store."""
HOST_SHARE = 0.5
"""Of a host's memory, at most so much by default: there is a Spark beside it."""
STEP_BYTES = 64 * MIB
"""The least that is good for bulk data."""
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of a container, by version 2 and by version 1."""


def agent_bytes(settings: ClusterSettings) -> int:
    """What the process of one agent takes once it is full."""
    return int(PROCESS_SHARE * settings.memory_bytes) + PROCESS_BYTES


def needed_bytes(settings: ClusterSettings) -> int:
    """What all agents and a Ray of their own take on one host once they are full."""
    return settings.agents * agent_bytes(settings) + RAY_BYTES


def default_memory(settings: ClusterSettings, host_bytes: int) -> int:
    """The memory of each agent if nobody says: what settings have, or less where all agents
    would take more than half of the host."""
    for_agents = int(HOST_SHARE * host_bytes) - RAY_BYTES
    each = (for_agents / settings.agents - PROCESS_BYTES) / PROCESS_SHARE
    fits = int(each // STEP_BYTES) * STEP_BYTES
    return max(min(settings.memory_bytes, fits), STEP_BYTES)


def total_bytes() -> int:
    """The memory of this host, or of the container that we are in."""
    return min(psutil.virtual_memory().total, *map(_limit, CGROUP_LIMITS))


def free_bytes() -> int:
    return min(psutil.virtual_memory().available, total_bytes())


def _limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    return int(text) if text.isdigit() else _NO_LIMIT


_NO_LIMIT = 1 << 62
