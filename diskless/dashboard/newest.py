"""The newest batches in a log of Spark's, in which names are numbers and their order is another
one. Of however many there are, one turn of the loop looks at some."""

import asyncio
from heapq import nlargest

from diskless.agent.router import Router
from diskless.errors import NotFound, PathIsFile
from diskless.namespace import queries as q
from diskless.namespace.views import PathStatus

BATCHES_TOLD = 100
"""Of one checkpoint: Spark keeps so many unless it is told otherwise."""
SLICES_MAX = 250
"""Of names that one request looks at: a million of them."""


class Names:
    """How many names a request may still look at."""

    def __init__(self, slices: int = SLICES_MAX) -> None:
        self._left = slices

    def take(self) -> bool:
        """Whether one slice more may be looked at."""
        self._left -= 1
        return self._left >= 0


async def newest_batches(
    namespace: Router, path: str, left: Names, *, count: int = BATCHES_TOLD
) -> dict[int, PathStatus] | None:
    """The files of the greatest numbers in a directory, which may go while it is looked at; None
    if it has more names than are left to look at."""
    found: dict[int, PathStatus] = {}
    after = ""
    while True:
        if not left.take():
            return None
        try:
            page: q.NewestFound = await namespace.query(q.Newest(path, after, count))
        except (NotFound, PathIsFile):
            return {}
        found.update((int(one.path.rpartition("/")[2]), one) for one in page.entries)
        if not page.after:
            return {number: found[number] for number in nlargest(count, found)}
        after = page.after
        await asyncio.sleep(0)  # where this agent leads it was answered within this turn
