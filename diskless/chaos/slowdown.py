"""What a slow agent costs: throughput under each slow fault, against that without any. Pure.

A cluster needs a moment to notice, so the bound is on what is done from GRACE_S after a fault
began until it ended. Only samples count in which nothing else was broken; a fault during which
there are too few of these is not judged.
"""

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from diskless.chaos.schedule import RECOVERY_S
from diskless.chaos.timeline import Event, Sample

GRACE_S = 3.0
SHARE_MIN = 0.8
"""Of the throughput without faults, with one agent slow, whatever it does in the cluster."""
SETTLE_S = 2.0
"""After another fault was taken back."""
SAMPLES_MIN = 2


class Slowdown(Struct, frozen=True, kw_only=True):
    """One slow fault. Rates and `share` are None where there was too little to see."""

    text: str
    slots: tuple[int, ...]
    at_s: float
    before_per_s: float | None
    during_per_s: float | None
    share: float | None
    kept: bool | None
    """Whether the bound holds; None if it says nothing about this one."""


def measure(events: Sequence[Event], samples: Sequence[Sample], *, ended_s: float, bound: bool
            ) -> list[Slowdown]:  # fmt: skip
    """Every slow fault of a run whose last ones were taken back at `ended_s`. The bound is for
    traffic that comes evenly, and for one slow agent."""
    faults = [event for event in events if event.slots]
    return [
        _measure(event, faults, samples, ended_s=ended_s, bound=bound and len(event.slots) == 1)
        for event in faults
        if event.kind == "slow"
    ]


def _measure(
    slow: Event, faults: Sequence[Event], samples: Sequence[Sample], *, ended_s: float, bound: bool
) -> Slowdown:
    until_s = ended_s if slow.until_s is None else slow.until_s
    others = [fault for fault in faults if fault is not slow]
    before: list[float] = []
    during: list[float] = []
    for last, sample in pairwise(samples):
        if _disturbed(last.at_s, sample.at_s, others, ended_s):
            continue
        if sample.at_s <= slow.at_s:
            before.append(sample.per_s)
        elif last.at_s >= slow.at_s + GRACE_S and sample.at_s <= until_s:
            during.append(sample.per_s)
    before_per_s, during_per_s = _median(before), _median(during)
    share = None
    if before_per_s and during_per_s is not None:
        share = round(during_per_s / before_per_s, 2)
    return Slowdown(
        text=slow.text,
        slots=slow.slots,
        at_s=slow.at_s,
        before_per_s=before_per_s,
        during_per_s=during_per_s,
        share=share,
        kept=share >= SHARE_MIN if bound and share is not None else None,
    )


def _disturbed(from_s: float, to_s: float, faults: Iterable[Event], ended_s: float) -> bool:
    for fault in faults:
        until_s = fault.until_s
        if until_s is None:  # nothing takes a kill back
            until_s = fault.at_s + RECOVERY_S if fault.kind == "kill" else ended_s
        if fault.at_s < to_s and from_s < until_s + SETTLE_S:
            return True
    return False


def _median(rates: Sequence[float]) -> float | None:
    return round(statistics.median(rates), 1) if len(rates) >= SAMPLES_MIN else None
