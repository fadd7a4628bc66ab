"""Which agent fetches which chunk of a cold file from the tier, for all readers.

Every file has an agent that keeps this (`Roster.registrar`). An agent that wants a chunk claims
it there first, and is told which agent claimed it before. That is a hint: the other agent may be
gone by now, or no longer have the chunk. An agent that did not get it claims again, and names
the other. Of several the first gets the claim, and the rest are told of it. If this table is lost,
chunks are claimed again, and at worst fetched once more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from diskless.agent.chunks import stretches

CLAIMS_MAX = 16_384
CLAIM_BYTES = 220
"""Bytes of the Python objects for a claim."""

Claim = asyncio.Task[dict[int, int]]
"""Who fetches each of some chunks."""


class Claims:
    def __init__(self, is_there: Callable[[int], bool]) -> None:
        """`is_there` tells whether an agent is up, by its slot."""
        self._is_there = is_there
        self._who: OrderedDict[tuple[int, int], int] = OrderedDict()

    @property
    def weight(self) -> int:
        return CLAIM_BYTES * len(self._who)

    def claim(
        self, slot: int, file: int, chunks: Sequence[int], *, without: int | None = None
    ) -> list[int]:
        """Who fetches each of these chunks: `slot` if nobody does that is there, or only
        `without`."""
        found = []
        for chunk in chunks:
            key = (file, chunk)
            who = self._who.get(key)
            if who is None or who == without or not self._is_there(who):
                who = self._who[key] = slot
            self._who.move_to_end(key)
            found.append(who)
        while len(self._who) > CLAIMS_MAX:
            self._who.popitem(last=False)
        return found


class Asked:
    """Chunks that were claimed together. What others turn out not to have is claimed again
    together too, once all were asked for: then it is fetched with one request, and not with one
    for each chunk."""

    def __init__(self, chunks: Iterable[int]) -> None:
        self._unanswered = set(chunks)
        self._missed: dict[int, list[int]] = {}
        self._all_answered = asyncio.Event()
        self.again: dict[int, tuple[Claim, Asked]] = {}
        """What was claimed again, by its first chunk."""

    def answered(self, chunk: int) -> None:
        """It has come, or never will. May be called again."""
        self._unanswered.discard(chunk)
        if not self._unanswered:
            self._all_answered.set()

    async def missed(self, chunk: int, who: int) -> range:
        """Notes that `who` does not have a chunk; returns the chunks to claim again with it."""
        self._missed.setdefault(who, []).append(chunk)
        self.answered(chunk)
        await self._all_answered.wait()
        return next(some for some in stretches(sorted(self._missed[who])) if chunk in some)
