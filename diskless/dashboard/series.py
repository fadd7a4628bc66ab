"""The last hour of a cluster, as one agent has seen it: what the page plots. Pure.

A point stands for some seconds: of what must not be missed the worst in them, of counters the
rate over them. There are so many points at most, and what they take does not grow.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from diskless.agent.counts import EDGES_S
from diskless.model import ClusterStatus, TrafficCounts

POINT_S = 5.0
POINTS_MAX = 720
"""An hour."""
MARKS_MAX = 200
MARK_BYTES = 300

COLUMNS = (
    "time_ms",
    "commits_per_s",
    "p50_ms",
    "p99_ms",
    "written_per_s",
    "read_per_s",
    "margin",
    "repair_left",
    "tier_lag_s",
    "loop_lag_ms",
)
BYTES = POINTS_MAX * len(COLUMNS) * 8 + MARKS_MAX * MARK_BYTES


class Mark(Struct, frozen=True):
    """Something that happened, to be seen on all plots."""

    time_ms: int
    text: str
    bad: bool


class Series:
    def __init__(self) -> None:
        self._points: deque[array[float]] = deque(maxlen=POINTS_MAX)
        self.marks: deque[Mark] = deque(maxlen=MARKS_MAX)
        self._before: ClusterStatus | None = None
        self._away = False
        """Whether nobody could tell, when it was last asked."""
        self._began_s = 0.0
        self._traffic: TrafficCounts | None = None
        self._margin = 0.0
        self._worst = [0.0, 0.0, 0.0]

    def note(self, status: ClusterStatus, *, time_ms: int, now_s: float) -> list[float] | None:
        """Takes what the cluster is now; gives the next point when one is complete. `time_ms` is
        for people, `now_s` counts."""
        self._mark(status, time_ms)
        tier_lag_s = status.tier.lag_s if status.tier is not None else 0.0
        lag_ms = max((agent.loop_lag.p99_ms for agent in status.agents), default=0.0)
        seen = (float(status.repair.stripes_left), tier_lag_s, lag_ms)
        if self._traffic is None:
            self._begin(status, now_s)
        self._margin = min(self._margin, status.margin)
        self._worst = [max(pair) for pair in zip(self._worst, seen, strict=True)]
        took_s = now_s - self._began_s
        if took_s < POINT_S:
            return None
        assert self._traffic is not None
        rates = _rates(self._traffic, status.traffic, took_s)
        point = array("d", [time_ms, *rates, self._margin, *self._worst])
        self._points.append(point)
        self._begin(status, now_s)
        return point.tolist()

    def missed(self, time_ms: int) -> None:
        """The cluster could not be asked: what comes next starts a new series."""
        if self._before is not None and not self._away:
            self.marks.append(Mark(time_ms, "no leader", True))
        self._away, self._traffic = True, None

    def points(self) -> list[list[float]]:
        return [point.tolist() for point in self._points]

    def _begin(self, status: ClusterStatus, now_s: float) -> None:
        self._began_s, self._traffic = now_s, status.traffic
        self._margin, self._worst = float(status.margin), [0.0, 0.0, 0.0]

    def _mark(self, status: ClusterStatus, time_ms: int) -> None:
        before, self._before, self._away = self._before, status, False
        if before is None:
            return
        if before.leader != status.leader:
            self.marks.append(Mark(time_ms, f"{status.leader} leads", False))
        states = {agent.slot: agent.state for agent in before.agents}
        for agent in status.agents:
            if agent.state != states.get(agent.slot, agent.state):
                text = f"{agent.slot} {agent.state}"
                self.marks.append(Mark(time_ms, text, agent.state != "up"))


def _rates(before: TrafficCounts, after: TrafficCounts, took_s: float) -> list[float]:
    """Commits, their p50 and p99 in ms, bytes written and read. An agent that restarts takes
    its counts away: then there is less than there was, which counts as nothing. So does what a
    leader of another version counts in other buckets."""
    earlier = before.commits or (0,) * len(after.commits)
    if len(earlier) != len(after.commits):
        earlier = after.commits
    counts = [max(b - a, 0) for a, b in zip(earlier, after.commits, strict=True)]
    return [
        round(sum(counts) / took_s, 2),
        round(1000 * quantile_s(counts, 0.5), 3),
        round(1000 * quantile_s(counts, 0.99), 3),
        round(max(after.bytes_written - before.bytes_written, 0) / took_s),
        round(max(after.bytes_read - before.bytes_read, 0) / took_s),
    ]


def quantile_s(counts: Sequence[int], share: float) -> float:
    """What that share did not exceed, as far as buckets tell: within one, evenly."""
    wanted = share * sum(counts)
    if not wanted:
        return 0.0
    low = 0.0
    for count, high in zip(counts, EDGES_S, strict=False):
        if count and wanted <= count:
            return low + (high - low) * wanted / count
        wanted -= count
        low = high
    return EDGES_S[-1]


def as_object(series: Series) -> dict[str, Any]:
    return {"columns": COLUMNS, "points": series.points(), "marks": list(series.marks)}
