"""Bytes of single shards, from their holders: verified, and what follows if they cannot be had."""

import asyncio
import logging
from typing import Any

from diskless.agent.copies import Copies
from diskless.agent.known import KnownStripes
from diskless.agent.ports import ShardPeers
from diskless.agent.prospects import Prospects
from diskless.agent.roster import Roster
from diskless.checksum import BLOCK_BYTES, seed, verify_blocks
from diskless.errors import CorruptData, DisklessError, NotFound, Unavailable
from diskless.model import AgentInfo, Stripe, slot_name

log = logging.getLogger(__name__)

COMPLAINTS_MAX = 64
"""Questions to holders that may be under way; what is not asked is found by the next read."""


class Fetcher:
    def __init__(
        self,
        *,
        roster: Roster,
        holders: ShardPeers,
        known: KnownStripes,
        prospects: Prospects,
        patience_s: float,
    ) -> None:
        """`patience_s` is how long agents that are silent already are given."""
        self._roster = roster
        self._holders = holders
        self._known = known
        self.prospects = prospects
        self._patience_s = patience_s
        self._complaints: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.corrupt_shards_seen = 0

    def close(self) -> None:
        """Ends what runs in the background."""
        for task in self._complaints.values():
            task.cancel()

    async def fetch(
        self, stripe: Stripe, index: int, start: int, stop: int, *, keep: Copies | None = None
    ) -> memoryview:
        """Bytes `start` to `stop` of one shard, verified; a copy goes to `keep`.

        Raises NotFound, CorruptData, Unavailable.
        """
        place = stripe.places[index]
        agent = self._roster.holder(place)
        if agent is None:
            raise NotFound(f"{slot_name(place.slot)} restarted without the shard")
        first = start // BLOCK_BYTES
        blocks = -(-stop // BLOCK_BYTES) - first
        data, checksums = await self._fetch_from(
            agent, stripe=stripe.id, index=index, first_block=first, blocks=blocks
        )
        good = verify_blocks(data, checksums, seed=seed(stripe.id, index), first_block=first)
        if not good or len(data) < stop - first * BLOCK_BYTES:
            self.corrupt_shards_seen += 1
            log.error(
                "corrupt shard stripe=%s index=%d agent=%s",
                stripe.id, index, slot_name(place.slot),
            )  # fmt: skip
            raise CorruptData(f"shard {index} of stripe {stripe.id} fails its checksum")
        if keep is not None:
            keep.keep(stripe.id, index, first, data, checksums)
        return data[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    async def _fetch_from(self, agent: AgentInfo, **blocks: Any) -> tuple[memoryview, bytes]:
        """An agent that is silent already is not given all the time of a fetch, so that the
        client hears why its read fails before its own time is up."""
        if self.prospects.is_there(agent):
            return await self._holders.fetch(agent, **blocks)
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._holders.fetch(agent, **blocks)
        except TimeoutError:
            raise Unavailable(f"{slot_name(agent.slot)} is silent") from None

    def note_unlikely(self, stripe: Stripe) -> None:
        """Shards of this stripe were not even asked for."""
        if any(not self.prospects.is_up(stripe, index) for index in range(len(stripe.places))):
            self._known.note_moved(stripe)

    def note_failure(self, stripe: Stripe, index: int, error: DisklessError) -> None:
        """Suspects a silent agent; asks one that answered what it has there."""
        agent = self._roster.holder(stripe.places[index])
        if agent is None:
            self._known.note_moved(stripe)
        elif isinstance(error, Unavailable):
            self._roster.suspect(agent)
        elif (stripe.id, index) not in self._complaints and len(self._complaints) < COMPLAINTS_MAX:
            self._known.note_moved(stripe)
            key = (stripe.id, index)
            task = self._complaints[key] = asyncio.create_task(self._complain(agent, *key))
            task.add_done_callback(lambda _: self._complaints.pop(key, None))

    async def _complain(self, agent: AgentInfo, stripe: str, index: int) -> None:
        try:
            await self._holders.verify(agent, stripe=stripe, index=index)
        except DisklessError as error:
            log.info("complaint not delivered agent=%s error=%s", slot_name(agent.slot), error)
