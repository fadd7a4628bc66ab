"""Where files are in the tier, as far as this agent knows: a bounded cache."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from diskless.errors import NotFound
from diskless.namespace.views import TierPlace

PLACES_MAX = 16_384
PLACE_BYTES = 400
"""Bytes of the Python objects for one cached place."""

Locate = Callable[[int, int], Awaitable[list[TierPlace]]]
"""Where a file is from a byte on: some parts of it, or none."""


class Places:
    def __init__(self, locate: Locate) -> None:
        """`locate` asks the namespace."""
        self._locate = locate
        self._known: OrderedDict[int, list[TierPlace]] = OrderedDict()
        self._count = 0

    @property
    def weight(self) -> int:
        return PLACE_BYTES * self._count

    def learn(self, id_: int, *places: TierPlace | None) -> None:
        """Caches where a file is, or some parts of it, so that reads need not ask."""
        for place in places:
            if place is None:
                continue
            known = self._known.setdefault(id_, [])
            old = [one for one in known if one.covers(place.start) or place.covers(one.start)]
            if old != [place]:  # what was moved is forgotten
                self._known[id_] = [*(one for one in known if one not in old), place]
                self._count += 1 - len(old)
        if id_ in self._known:
            self._known.move_to_end(id_)  # what was just requested is not evicted first
        while self._count > PLACES_MAX and len(self._known) > 1:
            self._count -= len(self._known.popitem(last=False)[1])

    def forget(self, id_: int) -> None:
        self._count -= len(self._known.pop(id_, ()))

    async def find(self, id_: int, at: int) -> TierPlace:
        """The part of a file that has byte `at`. Raises NotFound if it is gone, Unavailable."""
        place = self._find(id_, at)
        if place is None:
            self.learn(id_, *await self._locate(id_, at))
            place = self._find(id_, at)
        if place is None:
            raise NotFound(f"the bytes of file {id_} are not in the tier: it is gone")
        return place

    def _find(self, id_: int, at: int) -> TierPlace | None:
        return next((one for one in self._known.get(id_, ()) if one.covers(at)), None)
