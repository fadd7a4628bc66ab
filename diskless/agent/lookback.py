"""Events that a voter's memory has no more: they are read from its audit file, page by page."""

import asyncio

from diskless.agent.audit import AuditFile
from diskless.errors import Unavailable
from diskless.model import slot_name
from diskless.namespace.lookback import EventsFound, Look

READERS_MAX = 2
"""Threads that look through audit files at once."""
LOOK_BACK_S = 10.0
"""How long that may take: nobody waits longer, and whoever asks holds a place at this agent."""


class LookBack:
    def __init__(self, audit: AuditFile | None, *, slot: int) -> None:
        self._audit = audit
        self._slot = slot
        self._readers = asyncio.Semaphore(READERS_MAX)

    async def complete(self, look: Look) -> EventsFound:
        """Ends a page that has what memory has. Raises Unavailable if the file cannot be read in
        time."""
        if look.ended or self._audit is None:
            return page_of(look)
        try:
            async with asyncio.timeout(LOOK_BACK_S):
                return await self._read(self._audit, look)
        except TimeoutError:
            raise Unavailable(
                f"the audit file of {slot_name(self._slot)} cannot be read within {LOOK_BACK_S:g} s"
            ) from None

    async def _read(self, audit: AuditFile, look: Look) -> EventsFound:
        """Whoever gives up leaves its place to the next one only when its thread has ended: the
        disk may hang, and the threads are those of all."""
        await self._readers.acquire()
        reading = asyncio.ensure_future(asyncio.to_thread(audit.look_back, look))
        reading.add_done_callback(lambda _: self._readers.release())
        return await asyncio.shield(reading)


def page_of(look: Look) -> EventsFound:
    """What has been found so far, and where it goes on unless nothing older is known."""
    return look.result(place=look.place() if look.ended else None)
