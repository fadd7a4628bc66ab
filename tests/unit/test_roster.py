"""What an agent believes of the others: waiting until somebody else leads."""

import asyncio
from itertools import pairwise

import pytest
from msgspec import structs

from diskless.agent.roster import Roster
from diskless.model import AgentInfo


@pytest.fixture
def roster() -> Roster:
    made = Roster(slot=0, seeds={}, now_s=lambda: 0.0, suspect_s=1.0)
    made.leader = 0
    return made


async def wait_for_another(roster: Roster) -> str:
    try:
        async with roster.until_leader_moves():
            await asyncio.sleep(60)
    except TimeoutError:
        return "moved"
    return "waited in vain"


@pytest.mark.parametrize("turns", range(4))
def test_a_leader_that_moves_again_at_once_ends_every_wait_and_breaks_nothing(
    roster: Roster, turns: int
) -> None:
    """It did: the second move raised an error in whoever told of it, and a voter that was to
    lead from then on never began to watch, to repair and to reclaim."""

    async def run() -> list[str]:
        waits = [asyncio.create_task(wait_for_another(roster)) for _ in range(3)]
        await asyncio.sleep(0)
        for _, leader in pairwise((0, 1, None, 2)):
            roster.leader = leader
            for _ in range(turns):
                await asyncio.sleep(0)
        async with asyncio.timeout(50):
            return await asyncio.gather(*waits)

    assert asyncio.run(run()) == ["moved"] * 3


def test_a_wait_that_begins_later_ends_with_the_next_move(roster: Roster) -> None:
    async def run() -> list[str]:
        first = asyncio.create_task(wait_for_another(roster))
        await asyncio.sleep(0)
        roster.leader = 1
        second = asyncio.create_task(wait_for_another(roster))
        await asyncio.sleep(0)
        roster.leader = 1
        await asyncio.sleep(0)
        assert not second.done()
        roster.leader = 2
        async with asyncio.timeout(50):
            return [await first, await second]

    assert asyncio.run(run()) == ["moved", "moved"]


def test_an_agent_is_down_since_it_was_first_told_so_and_only_in_that_life() -> None:
    now = [10.0]
    roster = Roster(slot=0, seeds={}, now_s=lambda: now[0], suspect_s=1.0)
    life = AgentInfo(1, 1, "boot", "a:1", "a:2", "/s", "h", "n", 1)
    down = structs.replace(life, up=False)
    roster.update(version=1, agents=[down])
    now[0] = 13.0
    roster.update(version=2, agents=[down])
    assert roster.down_s(down) == 3.0
    roster.update(version=3, agents=[life])
    assert roster.down_s(life) == 0.0
    roster.update(version=4, agents=[down])
    assert roster.down_s(down) == 0.0
    assert roster.down_s(structs.replace(down, incarnation=2)) == 0.0
