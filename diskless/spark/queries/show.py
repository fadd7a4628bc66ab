"""What a cluster's queries are, and what their batches were."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from diskless.checkpoint.facts import Batch, Query, batches, describe
from diskless.client import Client
from diskless.errors import CannotReturn, NotFound
from diskless.paths import leads_to_snapshots
from diskless.spark.queries import access
from diskless.spark.queries.access import Search, sinks_of, take_picture


@dataclass(frozen=True)
class Shown:
    query: Query
    batches: tuple[Batch, ...]
    sinks: tuple[str, ...]
    """Directories of file sinks in this cluster that it most likely writes to."""


def ls(
    client: Client, top: str = "/", *, incomplete: Callable[[str], None] = warnings.warn
) -> Iterator[Query]:
    """The queries whose checkpoints are at or below a directory. Raises NotFound. `incomplete`
    hears, before the first, of a search that was given up: some may be missing then."""
    client.stat(top)
    writers = {lease.path: lease.application for lease in client.leases(top)}
    search = Search(client, top)
    if not search.complete:
        incomplete(
            f"{top} has more than {access.SEARCH_ENTRIES_MAX:,} names outside of checkpoints: "
            "queries may be missing here; name a directory nearer to them"
        )
    for path in search.checkpoints:
        try:
            yield describe(take_picture(client, path), writers.get(path, ""))
        except (NotFound, CannotReturn):
            continue  # It went while we looked, or has no batch yet.


def show(client: Client, path: str) -> Shown:
    """A query's batches, the oldest first. Raises NotFound; CannotReturn for no checkpoint."""
    picture = take_picture(client, path)
    found = _with_notes(client, describe(picture).query_id, path, tuple(batches(picture)))
    sinks = tuple(sinks_of(client, picture, Search(client, "/").sinks))
    writer = next((one.application for one in client.leases(path) if one.path == path), "")
    return Shown(describe(picture, writer), found, sinks)


def _with_notes(
    client: Client, query_id: str, path: str, found: tuple[Batch, ...]
) -> tuple[Batch, ...]:
    """A batch that is not committed has none yet: what is known under its number is of an earlier
    run, before the query went back. Nor has a snapshot: its batches may have run again since."""
    if leads_to_snapshots(path):
        return found
    noted = client.batch_notes(path)
    if noted.query != query_id:
        return found
    notes = {note.batch: note for note in noted.notes}
    return tuple(
        replace(batch, note=notes.get(batch.number)) if batch.committed_ms else batch
        for batch in found
    )
