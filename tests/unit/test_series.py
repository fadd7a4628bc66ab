"""The last hour: what a point stands for, what is marked, and that it does not grow."""

import msgspec
import pytest

from diskless.agent.counts import BUCKETS, EDGES_S, Durations
from diskless.dashboard.feed import CROWD, UNWATCHED_S, unwatched_s
from diskless.dashboard.series import (
    BYTES,
    COLUMNS,
    MARKS_MAX,
    POINT_S,
    POINTS_MAX,
    Series,
    quantile_s,
)
from diskless.model import AgentStatus, ClusterStatus, RepairStatus, TierReport, TrafficCounts


def status(*states: str, margin: int = 2, leader: str = "agent-0", lag_s: float = 0.0,
           left: int = 0, commits: int = 0, written: int = 0) -> ClusterStatus:  # fmt: skip
    return ClusterStatus(
        parity_shards=2,
        margin=margin,
        margin_hosts=1,
        leader=leader,
        agents=[AgentStatus(slot=f"agent-{n}", state=state) for n, state in enumerate(states)],
        repair=RepairStatus(stripes_left=left),
        tier=TierReport(uri="file:///t", state="draining", lag_s=lag_s),
        traffic=TrafficCounts((commits, *[0] * (BUCKETS - 1)), written, 0),
    )


def point(values: list[float] | None) -> dict[str, float]:
    assert values is not None
    return dict(zip(COLUMNS, values, strict=True))


def test_a_point_has_the_worst_of_its_seconds_and_rates_over_them() -> None:
    series = Series()
    assert series.note(status("up"), time_ms=0, now_s=10.0) is None
    worse = status("up", margin=0, lag_s=3.0, left=7, commits=30, written=1000)
    assert series.note(worse, time_ms=1, now_s=12.0) is None
    better = status("up", margin=2, commits=50, written=5000)
    found = point(series.note(better, time_ms=5000, now_s=10.0 + POINT_S))
    assert found["time_ms"] == 5000
    assert (found["margin"], found["tier_lag_s"], found["repair_left"]) == (0, 3.0, 7)
    assert found["commits_per_s"] == 50 / POINT_S
    assert found["written_per_s"] == 5000 / POINT_S
    assert 0 < found["p50_ms"] < found["p99_ms"] <= 1000 * EDGES_S[0]
    after = point(series.note(better, time_ms=9999, now_s=10.0 + 2 * POINT_S))
    assert (after["margin"], after["tier_lag_s"], after["commits_per_s"]) == (2, 0, 0)


def test_a_wall_clock_that_goes_back_holds_nothing_up() -> None:
    series = Series()
    series.note(status("up"), time_ms=1_000_000, now_s=1.0)
    assert series.note(status("up"), time_ms=5, now_s=1.0 + POINT_S) is not None


def test_an_agent_that_begins_anew_takes_its_counts_away() -> None:
    series = Series()
    series.note(status("up", commits=100, written=100), time_ms=0, now_s=0.0)
    found = point(series.note(status("up", commits=3), time_ms=1, now_s=POINT_S))
    assert found["commits_per_s"] == found["written_per_s"] == 0


def test_a_leader_of_another_version_may_count_in_other_buckets() -> None:
    series = Series()
    series.note(status("up", commits=100), time_ms=0, now_s=0.0)
    other = msgspec.structs.replace(status("up"), traffic=TrafficCounts((100, 7), 50, 0))
    found = point(series.note(other, time_ms=1, now_s=POINT_S))
    assert (found["commits_per_s"], found["written_per_s"]) == (0, 50 / POINT_S)


def test_who_comes_and_goes_and_who_leads_is_marked() -> None:
    series = Series()
    series.note(status("up", "up"), time_ms=1, now_s=0.0)
    series.note(status("up", "up"), time_ms=2, now_s=0.1)
    series.note(status("down", "up", leader="agent-1"), time_ms=3, now_s=0.2)
    series.note(status("up", "up", leader="agent-1"), time_ms=4, now_s=0.3)
    series.missed(5)
    series.missed(6)
    series.note(status("up", "up"), time_ms=7, now_s=0.4)
    assert [(mark.time_ms, mark.text, mark.bad) for mark in series.marks] == [
        (3, "agent-1 leads", False),
        (3, "agent-0 down", True),
        (4, "agent-0 up", False),
        (5, "no leader", True),
        (7, "agent-0 leads", False),
    ]


def test_it_does_not_grow() -> None:
    series = Series()
    for n in range(2 * POINTS_MAX):
        state = "up" if n % 2 else "down"
        series.note(status(state), time_ms=n, now_s=n * POINT_S)
    assert len(series.points()) == POINTS_MAX
    assert len(series.marks) == MARKS_MAX
    assert BYTES < 200_000


@pytest.mark.parametrize(("share", "expected"), [(0.5, 0.005), (0.99, 10.0), (0.0, 0.0)])
def test_quantiles_come_from_buckets(share: float, expected: float) -> None:
    counted = Durations()
    for took_s in [0.004] * 90 + [60.0] * 10:
        counted.note(took_s)
    assert quantile_s(counted.counts, share) <= expected
    assert quantile_s(counted.counts, share) >= expected * 0.5
    assert quantile_s([0] * BUCKETS, share) == 0


def test_agents_that_are_many_ask_less_often_while_nobody_watches() -> None:
    """So the leader makes as many reports for them, together, as for some."""
    assert unwatched_s(6) == unwatched_s(CROWD) == UNWATCHED_S
    assert 256 / unwatched_s(256) == pytest.approx(CROWD / UNWATCHED_S)
