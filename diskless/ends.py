"""Announced ends: hosts that say they are about to go. Pure rules over the agents that they have.

What is announced is a guess of somebody else's. So an agent whose end is announced keeps all that
it has until it lies elsewhere, and is an agent like any other again if its host is still there
some time after it should have ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diskless.model import AgentInfo

GRACE_S = 10.0
"""How long after its announced end an agent that is still there is not trusted again: whoever ends
a host may be late."""
NO_DEADLINE_S = 86_400.0
"""What a host is taken to have left whose end is announced for no particular time."""
SHARE_OF_TIME = 0.5
"""What is left to move should take at most this part of the time that is left."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What somebody says of a host's end."""

    name: str
    """Who says it, and of when: the same words for the same announcement, whoever hears them."""
    left_s: float


def ending(agents: Mapping[int, AgentInfo]) -> frozenset[int]:
    """The slots of agents whose ends are announced."""
    return frozenset(slot for slot, agent in agents.items() if agent.ends_ms)


def unfounded(agents: Mapping[int, AgentInfo], *, elapsed_ms: int) -> list[AgentInfo]:
    """Agents that are up although they should have ended some time ago."""
    latest_ms = elapsed_ms - 1000 * GRACE_S
    return [agent for agent in agents.values() if agent.up and 0 < agent.ends_ms < latest_ms]


def unheard(
    agents: Iterable[AgentInfo], notices: Mapping[str, Notice]
) -> list[tuple[AgentInfo, Notice]]:
    """Agents with what is announced of their nodes, if that is news and not over for long."""
    found = ((agent, notices[agent.node]) for agent in agents if agent.node in notices)
    return [
        (agent, notice)
        for agent, notice in found
        if agent.up and agent.notice != notice.name and notice.left_s > -GRACE_S
    ]


def hurries(
    agents: Iterable[AgentInfo], *, elapsed_ms: int, bytes_left: int, bytes_per_s: float
) -> bool:
    """Whether moving what is left would take too much of the time that some agent has left: then
    clients have to bear it. So it is as long as nobody knows how fast it goes."""
    spare = [a.ends_ms - elapsed_ms for a in agents if a.up and a.ends_ms]
    if not spare or not bytes_left:
        return False
    return bytes_left > bytes_per_s * SHARE_OF_TIME * min(spare) / 1000
