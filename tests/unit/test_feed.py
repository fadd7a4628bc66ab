"""An agent's look at the cluster, for the page: it goes on whatever a leader says."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from diskless.dashboard import feed as feeds
from diskless.dashboard.feed import Feed
from diskless.model import ClusterStatus
from tests.unit.test_series import status


def looks(monkeypatch: pytest.MonkeyPatch, *answers: Callable[[], ClusterStatus]) -> Feed:
    """A feed that has had all these answers."""
    monkeypatch.setattr(feeds, "WATCHED_S", 0.001)
    left = list(answers)
    all_asked = asyncio.Event()

    async def ask() -> ClusterStatus:
        if not left:
            all_asked.set()
            await asyncio.Event().wait()
        return left.pop(0)()

    async def run() -> Feed:
        feed = Feed(agent="agent-0", ask=ask, check=lambda _: None, wall_ms=lambda: 0)
        feed.watching = 1
        task = asyncio.create_task(feed.run())
        async with asyncio.timeout(10.0):
            asked = asyncio.create_task(all_asked.wait())
            await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
        assert not task.done(), task
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return feed

    return asyncio.run(run())


def test_a_report_of_another_version_is_told_and_looking_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def strange() -> ClusterStatus:
        return msgspec.json.decode(b'{"name": 1}', type=ClusterStatus)

    def broken() -> ClusterStatus:
        raise ZeroDivisionError

    feed = looks(monkeypatch, strange, broken)
    told: Any = msgspec.json.decode(feed._said["status"].partition(b"data: ")[2])
    assert told["error"] == "InternalError"
    feed = looks(monkeypatch, strange, status)
    told = msgspec.json.decode(feed._said["status"].partition(b"data: ")[2])
    assert told["status"]["leader"] == "agent-0"
