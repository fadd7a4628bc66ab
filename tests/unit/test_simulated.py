"""The simulated leader: its messages are those of a real one, and only its own work takes time."""

import asyncio
import time
from dataclasses import replace

import pytest

from diskless.bench import scale, works
from diskless.bench.made_up_time import MadeUpLoop, Watch
from diskless.bench.simulated import PARITY_SHARDS, SIZE, World
from diskless.bench.sizes import Sizes
from diskless.errors import NotFound

AGENTS = 8
VOTERS = 2 * PARITY_SHARDS + 1
TINY = replace(Sizes(), repetitions=1, scale_stripes=60, scale_s=1, scale_rate=100)


def burn(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_time_passes_with_the_leaders_work_and_jumps_while_it_waits() -> None:
    watch = Watch()

    async def life() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with watch.others():
            burn(0.2)
        await asyncio.sleep(0)
        beside_s = loop.time() - began_s
        burn(0.2)
        await asyncio.sleep(1000.0)
        return beside_s, loop.time() - began_s

    with asyncio.Runner(loop_factory=lambda: MadeUpLoop(watch)) as runner:
        beside_s, all_s = runner.run(life())
    assert beside_s < 0.1
    assert all_s == pytest.approx(1000.2, abs=0.1)


def test_an_idle_leader_beats_every_agent_and_every_voter() -> None:
    seconds = 20

    async def life(world: World) -> None:
        await asyncio.sleep(5)
        world.tally.messages.clear()
        await asyncio.sleep(seconds)

    world = World(agents=AGENTS)
    world.run(life)
    timeout_s = world.settings.tuning.failure_timeout_s
    each_s = {kind: count / seconds for kind, count in world.tally.messages.items()}
    beats, heartbeats = 2 * 4 / timeout_s * (AGENTS - 1), 2 * 10 / timeout_s * (VOTERS - 1)
    assert each_s.keys() == {"membership", "voters"}
    assert each_s["membership"] == pytest.approx(beats, rel=0.1)
    assert each_s["voters"] == pytest.approx(heartbeats, rel=0.1)


def test_what_clients_put_is_there_and_what_a_lost_agent_held_is_repaired() -> None:
    async def life(world: World) -> tuple[int, int, int]:
        await world.hold(60)
        await world.welcome(3)
        await world.clients[1].put(bytes(2 * SIZE))
        await world.clients[1].open()
        state = world.leader.replica.state
        slot = AGENTS - 1
        held = state.health.shards_placed[slot]
        await world.lose(slot)
        world.clients[1].number = 77  # whose file nobody has put
        with pytest.raises(NotFound):
            await world.clients[1].open()
        return held, state.health.tally().margin(PARITY_SHARDS), len(state.files)

    held, margin, files = World(agents=AGENTS).run(life)
    assert held > 0
    assert margin == PARITY_SHARDS
    assert files == 60 + 3


def test_all_figures_of_a_leader_are_found() -> None:
    found = scale._of_agents(AGENTS, TINY) + scale._of_clients(AGENTS, 5, TINY)
    expected = {value for name, value in vars(works).items() if name.startswith("SCALE_")}
    assert {work for work, *_ in found} == expected - {works.SCALE_SOCKET}
    assert {size for *_, size in found} == {AGENTS, 5}
    figures = {work: value for work, value, *_ in found}
    assert figures[works.SCALE_LOST_MESSAGES] > 1
    assert figures[works.SCALE_COMMIT_MESSAGES] > 2, "what the client sends and gets, and a round"
