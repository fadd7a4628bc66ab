"""What Spark's listener notes of a batch: rows, durations, state. Pure vocabulary.

A note is a few numbers of a driver's own telling. It is looked at by people and by nothing else:
no decision of the cluster depends on one, and any of them may be missing.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

NOTES_KEPT = 1000
"""Of a query: the last."""
NOTES_PER_MESSAGE = 100
RUNS_KEPT = 100
"""Of which the first note and the last are kept among those, whatever came after them."""
QUERY_CHARS_MAX = 64
"""Of a query's id, which Spark makes of 36."""
MESSAGE_BYTES_MAX = 64 * 1024
"""Of the request that brings notes: it is refused unread beyond."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class BatchNote(Struct, frozen=True, omit_defaults=True, gc=False):
    """One batch, as its driver saw it. Durations are None where Spark did not take that step, or
    does not tell."""

    batch: Count
    time_ms: Count
    """When its trigger began, by the driver's clock."""
    rows: Count = 0
    trigger_ms: Count | None = None
    """All of it."""
    latest_offset_ms: Count | None = None
    get_batch_ms: Count | None = None
    planning_ms: Count | None = None
    wal_commit_ms: Count | None = None
    """Until its plan was in `offsets`."""
    add_batch_ms: Count | None = None
    """The job, with the commit of the state in it."""
    commit_offsets_ms: Count | None = None
    """Until its end was in `commits`."""
    state_commit_ms: Count | None = None
    """Of all operators and partitions together, of which many commit at once."""
    state_rows: Count | None = None
    state_updated: Count | None = None
    state_bytes: Count | None = None
    """Of the state in the executors' memory, as Spark tells it."""
    checkpoint_bytes: Count | None = None
    """Of the whole checkpoint when the note came: the cluster's own telling."""
    started_ms: Count | None = None
    """When the run of the query began that it belongs to: notes of one run have the same."""
    tasks: Count | None = None
    """How many of its partitions can be worked on at once."""


class Noted(Struct, frozen=True):
    """The last notes of a query, the oldest first. Of a batch that ran twice there may be two."""

    query: str = ""
    """Spark's id of it; empty if nobody told of a query there."""
    notes: list[BatchNote] = []


class _Packed(BatchNote, frozen=True, array_like=True, gc=False):
    pass


def pack(note: BatchNote) -> bytes:
    """As it is kept and passed on: 20 to 60 bytes."""
    return _encode(_Packed(*msgspec.structs.astuple(note)))


def unpack(data: bytes) -> BatchNote:
    """Raises msgspec.DecodeError for what is no note."""
    return BatchNote(*msgspec.structs.astuple(_decode(data)))


def key(data: bytes) -> tuple[int, int, int]:
    """Batch and time of a note that was packed, and when its run began, 0 if that is not known.
    Raises as `unpack` does."""
    note = _decode(data)
    return note.batch, note.time_ms, note.started_ms or 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode
