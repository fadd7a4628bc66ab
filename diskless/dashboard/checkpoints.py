"""Spark's checkpoints, as the page shows them: found by what Spark has written, with what its
listener reported about their batches.

A search looks at so many directories and names and no more, and what it finds serves all browsers
that may see the same, for a while. Looking changes nothing.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from diskless import policy
from diskless.agent.router import Router
from diskless.checkpoint.names import COMMITS, OFFSETS
from diskless.dashboard.closer import CloserLook
from diskless.dashboard.kept import Kept
from diskless.dashboard.newest import BATCHES_TOLD, Names, newest_batches
from diskless.errors import NotFound, PathIsFile
from diskless.gateway.visitor import Visitor
from diskless.namespace import queries as q
from diskless.namespace.leases import LeaseStatus
from diskless.namespace.views import PathStatus
from diskless.notes import BatchNote, Noted
from diskless.protocol import checkpoints, history
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind

DIRECTORIES_MAX = 200
CHECKPOINTS_MAX = 50
"""Where a search for checkpoints ends."""
ENTRIES_MAX = 1000
"""Of a directory that are looked at for others."""
SNAPSHOTS_TOLD = 100
"""Of one checkpoint, when it is looked at."""
NOTES_IN_LIST = 4
"""Of each in the list of all, which shows the newest batch that is done."""

Payload = Sequence[bytes | bytearray | memoryview]
Ask = Callable[[Visitor, Kind, Struct], Awaitable[tuple[Any, Payload]]]
"""What the gateway would answer, with the bytes that come along. Raises what it would."""


class BatchShown(Struct, frozen=True):
    batch: int
    planned_ms: int
    took_ms: int | None
    """From its plan to its end, by the log's clock; None while it runs."""
    note: BatchNote | None
    in_tier: bool | None
    """None where there is no tier, or it is not meant to have this."""


class Shown(NamedTuple):
    """The last batches of a checkpoint, the newest first."""

    last: int | None
    """That was committed."""
    batches: list[BatchShown]
    behind: int | None
    """How many that are done the tier lacks."""
    complete: bool = True
    """Whether there were not too many names to find them."""


class Checkpoints:
    def __init__(self, ask: Ask, namespace: Router) -> None:
        self._ask_with_bytes = ask
        self._namespace = namespace
        self._found: Kept[dict[str, Any]] = Kept()
        self._told: Kept[dict[str, Any]] = Kept()
        self._closer = CloserLook(ask, namespace)
        self.searches = 0

    async def _ask(self, visitor: Visitor, kind: Kind, meta: Struct) -> Any:
        return (await self._ask_with_bytes(visitor, kind, meta))[0]

    async def all(self, visitor: Visitor) -> dict[str, Any]:
        """Those that a token covers, near the top first, each with its newest batch."""
        claims = visitor.principal.claims
        return await self._found.get((claims.role, claims.paths), lambda: self._search(visitor))

    async def one(self, visitor: Visitor, path: str) -> dict[str, Any]:
        """Its last batches and its snapshots. Raises NotFound, Forbidden."""
        await self._ask(visitor, Kind.SUMMARY, m.Summary(path))
        return await self._told.get(path, lambda: self._one(visitor, path))

    async def closer(self, visitor: Visitor, path: str) -> dict[str, Any]:
        """What each of its last batches has read and left, and whether there is a way back to
        it. Raises NotFound, Forbidden."""
        await self._ask(visitor, Kind.SUMMARY, m.Summary(path))
        return await self._closer.at(visitor, path)

    async def _one(self, visitor: Visitor, path: str) -> dict[str, Any]:
        shown = await self._batches(visitor, path, Names(), notes=2 * BATCHES_TOLD)
        snapshots = await self._ask(
            visitor, Kind.SNAPSHOTS, history.Snapshots(path, 0, ENTRIES_MAX)
        )
        return {
            "path": path,
            "batches": shown.batches,
            "behind": shown.behind,
            "complete": shown.complete,
            "snapshots": snapshots.snapshots[: -SNAPSHOTS_TOLD - 1 : -1],
        }

    async def _search(self, visitor: Visitor) -> dict[str, Any]:
        self.searches += 1
        # Asked for without the command that moves the log's time: looking changes nothing. So
        # while nothing else happens a lease that is over may still be told.
        leases = {one.path: one for one in await self._namespace.query(q.LeasesOf("/"))}
        waiting, looked, complete, left = deque(["/"]), 0, True, Names()
        found: list[dict[str, Any]] = []
        while waiting and looked < DIRECTORIES_MAX and len(found) < CHECKPOINTS_MAX:
            path = waiting.popleft()
            looked += 1
            entries, more = await self._entries(visitor, path)
            below = [one.path for one in entries if one.directory]
            names = {one.rpartition("/")[2] for one in below}
            complete = complete and not more
            if {OFFSETS, COMMITS} <= names and visitor.rights.covers(path):
                found.append(await self._checkpoint(visitor, path, leases.get(path), left))
            else:
                waiting.extend(below)
        return {"checkpoints": found, "complete": complete and not waiting}

    async def _checkpoint(
        self, visitor: Visitor, path: str, lease: LeaseStatus | None, left: Names
    ) -> dict[str, Any]:
        summary = await self._ask(visitor, Kind.SUMMARY, m.Summary(path))
        shown = await self._batches(visitor, path, left, notes=NOTES_IN_LIST)
        return {
            "path": path,
            "bytes": summary.bytes,
            "last": shown.last,
            "batches": shown.batches[:2],  # the newest, and the last that is done
            "behind": shown.behind,
            "complete": shown.complete,
            "lease": msgspec.structs.asdict(lease) if lease is not None else None,
        }

    async def _batches(self, visitor: Visitor, path: str, left: Names, *, notes: int) -> Shown:
        """The newest first, with as many notes."""
        base = path.rstrip("/")
        planned = await newest_batches(self._namespace, f"{base}/{OFFSETS}", left)
        done = await newest_batches(self._namespace, f"{base}/{COMMITS}", left)
        if planned is None or done is None:
            return Shown(None, [], None, complete=False)
        noted: Noted = await self._ask(
            visitor, Kind.BATCH_NOTES, checkpoints.BatchNotes(path, notes)
        )
        told = {note.batch: note for note in noted.notes}
        safe = await self._in_tier(path, [done[number] for number in planned if number in done])
        found = [
            BatchShown(
                batch=number,
                planned_ms=planned[number].mtime_ms,
                took_ms=_took_ms(planned[number], done.get(number)),
                note=told.get(number) if number in done else None,
                in_tier=None if safe is None else number in done and _id(done[number]) in safe,
            )
            for number in sorted(planned, reverse=True)
        ]
        behind = None
        if safe is not None:
            behind = sum(one.took_ms is not None and not one.in_tier for one in found)
        return Shown(max(done, default=None), found, behind)

    async def _in_tier(self, path: str, files: Sequence[PathStatus]) -> set[int] | None:
        """Which of these the tier has; None if it is not meant to have them."""
        if not (await self._namespace.query(q.TierState())).attached:
            return None
        shown = await self._namespace.query(q.Policy(path))
        durability = {key: value for key, value, _ in shown.entries}[policy.DURABILITY]
        if durability == policy.MEMORY:
            return None
        ids = tuple(map(_id, files))
        places = await self._namespace.query(q.TierPlaces(ids))
        return {id_ for id_, place in zip(ids, places, strict=True) if place is not None}

    async def _entries(self, visitor: Visitor, path: str) -> tuple[list[m.Status], bool]:
        """Of a directory that may go while it is looked at, and whether there are more."""
        try:
            page = await self._ask(visitor, Kind.LIST, m.List(path, "", ENTRIES_MAX))
        except (NotFound, PathIsFile):
            return [], False
        return page.entries, page.more


def _took_ms(planned: PathStatus, done: PathStatus | None) -> int | None:
    return None if done is None else max(done.mtime_ms - planned.mtime_ms, 0)


def _id(file: PathStatus) -> int:
    assert file.record is not None
    return file.record.id
