"""What snapshots cost: the bytes that nothing else holds, found by a walk in the background."""

import asyncio
import logging

from diskless.agent.replica import Replica
from diskless.namespace.usage import held_by_snapshots

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
REST = 20
"""A walk is followed by so many times as long a pause, so that it takes a small part of the
leader's time however large the namespace is."""


class Keeper:
    def __init__(self, *, replica: Replica) -> None:
        self._replica = replica
        self.bytes_alone: int | None = None
        """As of the last walk; None before the first."""

    async def run(self) -> None:
        """Goes on until cancelled. Nothing is walked that has not changed."""
        walked_op = -1
        while True:
            pause_s = INTERVAL_S
            op = self._replica.state.op
            try:
                if op != walked_op:
                    pause_s = max(REST * await self._walk(), INTERVAL_S)
                    walked_op = op
            except Exception:  # else status would tell of old times for ever
                log.exception("the walk through snapshots failed")
            await asyncio.sleep(pause_s)

    async def _walk(self) -> float:
        """Finds the sum; how long its stretches took."""
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
