"""Which faults, whose, when and for how long: a pure function of the seed.

The same seed and options give the same plan, whatever the machine does. A plan keeps to
`max_down` by its own clock, in which a fault ends when its time is over and a killed agent
is whole again after RECOVERY_S. A real cluster may need longer: `run` holds a step back
until the cluster affords it, so order and victims stay, and only moments move.
"""

from collections.abc import Iterator, Sequence
from random import Random

from msgspec import Struct

from diskless.chaos.budget import lost_side

KINDS = ("kill", "pause", "partition", "corrupt", "slow", "fill")
"""What a schedule can plant. A host is not brought back by undoing, so killing one is not
among them."""
QUIET_S = 2.0
"""Undisturbed at the start, so that there is something to lose."""
RECOVERY_S = 6.0
GAP_S = (0.5, 2.5)
LASTS_S = {
    "kill": (0.0, 0.0),  # Ray brings it back.
    "pause": (0.3, 4.0),  # Shorter and longer than the failure timeout.
    "partition": (1.0, 5.0),
    "corrupt": (2.0, 8.0),  # What nobody has noticed by then is flipped back.
    "slow": (2.0, 9.0),  # Shorter and longer than it takes to notice, and to see the effect.
    "fill": (2.0, 5.0),
}
DELAY_MS = (10, 400)
CORRUPT_SHARDS = (1, 20)
FILL_SHARE = (0.5, 0.95)


class Step(Struct, frozen=True, kw_only=True):
    at_s: float
    kind: str
    victims: tuple[int, ...]
    for_s: float = 0.0
    """0 for what is not undone: a kill."""
    delay_ms: int = 0
    shards: int = 0
    share: float = 0.0
    seed: int = 0

    @property
    def spends(self) -> bool:
        return self.kind != "fill"

    @property
    def ends_s(self) -> float:
        """When its victims are whole again, as far as a plan can know."""
        return self.at_s + (self.for_s or RECOVERY_S)


def plan(
    *,
    seed: int,
    duration_s: float,
    kinds: Sequence[str],
    agents: int,
    voters: int,
    max_down: int,
) -> list[Step]:
    """The steps of a run, in order. With `max_down` over k one of them takes so many at once."""
    assert set(kinds) <= set(KINDS), kinds
    random = Random(seed)
    steps: list[Step] = []
    bag = _bag(random, kinds)
    at_s = QUIET_S
    burst_due = 2 * max_down > voters - 1  # More than k: show what that does, once.
    while max_down > 0 and at_s < duration_s:
        spent = {
            slot for step in steps if step.spends and step.ends_s > at_s for slot in step.victims
        }
        room = max_down - len(spent)
        free = [slot for slot in range(agents) if slot not in spent]
        # While the burst is due, nothing else may stand in its way for long.
        if room > 0 and free and not (burst_due and spent):
            kind = next(bag)
            if burst_due and kind in ("kill", "pause", "partition"):
                victims = _burst(random, agents=agents, voters=voters, count=max_down)
                burst_due = False
            else:
                count = random.randint(1, min(room, len(free)))
                victims = tuple(sorted(random.sample(free, count)))
            if kind == "partition":
                # With a majority of the voters inside it is the others who are cut off.
                victims = tuple(lost_side(victims, agents=agents, voters=voters))
            step = _step(random, at_s, kind, victims)
            if not spent & set(victims) and len(victims) <= room:  # else it would wait forever
                steps.append(step)
        at_s = round(at_s + random.uniform(*GAP_S), 3)
    return steps


def _bag(random: Random, kinds: Sequence[str]) -> Iterator[str]:
    """Every kind once before any comes again."""
    while True:
        yield from random.sample(list(kinds), len(kinds))


def _burst(random: Random, *, agents: int, voters: int, count: int) -> tuple[int, ...]:
    """More than k at once, with a majority of the voters spared if that is possible: then
    the namespace lives and says which bytes are lost, instead of only falling silent."""
    spectators = list(range(voters, agents))
    away = random.sample(spectators, min(len(spectators), count))
    return tuple(sorted(away + random.sample(range(voters), min(count - len(away), voters))))


def _step(random: Random, at_s: float, kind: str, victims: tuple[int, ...]) -> Step:
    for_s = round(random.uniform(*LASTS_S[kind]), 3)
    step_seed = random.getrandbits(32)
    return Step(
        at_s=at_s,
        kind=kind,
        victims=victims,
        for_s=for_s,
        delay_ms=random.randint(*DELAY_MS) if kind == "slow" else 0,
        shards=random.randint(*CORRUPT_SHARDS) if kind == "corrupt" else 0,
        share=round(random.uniform(*FILL_SHARE), 2) if kind == "fill" else 0.0,
        seed=step_seed,
    )
