"""Which shards should lie elsewhere, so that agents are about equally full: pure choices.

Agents that were added have room, and those that were there may be full. A shard moves from an
agent to an emptier one, which stays the emptier one: so every move brings them closer, and there
is an end to it. No agent gets two shards of a stripe, and no host more of them than the one that
the shard leaves. Nothing is begun before an agent is `START` away from the mean, and then it
continues to `AIM`: what comes and goes meanwhile begins nothing. Nothing here moves anything.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from diskless.model import Stripe
from diskless.repair import Alike

START = 0.10
"""How far from the mean an agent is before shards move: this part of the mean."""
AIM = 0.05
"""How close to it all are brought, if they can be."""
WORTH = 0.01
"""Of an agent's room: what is closer to the mean than this is close enough."""
STRETCH_STEPS = 1000
"""What is looked at before others have their turn."""
CHOICE_STEPS = 40
"""What a choice of agents for a shard counts, beside each agent that might take it."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """An agent, and how full it is."""

    slot: int
    host: str
    bytes_max: int
    """What it may hold of clients' data and the namespace, without the reserve."""
    bytes_used: int
    bytes_dead: int = 0
    """What it still has of shards that nothing names any more: it takes room, and will be gone."""
    takes: bool = True
    """Whether shards may be moved there."""


class Scales:
    """How full agents are, once the moves that were noted are made."""

    def __init__(self, loads: Iterable[Load]) -> None:
        self._loads = {load.slot: load for load in loads}
        self._used = {slot: load.bytes_used for slot, load in self._loads.items()}
        self._fills = {
            slot: self._used[slot] / load.bytes_max for slot, load in self._loads.items()
        }
        bytes_max = sum(load.bytes_max for load in self._loads.values())
        self.mean = sum(self._used.values()) / bytes_max if bytes_max else 0.0
        self._band = self.band(AIM)
        self._takers = self._sorted_takers()

    def _sorted_takers(self) -> list[int]:
        """The emptiest first."""
        takers = [slot for slot, load in self._loads.items() if load.takes]
        return sorted(takers, key=self._fills.__getitem__)

    @property
    def takers(self) -> int:
        return len(self._takers)

    def fill(self, slot: int) -> float:
        return self._fills[slot]

    @property
    def fullest(self) -> float:
        return max(self._fills.values(), default=0.0)

    @property
    def emptiest(self) -> float:
        return min(self._fills.values(), default=0.0)

    @property
    def deviation(self) -> float:
        """How far the agent that is farthest from the mean is from it."""
        return max(self.fullest - self.mean, self.mean - self.emptiest)

    def band(self, tolerance: float) -> float:
        return max(tolerance * self.mean, WORTH)

    def is_off(self, *, reached: float = 0.0) -> bool:
        """Whether it is time to begin. `reached` is the deviation at which nothing could be
        moved any more: it must have become worse by as much as lies between start and aim."""
        start = self.band(START)
        return self.deviation > max(start, reached and reached + start - self.band(AIM))

    @property
    def is_even(self) -> bool:
        return not any(map(self._is_far, self._fills))

    @property
    def awaits_room(self) -> bool:
        """Whether agents will have more room soon, without any move."""
        return any(load.bytes_dead > WORTH * load.bytes_max for load in self._loads.values())

    @property
    def bytes_left(self) -> int:
        """At least so much has to move until all are even."""
        over = under = 0.0
        for slot, load in self._loads.items():
            over += max(self.fill(slot) - self.mean - self._band, 0.0) * load.bytes_max
            under += max(self.mean - self._band - self.fill(slot), 0.0) * load.bytes_max
        return round(max(over, under))

    def givers(self) -> list[int]:
        """The slots that shards may have to leave, the fullest first."""
        least = self.emptiest
        giving = [slot for slot, fill in self._fills.items() if fill > least]
        return sorted(giving, key=self.fill, reverse=True)

    def choose(self, slots: Sequence[int], size: int) -> tuple[int, int] | None:
        """Of a stripe whose shards of `size` bytes are sound and lie on `slots`: the one that
        should move, by its index, and the slot that it should go to. None if none should."""
        fills = self._fills
        if any(slot not in fills for slot in slots):
            return None
        takers = [slot for slot in self._takers if slot not in slots]
        shards_on = Counter(self._loads[slot].host for slot in slots)
        for index in sorted(range(len(slots)), key=lambda i: -fills[slots[i]]):
            giver = slots[index]
            here = self._loads[giver].host
            for taker in takers:
                if fills[taker] >= fills[giver]:
                    break
                there = self._loads[taker].host
                may = there == here or shards_on[there] < shards_on[here]
                if may and self._gains(giver, taker, size):
                    return index, taker
        return None

    def _gains(self, giver: int, taker: int, size: int) -> bool:
        """Whether there is room, one of them is too far from the mean, and they do not change
        their roles."""
        load = self._loads[taker]
        if self._used[taker] + load.bytes_dead + size > load.bytes_max:
            return False
        if not self._is_far(giver) and not self._is_far(taker):
            return False
        after = (self._used[giver] - size) / self._loads[giver].bytes_max
        return after >= (self._used[taker] + size) / self._loads[taker].bytes_max

    def _is_far(self, slot: int) -> bool:
        return abs(self._fills[slot] - self.mean) > self._band

    def move(self, giver: int, taker: int, size: int) -> None:
        """Notes that a shard of this size will have been moved."""
        for slot, more in ((giver, -size), (taker, size)):
            self._used[slot] += more
            self._fills[slot] = self._used[slot] / self._loads[slot].bytes_max
        self._takers = self._sorted_takers()


class Lying(Protocol):
    """Stripes by where they lie: `namespace.health.Health`."""

    def groups_on(self, slot: int) -> Sequence[Alike]: ...


class Walk:
    """Once through all stripes that may have a shard to give."""

    def __init__(self, stripes: Lying, scales: Scales, *, overhead: int = 0) -> None:
        """`overhead` is what a shard takes beside its bytes."""
        self._stripes = stripes
        self._overhead = overhead
        self.scales = scales
        """To be replaced when more is known."""

    def size_of(self, stripe: Stripe) -> int:
        return stripe.shard_bytes + self._overhead

    def __iter__(self) -> Iterator[str | None]:
        """Names of stripes that lie where shards should leave, and None whenever enough was done
        at a stretch. The caller notes the move of a name before it asks for the next one."""
        steps = 0
        for slot in self.scales.givers():
            for group in self._stripes.groups_on(slot):
                for id_ in self._names(group):
                    steps += CHOICE_STEPS + self.scales.takers
                    if steps >= STRETCH_STEPS:
                        steps = 0
                        yield None
                    if id_ is not None:
                        yield id_

    def _names(self, group: Alike) -> Iterator[str | None]:
        """Of stripes that lie alike, as long as a shard of them should move; None at the end."""
        for block in list(group.blocks.values()):
            for id_ in list(block.values()):
                if not self._fits(group):
                    yield None
                    return
                yield id_
        yield None

    def _fits(self, group: Alike) -> bool:
        """Whether a shard of such stripes should move if it is small enough."""
        slots = [place.slot for place in group.sample.places]
        return self.scales.choose(slots, self._overhead) is not None
