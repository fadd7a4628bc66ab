"""What a bad batch has touched: which files it wrote, who read them, and how far all must go back.

Known is what file sinks and file sources note in their logs. A sink is taken for a query's if
each of its entries was written between the plan and the commit of its batch (`access.sinks_of`).
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from diskless.checkpoint import names
from diskless.checkpoint.logs import log_offset, parse_entries
from diskless.checkpoint.picture import Picture, batch_of_entry
from diskless.checkpoint.rollback_rules import why_not
from diskless.client import Client
from diskless.errors import CannotReturn, NotFound, UnknownFormat
from diskless.spark.queries.access import Search, sinks_of, take_picture

OFFSET_CHARS_MAX = 200
"""Of an offset in a line for people."""


@dataclass(frozen=True)
class Touched:
    """A query that must go back."""

    path: str
    batch: int
    """The first that is bad."""
    back_to: int
    """-1: there is no good batch before it."""
    sinks: tuple[str, ...]
    files: tuple[str, ...]
    """That it wrote since then."""
    because: str
    """Which query's files it read; empty for the first."""
    why_not: str
    """Why it cannot go back by itself; "" if it can."""


@dataclass(frozen=True)
class Traced:
    touched: tuple[Touched, ...]
    command: str
    """That brings all of them back in one step; empty if there is no such."""
    unknown: tuple[str, ...]
    """What the logs do not tell."""


class Flow(NamedTuple):
    """What the logs say of one query: which files each batch wrote, and which it read."""

    path: str
    sinks: tuple[str, ...]
    wrote: Mapping[int, frozenset[str]]
    read: Mapping[int, frozenset[str]]


class Reached(NamedTuple):
    path: str
    batch: int
    because: str


def reach(flows: Iterable[Flow], path: str, batch: int) -> list[Reached]:
    """From a bad batch of one query the first bad batch of each that read what it wrote since, and
    so on. Pure."""
    known = {flow.path: flow for flow in flows}
    found = {path: Reached(path, batch, "")}
    waiting = [path]
    while waiting:
        bad = found[waiting.pop()]
        files = _since(known[bad.path].wrote, bad.batch)
        for flow in known.values():
            hit = [number for number, read in flow.read.items() if read & files]
            if not hit or flow.path == bad.path:
                continue
            if flow.path not in found or min(hit) < found[flow.path].batch:
                found[flow.path] = Reached(flow.path, min(hit), bad.path)
                waiting.append(flow.path)
    return list(found.values())


def trace(
    client: Client, path: str, batch: int, *, sinks: Mapping[str, str] | None = None
) -> Traced:
    """Which queries of the cluster a batch of one has touched. `sinks` says which query writes to
    which directory, by directory, where times do not tell. Raises NotFound, CannotReturn."""
    first = take_picture(client, path)
    if batch not in first.offsets and batch not in first.commits:
        raise CannotReturn(f"{path}: {why_not(first, batch)}")
    search = Search(client, "/")
    pictures, unknown = {path: first}, []
    for other in search.checkpoints:
        try:
            pictures.setdefault(other, take_picture(client, other))
        except (NotFound, CannotReturn):
            continue
    if not search.complete:
        unknown.append("the cluster has more than was looked at: some queries may be missing")
    flows = [_flow(client, one, search.sinks, sinks or {}, unknown) for one in pictures.values()]
    by_path = {flow.path: flow for flow in flows}
    touched = [
        _touched(pictures[one.path], by_path[one.path], one) for one in reach(flows, path, batch)
    ]
    for one in touched:
        if not one.sinks:
            unknown.append(
                f"{one.path} writes to no file sink of this cluster that is known: where its "
                "results went, and who read them, its checkpoint does not say"
            )
    bad = {one.path: one.batch for one in touched}
    for picture in pictures.values():
        unknown += other_sources(picture, bad.get(picture.path))
    return Traced(tuple(touched), _command(touched), tuple(unknown))


def _touched(picture: Picture, flow: Flow, one: Reached) -> Touched:
    back = max((b for b in picture.commits if b < one.batch), default=-1)
    reason = (
        "no batch before it was good: restart it from an empty checkpoint"
        if back < 0
        else why_not(picture, back)
    )
    files = tuple(sorted(_since(flow.wrote, one.batch)))
    return Touched(one.path, one.batch, back, flow.sinks, files, one.because, reason)


def _command(touched: list[Touched]) -> str:
    if any(one.why_not for one in touched):
        return ""
    first, *others = touched
    words = ["diskless", "query", "rollback", first.path, "--batch", str(first.back_to)]
    for one in others:
        words += ["--with", f"{one.path}={one.back_to}"]
    for one in touched:
        for sink in one.sinks:
            words += ["--sink", f"{sink}={one.back_to}"]
    return shlex.join(words)


def _flow(
    client: Client,
    picture: Picture,
    known: list[str],
    told: Mapping[str, str],
    unknown: list[str],
) -> Flow:
    own = [sink for sink, query in told.items() if query == picture.path]
    free = [sink for sink in known if sink not in told]
    own += sinks_of(client, picture, free)
    wrote: dict[int, frozenset[str]] = {}
    for sink in own:
        for number, files in sink_files(client, sink).items():
            wrote[number] = wrote.get(number, frozenset()) | files
    return Flow(picture.path, tuple(own), wrote, _read_by(picture, unknown))


def sink_files(client: Client, sink: str) -> dict[int, frozenset[str]]:
    """The files that each batch added to a file sink. What only a compact entry names still is
    put down to the first that does."""
    found: dict[int, frozenset[str]] = {}
    seen: set[str] = set()
    top = f"{sink.rstrip('/')}/{names.SINK_LOG}"
    entries = {
        entry.number: status.path
        for status in client.list(top)
        if (entry := names.parse_log(status.path.rpartition("/")[2])) is not None
    }
    for number, path in sorted(entries.items()):
        files = {plain(str(one.get("path", ""))) for one in parse_entries(client.read(path), path)}
        found[number] = frozenset(files - seen)
        seen |= files
    return found


def _read_by(picture: Picture, unknown: list[str]) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    for source in picture.source_logs:
        try:
            entries = picture.files_of_source(source)
        except UnknownFormat as error:
            if source not in _without_list(picture):
                unknown.append(f"{picture.path}: what source {source} read is not told: {error}")
            continue
        for entry, files in entries.items():
            batch = batch_of_entry(picture, source, entry)
            if batch is None:
                unknown.append(f"{picture.path}: which batch read entry {entry} is not recorded")
                continue
            found[batch] = found.get(batch, frozenset()) | {plain(file) for file in files}
    return found


def other_sources(picture: Picture, bad: int | None) -> Iterator[str]:
    """What is to be said of sources that keep no list of files, such as Kafka: of a query that must
    go back how far its first bad batch read them, of another one that nothing is known."""
    for source in _without_list(picture):
        line = f"{picture.path}: source {source} keeps no list of files"
        if bad is None:
            yield f"{line}: whether it brought what these batches wrote its checkpoint does not say"
        else:
            start, end = (_end_of(picture, source, batch) for batch in (bad - 1, bad))
            yield f"{line}: batch {bad} read it from {start} to {end}"


def _without_list(picture: Picture) -> list[int]:
    """The sources of the last plan that can be read whose offsets are not of a list of files."""
    for batch in sorted(picture.offsets, reverse=True):
        with suppress(UnknownFormat):
            sources = picture.plan(batch).sources
            return [
                source
                for source, end in enumerate(sources)
                if end is not None and log_offset(end) is None
            ]
    return []


def _end_of(picture: Picture, source: int, batch: int) -> str:
    """Where a batch has read a source to, as its plan says."""
    if batch < 0:
        return "its beginning"
    with suppress(KeyError, IndexError, UnknownFormat):
        value = picture.plan(batch).sources[source]
        if value is None:
            return "its beginning"
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        return text if len(text) <= OFFSET_CHARS_MAX else f"{text[: OFFSET_CHARS_MAX - 1]}…"
    return f"where batch {batch} ended, which is not known any more"


def plain(uri: str) -> str:
    """A path without its scheme and cluster, as both logs can be compared by."""
    return unquote(urlsplit(uri).path) if ":" in uri else uri


def _since(wrote: Mapping[int, frozenset[str]], batch: int) -> frozenset[str]:
    return frozenset().union(*(files for number, files in wrote.items() if number >= batch))
