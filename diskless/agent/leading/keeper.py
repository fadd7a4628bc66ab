"""What snapshots cost: the bytes that only snapshots hold, found by a background walk."""

import asyncio
import logging

from diskless.agent.replica import Replica
from diskless.agent.ticking import rest
from diskless.namespace.usage import held_by_snapshots

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
REST = 20
"""The pause after a walk, as a multiple of its duration, so that walks take a small part of the
leader's time, however large the namespace is."""


class Keeper:
    def __init__(self, *, replica: Replica) -> None:
        self._replica = replica
        self.bytes_alone: int | None = None
        """The result of the last walk; None before the first."""

    async def run(self) -> None:
        """Runs until cancelled. Walks only if the namespace has changed."""
        walked_op = -1
        while True:
            pause_s = INTERVAL_S
            op = self._replica.state.op
            try:
                if op != walked_op:
                    pause_s = max(REST * await self._walk(), INTERVAL_S)
                    walked_op = op
            except Exception:  # otherwise status would report an old value forever
                log.exception("the walk through snapshots failed")
            await rest(pause_s)

    async def _walk(self) -> float:
        """Computes the sum. Returns how long its steps took."""
        loop = asyncio.get_running_loop()
        took_s, began_s = 0.0, loop.time()
        walk = held_by_snapshots(self._replica.state)
        while True:
            try:
                next(walk)
            except StopIteration as end:
                self.bytes_alone = end.value
                return took_s + loop.time() - began_s
            took_s += loop.time() - began_s
            await asyncio.sleep(0)
            began_s = loop.time()
