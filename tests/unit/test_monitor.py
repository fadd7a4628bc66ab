"""The leader's watch over the agents, with the answers to its beats made up."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from diskless.agent.leading.monitor import BEATS_PER_TIMEOUT, Monitor
from diskless.agent.ports import Beat, Pulse
from diskless.agent.roster import Roster
from diskless.model import AgentInfo
from diskless.namespace import commands as c
from diskless.namespace.state import NamespaceState
from tests.unit.test_namespace_world import agent_up

AGENTS, LEADER, VICTIM = 4, 0, 3
TIMEOUT_S = 0.4


def pulse(boot: str, roster_version: int) -> Pulse:
    return Pulse(boot, roster_version, 0, {}, 1 << 30, 0, 0, ())


class Peers:
    """All agents answer at once; at the victim's address another process does, if told so,
    that has yet to join."""

    def __init__(self) -> None:
        self.replaced = False
        self.beats = 0

    async def beat(self, agent: AgentInfo, beat: Beat, *, timeout_s: float) -> Pulse:
        await asyncio.sleep(0)
        if agent.slot == VICTIM and self.replaced:
            self.beats += 1
            return pulse("", beat.roster_version if beat.roster is not None else 0)
        return pulse(agent.boot, beat.roster_version)


def test_a_life_is_over_when_another_process_answers_at_its_address() -> None:
    """It may recover for long before it joins. Until then nobody has the shards, and it must
    not be beaten without a pause."""
    state = NamespaceState()

    async def execute(command: c.Command) -> tuple[c.Result, ...]:
        return state.apply(command, now_ms=1, elapsed_ms=1)

    peers = Peers()
    me: Any = SimpleNamespace(
        learn=lambda **_: None,
        vital_signs=lambda: pulse(state.agents[LEADER].boot, state.roster_version),
    )
    replica: Any = SimpleNamespace(
        state=state, execute=execute, is_outpaced=False, view=1, voters=3
    )
    others: Any = peers

    async def watch() -> None:
        for slot in range(AGENTS):
            await execute(agent_up(slot))
        monitor = Monitor(
            slot=LEADER,
            replica=replica,
            member=me,
            roster=Roster(slot=LEADER, seeds={}, now_s=time.monotonic, suspect_s=1.0),
            peers=others,
            failure_timeout_s=TIMEOUT_S,
            slow_max=1,
            inline_room=lambda: True,
        )
        running = asyncio.create_task(monitor.run())
        async with asyncio.timeout(10):
            while len(monitor.pulses) < AGENTS:
                await asyncio.sleep(0.01)
        peers.replaced = True
        await asyncio.sleep(TIMEOUT_S)
        monitor.stop()
        running.cancel()

    asyncio.run(watch())
    assert [slot for slot, agent in state.agents.items() if not agent.up] == [VICTIM]
    assert 1 <= peers.beats <= 2 * BEATS_PER_TIMEOUT
