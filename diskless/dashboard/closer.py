"""What each of a checkpoint's last batches has read and left, and whether there is a way back.

The rules are those of `diskless query` (`diskless.checkpoint`); here is how an agent gets what they
look at, a little in each turn of the loop, and where it stops: a state of very many files is not
judged, and what lies in the tier alone is not fetched for onlookers. It looks at one checkpoint at
a time. What cannot be looked at is told in words, and so is what Spark did not write as it does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from diskless.agent.router import Router
from diskless.checkpoint import facts, names
from diskless.checkpoint.picture import FileInfo, Picture
from diskless.dashboard.kept import Kept
from diskless.dashboard.newest import BATCHES_TOLD, Names, newest_batches
from diskless.errors import DisklessError, NotFound, PathIsFile, UnknownFormat
from diskless.gateway.visitor import Visitor
from diskless.namespace import queries as q
from diskless.namespace.views import PathStatus
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind

FILES_MAX = 40_000
DIRECTORIES_MAX = 3000
"""Of a state and of sources' logs together."""
DIRECTORY_FILES_MAX = 5000
"""In one of them: a hundred versions are some hundreds."""
PAGE_FILES = 500
"""That are looked at in one turn."""
READ_FILES = 32
"""That are asked for at once."""
READ_S = 5.0
PLAN_WAIT_S = 0.5
"""For the plan of a batch that is not committed: with `durability=barrier` it is told when the
tier has it."""
PLANS_LOOKED_AT = BATCHES_TOLD + 1
"""A batch is judged by the plan before it too."""
OPERATORS_MAX = 20
SOURCES_SHOWN = 4
OFFSET_CHARS_MAX = 120
"""Of a batch's offsets: one source's, in JSON."""
TEXT_CHARS_MAX = 400
UNNEEDED = frozenset(("SSTs", "_stateSchema"))
"""Directories of the state that a first look does not go into; a rollback does."""

Ask = Callable[[Visitor, Kind, Struct], Awaitable[tuple[Any, Sequence[Any]]]]


class BatchLeft(Struct, frozen=True):
    batch: int
    offsets: list[str]
    """Where its sources end: the first ones, each cut."""
    more_sources: int
    files: int | None
    bytes: int | None
    """Of the state, of its version; None if not all of it was looked at."""
    why_not: str | None
    """Why it cannot be returned to; empty if it can, None if that is not known,"""
    unknown: str
    """for this reason."""


class Contents:
    """Files that were read before the rules ask for them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.absent: dict[str, str] = {}
        """Why others were not read."""
        self.missed = ""
        """What was last asked for in vain."""

    def read(self, name: str) -> bytes:
        """Raises UnknownFormat for what was not read."""
        if name in self.files:
            return self.files[name]
        self.missed = f"{name} was not read: {self.absent.get(name, 'it is too much')}"
        raise UnknownFormat(self.missed)


class CloserLook:
    def __init__(self, ask: Ask, namespace: Router) -> None:
        self._ask = ask
        self._namespace = namespace
        self._kept: Kept[dict[str, Any]] = Kept()
        self._turn = asyncio.Lock()
        self.looks = 0

    async def at(self, visitor: Visitor, path: str) -> dict[str, Any]:
        """Of a path that the visitor's token covers, and so all that is below it."""
        return await self._kept.get(path, lambda: self._look(visitor, path.rstrip("/")))

    async def _look(self, visitor: Visitor, base: str) -> dict[str, Any]:
        async with self._turn:
            self.looks += 1
            left = Names()
            planned = await newest_batches(
                self._namespace, f"{base}/{names.OFFSETS}", left, count=PLANS_LOOKED_AT
            )
            done = await newest_batches(self._namespace, f"{base}/{names.COMMITS}", left)
            if planned is None or done is None:
                return _refused(base, "it has too many batches for the page")
            if not planned:
                return _refused(
                    base, f"it is no checkpoint of a query: {names.OFFSETS}/ has no batch in it"
                )
            contents = Contents()
            picture = Picture(base, {}, contents.read)
            for log, found in ((names.OFFSETS, planned), (names.COMMITS, done)):
                picture.add({f"{log}/{_name(file)}": _info(file) for file in found.values()})
            problem = await self._add_rest(picture)
            await self._read_all(visitor, picture, contents)
            state = await self._bytes_of(f"{base}/{names.STATE}")
            batches = [one async for one in _judged(picture, contents, is_whole=not problem)]
            return {
                "path": base,
                "problem": problem,
                "state_bytes": state,
                "query": _described(picture),
                "batches": batches[: -BATCHES_TOLD - 1 : -1],
            }

    async def _bytes_of(self, path: str) -> int:
        try:
            found = await self._namespace.query(q.Summarize(path))
        except NotFound:
            return 0
        return int(found.bytes)

    async def _add_rest(self, picture: Picture) -> str:
        """Adds what the rules look at beside the two logs, and says why if that is not all."""
        waiting, directories = [names.STATE, names.SOURCES], 0
        while waiting:
            directories += 1
            if directories > DIRECTORIES_MAX:
                return f"it has more than {DIRECTORIES_MAX:,} directories"
            at = waiting.pop()
            count = 0
            async for found in self._pages(f"{picture.path}/{at}"):
                files = {}
                for one in found:
                    name = f"{at}/{_name(one)}"
                    if one.record is not None:
                        files[name] = _info(one)
                    elif _name(one) not in UNNEEDED:
                        waiting.append(name)
                picture.add(files)
                count += len(found)
                if count > DIRECTORY_FILES_MAX:
                    return f"{at} has more than {DIRECTORY_FILES_MAX:,} files"
                if len(picture.files) > FILES_MAX:
                    return f"it has more than {FILES_MAX:,} files"
        return ""

    async def _pages(self, path: str) -> AsyncIterator[list[PathStatus]]:
        after, more = "", True
        while more:
            try:
                page: q.Listed = await self._namespace.query(q.Page(path, after, PAGE_FILES))
            except (NotFound, PathIsFile):
                return
            yield page.entries
            more = page.more
            if more:
                after = _name(page.entries[-1])
            await asyncio.sleep(0)  # where this agent leads it was answered within this turn

    async def _read_all(self, visitor: Visitor, picture: Picture, contents: Contents) -> None:
        plans = picture.offsets
        begun = [path for batch, path in plans.items() if batch not in picture.commits]
        wanted = [path for batch, path in plans.items() if batch in picture.commits]
        wanted += [*picture.commits.values(), *picture.operator_paths[:OPERATORS_MAX]]
        wanted.append(names.METADATA)
        for paths in _cut(wanted, READ_FILES):
            await self._read(visitor, picture.path, paths, contents, READ_S)
        for paths in _cut(begun[:READ_FILES], READ_FILES):
            await self._read(visitor, picture.path, paths, contents, PLAN_WAIT_S)
        if names.METADATA in contents.files:
            picture.add({names.METADATA: FileInfo(len(contents.files[names.METADATA]), 0)})

    async def _read(
        self, visitor: Visitor, base: str, paths: list[str], contents: Contents, timeout_s: float
    ) -> None:
        wanted = m.OpenMany([f"{base}/{path}" for path in paths])
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(0)  # where this agent leads all of it may come in one turn
                reply, parts = await self._ask(visitor, Kind.OPEN_MANY, wanted)
        except TimeoutError:
            contents.absent.update(dict.fromkeys(paths, "no answer came in time"))
            return
        except DisklessError as error:
            contents.absent.update(dict.fromkeys(paths, str(error)))
            return
        data, at = memoryview(b"".join(parts)), 0
        for path, one in zip(paths, reply.files, strict=True):
            if one.here:
                contents.files[path] = bytes(data[at : at + one.file.size])
                at += one.file.size
            elif one.file is None:
                contents.absent[path] = one.refusal.message
            else:
                contents.absent[path] = (
                    f"its {one.file.size:,} bytes are too many, or in the tier alone, or lost"
                )


async def _judged(
    picture: Picture, contents: Contents, *, is_whole: bool
) -> AsyncIterator[BatchLeft]:
    """Each batch that is planned, the oldest first, with a turn for others after each."""
    judged = facts.batches(picture)
    while True:
        contents.missed = ""
        batch = next(judged, None)
        if batch is None:
            return
        if batch.number in picture.offsets:
            yield _left(batch, unknown=contents.missed, is_whole=is_whole)
        await asyncio.sleep(0)


def _left(batch: facts.Batch, *, unknown: str, is_whole: bool) -> BatchLeft:
    is_known = is_whole and not unknown
    shown = batch.offsets[:SOURCES_SHOWN]
    return BatchLeft(
        batch=batch.number,
        offsets=[facts.offset_text(one, OFFSET_CHARS_MAX) for one in shown],
        more_sources=len(batch.offsets) - len(shown),
        files=batch.files if is_whole else None,
        bytes=batch.bytes if is_whole else None,
        why_not=_plain(batch.why_not) if is_known else None,
        unknown=_plain(unknown),
    )


def _described(picture: Picture) -> dict[str, Any]:
    query = facts.describe(picture)
    return {
        "id": _plain(query.query_id),
        "operators": [_plain(name) for name in query.operators],
        "partitions": min(query.partitions, 2**63 - 1),
        "providers": query.providers,
    }


def _refused(base: str, problem: str) -> dict[str, Any]:
    return {"path": base, "problem": problem, "state_bytes": 0, "query": None, "batches": []}


def _plain(text: str) -> str:
    """As much as a line may have, without what is no text, which a file may name."""
    return text[:TEXT_CHARS_MAX].encode(errors="replace").decode()


def _cut(paths: Sequence[str], size: int) -> Iterator[list[str]]:
    for at in range(0, len(paths), size):
        yield list(paths[at : at + size])


def _name(file: PathStatus) -> str:
    return file.path.rpartition("/")[2]


def _info(file: PathStatus) -> FileInfo:
    assert file.record is not None
    return FileInfo(file.record.size, file.mtime_ms)
