"""How often clients' reads were served from memory, and how long the others waited."""

from collections.abc import Callable, Sequence

from diskless.agent.cold import ColdName, is_cold_extent
from diskless.agent.ports import CacheCounts
from diskless.model import Extent

WANTED_MAX = 256
WANTED_S = 3.0
"""Files that are read in the tier, and for how long the leader is told of them: heartbeats may be
lost, and the leader evaluates them only from time to time."""


class Hits:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._hits = 0
        self._misses = 0
        self._waited_s = 0.0
        self._wanted: dict[int, float] = {}  # when they were read last

    def hit(self) -> None:
        self._hits += 1

    def missed(self, extents: Sequence[Extent], *, waited_s: float) -> None:
        """Some of these were read from the tier."""
        self._misses += 1
        self._waited_s += waited_s
        for extent in filter(is_cold_extent, extents):
            id_ = ColdName.parse(extent.stripe).id
            if id_ in self._wanted or len(self._wanted) < WANTED_MAX:
                self._wanted[id_] = self._now_s()

    def counts(self) -> CacheCounts:
        """All since the agent started."""
        return CacheCounts(self._hits, self._misses, round(1000 * self._waited_s))

    def tell(self) -> CacheCounts:
        """All since the agent started, and what was requested recently."""
        late_s = self._now_s() - WANTED_S
        self._wanted = {id_: at_s for id_, at_s in self._wanted.items() if at_s > late_s}
        waited_ms = round(1000 * self._waited_s)
        return CacheCounts(self._hits, self._misses, waited_ms, tuple(self._wanted))
