"""What a run looked like, moment by moment: samples of the cluster and of its traffic."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct, to_builtins

from diskless.chaos.workload import News
from diskless.client import Client
from diskless.errors import DisklessError
from diskless.model import ClusterStatus

INTERVAL_S = 0.5


class Sample(Struct, frozen=True, kw_only=True):
    at_s: float
    margin: int | None
    """None when the cluster could not say."""
    up: int
    per_s: float
    """Operations, or rows, that were done."""
    commit_ms: float | None
    """The median commit in this interval; None if there was none."""
    slowest_ms: float | None
    errors: int
    degraded: int = 0
    repair: dict[str, Any] = {}
    """As status tells it."""
    note: str = ""


class Event(Struct, frozen=True, kw_only=True):
    """A fault, or what else the run did."""

    at_s: float
    kind: str
    text: str
    slots: tuple[int, ...] = ()
    until_s: float | None = None
    """When it was undone."""


class Timeline:
    """Samples on a thread of its own until it is closed. Use it in a `with` block."""

    def __init__(
        self,
        client: Client,
        news: Callable[[], News],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        self._client = client
        self._news = news
        self._clock = clock
        self._began_s = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)

    def __enter__(self) -> "Timeline":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def now_s(self) -> float:
        return self._clock() - self._began_s

    def note(self, kind: str, text: str, slots: tuple[int, ...] = ()) -> Event:
        event = Event(at_s=round(self.now_s, 3), kind=kind, text=text, slots=slots)
        self.events.append(event)
        return event

    def _run(self) -> None:
        before_s = self.now_s
        ended = False
        while not ended:
            ended = self._ended.wait(INTERVAL_S)  # One more then: how it was in the end.
            now_s = self.now_s
            self.samples.append(sample(now_s, now_s - before_s, self._news(), self._status()))
            before_s = now_s

    def _status(self) -> ClusterStatus | str:
        try:
            return self._client.status()
        except DisklessError as error:
            return error.reason


def sample(at_s: float, seconds: float, news: News, status: ClusterStatus | str) -> Sample:
    """One row of the timeline; `status` is the reason when there is none."""
    known = None if isinstance(status, str) else status
    return Sample(
        at_s=round(at_s, 2),
        margin=known.margin if known else None,
        up=sum(agent.state in ("up", "slow") for agent in known.agents) if known else 0,
        per_s=round(news.done / seconds, 1) if seconds > 0 else 0.0,
        commit_ms=round(statistics.median(news.commits_ms), 2) if news.commits_ms else None,
        slowest_ms=round(max(news.commits_ms), 2) if news.commits_ms else None,
        errors=news.errors,
        degraded=known.stripes.degraded if known else 0,
        repair=to_builtins(known.repair) if known else {},
        note=status if isinstance(status, str) else "",
    )
