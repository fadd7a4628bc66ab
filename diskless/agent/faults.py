"""Faults planted in this agent on purpose: peers it cannot reach, slow peers, memory taken.

Owns what is planted and nothing of the agent's work: `rpc.peers` asks it before a message
leaves, the shard memory counts its ballast. A cut is silence, as a broken network is:
calls wait for their whole time and posts vanish. It holds for what leaves here, so a
partition is planted on both sides of it. A new life of an agent has no faults.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from diskless.errors import Unavailable
from diskless.model import slot_name

NOT_ARMED = (
    "faults are not planted in a cluster that was not started for it: start one with "
    "`diskless up --chaos`"
)


class Faults:
    def __init__(self) -> None:
        self.cut: frozenset[int] = frozenset()
        self.delays_s: dict[int, float] = {}
        """How much later whatever is sent to a slot leaves."""
        self.ballast_bytes = 0
        """Memory that counts as used and holds nothing."""
        self.disturbs = False
        """Whether anything about messages is planted; asked for every one of them."""
        self._mended = asyncio.Event()

    def cut_off(self, slots: Collection[int]) -> None:
        """From now on, exactly these slots cannot be reached from here."""
        self._mended.set()
        self._mended = asyncio.Event()
        self.cut = frozenset(slots)
        self.disturbs = bool(self.cut or self.delays_s)

    def slow_down(self, delays_s: Mapping[int, float]) -> None:
        self.delays_s = {slot: delay_s for slot, delay_s in delays_s.items() if delay_s > 0}
        self.disturbs = bool(self.cut or self.delays_s)

    def heal(self) -> None:
        self.cut_off(())
        self.slow_down({})
        self.ballast_bytes = 0

    async def reach(self, slot: int, *, timeout_s: float) -> None:
        """Returns when a call may leave for `slot`. Raises Unavailable if it cannot."""
        delay_s = self.delays_s.get(slot, 0.0)
        if slot in self.cut or delay_s >= timeout_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._mended.wait(), timeout_s)
            raise Unavailable(f"{slot_name(slot)} did not answer within {timeout_s:g} s")
        if delay_s:
            await asyncio.sleep(delay_s)
