"""An agent that is told to end: whether it does, by what it hears of its own announcement."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from diskless.agent import leaver as leavers
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


class Emptying(Namespace):
    """Names fewer shards here each time that it is asked."""

    def __init__(self, roster: Roster, *left: int) -> None:
        super().__init__(roster, *(1000 for _ in left))
        self.left = list(left)
        self.asked = 0

    async def query(self, asked: object) -> int:
        await super().query(asked)
        self.asked += 1
        return self.left.pop(0) if self.left else 0


def test_an_agent_that_is_empty_takes_nothing_more_and_settles_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was stored just before it refused more may be committed: then it is moved too."""
    monkeypatch.setattr(leavers, "LOOK_S", 0.001)
    monkeypatch.setattr(leavers, "SETTLE_S", 0.05)
    roster = Roster(slot=5, seeds={}, now_s=lambda: 0.0, suspect_s=1.0)
    closed: list[bool] = []
    shards: Any = SimpleNamespace(incarnation=1, closed=False)
    replica: Any = SimpleNamespace(leads=False)
    emptying: Any = Emptying(roster, 2, 0, 1, 0)
    ask = emptying.query

    async def query(asked: object) -> int:
        closed.append(shards.closed)
        found: int = await ask(asked)
        return found

    emptying.query = query
    leaver = Leaver(namespace=emptying, replica=replica, roster=roster, shards=shards)
    assert asyncio.run(leaver.leave(60.0, why="SIGTERM")) is True
    assert closed[:3] == [False, False, True]
    assert emptying.asked > 5, "it looked again after it was empty"
    assert shards.closed


def test_an_agent_that_stays_after_all_takes_shards_again() -> None:
    roster = Roster(slot=5, seeds={}, now_s=lambda: 0.0, suspect_s=1.0)
    shards: Any = SimpleNamespace(incarnation=1, closed=False)
    replica: Any = SimpleNamespace(leads=False)
    namespace: Any = Emptying(roster, 0)
    namespace._ends_ms = [1000, 0]
    leaver = Leaver(namespace=namespace, replica=replica, roster=roster, shards=shards)
    assert asyncio.run(leaver.leave(60.0, why="SIGTERM")) is False
    assert not shards.closed


def test_a_leader_that_ends_hands_over_to_another() -> None:
    roster = Roster(slot=5, seeds={}, now_s=lambda: 0.0, suspect_s=1.0)
    shards: Any = SimpleNamespace(incarnation=1, closed=False)
    told: list[set[int]] = []
    replica: Any = SimpleNamespace(leads=True, leader=4)
    replica.hand_over = lambda *, unfit: told.append(unfit)
    namespace: Any = Namespace(roster, 1000)
    leaver = Leaver(namespace=namespace, replica=replica, roster=roster, shards=shards)
    assert asyncio.run(leaver.leave(0.1, why="SIGTERM")) is True
    assert told == [{5}]
