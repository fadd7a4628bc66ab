"""Queries brought back to an earlier batch, cloned and cut: what `diskless query` does.

Each change is one step of the cluster's log. A draft is made ready beside the checkpoint, from
a snapshot of it: a clone without what is newer than the batch. Then it takes the checkpoint's
place, if nothing was written there since the snapshot; which stays, as what was there before.
"""

import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from diskless.checkpoint import names, rollback_rules
from diskless.checkpoint.logs import parse_entries
from diskless.checkpoint.picture import Picture
from diskless.checkpoint.rollback_rules import gone_after, why_not
from diskless.client import Client
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    CannotReturn,
    CheckpointInUse,
    DeadlineExceeded,
    DisklessError,
    HasSnapshots,
    NotFound,
)
from diskless.protocol.history import Swap
from diskless.spark.queries.access import DRAFT, Search, files_below, sinks_of, take_picture
from diskless.spark.queries.trace import plain

NAMES_TRIED_MAX = 1000


@dataclass(frozen=True)
class Part:
    """One directory of a return: what goes there."""

    path: str
    batch: int
    sink: bool
    gone: tuple[str, ...]
    gone_bytes: int


@dataclass(frozen=True)
class Returned:
    """What a return has done, or would do."""

    parts: tuple[Part, ...]
    snapshot: str = ""
    """Under which name what was there before is kept; empty if nothing was done."""
    cut: bool = False
    """Whether that is a cut, of several directories."""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Draft:
    path: str
    place: str
    """Where it is to go."""


def rollback(
    client: Client,
    batches: Mapping[str, int],
    *,
    sinks: Mapping[str, int] | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> Returned:
    """Brings checkpoints back to a batch each, and the directories of file sinks with them, all in
    one step. What was there is a snapshot, or a cut if there are several.

    Raises CannotReturn, saying why; CheckpointInUse if a query writes to one of them (unless
    `force` says that it does not matter), or has written while this ran; NotFound. Nothing
    has changed then.
    """
    sinks = sinks or {}
    chosen = [*batches, *sinks]
    if not chosen or len(set(chosen)) < len(chosen):
        raise BadRequest("which checkpoints? Each once, with the batch to go back to")
    if not force:
        check_free(client, chosen)
    words = words_about_sinks(client, batches, sinks)
    if dry_run:
        return Returned(tuple(_parts(client, batches, sinks)), words=words)
    first = next(iter(batches.values()), None)
    kept = keep(client, chosen, f"before-batch-{first}")
    drafts: list[_Draft] = []
    done = asked = False
    try:
        parts = _parts(client, batches, sinks, since=kept)
        for part in parts:
            draft = _Draft(draft_beside(part.path), part.path)
            drafts.append(draft)
            client.clone(_at(part.path, kept), draft.path)
            client.prune(draft.path, part.gone)
        asked = True
        client.replace([Swap(one.place, one.path, kept) for one in drafts], force=force)
        done = True
    except DeadlineExceeded:
        done = True  # Nobody knows: what was kept must stay.
        raise
    finally:
        if not done:
            _clean_up(client, drafts, chosen, kept, asked=asked)
    return Returned(tuple(parts), kept, len(chosen) > 1, words)


def check_free(client: Client, chosen: Sequence[str]) -> None:
    """Raises CheckpointInUse if applications write to one of these checkpoints now."""
    for path in chosen:
        for lease in client.leases(path):
            raise CheckpointInUse(
                f"{lease.path} is in use by {lease.application}, since {_time(lease.since_ms)}, "
                f"heard {lease.silent_ms / 1000:.1f} s ago: stop that query first; a lease ends a "
                "few seconds after its last sign, and --force does not wait"
            )


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}"


def words_about_sinks(
    client: Client, batches: Mapping[str, int], sinks: Mapping[str, int]
) -> tuple[str, ...]:
    """What the queries' sinks will do, in plain words."""
    lines = []
    known = Search(client, "/").sinks
    for path, batch in batches.items():
        picture = take_picture(client, path)
        last = picture.last_batch
        if last is None or last <= batch:
            continue
        again = f"{batch + 1}" if last == batch + 1 else f"{batch + 1} to {last}"
        lines.append(
            f"{path} will run batch {again} again under the same numbers. A sink that remembers "
            "batch ids (files, Delta, foreachBatch code that keeps them) takes them for done and "
            "skips them: bring it back too, or its old results stay. One that does not (Kafka, "
            "memory) gets them a second time."
        )
        likely = [sink for sink in sinks_of(client, picture, known) if sink not in sinks]
        lines += [
            f"{sink} looks like the file sink of {path}, and will skip batch {again}: "
            f"--sink {shlex.quote(sink)} brings it back too"
            for sink in likely
        ]
    return tuple(lines)


def _parts(
    client: Client, batches: Mapping[str, int], sinks: Mapping[str, int], *, since: str = ""
) -> list[Part]:
    """Looks at everything before anything is changed."""
    found = []
    for path, batch in batches.items():
        picture = take_picture(client, _at(path, since))
        if reason := why_not(picture, batch, thorough=True):
            raise CannotReturn(f"{path} cannot go back to batch {batch}: {reason}")
        found.append(_part(path, batch, picture, gone_after(picture, batch), sink=False))
    for path, batch in sinks.items():
        picture = _sink_picture(client, path, since)
        if reason := rollback_rules.why_not_sink(picture.files, batch):
            raise CannotReturn(f"the sink {path} cannot go back to batch {batch}: {reason}")
        logs = rollback_rules.sink_gone_after(picture.files, batch)
        gone = [*logs, *_outputs(picture, path, batch)]
        found.append(_part(path, batch, picture, gone, sink=True))
    return found


def _part(path: str, batch: int, picture: Picture, gone: Sequence[str], *, sink: bool) -> Part:
    size = sum(picture.files[name].size for name in gone)
    return Part(path, batch, sink, tuple(gone), size)


def _sink_picture(client: Client, path: str, since: str) -> Picture:
    top = _at(path, since)
    files = files_below(client, top)
    if not any(name.startswith(f"{names.SINK_LOG}/") for name in files):
        raise CannotReturn(f"{path} is no directory of a file sink: it has no {names.SINK_LOG}/")
    return Picture(top, files, lambda name: client.read(f"{top}/{name}"))


def _outputs(picture: Picture, path: str, batch: int) -> list[str]:
    """The files that only later batches wrote, as far as they lie in the sink's directory. Of the
    log's entries up to the batch none is missing (`why_not_sink`)."""
    later, kept = set[str](), set[str]()
    for number, name in names.numbers_in(picture.files, names.SINK_LOG).items():
        found = {_relative(entry, path) for entry in parse_entries(picture.read(name), name)}
        if number <= batch:
            kept |= found
        else:
            later |= found
    return sorted(name for name in later - kept if name in picture.files)


def _relative(entry: Mapping[str, object], path: str) -> str:
    """Its path from the sink's directory, as the listing has it; empty for one elsewhere."""
    text, above = plain(str(entry.get("path", ""))), f"{path.rstrip('/')}/"
    return text.removeprefix(above) if text.startswith(above) else ""


def draft_beside(path: str) -> str:
    """A new name in the same directory, hidden."""
    above, _, name = path.rpartition("/")
    return f"{above}/.{name}{DRAFT}{uuid.uuid4().hex}"


def keep(client: Client, chosen: Sequence[str], base: str) -> str:
    """A snapshot of these directories, under a name that is new; a cut if they are several."""
    for number in range(1, NAMES_TRIED_MAX):
        name = base if number == 1 else f"{base}-{number}"
        try:
            if len(chosen) > 1:
                return client.snapshot_cut(chosen, name)
            return client.snapshot(chosen[0], name)
        except AlreadyExists:
            continue
    raise AlreadyExists(f"{chosen[0]} has {NAMES_TRIED_MAX} snapshots {base}…: delete some")


def _clean_up(
    client: Client, drafts: Sequence[_Draft], chosen: Sequence[str], kept: str, *, asked: bool
) -> None:
    """Nothing is to be left of what came to nothing; an agent that fails now leaves some. Whoever
    was interrupted, and has `asked` for the step, does not know whether it was made. The drafts
    tell: it takes them away, and cannot be made without them. What it replaced must stay."""
    with suppress(DisklessError):
        deleted = [client.delete(draft.path, recursive=True) for draft in drafts]
        if asked and not all(deleted):
            return
        for path in chosen:
            with suppress(NotFound):
                client.delete_snapshots(path, kept)


def _at(path: str, snapshot: str) -> str:
    return f"{path.rstrip('/')}/.snapshot/{snapshot}" if snapshot else path


# Clones.


@dataclass(frozen=True)
class Cloned:
    source: str
    target: str
    batch: int
    query_id: str
    files: int


def clone(
    client: Client, source: str, target: str, *, batch: int | None = None, dry_run: bool = False
) -> Cloned:
    """A checkpoint of its own at `target`, as `source` was after a batch: its last committed one
    if none is said. `source` may be written to meanwhile, and is not touched. The clone has
    another query id, so that both can run in one application.

    Raises CannotReturn, AlreadyExists, NotFound.
    """
    if client.exists(target):
        raise AlreadyExists(f"{target} exists already")
    live = not _is_snapshot(source)
    kept = "" if dry_run or not live else keep(client, [source], "for-clone")
    draft = draft_beside(target)
    try:
        picture = take_picture(client, _at(source, kept))
        chosen = picture.last_batch if batch is None else batch
        if chosen is None:
            raise CannotReturn(f"{source} has no committed batch to begin with")
        if reason := why_not(picture, chosen, thorough=True):
            raise CannotReturn(f"{source} cannot be cloned at batch {chosen}: {reason}")
        gone = gone_after(picture, chosen)
        new_id = str(uuid.uuid4())
        if not dry_run:
            client.mkdirs(target.rpartition("/")[0] or "/")
            client.clone(_at(source, kept), draft)
            client.prune(draft, gone)
            data = json.dumps({"id": new_id}, separators=(",", ":")).encode()
            client.write(f"{draft}/{names.METADATA}", data, overwrite=True)
            client.rename(draft, target)
        return Cloned(source, target, chosen, new_id, len(picture.files) - len(gone))
    except DisklessError:
        if not dry_run:
            with suppress(DisklessError):
                client.delete(draft, recursive=True)
        raise
    finally:
        if kept:
            with suppress(NotFound, HasSnapshots):
                client.delete_snapshots(source, kept)


def _is_snapshot(path: str) -> bool:
    return "/.snapshot/" in path


# Cuts.


@dataclass(frozen=True)
class CutMember:
    path: str
    batch: int | None
    """The last committed one; None for a directory that is no checkpoint."""


def cut(
    client: Client, name: str, chosen: Sequence[str], *, dry_run: bool = False
) -> list[CutMember]:
    """Keeps several queries, and what they write, at one position of the log. The batches told
    are those of the cut itself."""
    if not dry_run:
        client.snapshot_cut(chosen, name)
    return [_member(client, path, "" if dry_run else name) for path in chosen]


def cut_back(
    client: Client, name: str, *, dry_run: bool = False, force: bool = False
) -> tuple[list[CutMember], str]:
    """Brings all directories of a cut back to it, in one step; the name of the cut that has what
    was there. Raises CheckpointInUse while a query writes to one of them, unless `force` says
    that it does not matter."""
    found = [one.path for one in client.snapshots() if one.cut == name]
    if not found:
        raise NotFound(f"there is no cut {name!r}: `diskless snapshot ls` lists them")
    members = [_member(client, path, name) for path in found]
    if not force:
        check_free(client, found)
    return members, "" if dry_run else client.rollback_cut(name, guarded=not force)


def _member(client: Client, path: str, snapshot: str) -> CutMember:
    from diskless.spark.checkpoints import last_batch

    top = _at(path, snapshot)
    try:
        return CutMember(path, last_batch(client, f"{top}/{names.COMMITS}"))
    except NotFound:
        return CutMember(path, None)
