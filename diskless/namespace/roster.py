"""The agents as the namespace knows them: who serves a slot, in which life, and whether it is
up, slow, draining or about to end. Pure; changed by commands alone.
"""

from collections import deque

from msgspec.structs import replace

from diskless.errors import BadRequest
from diskless.model import AgentInfo, slot_name
from diskless.namespace import commands as c
from diskless.namespace.health import Health

BOOTS_PER_SLOT_MAX = 64
"""Lives of a slot that are remembered, so that a late repeat does not begin a new one."""

LAPSES_PER_SLOT_MAX = 8


class Roster:
    def __init__(self) -> None:
        self.agents: dict[int, AgentInfo] = {}
        self.health = Health(self.agents)
        self.version = 0
        self.lost_ms = 0  # by elapsed time, when a life was last seen that another has replaced
        self.boots: dict[int, dict[str, int]] = {}  # slot -> boot -> incarnation
        self.lapses: dict[int, deque[int]] = {}
        """By elapsed time, when each slot last went down, restarted or became slow. Of this voter
        alone: it is in no snapshot, and nothing that a command does depends on it."""

    @property
    def left_ms(self) -> int:
        """By elapsed time, since when all agents that are missing have been away: one that is
        back in the same life was not lost, however often it goes."""
        away = [agent.down_ms for agent in self.agents.values() if not agent.up]
        return max([self.lost_ms, *away])

    def up(self, command: c.AgentUp, *, elapsed_ms: int) -> c.Done:
        old = self.agents.get(command.slot)
        boots = self.boots.setdefault(command.slot, {})
        incarnation = boots.get(command.boot)
        if incarnation is None:
            incarnation = boots[command.boot] = old.incarnation + 1 if old is not None else 1
            if len(boots) > BOOTS_PER_SLOT_MAX:
                del boots[next(iter(boots))]
        elif old is not None and incarnation < old.incarnation:
            return c.Done(incarnation, changed=False)  # a late repeat: that life is over
        # What was said of a host holds for the next life there, and for none elsewhere.
        stays = old is not None and (old.host, old.node) == (command.host, command.node)
        info = AgentInfo(
            slot=command.slot,
            incarnation=incarnation,
            boot=command.boot,
            address=command.address,
            gateway=command.gateway,
            socket=command.socket,
            host=command.host,
            node=command.node,
            pid=command.pid,
            draining=old is not None and old.draining,
            slow=old is not None and old.slow and old.incarnation == incarnation,
            ends_ms=old.ends_ms if old is not None and stays else 0,
            notice=old.notice if old is not None and stays else "",
        )
        if info != old:
            is_loss = old is not None and old.incarnation != incarnation
            if old is not None and is_loss:
                seen_ms = elapsed_ms if old.up else old.down_ms
                self.lost_ms = max(self.lost_ms, seen_ms)
                if old.up:
                    self._lapsed(command.slot, elapsed_ms)
            self._note(info, is_loss=is_loss)
        return c.Done(incarnation, changed=info != old)

    def down(self, slot: int, incarnation: int, *, elapsed_ms: int) -> None:
        agent = self.agents.get(slot)
        if agent is not None and agent.incarnation == incarnation and agent.up:
            down = replace(agent, up=False, down_ms=max(elapsed_ms, 1))
            self._note(down, is_loss=True)
            self._lapsed(slot, elapsed_ms)

    def slow(self, slot: int, incarnation: int, slow: bool, *, elapsed_ms: int) -> c.Done:
        agent = self.agents.get(slot)
        changed = agent is not None and agent.incarnation == incarnation and agent.slow != slow
        if changed:
            assert agent is not None
            self._note(replace(agent, slow=slow), is_loss=False)
            if slow:
                self._lapsed(slot, elapsed_ms)
        return c.Done(changed=changed)

    def ends(self, command: c.AgentEnds, *, elapsed_ms: int) -> c.Done:
        agent = self.agents.get(command.slot)
        if agent is None or agent.incarnation != command.incarnation:
            return c.Done(changed=False)
        known = agent.notice == command.notice
        if command.left_ms > 0:
            changed, ends_ms = not known, elapsed_ms + command.left_ms
        else:
            changed, ends_ms = known and agent.ends_ms > 0, 0
        if changed:
            self._note(replace(agent, ends_ms=ends_ms, notice=command.notice), is_loss=False)
        return c.Done(changed=changed)

    def drain(self, slot: int, draining: bool) -> c.Result:
        agent = self.agents.get(slot)
        if agent is None:
            return c.Refused.of(BadRequest(f"{slot_name(slot)} has never joined the cluster"))
        ends_ms = agent.ends_ms if draining else 0
        changed = (agent.draining, agent.ends_ms) != (draining, ends_ms)
        if changed:
            self._note(replace(agent, draining=draining, ends_ms=ends_ms), is_loss=False)
        return c.Done(changed=changed)

    def _lapsed(self, slot: int, elapsed_ms: int) -> None:
        self.lapses.setdefault(slot, deque(maxlen=LAPSES_PER_SLOT_MAX)).append(elapsed_ms)

    def _note(self, agent: AgentInfo, *, is_loss: bool) -> None:
        self.agents[agent.slot] = agent
        self.version += 1
        self.health.touch(agent.slot, is_loss=is_loss)
