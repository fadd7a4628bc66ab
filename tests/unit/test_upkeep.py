"""How fast the cluster looks after what it has: the rules, and that those who look obey them."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from diskless.agent.leading.rollcall import REST_INTERVALS, RollCall
from diskless.agent.leading.upkeep import LOOK_S, Upkeep
from diskless.agent.scrubber import Scrubber
from diskless.cli.status import upkeep_lines
from diskless.config import MIB
from diskless.model import ClusterStatus, UpkeepStatus
from diskless.upkeep import (
    BRISK,
    CHANGES_MANY,
    CROWDED_SHARE,
    FASTEST,
    IDLE_S,
    LATELY_S,
    SLOWEST,
    THIN_FAR_S,
    THIN_NEAR_S,
    USUAL,
    choose_pace,
    choose_thinning,
    count_lately,
)

CALM: dict[str, Any] = {"damage_s": None, "lapses": 0, "changes_per_s": 1.0, "idle_s": 0.0}


@pytest.mark.parametrize(
    ("changed", "factor", "why"),
    [
        ({}, USUAL, "few changes"),
        ({"damage_s": 0.0}, FASTEST, "damaged"),
        ({"damage_s": LATELY_S}, USUAL, "few changes"),
        ({"lapses": 1}, BRISK, "failed or were slow 1x"),
        ({"lapses": 9}, FASTEST, "failed or were slow 9x"),
        ({"changes_per_s": CHANGES_MANY}, BRISK, "20 changes a second"),
        ({"idle_s": IDLE_S, "changes_per_s": 0.0}, SLOWEST, "nothing changes"),
        ({"idle_s": IDLE_S, "lapses": 1}, BRISK, "failed"),
        ({"idle_s": IDLE_S, "damage_s": 1.0}, FASTEST, "damaged"),
    ],
)
def test_the_pace_follows_damage_failures_and_changes_in_this_order(
    changed: dict[str, Any], factor: float, why: str
) -> None:
    found = choose_pace(**CALM | changed)
    assert found.factor == factor
    assert why in found.why


@pytest.mark.parametrize("damage_s", [None, 0.0, 1e6])
@pytest.mark.parametrize("lapses", [0, 1, 1000])
@pytest.mark.parametrize("changes_per_s", [0.0, 1e6])
@pytest.mark.parametrize("idle_s", [0.0, 1e9])
def test_the_pace_stays_within_its_limits(
    damage_s: float | None, lapses: int, changes_per_s: float, idle_s: float
) -> None:
    found = choose_pace(
        damage_s=damage_s, lapses=lapses, changes_per_s=changes_per_s, idle_s=idle_s
    )
    assert SLOWEST <= found.factor <= FASTEST


def test_failures_count_for_ten_minutes() -> None:
    lapses = {0: [1000], 3: [2000, 3000]}
    assert count_lately(lapses, elapsed_ms=3000) == 3
    assert count_lately(lapses, elapsed_ms=2000 + 600_000) == 1
    assert count_lately(lapses, elapsed_ms=3000 + 600_000) == 0


def test_history_is_thinned_as_often_as_its_shortest_span_needs() -> None:
    assert choose_thinning(span_s=60.0, crowded_share=0.0).seconds == 30.0
    assert choose_thinning(span_s=1.0, crowded_share=0.0).seconds == THIN_NEAR_S
    assert choose_thinning(span_s=86_400.0, crowded_share=0.0).seconds == THIN_FAR_S
    crowded = choose_thinning(span_s=86_400.0, crowded_share=CROWDED_SHARE)
    assert (crowded.seconds, crowded.why) == (THIN_NEAR_S, "the namespace is 75% full")
    assert choose_thinning(span_s=None, crowded_share=1.0).seconds == THIN_FAR_S


class Watched:
    """A leader's knowledge, which the test decides."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lapses: dict[int, deque[int]] = {}
        self.pulses: dict[int, Any] = {}
        self.damaged: set[tuple[str, int]] = set()
        replica: Any = SimpleNamespace(
            state=SimpleNamespace(roster=SimpleNamespace(lapses=self.lapses)),
            elapsed_ms=lambda: int(1000 * self.now_s),
        )
        self.upkeep = Upkeep(
            replica=replica,
            pulses=self.pulses,
            damaged=lambda: self.damaged,
            now_s=lambda: self.now_s,
        )

    def after(self, seconds: float, *, changes: int = 0) -> float:
        for _ in range(changes):
            self.upkeep.note_change()
        self.now_s += seconds
        return self.upkeep.look()

    def pulse(self, boot: str, corrupt: int) -> None:
        self.pulses[0] = SimpleNamespace(boot=boot, corrupt_shards_seen=corrupt)


def test_a_leader_looks_slower_when_nothing_changes_and_faster_when_much_does() -> None:
    watched = Watched()
    assert watched.after(LOOK_S) == USUAL
    assert watched.after(IDLE_S) == SLOWEST
    assert watched.after(LOOK_S, changes=1) == USUAL
    assert watched.after(LOOK_S, changes=1000) == BRISK
    watched.lapses[2] = deque([int(1000 * watched.now_s)])
    assert watched.after(LOOK_S) == BRISK
    assert "failed" in watched.upkeep.pace.why
    assert watched.after(LATELY_S) == SLOWEST


def test_damage_is_remembered_when_it_is_healed() -> None:
    watched = Watched()
    watched.damaged.add(("stripe", 0))
    watched.after(0.1)
    watched.damaged.clear()
    assert watched.after(LOOK_S) == FASTEST
    assert watched.after(LATELY_S) == SLOWEST


def test_what_an_agent_met_before_it_was_heard_is_no_news() -> None:
    watched = Watched()
    watched.pulse("a", 5)
    assert watched.after(LOOK_S) == USUAL
    watched.pulse("b", 7)
    assert watched.after(LOOK_S) == USUAL, "another process"
    watched.pulse("b", 8)
    assert watched.after(LOOK_S) == FASTEST


class OneShard:
    """As much of a ShardStore as is looked through."""

    def __init__(self) -> None:
        self.verified = 0

    def stripes(self) -> list[str]:
        return ["a"]

    def sizes(self, stripe: str) -> dict[int, int]:
        return {0: 1 << 20}

    def has(self, stripe: str, index: int) -> bool:
        return True

    def verify(self, stripe: str, index: int) -> bool:
        self.verified += 1
        return True


def test_a_scrubber_obeys_the_pace() -> None:
    """At the usual one this would take twelve days."""
    shards: Any = OneShard()
    scrubber = Scrubber(shards=shards, bytes_per_s=1, pace=lambda: 1e9)
    assert asyncio.run(asyncio.wait_for(scrubber.scrub(), 60)) == 0
    assert shards.verified == 1


class Counted(RollCall):
    """Counts the slices of an endless roll, or of one with a single slice."""

    def __init__(self, pace: float, *, intervals: int, endless: bool) -> None:
        nothing: Any = SimpleNamespace()
        super().__init__(
            replica=nothing, holders=nothing, pulses={}, interval_s=0.0001, pace=lambda: pace
        )
        self._left = intervals
        self._endless = endless
        self.slices = 0

    def short(self) -> list[int]:
        if not self._left:
            raise asyncio.CancelledError
        self._left -= 1
        return []

    async def call_next(self) -> None:
        self.slices += 1
        self._roll = ["more"] if self._endless else []


def slices(pace: float, *, intervals: int, endless: bool = True) -> int:
    call = Counted(pace, intervals=intervals, endless=endless)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(call.run())
    return call.slices


def test_the_roll_is_called_at_the_pace_within_a_roll_and_between_rolls() -> None:
    assert [slices(pace, intervals=8) for pace in (SLOWEST, USUAL, FASTEST)] == [2, 8, 32]
    between = 4 * REST_INTERVALS
    assert slices(USUAL, intervals=between, endless=False) == 4
    assert slices(FASTEST, intervals=between, endless=False) == 10
    assert slices(SLOWEST, intervals=between, endless=False) == 1


def test_status_says_what_was_chosen_and_why() -> None:
    upkeep = UpkeepStatus(
        pace=4.0, pace_why="damaged shards were found", scrub_bytes_per_s=16 * MIB,
        roll_stripes_per_s=1000.0, thin_s=30.0, thin_why="the shortest span of a rule is 60 s",
    )  # fmt: skip
    status = ClusterStatus(parity_shards=1, margin=1, margin_hosts=1, agents=[], upkeep=upkeep)
    (pace,) = upkeep_lines(status)
    assert "16.0 MiB/s each" in pace
    assert "1000 stripes/s: damaged shards were found" in pace
    _, thinning = upkeep_lines(replace(status, snapshots=1))
    assert "every 30 s: the shortest span of a rule is 60 s" in thinning
    assert upkeep_lines(replace(status, upkeep=UpkeepStatus())) == [], "of an older leader"
