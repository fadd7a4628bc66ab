"""The lag, who is slowed down because of it, and whose answers wait."""

import asyncio
from typing import Any

import pytest

from diskless import policy
from diskless.agent.leading.backlog import SLOW_S_MAX, Backlog
from diskless.checksum import file_checksum
from diskless.errors import NotDurable, Superseded, Unavailable
from diskless.model import TierOptions
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.replication.machine import NamespaceMachine

LAG_MAX_S = 10.0


class World:
    """A namespace with a tier, and a clock."""

    def __init__(self) -> None:
        self.machine = NamespaceMachine()
        self.now_s = 100.0
        self.op = 0
        self.sequence = 0
        options = TierOptions(lag_max_s=LAG_MAX_S)
        self.apply(c.AttachTier("file:///t", 1, 0, "", options))
        self.session = self.apply(c.OpenSession("me")).number
        self.move_horizon()
        self.backlog = Backlog(world=self, now_s=lambda: self.now_s)
        self.backlog.begin()

    @property
    def state(self) -> Any:
        return self.machine.state

    def apply(self, command: c.Command) -> Any:
        self.op += 1
        return self.machine.apply(self.op, 1000 * self.op, 1000 * self.op, c.encode(command))[0]

    def put(self, path: str, size: int = 10) -> c.Commit:
        self.sequence += 1
        data = bytes(size)
        file = c.NewFile(path, size, file_checksum(data), data)
        command = c.Commit((), (c.Put(self.session, self.sequence, True, (file,)),))
        assert self.apply(command).changed
        return command

    def move_horizon(self) -> None:
        tier = self.state.tier
        self.apply(c.Horizon(1, tier.number + 1, tier.change, self.op, 0, self.state.last_file))


def test_the_lag_is_what_is_beyond_the_horizon() -> None:
    world = World()
    assert world.backlog.lag().commands == 0
    world.backlog.after(world.put("/a", 100))
    world.now_s += 2
    world.backlog.after(world.put("/b", 50))
    lag = world.backlog.lag()
    assert (lag.seconds, lag.commands, lag.bytes) == (2.0, 2, 150)
    world.move_horizon()
    world.backlog.moved()
    lag = world.backlog.lag()
    assert (lag.seconds, lag.commands, lag.bytes) == (0.0, 0, 0)


def test_who_is_held_back_by_a_leader_that_does_not_lead_any_more_is_told_at_once() -> None:
    async def check() -> None:
        world = World()
        world.put("/a")
        held = asyncio.create_task(world.backlog.reach(world.state.tier.change, 60.0))
        await asyncio.sleep(0)
        assert world.backlog.waiting == 1
        world.backlog.leave()
        done, _ = await asyncio.wait([held], timeout=10)
        assert done
        with pytest.raises(Unavailable, match="the leader changed"):
            held.result()
        assert world.backlog.waiting == 0

    asyncio.run(check())


@pytest.mark.parametrize("path", ["", "/", "/a", "/b"])
def test_a_cut_that_is_rolled_back_is_durable_where_one_of_its_directories_asks_for_it(
    path: str,
) -> None:
    world = World()
    world.put("/a/x")
    world.put("/b/x")
    world.apply(c.SetPolicy("/a", policy.DURABILITY, policy.SYNC))
    world.sequence += 1
    snapshot = c.CreateSnapshot(world.session, world.sequence, ("/a", "/b"), "s", True)
    assert world.apply(snapshot).changed
    world.put("/a/y")
    world.move_horizon()
    world.sequence += 1
    rollback = c.Rollback(world.session, world.sequence, path, "s", True)
    assert world.apply(rollback).changed
    held = world.backlog.after(rollback)
    assert held is not None
    held.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("share", "slow"), [(0.4, 0.0), (0.75, 0.5), (1.0, 1.0), (9.0, 2.0)])
def test_writers_are_slowed_the_more_the_nearer_the_lag_is_to_its_bound(
    share: float, slow: float
) -> None:
    world = World()
    world.backlog.after(world.put("/a"))
    world.now_s += share * LAG_MAX_S
    assert max(world.backlog._slow_s(), 0.0) == pytest.approx(slow * SLOW_S_MAX)


def test_nobody_is_slowed_while_the_tier_is_silent_nor_where_memory_is_asked_for() -> None:
    world = World()
    world.apply(c.SetPolicy("/m", policy.DURABILITY, policy.MEMORY))
    world.backlog.after(world.put("/a"))
    world.now_s += LAG_MAX_S
    durable, fleeting = world.put("/b"), world.put("/m/c")
    held = world.backlog.before(durable)
    assert held is not None
    held.close()  # type: ignore[attr-defined]
    assert world.backlog.before(fleeting) is None
    world.backlog.failing = True
    assert world.backlog.before(durable) is None


def test_a_sync_answer_waits_for_the_horizon_and_no_other_does() -> None:
    async def check() -> None:
        world = World()
        world.apply(c.SetPolicy("/s", policy.DURABILITY, policy.SYNC))
        assert world.backlog.after(world.put("/a")) is None
        held = world.backlog.after(world.put("/s/1"))
        assert held is not None
        task = asyncio.ensure_future(held)
        await asyncio.sleep(0)
        assert world.backlog.waiting == 1
        world.move_horizon()
        world.backlog.moved()
        await task

    asyncio.run(check())


def test_an_answer_that_is_not_durable_in_time_says_how_far_the_tier_is_behind() -> None:
    async def check() -> None:
        world = World()
        world.put("/a", 2048)
        world.backlog.note()
        world.now_s += 3
        with pytest.raises(NotDurable, match=r"3\.0 s, 1 commands and 2\.0 KiB behind"):
            await world.backlog.reach(world.state.tier.change, 0.01)

    asyncio.run(check())


def test_whoever_waits_hears_that_another_leads_or_that_all_is_over() -> None:
    async def check() -> None:
        for end, error in ((Backlog.leave, Unavailable), (None, Superseded)):
            world = World()
            world.put("/a")
            task = asyncio.ensure_future(world.backlog.reach(world.state.tier.change, 10))
            await asyncio.sleep(0)
            end(world.backlog) if end else world.backlog.end(Superseded("another"))
            with pytest.raises(error):
                await task

    asyncio.run(check())


def test_who_asks_how_far_the_tier_is_because_he_waits_for_it_hurries_the_drain() -> None:
    """As a flush does; and nobody for what is not there yet, or has been reached."""
    world = World()
    backlog = world.backlog
    backlog.after(world.put("/a"))
    change = world.state.tier.change
    assert backlog.before_answer(q.TierState()) == 0
    assert not backlog.is_awaited, "who only looks waits for nothing"
    backlog.work.clear()
    assert backlog.before_answer(q.TierState(change + 100)) == 0, "it is answered at once"
    assert backlog.work.is_set()
    assert backlog.is_awaited
    assert backlog.presses
    world.move_horizon()
    backlog.moved()
    backlog.after(world.put("/b"))
    assert not backlog.is_awaited


def test_the_drain_gives_way_to_nobody_while_memory_is_short() -> None:
    """Writers wait for memory then, which waits for the drain."""
    world = World()
    world.backlog.after(world.put("/a"))
    assert not world.backlog.presses
    world.backlog.hurried = True
    assert world.backlog.presses
