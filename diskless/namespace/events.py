"""The recent commands of the log in words: what `diskless log` shows an operator.

Every replica notes what it applies, so any leader can tell. Noting is on the way of
every command and keeps only what the words need, never the bytes of files; the words
are made when somebody asks. What a replica got by a snapshot it has no events of.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from diskless.config import format_bytes
from diskless.model import Event, slot_name
from diskless.namespace import commands as c

EVENTS_MAX = 2000
"""Events that a replica remembers. A commit is one for each of its puts."""
EVENT_BYTES = 640
"""What one takes, with paths of usual length; 360 were measured for a put."""
TEXT_CHARS_MAX = 300
"""Longer ones are cut: texts, and the paths in them."""
PATHS_MAX = 8
"""That an event names; if it is about more, then about everything."""


class _Put(Struct, frozen=True, gc=False):
    path: str
    files: int
    bytes: int
    more: tuple[str, ...] = ()
    """The directories that further files are in."""


class _Relocated(Struct, frozen=True, gc=False):
    files: int
    stripes: int


class _Repaired(Struct, frozen=True, gc=False):
    stripes: int
    shards: int


class _Reaped(Struct, frozen=True, gc=False):
    stripes: int


class _Evicted(Struct, frozen=True, gc=False):
    files: int
    returns: bool


class _Doubted(Struct, frozen=True, gc=False):
    writers: int


class _Kept(Struct, frozen=True, gc=False):
    path: str
    more: tuple[str, ...]
    directories: int
    name: str
    cut: bool


class _Forgotten(Struct, frozen=True, gc=False):
    path: str
    name: str
    snapshots: int


class _Pruned(Struct, frozen=True, gc=False):
    path: str
    files: int


class _Replaced(Struct, frozen=True, gc=False):
    path: str
    more: tuple[str, ...]
    directories: int
    since: str


_Small = (
    c.OpenSession
    | c.Mkdirs
    | c.Rename
    | c.Delete
    | c.RenameSnapshot
    | c.Clone
    | c.Rollback
    | c.Fence
    | c.AgentUp
    | c.AgentDown
    | c.AgentSlow
    | c.AgentEnds
    | c.Drain
    | c.Limit
    | c.IssueToken
    | c.RevokeToken
    | c.SetPolicy
    | c.RemovePolicy
    | c.AttachTier
    | c.DetachTier
    | c.Close
    | c.Drilled
)
_UNTOLD = c.Sweep | c.Keep | c.Horizon | c.Mark | c.Unmark | c.KeepLeases
"""The delete has been noted, and many sweeps follow a large one. What the drain says, second
after second, is in the status of the tier."""
_What = (
    _Put
    | _Relocated
    | _Repaired
    | _Reaped
    | _Evicted
    | _Doubted
    | _Kept
    | _Forgotten
    | _Pruned
    | _Replaced
    | _Small
)


class Note(Struct, frozen=True, gc=False):
    op: int
    time_ms: int
    elapsed_ms: int
    what: _What
    result: c.Result
    who: str


class Audit(Protocol):
    """Who is told of every event, as it is noted. Must neither wait nor fail."""

    def note(self, note: Note) -> None: ...

    def gap(self, op: int) -> None:
        """What came up to `op` was not noted here: the state came from elsewhere."""
        ...


class EventLog:
    def __init__(self, audit: Audit | None = None) -> None:
        self._notes: deque[Note] = deque(maxlen=EVENTS_MAX)
        self._audit = audit

    @property
    def bytes_used(self) -> int:
        return EVENT_BYTES * len(self._notes)

    def note(
        self,
        op: int,
        command: c.Command,
        results: tuple[c.Result, ...],
        *,
        time_ms: int,
        elapsed_ms: int,
        who_of: Callable[[int], str],
    ) -> None:
        """`who_of` says whose a session is."""
        if isinstance(command, c.Commit):
            session, who = -1, ""
            notes, audit = self._notes, self._audit
            for put, result in zip(command.puts, results, strict=True):
                if type(result) is not c.Done:
                    result = _short(result)
                if put.session != session:
                    session, who = put.session, who_of(put.session)
                note = Note(op, time_ms, elapsed_ms, _summary(put.files), result, who)
                notes.append(note)
                if audit is not None:
                    audit.note(note)
        elif not isinstance(command, _UNTOLD):
            what, result = _shortened(command), _short(results[0])
            note = Note(op, time_ms, elapsed_ms, what, result, _who(command, who_of))
            self._notes.append(note)
            if self._audit is not None:
                self._audit.note(note)

    def restored(self, op: int) -> None:
        """The state is that after `op`, and was copied."""
        if self._audit is not None:
            self._audit.gap(op)

    def newest_first(self) -> Iterator[Event]:
        """What is remembered, in words."""
        return map(describe, self._newest_first())

    def per_second(self, *, elapsed_ms: int, window_ms: int) -> float:
        """How many there were each second lately, as far back as is remembered."""
        since_ms = elapsed_ms - window_ms
        count = 0
        for note in self._newest_first():
            if note.elapsed_ms <= since_ms:
                break
            count += 1
        if count == EVENTS_MAX:  # The window reaches back further than memory does.
            window_ms = max(elapsed_ms - self._notes[0].elapsed_ms, 1)
        return count * 1000 / window_ms

    def _newest_first(self) -> Iterator[Note]:
        return reversed(self._notes)


def _summary(files: tuple[c.NewFile, ...]) -> _Put:
    path = files[0].path[:TEXT_CHARS_MAX] if files else ""
    if len(files) == 1:
        return _Put(path, 1, files[0].size)
    size = sum([file.size for file in files])
    above = [file.path.rpartition("/")[0] for file in files[1:]]
    return _Put(path, len(files), size, _named(above))


def _named(found: Iterable[str]) -> tuple[str, ...]:
    """Each of these paths once, or everything if they are many."""
    known = dict.fromkeys(found)
    return tuple(_cut(path) or "/" for path in known) if len(known) < PATHS_MAX else ("/",)


def _who(command: c.Command, who_of: Callable[[int], str]) -> str:
    """Who asked for a command; "" if nobody did."""
    session = getattr(command, "session", None)
    return getattr(command, "who", "") if session is None else who_of(session)


def _short(result: c.Result) -> c.Result:
    """No more of a refusal than is ever shown of it."""
    if isinstance(result, c.Refused) and len(result.message) > TEXT_CHARS_MAX:
        return c.Refused(result.reason, result.message[:TEXT_CHARS_MAX])
    return result


def _cut(text: str) -> str:
    """No more of a path or a name than is ever shown of it."""
    return text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX]


def _shortened(command: c.Command) -> _What:
    """What the words need of a command that is not a commit."""
    match command:
        case c.Relocate():
            return _Relocated(len(command.moves), len(command.stripes))
        case c.MoveShards(moves):
            return _Repaired(len(moves), sum(len(move.places) for move in moves))
        case c.Reap():
            return _Reaped(len(command.stripes))
        case c.Evict(files, returns):
            return _Evicted(len(files), returns)
        case c.Doubt():
            return _Doubted(len(command.writers))
        case c.Mkdirs() | c.Delete():
            return replace(command, path=_cut(command.path))
        case c.Rename() | c.Clone():
            return replace(command, source=_cut(command.source), target=_cut(command.target))
        case c.CreateSnapshot(paths=paths, name=name, cut=cut):
            first = _cut(paths[0]) if paths else "nothing"
            return _Kept(first, _named(paths[1:]), len(paths), _cut(name), cut)
        case c.DeleteSnapshots(path=path, names=names):
            return _Forgotten(_cut(path), _cut(names[0]) if names else "", len(names))
        case c.RenameSnapshot(path=path, old=old, new=new):
            return replace(command, path=_cut(path), old=_cut(old), new=_cut(new))
        case c.Rollback():
            return replace(command, path=_cut(command.path), name=_cut(command.name))
        case c.Prune(path=path, names=names):
            return _Pruned(_cut(path), len(names))
        case c.Replace(swaps=swaps):
            chosen = [swap.path for swap in swaps] or ["nothing"]
            since = _cut(swaps[0].since) if swaps else ""
            return _Replaced(_cut(chosen[0]), _named(tuple(chosen[1:])), len(chosen), since)
        case c.IssueToken(paths=paths):
            return replace(command, paths=_named(paths))
        case c.SetPolicy() | c.RemovePolicy():
            return replace(command, path=_cut(command.path), key=_cut(command.key))
        case c.Drilled(result):
            return replace(command, result=replace(result, problem=_cut(result.problem)))
        case (
            c.Commit() | c.Sweep() | c.Keep() | c.Horizon() | c.Mark() | c.Unmark() | c.KeepLeases()
        ):
            raise AssertionError("one event for each of its puts, and none")
        case _:
            return command


def describe(note: Note) -> Event:
    kind, text = _words(note.what, note.result)
    if isinstance(note.result, c.Refused):
        text = f"{text} refused: {note.result.message}"
    if len(text) > TEXT_CHARS_MAX:
        text = f"{text[: TEXT_CHARS_MAX - 1]}…"
    return Event(note.op, note.time_ms, kind, text, note.who, _paths(note.what))


def _paths(what: _What) -> tuple[str, ...]:
    match what:
        case _Put(path, _, _, more):
            return (path, *more)
        case c.Mkdirs(path=path) | c.Delete(path=path) | c.RenameSnapshot(path=path):
            return (path,)
        case c.SetPolicy(path=path) | c.RemovePolicy(path=path):
            return (path,)
        case _Kept(path=path, more=more):
            return (path, *more)
        case _Forgotten(path=path) | _Pruned(path=path):
            return (path,)
        case _Replaced(path=path, more=more):
            return (path, *more)
        case c.Rename(source=source, target=target) | c.Clone(source=source, target=target):
            return (source, target)
        case c.Rollback(path=path, cut=cut):
            return ("/",) if cut else (path,)
        case c.IssueToken(paths=paths):
            return paths
        case _:
            return ()


def _words(what: _What, result: c.Result) -> tuple[str, str]:
    number = result.number if isinstance(result, c.Done) else 0
    idle = isinstance(result, c.Done) and not result.changed
    match what:
        case _Kept() | _Forgotten() | c.RenameSnapshot() | c.Clone() | c.Rollback():
            return _words_of_the_past(what, number)
        case _Pruned(path, files):
            return "delete", f"delete {number} of {_count(files, 'file')} below {path}"
        case _Replaced(path, _, directories, since):
            more = f" and {directories - 1} more" if directories > 1 else ""
            return "replace", f"replace {path}{more}, before that is snapshot {since}"
        case _Put(path, files, size, _):
            more = f" and {files - 1} more" if files > 1 else ""
            return "put", f"put {path}{more} {format_bytes(size)}"
        case _Relocated(files, stripes):
            return "move", f"moved {_count(files, 'file')} into {_count(stripes, 'stripe')}"
        case _Repaired(stripes, shards):
            refused = f", {stripes - number} refused" if number < stripes else ""
            return "repair", (
                f"moved {_count(shards, 'shard')} of {_count(stripes, 'stripe')}{refused}"
            )
        case _Reaped(stripes):
            return "reap", f"reaped {_count(stripes, 'stripe')}"
        case _Evicted(files, returns):
            why = "whose shards are lost" if returns else "to make room"
            return "evict", f"left {number} of {_count(files, 'file')} to the tier {why}"
        case _Doubted(writers):
            return "doubt", f"unfinished stripes of {_count(writers, 'writer')} found"
        case c.OpenSession():
            return "session", f"session {number} opened"
        case c.Mkdirs(path=path):
            return "mkdir", f"mkdir {path}" + (", which was there" if idle else "")
        case c.Rename(source=source, target=target):
            return "rename", f"rename {source} to {target}"
        case c.Delete(path=path, recursive=recursive, snapshots=snapshots):
            what_of = f"{path} and all below" if recursive else path
            what_of += " with snapshots" if snapshots else ""
            return "delete", f"delete {what_of}" + (", which was not there" if idle else "")
        case c.Fence(slot, incarnation, below):
            writer = f"{slot_name(slot)} incarnation {incarnation}"
            return "fence", f"fence {writer} below stripe {below}"
        case c.AgentUp(slot=slot):
            return "up", f"{slot_name(slot)} up incarnation {number}"
        case c.AgentDown(slot, incarnation):
            return "down", f"{slot_name(slot)} down incarnation {incarnation}"
        case c.AgentSlow(slot, incarnation, slow):
            return "slow", f"{slot_name(slot)} " + ("is slow" if slow else "is no longer slow")
        case c.AgentEnds(slot, _, notice, left_ms):
            known = ", which was known" if idle else ""
            said = f"ends in {left_ms / 1000:.0f} s" if left_ms > 0 else "does not end after all"
            return "ends", f"{slot_name(slot)} {said} ({notice}){known}"
        case c.Drain(slot, draining):
            return "drain", f"{slot_name(slot)} " + ("drains" if draining else "no longer drains")
        case c.Limit(bytes_max):
            return "limit", f"the namespace may grow to {format_bytes(bytes_max)}"
        case c.IssueToken(name=name, paths=paths, writes=writes):
            known = ", which was known" if idle else ""
            rights = "rw" if writes else "r"
            return "token", f"token {name} issued {rights} {' '.join(paths)}{known}"
        case c.RevokeToken(name):
            return "token", f"token {name} revoked" + (", which it was" if idle else "")
        case c.SetPolicy() | c.RemovePolicy():
            return _words_of_policies(what, idle=idle)
        case c.AttachTier(uri, epoch, manifest):
            known = ", which it was" if idle else f" at manifest {manifest} of epoch {epoch}"
            return "tier", f"tier {uri} attached{known}"
        case c.DetachTier():
            left = f", {_count(number, 'file')} left to forget" if number else ""
            return "tier", f"tier detached{left}"
        case c.Close(closed):
            return "tier", "closed: nothing is changed any more" if closed else "open again"
        case c.Drilled(drill):
            found = "sound" if drill.sound else f"damaged: {drill.problem}"
            return "tier", f"tier drilled at manifest {drill.number}: {found}"


def _words_of_policies(what: c.SetPolicy | c.RemovePolicy, *, idle: bool) -> tuple[str, str]:
    if isinstance(what, c.SetPolicy):
        known = ", which it was" if idle else ""
        return "policy", f"policy of {what.path}: {what.key}={what.value}{known}"
    lacked = ", which it had not" if idle else ""
    return "policy", f"policy of {what.path} removed: {what.key or 'all'}{lacked}"


def _words_of_the_past(
    what: _Kept | _Forgotten | c.RenameSnapshot | c.Clone | c.Rollback, number: int
) -> tuple[str, str]:
    match what:
        case _Kept(path, _, directories, name, cut):
            more = f" and {directories - 1} more" if directories > 1 else ""
            kind = "cut" if cut else "snapshot"
            return "snapshot", f"{kind} {name or f'number {number}'} of {path}{more}"
        case _Forgotten(path, name, snapshots):
            more = f" and {snapshots - 1} more" if snapshots > 1 else ""
            return "snapshot", f"delete snapshot {name}{more} of {path}"
        case c.RenameSnapshot(path=path, old=old, new=new):
            return "snapshot", f"rename snapshot {old} of {path} to {new}"
        case c.Clone(source=source, target=target):
            return "clone", f"clone {source} to {target}"
        case c.Rollback(path=path, name=name, cut=cut):
            where = f"cut {name}" if cut else f"{path} to {name}"
            before = f", before that is snapshot number {number}" if number else ""
            return "rollback", f"roll back {where}{before}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
