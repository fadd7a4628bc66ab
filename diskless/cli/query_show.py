"""`diskless query ls` and `show`."""

import dataclasses
from typing import TYPE_CHECKING

import click
import msgspec

from diskless.cli import exits
from diskless.cli.listing import as_time
from diskless.cli.verb import Context, verb
from diskless.config import format_bytes
from diskless.notes import BatchNote
from diskless.paths import leads_to_snapshots

if TYPE_CHECKING:
    from diskless.spark.queries import Batch, Query

OFFSETS_SHOWN = 60
"""Characters of a batch's offsets in a line for people."""
NOTHING_TOLD = (
    "no rows and durations: no listener reported these batches (`diskless spark-conf` sets one)"
)
NOTHING_TOLD_OF_THE_PAST = (
    "no rows and durations: batches of a snapshot may have run again since it was taken"
)


@verb(
    "ls",
    examples=(
        "diskless query ls",
        "diskless query ls /checkpoints",
        "diskless query ls --json | jq -r '.[].path'",
    ),
    statuses=(exits.NOT_FOUND, exits.UNREADABLE, exits.NO_RETURN, *exits.ASKING),
)
@click.argument("path", required=False, default="/")
def list_(context: Context, path: str) -> None:
    """List the checkpoints of queries at and below PATH.

    A line has the last committed batch and when that was, the size of the state, its provider and
    operators, the query's id, the application that writes there now, if any, and the path. Where
    there is too much to look at it says so, on standard error.
    """
    from diskless.spark import queries

    target = context.target(path)
    found = queries.ls(context.connect(target), target.path, incomplete=_warn)
    if context.json:
        context.results(dataclasses.asdict(one) for one in found)
        return
    for one in found:
        context.say(f"{_summary(one)}  {one.path}")


def _warn(text: str) -> None:
    """Also beside JSON, in which nothing else tells of it."""
    click.echo(text, err=True)


def _summary(one: "Query") -> str:
    batch = "-" if one.last_batch is None else str(one.last_batch)
    when = as_time(one.committed_ms) if one.committed_ms else "never committed"
    state = f"{', '.join(one.operators)} x {one.partitions}" if one.operators else "no state"
    kept = f" in {', '.join(one.providers)}" if one.providers else ""
    return (
        f"{batch:>8}  {when:<19}  {format_bytes(one.state_bytes):>10}  {state}{kept}  "
        f"{one.query_id or '-'}{f'  written to by {one.writer}' if one.writer else ''}"
    )


@verb(
    "show",
    examples=(
        "diskless query show /checkpoints/q1",
        "diskless query show /checkpoints/q1/.snapshot/before-batch-12",
        "diskless query show --json /checkpoints/q1",
    ),
    statuses=(exits.NOT_FOUND, exits.UNREADABLE, exits.NO_RETURN, *exits.ASKING),
)
@click.argument("path")
def show(context: Context, path: str) -> None:
    """Show a query's batches: when, how far its sources were read, and what they wrote.

    A line has the batch, when it was planned and how long it took to its commit, files and bytes
    of its state, and where its sources end; then, for a batch that cannot be returned to, why
    not. Below it is what Spark's listener reported about the batch: rows, how long its trigger and
    each of its steps took, the state's rows, and the size of the checkpoint then. There is none
    for a query that runs without the listener, or ran long ago.
    """
    from diskless.spark import queries

    target = context.target(path)
    found = queries.show(context.connect(target), target.path)
    context.result(msgspec.to_builtins(found))
    context.say(f"{found.query.path}  {_summary(found.query).strip()}")
    for sink in found.sinks:
        context.say(f"writes files to {sink}, by the times of its log")
    for batch in found.batches:
        context.say(_line(batch))
        if batch.note is not None:
            context.say(_told(batch.note))
    if found.batches and not any(batch.note for batch in found.batches):
        past = leads_to_snapshots(found.query.path)
        context.say(NOTHING_TOLD_OF_THE_PAST if past else NOTHING_TOLD)


def _line(batch: "Batch") -> str:
    from diskless.checkpoint.facts import offset_text

    took = "not committed"
    if batch.committed_ms and batch.planned_ms:
        took = f"{(batch.committed_ms - batch.planned_ms) / 1000:.1f} s"
    when = as_time(batch.planned_ms or batch.committed_ms)
    offsets = " ".join(offset_text(offset, OFFSETS_SHOWN) for offset in batch.offsets)
    line = (
        f"{batch.number:>8}  {when}  {took:>13}  {batch.files:>6} files  "
        f"{format_bytes(batch.bytes):>10}  {offsets}"
    )
    return f"{line}  no way back: {batch.why_not}" if batch.why_not else line


def _told(note: BatchNote) -> str:
    steps = [
        f"{name} {took}"
        for name, took in (
            ("walCommit", note.wal_commit_ms),
            ("addBatch", note.add_batch_ms),
            ("state commit", note.state_commit_ms),
            ("commitOffsets", note.commit_offsets_ms),
        )
        if took is not None
    ]
    said = [f"{note.rows} rows"]
    if note.trigger_ms is not None:
        within = f" ({', '.join(steps)})" if steps else ""
        said.append(f"{note.trigger_ms} ms{within}")
    if note.state_rows is not None:
        said.append(f"state {note.state_rows} rows, {note.state_updated or 0} updated")
    if note.checkpoint_bytes is not None:
        said.append(f"checkpoint {format_bytes(note.checkpoint_bytes)}")
    return f"{'':>8}  {'; '.join(said)}"


VERBS = (list_, show)
