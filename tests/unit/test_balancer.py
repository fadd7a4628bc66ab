"""Which agents the leader moves shards to, of those that have room."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from diskless.agent.leading.balancer import Balancer
from diskless.agent.leading.mover import Job
from diskless.agent.ports import Pulse
from diskless.agent.roster import Roster
from diskless.config import MIB
from diskless.namespace import commands as c
from diskless.repair import Cluster
from tests.unit.test_namespace_world import DATA_SHARDS, PARITY_SHARDS, World

NEW, OTHER = {3, 4, 5}, 5
"""All shards are on the first three agents."""
AGENTS = 6


class Mover:
    """Takes orders, and carries none out."""

    def __init__(self) -> None:
        self.to = Counter[int]()

    def wave_stripes(self) -> int:
        return 100

    async def wave(self, jobs: Sequence[Job], cluster: Cluster) -> list[Any]:
        self.to.update(taker for _, targets in jobs for taker in targets.values())
        return []

    async def move(self, rebuilt: Sequence[Any]) -> list[Any]:
        return []


def takers(
    *,
    slow: bool = False,
    suspected: bool = False,
    ending: bool = False,
    draining: bool = False,
    **known: Any,
) -> set[int]:
    """Where shards go in the first wave, with `OTHER` as it is told."""
    world, mover = World(agents=AGENTS), Mover()
    for number in range(20):
        world.put_in(f"/{number}", world.stripe(8 * MIB))
    agents = world.state.agents
    if slow:
        world.do(c.AgentSlow(OTHER, agents[OTHER].incarnation, True))
    if ending:
        world.do(c.AgentEnds(OTHER, agents[OTHER].incarnation, "SIGTERM", 60_000))
    if draining:
        world.do(c.Drain(OTHER, True))
    roster = Roster(slot=0, seeds={}, now_s=time.monotonic, suspect_s=3600.0)
    if suspected:
        roster.suspect(agents[OTHER])
    replica: Any = SimpleNamespace(state=world.state)
    carried: Any = mover
    balancer = Balancer(
        replica=replica,
        roster=roster,
        mover=carried,
        pulses={slot: Pulse("first", 0, 0, {}, 400 * MIB, 0, 0, ()) for slot in range(AGENTS)},
        now_s=time.monotonic,
    )
    cluster = Cluster(agents=agents, data_shards=DATA_SHARDS, parity_shards=PARITY_SHARDS, **known)
    asyncio.run(balancer.balance(cluster))
    return set(mover.to)


def test_all_that_are_well_and_have_room_take_shards() -> None:
    assert takers() == NEW


@pytest.mark.parametrize(
    "told",
    [{"slow": True}, {"unsteady": {OTHER}}, {"unfit": {OTHER}}, {"suspected": True}],
    ids=["slow", "comes and goes", "took nothing lately", "did not answer"],
)
def test_an_agent_that_shards_had_better_not_depend_on_takes_none(told: dict[str, Any]) -> None:
    assert takers(**told) == NEW - {OTHER}


@pytest.mark.parametrize(
    "told", [{"ending": True}, {"draining": True}], ids=["its end is announced", "it drains"]
)
def test_an_agent_that_leaves_takes_none(told: dict[str, Any]) -> None:
    assert takers(**told) == NEW - {OTHER}


def test_a_stripe_that_lacks_a_shard_is_left_to_repair() -> None:
    assert takers(damaged={(f"0.1.{number}", 0) for number in range(1, 21)}) == set()
