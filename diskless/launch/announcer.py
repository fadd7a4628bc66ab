"""Tells a leader which Ray nodes are about to go: those that Ray drains (`ray drain-node`, an
autoscaler, a cloud that takes a machine back).

Ray only says so. It never takes it back, and what ends such a node is somebody else. It is asked
every few seconds, on a thread of its own: it may take its time, or never answer.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import ray

from diskless.agent.ports import Ward
from diskless.ends import NO_DEADLINE_S, Notice
from diskless.errors import DisklessError, Unavailable
from diskless.launch import ray_link, spread

log = logging.getLogger(__name__)

INTERVAL_S = 2.0


class Announcer:
    def __init__(self, ward: Ward) -> None:
        self._ward = ward
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="announcer")

    async def run(self) -> None:
        """Asks Ray until cancelled."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                try:
                    await self.look()
                except DisklessError as error:
                    log.info("announced ends not known error=%s", error)
                except Exception:  # else the agent, and what it holds, would end with this
                    log.exception("announced ends not asked for")
        finally:
            self._thread.shutdown(wait=False)

    async def look(self) -> None:
        """Once."""
        if not self._ward.leads_majority():
            return
        loop = asyncio.get_running_loop()
        deadlines = await loop.run_in_executor(self._thread, _ask)
        notices = notices_of(deadlines, wall_ms=time.time_ns() // 1_000_000)
        if notices:
            await self._ward.announce(notices)


def notices_of(deadlines: Mapping[str, int], *, wall_ms: int) -> dict[str, Notice]:
    """What to say of draining nodes, by their ids, given when they end by the wall clock; 0 if
    Ray does not know."""
    return {
        node: Notice(
            name=f"Ray {at_ms}",
            left_s=(at_ms - wall_ms) / 1000 if at_ms else NO_DEADLINE_S,
        )
        for node, at_ms in deadlines.items()
    }


def _ask() -> dict[str, int]:
    address = ray_link.address_of(ray)
    try:
        ray_link.check_listening(address)
        return spread.draining_nodes()
    except Unavailable as error:
        log.debug("Ray not asked error=%s", error)
        return {}
