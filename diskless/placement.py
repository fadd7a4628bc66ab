"""Where shards go: a pure choice of distinct agents, spread over failure domains."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from diskless.errors import TooFewAgents
from diskless.model import AgentInfo


def full_width(*, data_shards: int, parity_shards: int) -> int:
    """How many data shards a stripe of so much parity has if there are agents for all: m. Without
    parity it is one: several would only be lost with more agents."""
    return data_shards if parity_shards else 1


def stripe_width(*, data_shards: int, parity_shards: int, alive: int) -> int:
    """How many data shards a stripe can have now: all of them, or fewer when agents are missing.

    It always gets all its parity shards; without one agent more than these that is impossible
    and TooFewAgents is raised.
    """
    data_shards = full_width(data_shards=data_shards, parity_shards=parity_shards)
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


def staying(agents: Sequence[AgentInfo], *, enough: int) -> Sequence[AgentInfo]:
    """Those whose ends are not announced; all of them if these would be fewer than `enough`: what
    was announced may be wrong, and a write that is refused is lost for certain."""
    found = [agent for agent in agents if not agent.ends_ms]
    return found if len(found) >= enough else agents


def steady(
    agents: Sequence[AgentInfo], *, unsteady: Collection[int], enough: int
) -> Sequence[AgentInfo]:
    """Those that do not come and go, if these are `enough` and on as many hosts as shards of a
    stripe would be on; else all of them: a stripe is never narrower, or closer together, for it.
    """
    found = [agent for agent in agents if agent.slot not in unsteady]
    hosts = min(len({agent.host for agent in agents}), enough)
    fit = len(found) >= enough and len({agent.host for agent in found}) >= hosts
    return found if fit else agents


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
    turned = hosts[start:] + hosts[:start]
    held = Counter(avoid)
    free = list(islice((host for host in turned if not held[host]), count))
    if len(free) == count:  # as nearly always where hosts are many: none gives two
        return [by_host[host][turn // len(hosts) % len(by_host[host])] for host in free]
    choice: list[tuple[int, int, int]] = []
    for order, host in enumerate(turned):
        slots = by_host[host]
        # Not by `turn` itself: in step with the hosts it would always find the same slots.
        first = turn // len(hosts) % len(slots)
        for depth, slot in enumerate(slots[first:] + slots[:first]):
            choice.append((held[host] + depth, order, slot))
    return [slot for _, _, slot in sorted(choice)[:count]]
