"""Unconfirmed shards of this agent: asks the leader about them, and drops what it says.

Runs on every agent. What the leader cannot decide yet is remembered until the next review and
reported with this agent's heartbeat answers, so that the leader's janitor can resolve it.
"""

import asyncio
import logging
from collections.abc import Iterable

from diskless.agent.ports import Unclaimed, Undecided
from diskless.agent.router import Router
from diskless.agent.shards import ShardStore
from diskless.agent.ticking import rest
from diskless.agent.uploads import Uploads
from diskless.config import Tuning
from diskless.errors import DisklessError
from diskless.model import HeldShard, Place, StripeId
from diskless.namespace import queries as q
from diskless.namespace.ledger import Verdict

log = logging.getLogger(__name__)

FULL_REVIEW_S = 600.0
"""How often an agent has all its shards reviewed, in case a drop request was lost."""
UNDECIDED_MAX = 64
UNCLAIMED_MAX = 256
"""What one heartbeat answer reports; the others follow when these are decided."""


class Sweeper:
    """Asks the leader about the shards that no review has confirmed."""

    def __init__(
        self, *, slot: int, shards: ShardStore, uploads: Uploads, namespace: Router, tuning: Tuning
    ) -> None:
        self._slot = slot
        self._shards = shards
        self._uploads = uploads
        self._namespace = namespace
        self._tuning = tuning
        self.undecided: tuple[Undecided, ...] = ()
        self.unclaimed: tuple[Unclaimed, ...] = ()

    async def run(self) -> None:
        doubted_s = asyncio.get_running_loop().time()
        while True:
            await rest(self._tuning.janitor_interval_s)
            self._uploads.expire()
            if asyncio.get_running_loop().time() - doubted_s > FULL_REVIEW_S:
                doubted_s = asyncio.get_running_loop().time()
                self._shards.doubt_all()
            try:
                await self.review()
            except DisklessError as error:
                log.info("review put off error=%s", error)

    async def review(self) -> None:
        shards = self._shards.unconfirmed(
            age_s=self._tuning.orphan_delay_s, limit=q.REVIEW_SHARDS_MAX
        )
        if not shards or self._shards.incarnation is None:
            self.undecided, self.unclaimed = (), ()
            return
        here = Place(self._slot, self._shards.incarnation)
        verdicts = await self._namespace.query(q.Review(here, tuple(shards)))
        judged = dict(zip(shards, verdicts, strict=True))
        for shard, verdict in judged.items():
            if verdict is Verdict.KEEP:
                self._shards.confirm(shard)
        self.undecided = _writers(s for s, v in judged.items() if v is Verdict.UNDECIDED)
        unclaimed = {(s.stripe, s.version) for s, v in judged.items() if v is Verdict.UNCLAIMED}
        self.unclaimed = tuple(sorted(unclaimed)[:UNCLAIMED_MAX])
        dropped = [shard for shard, verdict in judged.items() if verdict is Verdict.DROP]
        if dropped:
            # A repair may have stored one of them again meanwhile, for a later version.
            count = self._shards.drop_superseded(dropped)
            log.info("orphans dropped shards=%d of=%d", count, len(dropped))


def _writers(shards: Iterable[HeldShard]) -> tuple[Undecided, ...]:
    """The writers of the stripes of these shards."""
    makers = [StripeId.parse(shard.stripe) for shard in shards]
    return tuple(sorted({(who.slot, who.incarnation) for who in makers})[:UNDECIDED_MAX])
