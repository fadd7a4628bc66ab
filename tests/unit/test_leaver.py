"""An agent that is told to end: whether it does, by what it hears of its own announcement."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from diskless.agent.leaver import Leaver
from diskless.agent.roster import Roster
from diskless.model import AgentInfo
from diskless.namespace import commands as c

HERE = AgentInfo(5, 1, "life", "h:1", "h:2", "/s", "h", "n", 1)


class Namespace:
    """Takes announcements, and tells of them late: `ends_ms` is what the roster says of this agent,
    one each time that somebody asks what is left there."""

    def __init__(self, roster: Roster, *ends_ms: int) -> None:
        self._roster = roster
        self._ends_ms = list(ends_ms)
        self._notice = ""

    async def run(self, command: c.AgentEnds) -> c.Done:
        self._notice = command.notice
        return c.Done()

    async def query(self, _: object) -> int:
        if self._ends_ms:
            here = replace(HERE, notice=self._notice, ends_ms=self._ends_ms.pop(0))
            self._roster.update(version=1, agents=[here])
        return 1


@pytest.mark.parametrize("heard", [(1000, 1000, 0), (1000, 0), (0,)], ids=str)
def test_an_end_that_is_taken_back_is_taken_back_however_early(heard: tuple[int, ...]) -> None:
    """Also before the agent has heard of it: rosters come with beats, and versions are left out."""
    roster = Roster(slot=5, seeds={}, now_s=lambda: 0.0, suspect_s=1.0)
    roster.update(version=0, agents=[replace(HERE, notice="of long ago")])
    shards: Any = SimpleNamespace(incarnation=1, closed=False)
    replica: Any = SimpleNamespace(leads=False)
    namespace: Any = Namespace(roster, *heard)
    leaver = Leaver(namespace=namespace, replica=replica, roster=roster, shards=shards)
    assert asyncio.run(leaver.leave(60.0, why="SIGTERM")) is False


def test_an_end_that_stays_announced_comes_when_its_time_is_up() -> None:
    roster = Roster(slot=5, seeds={}, now_s=lambda: 0.0, suspect_s=1.0)
    shards: Any = SimpleNamespace(incarnation=1, closed=False)
    replica: Any = SimpleNamespace(leads=False)
    namespace: Any = Namespace(roster, 1000)
    leaver = Leaver(namespace=namespace, replica=replica, roster=roster, shards=shards)
    assert asyncio.run(leaver.leave(0.5, why="SIGTERM")) is True
