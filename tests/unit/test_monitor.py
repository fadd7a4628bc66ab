"""The leader's watch over the agents, with the answers to its beats made up."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from diskless.agent.leading.monitor import BEATS_PER_TIMEOUT, Monitor
from diskless.agent.ports import Beat, Pulse
from diskless.agent.revoked import PART_MAX, Revoked
from diskless.agent.roster import Roster
from diskless.errors import Unavailable
from diskless.model import AgentInfo
from diskless.namespace import commands as c
from diskless.namespace.state import NamespaceState
from tests.tier.loop import VirtualLoop, run
from tests.unit.test_namespace_world import agent_up

AGENTS, LEADER, VICTIM = 4, 0, 3
TIMEOUT_S = 0.4


def pulse(boot: str, roster_version: int, revoked_version: int = 0) -> Pulse:
    return Pulse(boot, roster_version, 0, {}, 1 << 30, 0, 0, (), revoked_version=revoked_version)


class Peers:
    """All agents answer at once; at the victim's address another process does, if told so,
    that has yet to join."""

    def __init__(self) -> None:
        self.replaced = False
        self.silent: set[int] = set()
        self.unanswered: Counter[int] = Counter()
        self.beats = 0
        self.revoked: defaultdict[int, set[str]] = defaultdict(set)
        self.parts: Counter[int] = Counter()

    async def beat(self, agent: AgentInfo, beat: Beat, *, timeout_s: float) -> Pulse:
        await asyncio.sleep(0)
        if agent.slot in self.silent:
            await asyncio.sleep(timeout_s)
            self.unanswered[agent.slot] += 1
            raise Unavailable("silent")
        if agent.slot == VICTIM and self.replaced:
            self.beats += 1
            return pulse("", beat.roster_version if beat.roster is not None else 0)
        assert len(beat.revoked) <= PART_MAX
        self.revoked[agent.slot].update(name for name, _ in beat.revoked)
        self.parts[agent.slot] += bool(beat.revoked)
        return pulse(agent.boot, beat.roster_version, beat.revoked_upto)


class Watch:
    """A leader's monitor over agents that are all up at first."""

    def __init__(self) -> None:
        self.state = NamespaceState()
        self.peers = Peers()
        self.me: Any = SimpleNamespace(
            learn=lambda **_: None,
            revoked=Revoked(wall_s=time.time),
            vital_signs=lambda: pulse(self.state.agents[LEADER].boot, self.state.roster_version),
        )
        replica: Any = SimpleNamespace(
            state=self.state, execute=self.execute, is_outpaced=False, view=1, voters=3
        )
        others: Any = self.peers
        self.monitor = Monitor(
            slot=LEADER,
            replica=replica,
            member=self.me,
            roster=Roster(slot=LEADER, seeds={}, now_s=time.monotonic, suspect_s=1.0),
            peers=others,
            failure_timeout_s=TIMEOUT_S,
            slow_max=1,
            inline_room=lambda: True,
        )

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        return self.state.apply(command, now_ms=1, elapsed_ms=1)

    def down(self) -> list[int]:
        return [slot for slot, agent in self.state.agents.items() if not agent.up]

    async def run(self, scene: Callable[[], Awaitable[None]], *, timeout_s: float = 30.0) -> None:
        for slot in range(AGENTS):
            await self.execute(agent_up(slot))
        running = asyncio.create_task(self.monitor.run())
        async with asyncio.timeout(timeout_s):
            while len(self.monitor.pulses) < AGENTS:
                await asyncio.sleep(0.01)
            await scene()
        self.monitor.stop()
        running.cancel()


def test_a_life_is_over_when_another_process_answers_at_its_address() -> None:
    """It may recover for long before it joins. Until then nobody has the shards, and it must
    not be beaten without a pause."""
    watch = Watch()

    async def replaced() -> None:
        watch.peers.replaced = True
        await asyncio.sleep(TIMEOUT_S)

    run(watch.run(replaced))
    assert watch.down() == [VICTIM]
    assert 1 <= watch.peers.beats <= 2 * BEATS_PER_TIMEOUT


@pytest.mark.parametrize("silent", [{1}, {2}, {1, 2}, {1, 3}, {1, 2, 3}], ids=str)
def test_agents_have_longer_while_most_of_them_are_silent(silent: set[int]) -> None:
    """Then it may be the leader that gets no time; but in the end they are down."""
    watch = Watch()

    async def silence() -> None:
        watch.peers.silent = silent
        while watch.down() != sorted(silent):
            await asyncio.sleep(0.01)

    run(watch.run(silence))
    unanswered = [watch.peers.unanswered[slot] for slot in silent]
    if 2 * len(silent) > AGENTS - 1:
        assert max(unanswered) >= 2
    else:
        assert unanswered == [1], "it waits for a beat's whole time, and that is enough"


def test_a_leader_that_is_paused_again_and_again_still_notices_who_is_gone() -> None:
    watch = Watch()

    async def pauses() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        watch.peers.silent = {1}
        for _ in range(20 * BEATS_PER_TIMEOUT):
            loop.now_s += TIMEOUT_S  # in which nobody on this loop gets a turn
            await asyncio.sleep(TIMEOUT_S / BEATS_PER_TIMEOUT / 2)

    run(watch.run(pauses, timeout_s=60 * BEATS_PER_TIMEOUT * TIMEOUT_S))
    assert watch.down() == [1]


def test_one_pause_of_a_leader_marks_nobody_down() -> None:
    watch = Watch()

    async def pause() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.now_s += 10 * TIMEOUT_S
        await asyncio.sleep(3 * TIMEOUT_S)

    run(watch.run(pause))
    assert watch.down() == []


def test_revoked_names_go_to_every_agent_once_and_in_parts() -> None:
    watch = Watch()
    count = 2 * PART_MAX + 5
    names = {f"q{number}" for number in range(count)}
    others = set(range(AGENTS)) - {LEADER}

    async def scene() -> None:
        for name in names:
            watch.state.apply(c.RevokeToken(name), now_ms=1, elapsed_ms=1)
        watch.monitor.publish()
        while any(watch.peers.revoked[slot] != names for slot in others):
            await asyncio.sleep(0.01)
        await asyncio.sleep(TIMEOUT_S)  # further beats have nothing to tell

    run(watch.run(scene))
    assert {watch.peers.parts[slot] for slot in others} == {3}
    assert watch.me.revoked.version == count
    assert all(name in watch.me.revoked for name in names)


def test_agents_are_told_of_a_version_by_one_roster_and_of_the_next_by_another() -> None:
    """It is encoded for the first of them, and a beat without news has none."""
    watch = Watch()
    told: defaultdict[int, list[tuple[AgentInfo, ...]]] = defaultdict(list)
    answer = watch.peers.beat

    async def beat(agent: AgentInfo, beat: Beat, *, timeout_s: float) -> Pulse:
        if beat.roster is not None:
            told[beat.roster_version].append(beat.roster)
        return await answer(agent, beat, timeout_s=timeout_s)

    async def change() -> None:
        await watch.execute(c.Drain(VICTIM, True))
        watch.monitor.publish()
        while len(told[watch.state.roster_version]) < AGENTS - 1:
            await asyncio.sleep(0.01)

    watch.peers.beat = beat  # type: ignore[method-assign]
    run(watch.run(change))
    newest = told.pop(watch.state.roster_version)
    assert all(roster is newest[0] for roster in newest)
    assert next(agent for agent in newest[0] if agent.slot == VICTIM).draining
    assert not any(agent.draining for rosters in told.values() for agent in rosters[0])
