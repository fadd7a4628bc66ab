"""Files with too many lost shards that the tier has: they are evicted, as after a restore, and
loaded from the tier again.

Runs on the leader, for the repairer. Files that are not within the horizon stay lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

from diskless.agent.replica import Replica
from diskless.namespace import commands as c
from diskless.namespace.tier import EVICT_FILES_MAX, is_evictable

log = logging.getLogger(__name__)

STRETCH_STRIPES = 200
"""Stripes looked at before other tasks run."""


class Salvager:
    def __init__(self, *, replica: Replica) -> None:
        self._replica = replica

    async def salvage(self, stripes: Iterable[str]) -> Counter[int]:
        """How many of these stripes hold no live file any more, by their parity."""
        if not self._replica.state.tier.attached:
            return Counter()
        parities: dict[str, int] = {}
        due: dict[int, int] = {}
        for count, id_ in enumerate(stripes, start=1):
            if (entry := self._replica.state.ledger.live(id_)) is not None:
                parities[id_] = entry.stripe.parity_shards
            due |= self._files_of(id_)
            if len(due) >= EVICT_FILES_MAX:
                await self._leave(due)
                due = {}
            if count % STRETCH_STRIPES == 0:
                await asyncio.sleep(0)
        await self._leave(due)
        ledger = self._replica.state.ledger
        return Counter(parity for id_, parity in parities.items() if ledger.live(id_) is None)

    def _files_of(self, stripe: str) -> dict[int, int]:
        state = self._replica.state
        entry = state.ledger.live(stripe)
        records = [state.files[file].record for file in entry.files] if entry is not None else []
        return {r.id: r.layout for r in records if is_evictable(state.tier, r)}

    async def _leave(self, files: dict[int, int]) -> None:
        left = list(files.items())
        for at in range(0, len(left), EVICT_FILES_MAX):
            part = tuple(left[at : at + EVICT_FILES_MAX])
            (result,) = await self._replica.execute(c.Evict(part, returns=True))
            if isinstance(result, c.Refused):
                raise result.error()
            log.warning("files left to the tier: shards are lost files=%d", result.number)
