"""How the bytes of files get to the tier: read here, or uploaded by all agents in turn.

Runs on the leader. If an agent fails, another agent uploads the segment.
"""

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from diskless.agent.cold import cold_extent, is_cold_extent
from diskless.agent.ports import Uploaded, Uploaders, UploadPart
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.uploader import Uploader
from diskless.errors import StoreDown, Unavailable
from diskless.model import AgentInfo, FileRecord, slot_name
from diskless.namespace.parts import Layout, Span
from diskless.namespace.tier import is_cold

log = logging.getLogger(__name__)

TRIES_MAX = 3
"""Agents that are tried, one after the other."""


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
            agent = self.choose(tried, inline=any(r.inline is not None for r in records))
            tried.add(agent.slot)
            try:
                return await self._uploaders.upload(
                    agent, records, stripes, number=number, name=f"{name}-{len(tried)}"
                )
            except StoreDown:
                raise  # the store failed, not the agent
            except Unavailable as error:
                log.info("segment not uploaded agent=%s error=%s", slot_name(agent.slot), error)
                self._roster.suspect(agent)
                if len(tried) >= TRIES_MAX:
                    raise

    def begin_parts(self) -> "BringerRun":
        return BringerRun(self)

    async def upload_part(
        self, agent: AgentInfo, record: FileRecord, part: UploadPart, *, number: int, name: str
    ) -> Uploaded:
        """Has that agent upload the part. `record` has only the extents of the part."""
        names = {extent.stripe for extent in record.extents if not is_cold_extent(extent)}
        stripes = self._replica.state.locate(sorted(names))
        try:
            return await self._uploaders.upload(
                agent, (record,), stripes, number=number, name=name, part=part
            )
        except StoreDown:
            raise
        except Unavailable as error:
            log.info("part not uploaded agent=%s error=%s", slot_name(agent.slot), error)
            self._roster.suspect(agent)
            raise

    def choose(self, tried: set[int], *, inline: bool) -> AgentInfo:
        """Agents in turn. Inline bytes are only here, so this agent uploads them."""
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


class BringerRun:
    """Implements the drainer's PartRun. One agent uploads all parts: it verifies the checksum of
    the whole file."""

    def __init__(self, bringer: Bringer) -> None:
        self._bringer = bringer
        self._tried: set[int] = set()
        self._run = ""
        self._laid_out: tuple[int, Layout] | None = None
        self._agent = self._choose()

    def _choose(self) -> AgentInfo:
        agent = self._bringer.choose(self._tried, inline=False)
        self._tried.add(agent.slot)
        return agent

    async def upload(self, record: FileRecord, span: Span, *, number: int, name: str) -> Uploaded:
        self._run = self._run or name
        name = f"{name}-{len(self._tried)}"
        part = UploadPart(span.start, span.end, self._run)
        cut = replace(record, extents=tuple(self._layout(record).cut(span.start, span.end)))
        return await self._bringer.upload_part(self._agent, cut, part, number=number, name=name)

    def _layout(self, record: FileRecord) -> Layout:
        """Recomputed if the bytes were moved in the meantime."""
        if self._laid_out is None or self._laid_out[0] != record.layout:
            extents = (cold_extent(record),) if is_cold(record) else record.extents
            self._laid_out = (record.layout, Layout(extents))
        return self._laid_out[1]

    def next_agent(self) -> bool:
        if len(self._tried) >= TRIES_MAX:
            return False
        try:
            self._agent = self._choose()
        except Unavailable:
            return False
        self._run = ""
        return True
