"""What can be said of a query and of its batches, from a picture of its checkpoint. Pure.

Of what Spark did not write as it does there is a line that says so, and no error.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from diskless.checkpoint.logs import Operator
from diskless.checkpoint.picture import Picture
from diskless.checkpoint.rollback_rules import why_not
from diskless.errors import UnknownFormat
from diskless.notes import BatchNote


@dataclass(frozen=True)
class Query:
    path: str
    query_id: str
    last_batch: int | None
    """The last committed; None if none was."""
    committed_ms: int
    """When that was; 0 if none was."""
    state_bytes: int
    files: int
    operators: tuple[str, ...]
    partitions: int
    providers: tuple[str, ...]
    writer: str = ""
    """The application that writes there now; empty if none does."""


@dataclass(frozen=True)
class Batch:
    number: int
    planned_ms: int
    committed_ms: int
    """0 for one that was started and not committed."""
    offsets: tuple[Any, ...]
    watermark_ms: int
    files: int
    """Of the state, of this batch's version."""
    bytes: int
    why_not: str
    """Why it cannot be returned to; "" if it can."""
    note: BatchNote | None = None
    """What Spark's listener reported about it; None if nothing, or if it is no longer kept."""


def describe(picture: Picture, writer: str = "") -> Query:
    last = picture.last_batch
    operators = _operators(picture)
    partitions = max((operator.partitions for operator in operators), default=0)
    if last in picture.offsets:
        with suppress(UnknownFormat):
            partitions = (picture.plan(last).partitions or partitions) if operators else 0
    return Query(
        path=picture.path,
        query_id=_query_id(picture),
        last_batch=last,
        committed_ms=0 if last is None else picture.files[picture.commits[last]].mtime_ms,
        state_bytes=picture.state_bytes,
        files=len(picture.files),
        operators=tuple(operator.name for operator in operators),
        partitions=partitions,
        providers=tuple(picture.providers),
        writer=writer,
    )


def batches(picture: Picture) -> Iterator[Batch]:
    """The oldest first. Each is judged when it is asked for, so that others can have their turn
    in between."""
    for number in sorted({*picture.offsets, *picture.commits}):
        yield _batch(picture, number, *picture.sizes.get(number + 1, (0, 0)))


def offset_text(offset: Any, chars_max: int) -> str:
    """Where a source ends, in one line of so many characters at most."""
    try:
        text = json.dumps(offset, separators=(",", ":"))
    except RecursionError:
        return "…"
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _operators(picture: Picture) -> list[Operator]:
    try:
        return picture.operators
    except UnknownFormat:
        return []


def _query_id(picture: Picture) -> str:
    try:
        return picture.query_id
    except UnknownFormat:
        return ""


def _batch(picture: Picture, number: int, files: int, size: int) -> Batch:
    try:
        plan = picture.plan(number) if number in picture.offsets else None
        reason = why_not(picture, number)
    except UnknownFormat as error:
        plan, reason = None, str(error)
    planned = picture.offsets.get(number)
    committed = picture.commits.get(number)
    return Batch(
        number=number,
        planned_ms=picture.files[planned].mtime_ms if planned else 0,
        committed_ms=picture.files[committed].mtime_ms if committed else 0,
        offsets=plan.sources if plan else (),
        watermark_ms=plan.watermark_ms if plan else 0,
        files=files,
        bytes=size,
        why_not=reason,
    )
