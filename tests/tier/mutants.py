"""The tier, broken on purpose: the schedules must notice each of these."""

from __future__ import annotations

from dataclasses import dataclass, field

from diskless.tier.chain import Chain
from diskless.tier.round import Round
from tests.tier.cluster import Leader


@dataclass(frozen=True)
class Mutant:
    chain: type[Chain] = Chain
    round: type[Round] = Round
    leader: type[Leader] = Leader
    says: str = "."
    """What a schedule must say of it."""
    seeds: range = field(default=range(400))


MUTANTS: dict[str, Mutant] = {}
