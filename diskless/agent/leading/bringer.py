"""How files' bytes come to the tier: read here, or by all agents in turn.

Runs on the leader. An agent that fails is passed over; the segment goes to another.
"""

import logging
from collections.abc import Sequence

from diskless.agent.ports import Uploaded, Uploaders
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.uploader import Uploader
from diskless.errors import StoreDown, Unavailable
from diskless.model import AgentInfo, FileRecord, slot_name

log = logging.getLogger(__name__)

TRIES_MAX = 3


class Bringer:
    """Implements the drainer's Source."""

    def __init__(
        self, *, replica: Replica, roster: Roster, here: Uploader, uploaders: Uploaders
    ) -> None:
        self._replica = replica
        self._roster = roster
        self._here = here
        self._uploaders = uploaders
        self._turn = 0

    async def read(self, record: FileRecord) -> bytes:
        return await self._here.read(record)

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        names = {extent.stripe for record in records for extent in record.extents}
        stripes = self._replica.state.locate(sorted(names))
        tried: set[int] = set()
        while True:
            agent = self._next(tried, inline=any(r.inline is not None for r in records))
            tried.add(agent.slot)
            try:
                return await self._uploaders.upload(
                    agent, records, stripes, number=number, name=f"{name}-{len(tried)}"
                )
            except StoreDown:
                raise  # it is not the agent's fault
            except Unavailable as error:
                log.info("segment not uploaded agent=%s error=%s", slot_name(agent.slot), error)
                self._roster.suspect(agent)
                if len(tried) >= TRIES_MAX:
                    raise

    def _next(self, tried: set[int], *, inline: bool) -> AgentInfo:
        """Agents in turn; those bytes that travel in commands are only here."""
        alive = sorted(self._roster.alive(), key=lambda agent: agent.slot)
        if inline:
            alive = [agent for agent in alive if agent.slot == self._roster.slot]
        left = [agent for agent in alive if agent.slot not in tried and not agent.slow] or [
            agent for agent in alive if agent.slot not in tried
        ]
        if not left:
            raise Unavailable("no agent is left to upload a segment")
        self._turn += 1
        return left[self._turn % len(left)]
