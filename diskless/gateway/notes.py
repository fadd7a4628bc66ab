"""What requests about Spark's notes of batches mean."""

from diskless.agent.notebook import Notebook
from diskless.gateway.backend import Answer, Buffer, Handlers
from diskless.notes import NOTES_KEPT
from diskless.protocol import checkpoints
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind


class NoteHandlers:
    """A part of the gateway's backend."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self.handlers: Handlers = {
            Kind.NOTE_BATCHES: self._tell,
            Kind.BATCH_NOTES: self._notes,
        }

    async def _tell(self, meta: checkpoints.NoteBatches, _: Buffer) -> Answer:
        await self._notebook.tell(meta.path, meta.query, meta.notes)
        return m.Empty(), ()

    async def _notes(self, meta: checkpoints.BatchNotes, _: Buffer) -> Answer:
        return await self._notebook.noted(meta.path, min(meta.limit, NOTES_KEPT)), ()
