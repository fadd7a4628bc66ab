"""What requests about Spark's notes of batches mean."""

from collections.abc import Awaitable, Callable
from typing import Any

from diskless.agent.notebook import Notebook
from diskless.gateway.server import Answer
from diskless.notes import NOTES_KEPT
from diskless.protocol import checkpoints
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind

Payload = bytes | bytearray | memoryview


class NoteHandlers:
    """A part of the gateway's backend."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self.handlers: dict[Kind, Callable[[Any, Payload], Answer | Awaitable[Answer]]] = {
            Kind.NOTE_BATCHES: self._tell,
            Kind.BATCH_NOTES: self._notes,
        }

    async def _tell(self, meta: checkpoints.NoteBatches, _: Payload) -> Answer:
        await self._notebook.tell(meta.path, meta.query, meta.notes)
        return m.Empty(), ()

    async def _notes(self, meta: checkpoints.BatchNotes, _: Payload) -> Answer:
        return await self._notebook.noted(meta.path, min(meta.limit, NOTES_KEPT)), ()
