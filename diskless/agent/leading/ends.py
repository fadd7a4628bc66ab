"""What a leader does about agents whose end is announced, besides moving their shards.

Repair moves the shards: they are *leaving* (`diskless.repair`). This module hands leadership to a
voter that stays, and revokes announcements that turned out to be wrong.
"""

import logging
from collections.abc import Mapping

from diskless import ends
from diskless.agent.replica import Replica
from diskless.agent.ticking import rest
from diskless.ends import Notice
from diskless.errors import DisklessError
from diskless.model import slot_name
from diskless.namespace import commands as c

log = logging.getLogger(__name__)

INTERVAL_S = 0.5


class Ends:
    def __init__(self, *, replica: Replica) -> None:
        self._replica = replica
        self._announced: set[tuple[int, str, str]] = set()
        """(slot, boot, notice) that this leader has announced. Without this, two sources that
        contradict each other about one agent would alternate forever."""

    async def run(self) -> None:
        """Checks until cancelled."""
        while True:
            await rest(INTERVAL_S)
            try:
                await self.look()
            except DisklessError as error:
                log.info("announced ends not looked after error=%s", error)
            except Exception:  # otherwise wrong announcements would stay forever
                log.exception("announced ends not looked after")

    async def look(self) -> None:
        """Checks once."""
        replica = self._replica
        agents = replica.state.agents
        for agent in ends.unfounded(agents, elapsed_ms=replica.elapsed_ms()):
            log.warning(
                "agent has not ended slot=%s notice=%s", slot_name(agent.slot), agent.notice
            )
            await replica.execute(c.AgentEnds(agent.slot, agent.incarnation, agent.notice, 0))
        leaving = ends.ending(agents)
        if replica.slot in leaving:
            replica.hand_over(unfit=leaving)

    async def announce(self, notices: Mapping[str, Notice]) -> None:
        """Records notices about nodes, by node name. Raises as `Replica.execute`."""
        agents = self._replica.state.agents
        for agent, notice in ends.unheard(agents.values(), notices):
            key = (agent.slot, agent.boot, notice.name)
            if key in self._announced:
                continue
            left_ms = max(int(1000 * notice.left_s), 1)
            await self._replica.execute(
                c.AgentEnds(agent.slot, agent.incarnation, notice.name, left_ms)
            )
            self._announced.add(key)
            log.warning("agent ends slot=%s in_ms=%d", slot_name(agent.slot), left_ms)
