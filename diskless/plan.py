"""Sizing: what a code costs, what it survives, and how likely it is to lose something.

Pure arithmetic. Agents die independently of each other, each on average once in `mtbf_s`;
what the dead ones held is re-protected, one loss after the other, in `rebuild_s` each on
average. More than k losses that are not made good yet are counted as a loss of data. That is
on the safe side: with more agents than m+k some such losses hit no stripe and leave a majority
of the voters. What takes many agents at once (a rack, a bad upgrade) is not in it.
"""

import math
from dataclasses import dataclass, replace

from diskless.config import ClusterSettings
from diskless.errors import BadSettings

YEAR_S = 365.25 * 86400


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a plan is made for: one agent's memory, how often it dies, how long repair takes."""

    memory_bytes: int
    mtbf_s: float
    rebuild_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one choice comes to."""

    name: str
    agents: int
    losses_survived: int
    memory_per_byte: float
    room_bytes: int
    """Logical bytes that fit with all agents alive."""
    loss_per_year: float
    """The probability that something acknowledged is lost within a year."""
    mean_years_to_loss: float


def plan_code(
    given: Assumptions, *, data_shards: int, parity_shards: int, agents: int | None = None
) -> Plan:
    """A code on so many agents, by default as many as it needs. Raises BadSettings."""
    settings = ClusterSettings(
        data_shards=data_shards, parity_shards=parity_shards, memory_bytes=given.memory_bytes
    )
    settings = replace(settings, agents=agents or settings.agents_min).validate()
    return _plan(
        given,
        name=f"{data_shards}+{parity_shards}",
        agents=settings.agents,
        losses=parity_shards,
        per_byte=(data_shards + parity_shards) / data_shards,
    )


def plan_copies(given: Assumptions, *, copies: int, agents: int | None = None) -> Plan:
    """The same for whole copies, which is what people keep by hand."""
    return _plan(
        given,
        name=f"{copies} copies",
        agents=agents or copies,
        losses=copies - 1,
        per_byte=float(copies),
    )


def _plan(given: Assumptions, *, name: str, agents: int, losses: int, per_byte: float) -> Plan:
    mean_s = mean_time_to_loss_s(
        agents=agents, losses=losses, mtbf_s=given.mtbf_s, rebuild_s=given.rebuild_s
    )
    return Plan(
        name=name,
        agents=agents,
        losses_survived=losses,
        memory_per_byte=per_byte,
        room_bytes=int(agents * given.memory_bytes / per_byte),
        loss_per_year=-math.expm1(-YEAR_S / mean_s),
        mean_years_to_loss=mean_s / YEAR_S,
    )


def mean_time_to_loss_s(*, agents: int, losses: int, mtbf_s: float, rebuild_s: float) -> float:
    """The mean time until more than `losses` of `agents` are lost and not made good yet.

    A chain of births (an agent dies) and deaths (a loss is made good), entered with no loss
    and left with the first one too many. Raises BadSettings for times that are none.
    """
    for what, seconds in (("time between failures", mtbf_s), ("time to rebuild", rebuild_s)):
        if not (math.isfinite(seconds) and seconds > 0):
            raise BadSettings(f"the {what} must be longer than nothing")
    assert 0 <= losses < agents
    total = from_here = 0.0
    for lost in range(losses + 1):
        die_per_s = (agents - lost) / mtbf_s
        back_per_s = 1 / rebuild_s if lost else 0.0
        # Steps forth that are undone have to be made again.
        from_here = 1 / die_per_s + back_per_s / die_per_s * from_here
        total += from_here
    return total
