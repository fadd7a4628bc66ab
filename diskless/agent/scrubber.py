"""Looks through this agent's shards for damage that nobody has read yet, slowly."""

import asyncio
import logging

from diskless.agent.shards import ShardStore

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""Before an agent looks at everything again."""
STRETCH_S = 0.05
"""What is owed to others is paid by a pause when it is this much."""
SHARD_BYTES_MIN = 4 << 10
"""The least that a shard counts: looking at a tiny one costs something too."""


class Scrubber:
    """Verifies every shard in turn; what is damaged the next heartbeat tells the leader."""

    def __init__(self, *, shards: ShardStore, bytes_per_s: int) -> None:
        self._shards = shards
        self._bytes_per_s = bytes_per_s

    async def run(self) -> None:
        while True:
            await self.scrub()
            await asyncio.sleep(IDLE_S)

    async def scrub(self) -> int:
        """One look at all that is here now; returns how many shards are damaged."""
        damaged, owed_s = 0, 0.0
        for stripe in self._shards.stripes():
            for index, size in self._shards.sizes(stripe).items():
                owed_s += max(size, SHARD_BYTES_MIN) / self._bytes_per_s
                if owed_s >= STRETCH_S:
                    await asyncio.sleep(owed_s)
                    owed_s = 0.0
                if self._shards.has(stripe, index) and not self._shards.verify(stripe, index):
                    damaged += 1
                    log.error("damaged shard stripe=%s index=%d", stripe, index)
        return damaged
