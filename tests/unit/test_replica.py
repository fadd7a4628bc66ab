"""The driver of a voter: when it has its next tick, and where it believes that others are.

Heartbeats are minutes apart here, so whatever happens soon does not wait for one.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from diskless.agent import lookback
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.config import ClusterSettings, Tuning
from diskless.errors import Unavailable
from diskless.model import AgentInfo
from diskless.namespace import commands as c
from diskless.namespace.lookback import Events, EventsFound, Look
from diskless.namespace.replication import messages as m

DEADLINE_S = 60.0
SETTINGS = ClusterSettings(
    agents=3, data_shards=2, parity_shards=1, tuning=Tuning(failure_timeout_s=1000.0)
)
HEARTBEAT_S = 100.0
TICK_S = HEARTBEAT_S / 2
SLACK_S = 5.0
"""Far less than ticks are apart, and far more than any step takes."""


def address(slot: int) -> str:
    return f"host-{slot}:1"


class World:
    """Three voters that hear each other at once, unless they are silent."""

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.wall_ahead_ms = 0
        self.voters = [self._voter(slot) for slot in range(SETTINGS.voters)]
        self._tasks = [asyncio.create_task(voter.run()) for voter in self.voters]
        for voter in self.voters:
            voter.form("c")

    def _voter(self, slot: int) -> Replica:
        def post(to: int, where: str, message: bytes) -> None:
            if not {slot, to} & self.silent:
                loop.call_soon(self.voters[to].receive, slot, address(slot), message)

        loop = asyncio.get_running_loop()
        peers: Any = SimpleNamespace(post=post)
        return Replica(
            slot=slot,
            settings=SETTINGS,
            roster=Roster(
                slot=slot,
                seeds={other: address(other) for other in range(SETTINGS.voters)},
                now_s=time.monotonic,
                suspect_s=1.0,
            ),
            peers=peers,
            lead=_leading,
            wall_ms=lambda: time.time_ns() // 1_000_000 + self.wall_ahead_ms,
        )

    async def begin(self) -> None:
        """Until the first of them leads, and all rest."""
        await until(lambda: all(voter.recovered and voter._ticks for voter in self.voters))
        assert self.voters[0].leads
        for voter in self.voters:
            voter._tick_now()
        slots = range(SETTINGS.voters)
        await until(lambda: all(self.due_s(slot) > TICK_S + SLACK_S for slot in slots))

    def due_s(self, slot: int) -> float:
        """When it has its next tick, from now."""
        ticks = self.voters[slot]._ticks
        assert ticks is not None
        assert ticks._timer is not None
        return ticks._timer.when() - asyncio.get_running_loop().time()

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for voter in self.voters:
            voter.close()


def _leading() -> Any:
    return SimpleNamespace(
        end=lambda: None,
        roster_changed=lambda: None,
        before=lambda command: None,
        after=lambda command: None,
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


def with_world(work: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        try:
            await world.begin()
            await work(world)
        finally:
            world.end()

    asyncio.run(run())


def test_a_voter_whose_leader_refuses_connections_does_not_rest() -> None:
    async def work(world: World) -> None:
        follower = world.voters[1]
        assert world.due_s(1) > TICK_S + SLACK_S
        world.silent = {0}
        follower.stream_broke(0, address(0))
        assert world.due_s(1) > TICK_S + SLACK_S, "one stream may break"
        follower.stream_broke(0, address(0))
        assert world.due_s(1) < TICK_S + SLACK_S

    with_world(work)


def test_a_command_behind_a_round_that_nobody_answers_ends_the_leaders_rest() -> None:
    async def work(world: World) -> None:
        leader = world.voters[0]
        world.silent = {1, 2}
        # More than may be in flight: on a busy machine each of those is a round.
        asked = [asyncio.create_task(leader.execute(c.Limit(n << 20))) for n in range(1, 7)]
        await asyncio.sleep(0)
        assert leader.status().pending >= 1  # type: ignore[union-attr]
        assert world.due_s(0) < TICK_S + SLACK_S
        leader.close()
        await asyncio.wait(asked)
        assert all(task.exception() for task in asked)

    with_world(work)


def test_a_round_that_leaves_work_for_ticks_ends_a_followers_rest() -> None:
    async def work(world: World) -> None:
        follower = world.voters[1]
        voter: Any = follower._voter
        voter._wanted = 1
        assert world.due_s(1) > TICK_S + SLACK_S
        stale = m.PrepareOk("c", voter.vector, 0, 0, 0, 0)
        follower.receive(2, address(2), m.encode(stale))
        assert world.due_s(1) < TICK_S + SLACK_S

    with_world(work)


def test_a_leader_whose_clocks_disagree_asks_the_others_at_once() -> None:
    async def work(world: World) -> None:
        leader = world.voters[0]
        for ahead_ms in (60_000, 120_000):
            world.wall_ahead_ms = ahead_ms
            assert not leader.leads_majority
            await until(lambda: leader.leads_majority)

    with_world(work)


def test_a_leader_that_begins_has_a_lease_at_once() -> None:
    async def work(world: World) -> None:
        await until(lambda: world.voters[0].leads_majority)
        world.voters[0].hand_over(unfit=())
        await until(lambda: world.voters[1].leads_majority)

    with_world(work)


def test_a_leader_whose_tick_finds_that_its_clocks_disagree_has_a_lease_again_at_once() -> None:
    async def work(world: World) -> None:
        leader = world.voters[0]
        for ahead_ms in (60_000, 120_000):
            world.wall_ahead_ms = ahead_ms
            leader._tick_now()
            await until(lambda: leader.leads_majority)

    with_world(work)


def test_an_audit_file_that_hangs_is_given_up_and_takes_few_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    hang: list[object] = []

    def look_back(look: Look) -> EventsFound:
        hang.append(look)
        over.wait()
        return look.result(place=None)

    async def work(world: World) -> None:
        leader = world.voters[0]
        await until(lambda: leader.leads_majority)
        leader._past._audit = SimpleNamespace(look_back=look_back)  # type: ignore[assignment]
        asked = [asyncio.create_task(leader.query(Events(0, 10))) for _ in range(20)]
        done, _ = await asyncio.wait(asked, timeout=DEADLINE_S)
        assert [type(task.exception()) for task in done] == 20 * [Unavailable]
        assert len(hang) == lookback.READERS_MAX
        over.set()
        found = asyncio.create_task(leader.query(Events(0, 10)))
        async with asyncio.timeout(DEADLINE_S):
            assert not (await found).events

    monkeypatch.setattr(lookback, "LOOK_BACK_S", 0.2)
    try:
        with_world(work)
    finally:
        over.set()


@pytest.mark.parametrize("known", [True, False], ids=["roster first", "roster later"])
def test_where_a_life_was_that_is_over_is_forgotten_with_the_news_of_the_next(known: bool) -> None:
    """The next one, a follower, says nothing to another follower: nobody else would correct it."""

    async def work(world: World) -> None:
        roster, voter = world.voters[1]._roster, world.voters[1]
        vector = voter._voter.vector  # type: ignore[union-attr]

        def learn(where: str, boot: str, version: int) -> None:
            agent = AgentInfo(2, version, boot, where, "", "", "host-2", "", 1)
            roster.update(version=version, agents=[agent])

        learn(address(2), "first", 1)
        if known:
            learn("elsewhere:1", "second", 2)
        late = m.PrepareOk("c", vector, 0, 0, 0, 0)
        voter.receive(2, address(2), m.encode(late))
        assert roster.address_of(2) == address(2), "the newest that was heard of it"
        later = (*vector[:2], (vector[2][0] + 1, 7))
        voter.receive(0, address(0), m.encode(m.Heartbeat("c", later, 0, 0, 0, 0, 0, 0)))
        if not known:
            learn("elsewhere:1", "second", 2)
        assert roster.address_of(2) == "elsewhere:1"
        voter.receive(2, address(2), m.encode(late))
        assert roster.address_of(2) == "elsewhere:1"

    with_world(work)
