"""The tasks that an agent runs beside its requests."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from diskless.model import slot_name

log = logging.getLogger(__name__)


class Background:
    """Tasks that end with their owner. One that fails before is written to the log."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work ended slot=%s", slot_name(self._slot), exc_info=error)
