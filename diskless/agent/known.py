"""The stripes that an agent knows the places of, so that reading them asks nobody."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from diskless.agent.memory import Memory
from diskless.agent.roster import Roster
from diskless.errors import DisklessError
from diskless.model import Stripe

log = logging.getLogger(__name__)

STRIPES_CACHED_MAX = 16_384
STRIPE_CACHED_BYTES = 560
"""What Python's objects for a remembered stripe take, as measured with 50,000 of them."""
CACHE_SHARE = 1 / 64
"""The part of the agent's memory for stripes that it remembers, if that holds fewer."""
REFRESH_PAUSE_S = 1.0
"""Between two questions where stripes are whose shards seem to have moved."""

Locate = Callable[[Sequence[str]], Awaitable[list[Stripe]]]


class KnownStripes:
    def __init__(self, *, locate: Locate, roster: Roster, memory: Memory) -> None:
        """`locate` asks the namespace where stripes are; it raises NotFound for freed ones."""
        self._locate = locate
        self._roster = roster
        self._stripes: dict[str, Stripe] = {}
        self._stripes_max = min(
            int(CACHE_SHARE * memory.bytes_max / STRIPE_CACHED_BYTES), STRIPES_CACHED_MAX
        )
        memory.meter(
            lambda: {"caches": STRIPE_CACHED_BYTES * len(self._stripes)},
            lambda: (0, STRIPE_CACHED_BYTES * len(self._stripes)),
        )
        self._moved: set[str] = set()
        self._refresh: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()

    def learn(self, stripes: Sequence[Stripe]) -> None:
        """Remembers where stripes are, so that reading them asks nobody."""
        for stripe in stripes:
            self._stripes[stripe.id] = stripe
        while len(self._stripes) > self._stripes_max:
            del self._stripes[next(iter(self._stripes))]

    def get(self, id_: str) -> Stripe | None:
        """Where a stripe is, as far as that is known here. Not of one that is being moved off an
        agent, or was: that may be gone when it is asked, and the read would be a degraded one."""
        stripe, ending = self._stripes.get(id_), self._roster.ending
        if stripe is not None and ending and any(p.slot in ending for p in stripe.places):
            return None
        return stripe

    def note_moved(self, stripe: Stripe) -> None:
        """A stripe that we remember may have been repaired: asks, in the background, where
        its shards are now. What we remember is enough to continue with."""
        if self._stripes.get(stripe.id) is not stripe or len(self._moved) >= self._stripes_max:
            return
        self._moved.add(stripe.id)
        if self._refresh is None:
            self._refresh = asyncio.create_task(self._refresh_moved())

    async def _refresh_moved(self) -> None:
        try:
            await asyncio.sleep(REFRESH_PAUSE_S)
            moved, self._moved = self._moved, set()
            known = [id_ for id_ in sorted(moved) if id_ in self._stripes]
            self.learn(await self._locate(known))
        except DisklessError as error:
            log.info("stripes not located again error=%s", error)
        finally:
            self._refresh = None
