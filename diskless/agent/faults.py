"""Faults planted in this agent on purpose: peers it cannot reach, slow peers, memory taken.

Owns the planted faults and nothing else: `rpc.peers` asks it before it sends a message, and its
ballast is charged to the account of memory. A cut behaves like a broken network: calls time out and
one-way messages are lost. It applies to what this agent sends, so a partition is planted on both
sides of it. A restarted agent has no faults.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from diskless.agent.memory import Memory
from diskless.errors import Unavailable
from diskless.model import slot_name

NOT_ARMED = (
    "faults are not planted in a cluster that was not started for it: start one with "
    "`diskless up --chaos`"
)


class Faults:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.cut: frozenset[int] = frozenset()
        self.delays_s: dict[int, float] = {}
        """How long messages to a slot are delayed."""
        self.disturbs = False
        """Whether anything about messages is planted; asked for every one of them."""
        self._mended = asyncio.Event()

    @property
    def ballast_bytes(self) -> int:
        """Memory that counts as used and holds nothing."""
        return self._memory.of("ballast")

    @ballast_bytes.setter
    def ballast_bytes(self, count: int) -> None:
        self._memory.charge("ballast", count - self.ballast_bytes)

    def cut_off(self, slots: Collection[int]) -> None:
        """From now on exactly these slots cannot be reached from this agent."""
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
        """Returns when a call to `slot` may be sent. Raises Unavailable if it cannot."""
        delay_s = self.delays_s.get(slot, 0.0)
        if slot in self.cut or delay_s >= timeout_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._mended.wait(), timeout_s)
            raise Unavailable(f"{slot_name(slot)} did not answer within {timeout_s:g} s")
        if delay_s:
            await asyncio.sleep(delay_s)
