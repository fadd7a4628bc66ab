"""What a chaos run proves: pure."""

from collections.abc import Sequence

from msgspec import Struct

from diskless.errors import BeyondPromise, DisklessError, NotHealed, PromiseBroken

LOST = ("TooFewShards", "ShardsAway", "CorruptData")
"""Refusals that mean that acknowledged bytes are gone, at least for now."""


class Findings(Struct, frozen=True, kw_only=True):
    """What a workload saw, in its own words."""

    operations: int
    acknowledged: int
    unknown: int = 0
    """Mutations that ended without a clear answer."""
    refusals: dict[str, int] = {}
    """Errors by their class."""
    wrong: Sequence[str] = ()
    """Acknowledged data lost or duplicated, or wrong bytes: must be empty."""
    undecided: Sequence[str] = ()
    """What the oracle gave up on: proves nothing."""
    unreadable: Sequence[str] = ()
    """Acknowledged data that could not be read in the end: refused, but not wrong."""
    notes: Sequence[str] = ()


class Verdict(Struct, frozen=True):
    passed: bool
    line: str
    exit_status: int


def judge(
    findings: Findings, *, healed: bool, max_down: int, k: int, planned: int = 0, planted: int = 0
) -> Verdict:
    """Wrong is wrong, however much was broken; a loud loss is one only within the promise.

    A run in which nothing was done, or none of its faults, proves nothing.
    """
    if findings.wrong:
        return _failed(
            PromiseBroken,
            f"WRONG: {len(findings.wrong)} answers that no order of operations explains",
        )
    if findings.undecided:
        return Verdict(False, "UNDECIDED: the oracle gave up; nothing is proved", 1)
    lost = len(findings.unreadable)
    loud = sum(findings.refusals.get(reason, 0) for reason in LOST)
    if (lost or loud) and max_down <= k:
        return _failed(
            PromiseBroken,
            f"LOST: {lost} keys cannot be read, {loud} reads were refused on the way, though at "
            f"most {max_down} agents were down at once",
        )
    if max_down > k and (lost or loud or not healed):
        told = ", ".join(f"{reason} {count}" for reason, count in sorted(findings.refusals.items()))
        return _failed(
            BeyondPromise,
            f"FAILED LOUDLY: {max_down} agents were broken at once, {k} are promised; {lost} keys "
            f"cannot be read in the end; refused: {told or 'nothing'}; no wrong byte was served",
        )
    if not healed:
        return _failed(NotHealed, f"NOT HEALED: nothing is lost, but the margin is not {k} again")
    if not findings.acknowledged:
        return Verdict(False, "UNDECIDED: nothing was acknowledged; nothing is proved", 1)
    if planned and not planted:
        return Verdict(
            False, f"UNDECIDED: none of {planned} faults could be planted; nothing is proved", 1
        )
    return Verdict(
        True,
        f"PASSED: {findings.acknowledged} acknowledged operations, none lost or done twice; "
        f"margin {k} again",
        0,
    )


def _failed(error: type[DisklessError], line: str) -> Verdict:
    return Verdict(False, line, error.exit_code)
