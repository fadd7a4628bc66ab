"""How many agents are down now, and whether a fault may take more: pure.

Two witnesses. The cluster's status knows what was lost and not rebuilt, but notices a
frozen or cut off agent only after `failure_timeout`, and a flipped byte only when it is
read. The record of planted faults knows those at once. An agent counts once, whichever
witness names it; what the margin lacks beyond the agents that are named counts too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from diskless.errors import OverBudget
from diskless.model import AgentStatus, ClusterStatus, parse_slot, slot_name

HARMLESS = frozenset({"fill"})
"""Faults that make no byte harder to get: writes go elsewhere."""


class Active(Struct, frozen=True, kw_only=True):
    """A fault that was planted and not undone yet."""

    kind: str
    slots: tuple[int, ...]
    pids: dict[int, int] = {}
    """Of frozen processes: the ones to thaw."""
    incarnations: dict[int, int] = {}
    """Of killed agents: what they were, to tell when they have come back."""
    delay_ms: int = 0
    share: float = 0.0
    """Of the memory of an agent that is filled."""


class Down(Struct, frozen=True):
    """Why each slot counts as down, and how many losses are spent in all."""

    why: Mapping[int, str]
    spent: int


def count_down(
    status: ClusterStatus, active: Iterable[Active], damaged: Mapping[int, int] | None = None
) -> Down:
    """`damaged` tells how many shards with a byte that chaos flipped each slot still holds."""
    why: dict[int, str] = {}
    agents = {parse_slot(agent.slot): agent for agent in status.agents}
    for fault in active:
        if fault.kind in HARMLESS:
            continue
        for slot in fault.slots:
            if fault.kind != "kill":
                why.setdefault(slot, _PARTICIPLE[fault.kind])
            elif not _has_returned(agents[slot], fault.incarnations.get(slot, 0)):
                why.setdefault(slot, "killed")
    unnoticed = sum(agents[slot].state in ("up", "slow") for slot in why)
    damaged = damaged or {}
    if status.damaged_shards < sum(damaged.values()):
        unnoticed += sum(slot not in why for slot in damaged)  # Else the margin counts them all.
    for slot in damaged:
        why.setdefault(slot, "has corrupt shards")
    for slot, agent in agents.items():
        if agent.state != "up":
            why.setdefault(slot, "slow" if agent.state == "slow" else "dead")
    for voter in status.voters:
        if voter.lag is None and voter.role != "leader":
            why.setdefault(parse_slot(voter.slot), "recovering")
    lacking = status.parity_shards - status.margin
    return Down(why, max(len(why), lacking + unnoticed))


def _has_returned(agent: AgentStatus, incarnation: int) -> bool:
    """As a new life. What it held counts in the margin until it is rebuilt."""
    return agent.state in ("up", "slow") and agent.incarnation > incarnation


_PARTICIPLE = {
    "kill": "killed",
    "pause": "paused",
    "partition": "cut off",
    "slow": "slow",
    "corrupt": "has corrupt shards",
    "kill-host": "killed",
}


def affordable(down: Down, victims: Iterable[int], *, max_down: int) -> bool:
    return _after(down, victims) <= max_down


def refuse_beyond(down: Down, victims: Sequence[int], *, max_down: int, k: int) -> None:
    """Raises OverBudget, with why and what to do, unless the victims are affordable."""
    after = _after(down, victims)
    if after <= max_down:
        return
    named = ", ".join(f"{slot_name(slot)} {why}" for slot, why in sorted(down.why.items()))
    now = f"{down.spent} already down" + (f" ({named})" if named else "")
    if down.spent > len(down.why):
        now += f", {down.spent - len(down.why)} not re-protected yet"
    raise OverBudget(
        f"that would make {after} agents down, at most {max_down} may be: {now}; wait until "
        f"`diskless status` shows margin {k}, run `diskless chaos heal`, or allow more with "
        f"--max-down {after}"
    )


def _after(down: Down, victims: Iterable[int]) -> int:
    return down.spent + len(set(victims) - down.why.keys())


def lost_side(group: Collection[int], *, agents: int, voters: int) -> list[int]:
    """Which slots a partition takes away: the side without a majority of the voters."""
    inside = sorted(set(group))
    if 2 * sum(slot < voters for slot in inside) < voters:
        return inside
    return [slot for slot in range(agents) if slot not in set(inside)]
