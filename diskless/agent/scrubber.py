"""Slowly verifies this agent's shards, to find damage before it is read."""

import logging
from collections.abc import Callable

from diskless.agent.shards import ShardStore
from diskless.agent.ticking import rest
from diskless.upkeep import USUAL

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""Before an agent looks at everything again, at the usual pace."""
STRETCH_S = 0.25
"""Bytes that are verified between two pauses: four full shards, which take a fifth of a
millisecond. More pauses would cost an idle agent more than the verification."""
SHARD_BYTES_MIN = 4 << 10
"""The least that a shard counts, because a small one costs something too."""


class Scrubber:
    """Verifies every shard in turn. The next heartbeat reports damage to the leader."""

    def __init__(
        self, *, shards: ShardStore, bytes_per_s: int, pace: Callable[[], float] = lambda: USUAL
    ) -> None:
        """`pace` tells how many times as fast as that it shall be at the moment."""
        self._shards = shards
        self._bytes_per_s = bytes_per_s
        self._pace = pace

    async def run(self) -> None:
        while True:
            await self.scrub()
            await rest(IDLE_S / self._pace())

    async def scrub(self) -> int:
        """One pass over all shards; returns how many are damaged."""
        damaged, owed_s = 0, 0.0
        for stripe in self._shards.stripes():
            for index, size in self._shards.sizes(stripe).items():
                owed_s += max(size, SHARD_BYTES_MIN) / self._bytes_per_s
                if owed_s >= STRETCH_S:
                    await rest(owed_s / self._pace())
                    owed_s = 0.0
                if self._shards.has(stripe, index) and not self._shards.verify(stripe, index):
                    damaged += 1
                    log.error("damaged shard stripe=%s index=%d", stripe, index)
        return damaged
