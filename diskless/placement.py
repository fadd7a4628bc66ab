"""Where shards go: a pure choice of distinct agents, spread over failure domains."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from diskless.errors import TooFewAgents
from diskless.model import AgentInfo


def stripe_width(*, data_shards: int, parity_shards: int, alive: int) -> int:
    """How many data shards a stripe can have now: m, or fewer when agents are missing.

    It always gets all k parity shards; with fewer than k+1 agents that is impossible
    and TooFewAgents is raised.
    """
    if alive < parity_shards + 1:
        raise TooFewAgents(
            f"{alive} agents are alive, and a write that survives {parity_shards} losses "
            f"needs {parity_shards + 1}: refused until more are back"
        )
    return min(data_shards, alive - parity_shards)


def prompt(agents: Sequence[AgentInfo], *, enough: int) -> Sequence[AgentInfo]:
    """Those that are not slow; all of them if these would be fewer than `enough`.

    A stripe waits for the last of its shards, so it is better narrower than slow; and better
    slow than not written.
    """
    found = [agent for agent in agents if not agent.slow]
    return found if len(found) >= enough else agents


def place(
    agents: Iterable[AgentInfo], *, count: int, turn: int, avoid: Iterable[str] = ()
) -> list[int]:
    """`count` different slots, of as many different hosts as there are, in fair rotation.

    `turn` is a running number: it moves the start, so that all agents get their share.
    `avoid` are the hosts of the shards that this stripe has already, one for each: the more a
    host has, the later it is taken. Fewer slots are returned if there are fewer agents.
    """
    by_host: dict[str, list[int]] = defaultdict(list)
    for agent in sorted(agents, key=lambda agent: agent.slot):
        by_host[agent.host].append(agent.slot)
    hosts = sorted(by_host)
    start = turn % len(hosts) if hosts else 0
    held = Counter(avoid)
    choice: list[tuple[int, int, int]] = []
    for order, host in enumerate(hosts[start:] + hosts[:start]):
        slots = by_host[host]
        # Not by `turn` itself: in step with the hosts it would always find the same slots.
        first = turn // len(hosts) % len(slots)
        for depth, slot in enumerate(slots[first:] + slots[:first]):
            choice.append((held[host] + depth, order, slot))
    return [slot for _, _, slot in sorted(choice)[:count]]
