"""How fast the cluster looks after what it has, and why: scrubbing, the roll call of shards, the
thinning of history. Pure.

Damage that nobody has noticed counts when something else fails. So all agents look faster while
damage is found or agents fail, and while much changes; slower while nothing happens at all.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

FASTEST = 4.0
BRISK = 2.0
USUAL = 1.0
SLOWEST = 0.25
"""Times as fast as is set (`scrub_bytes_per_s`, `janitor_interval_s`)."""
LATELY_S = 600.0
"""For so long damage and failures count."""
CHANGES_MANY = 20.0
"""Commands of clients in a second."""
IDLE_S = 60.0
"""Without a command of a client."""

THIN_NEAR_S = 5.0
THIN_FAR_S = 300.0
CROWDED_SHARE = 0.75
"""Of what the namespace may weigh: then what no rule keeps must not wait."""


class Pace(NamedTuple):
    factor: float
    why: str


class Thinning(NamedTuple):
    seconds: float
    """Between two looks at all snapshots by policy."""
    why: str


def count_lately(lapses: Mapping[int, Iterable[int]], *, elapsed_ms: int) -> int:
    """How often agents went down, restarted or were slow lately."""
    since_ms = elapsed_ms - 1000 * LATELY_S
    return sum(at_ms > since_ms for times in lapses.values() for at_ms in times)


def choose_pace(
    *, damage_s: float | None, lapses: int, changes_per_s: float, idle_s: float
) -> Pace:
    """`damage_s` is how long ago damage was found; None if it never was."""
    if damage_s is not None and damage_s < LATELY_S:
        return Pace(FASTEST, "damaged shards were found in the last ten minutes")
    if lapses:
        factor = min(BRISK * lapses, FASTEST)
        return Pace(factor, f"agents failed or were slow {lapses}x in the last ten minutes")
    if changes_per_s >= CHANGES_MANY:
        return Pace(BRISK, f"{CHANGES_MANY:g} changes a second or more")
    if idle_s >= IDLE_S:
        return Pace(SLOWEST, "nothing changes, and nothing fails")
    return Pace(USUAL, "few changes, and nothing fails")


def choose_thinning(*, span_s: float | None, crowded_share: float) -> Thinning:
    """`span_s` is the shortest span of which some rule keeps a snapshot; None if there is no rule.
    Half of it: then hardly more are there than the rules say."""
    if span_s is None:
        return Thinning(THIN_FAR_S, "no path asks for a history")
    if crowded_share >= CROWDED_SHARE:
        return Thinning(THIN_NEAR_S, f"the namespace is {CROWDED_SHARE:.0%} full")
    seconds = min(max(span_s / 2, THIN_NEAR_S), THIN_FAR_S)
    return Thinning(seconds, f"the shortest span of a rule is {span_s:g} s")
