"""What Spark's queries tell about their checkpoints: who writes to them, and notes of batches."""

from typing import Annotated

from msgspec import Meta, Struct

from diskless.notes import NOTES_KEPT, NOTES_PER_MESSAGE, QUERY_CHARS_MAX, BatchNote
from diskless.protocol.messages import Natural


class Leases(Struct):
    path: str


class LeaseInfo(Struct, frozen=True):
    """A checkpoint that an application writes to, since when, and how long ago it was heard."""

    path: str
    application: str
    since_ms: int
    silent_ms: int


class LeaseList(Struct):
    leases: list[LeaseInfo]


class KeepLeases(Struct, kw_only=True):
    """Queries that are alive, by their checkpoints, and those that have ended."""

    session: Natural
    sequence: Natural
    roots: list[str]
    over: list[str] = []


class LeasesKept(Struct):
    kept: int


class NoteBatches(Struct):
    """What Spark's listener has to say of batches of the query whose checkpoint is at `path`. It
    is kept for a while and may be lost; it may be sent again."""

    path: str
    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS_MAX)]
    notes: Annotated[list[BatchNote], Meta(min_length=1, max_length=NOTES_PER_MESSAGE)]


class BatchNotes(Struct):
    path: str
    limit: Natural = NOTES_KEPT
