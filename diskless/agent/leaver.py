"""Ending this agent on request: it announces its end, serves until it is empty or its time is up,
and hands over leadership. The caller ends the process.
"""

import asyncio
import logging
import secrets
from contextlib import suppress

from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.shards import ShardStore
from diskless.errors import DisklessError
from diskless.model import Place, slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q

log = logging.getLogger(__name__)

LOOK_S = 0.2
SETTLE_S = 1.0
"""How long it must have been empty before it ends: what was stored just before it refused more may
be committed until then."""
HAND_OVER_S = 1.0
"""How long another voter may take to become leader."""


class Leaver:
    def __init__(
        self, *, namespace: Router, replica: Replica, roster: Roster, shards: ShardStore
    ) -> None:
        self._namespace = namespace
        self._replica = replica
        self._roster = roster
        self._shards = shards

    async def leave(self, notice_s: float, *, why: str) -> bool:
        """Whether the process may end, after at most `notice_s`; not if the announcement was
        withdrawn."""
        slot = self._roster.slot
        if self._shards.incarnation is None:
            return True  # it never joined, so it holds nothing
        name = f"{why} {secrets.token_hex(4)}"
        log.warning("agent ends slot=%s notice=%s in_s=%g", slot_name(slot), name, notice_s)
        ended = True
        try:
            async with asyncio.timeout(notice_s):
                await self._announce(Place(slot, self._shards.incarnation), name, notice_s)
                ended = await self._until_empty(Place(slot, self._shards.incarnation), name)
        except TimeoutError:
            log.warning("agent ends with what it has slot=%s", slot_name(slot))
        if ended:
            await self._hand_over()
        else:
            self._shards.closed = False
            log.warning("agent does not end after all slot=%s", slot_name(slot))
        return ended

    async def _announce(self, here: Place, name: str, notice_s: float) -> None:
        """Until it is acknowledged."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + notice_s
        while True:
            left_ms = max(int(1000 * (until_s - loop.time())), 1)
            try:
                await self._namespace.run(c.AgentEnds(here.slot, here.incarnation, name, left_ms))
            except DisklessError as error:
                log.info("end not announced error=%s", error)
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def _until_empty(self, here: Place, name: str) -> bool:
        """False if the announcement was withdrawn, also before it was heard of here."""
        loop = asyncio.get_running_loop()
        heard, empty_s = False, None
        while True:
            mine = self._roster.agents.get(here.slot)
            if mine is not None:
                heard = heard or mine.ends_ms > 0 or mine.notice == name
                if heard and not mine.ends_ms:
                    return False
            try:
                left = await self._namespace.query(q.Placed(here))
            except DisklessError as error:
                log.info("not known what is left here error=%s", error)
                left = 1
            if left:
                empty_s = None
            elif empty_s is None:
                empty_s, self._shards.closed = loop.time(), True
            elif loop.time() - empty_s > SETTLE_S:
                return True
            await asyncio.sleep(LOOK_S)

    async def _hand_over(self) -> None:
        """If it leads, hands over, so that no failure of the leader has to be detected."""
        if not self._replica.leads:
            return
        self._replica.hand_over(unfit={self._roster.slot})
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                while self._replica.leader in (None, self._roster.slot):
                    self._roster.changed.clear()
                    await self._roster.changed.wait()
