"""What the namespace should answer: a second, simpler implementation to check against.

It executes the committed commands one by one and remembers every path's history, so
that a read of any past moment can be checked. Written from the documented meaning of
the commands, with a flat dict of paths: it shares no code with the state. A snapshot is a copy
of all that is below its directory, and a clone another one.
"""

from bisect import bisect_right
from dataclasses import dataclass

from diskless.namespace import commands as c
from tests.sim import quotas, swaps
from tests.sim.leases import LeaseModel
from tests.sim.tier import TierModel

Position = tuple[int, int]
File = tuple[int, int, int]  # id, checksum, time
Node = File | str | None  # "dir", or None if there is nothing

Answer = tuple[str | int | bool, ...]
SNAPSHOTS = "/.snapshot/"


def above(path: str) -> str:
    return path.rsplit("/", 1)[0]


def is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(other + "/")


@dataclass
class Kept:
    """A snapshot: what it has by path, below the directory that it is of."""

    number: int
    nodes: dict[str, Node]
    versions: dict[str, int]
    cut: str
    cut_size: int


class Model:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"": "dir"}
        self.history: dict[str, list[tuple[Position, Node]]] = {}
        self.sessions: dict[int, dict[int, tuple[Answer, Position]]] = {}
        self.kept: dict[tuple[str, str], Kept] = {}  # by directory and name, the oldest first
        self.versions: dict[str, int] = {}  # of directories: another one with each change below
        self.last_version = 0
        self.who: dict[int, str] = {}  # by session
        self.applications: dict[int, str] = {}
        self.tokens: dict[str, tuple[tuple[str, ...], bool]] = {}  # paths, whether it is revoked
        self.tier = TierModel()
        self.leases = LeaseModel(self.nodes)
        self.changes: dict[Position, int] = {}  # how many a tier had to keep then
        self.last_file = 0
        self.last_kept = 0
        self.clock_ms = 0
        self.elapsed_ms = 0
        self.at: Position = (0, 0)

    # -- the state at any time ---------------------------------------------------

    def set(self, path: str, node: Node) -> None:
        if node is None:
            del self.nodes[path]
        else:
            self.nodes[path] = node
        self._note(path, node)
        self._touch(path)

    def _touch(self, path: str) -> None:
        """It, and all above it, are others than they were."""
        self.last_version += 1
        self.versions[path] = self.last_version
        while path:
            path = above(path)
            self.versions[path] = self.last_version

    def _note(self, path: str, node: Node) -> None:
        self.history.setdefault(path, []).append((self.at, node))

    def read(self, path: str, at: Position) -> Node:
        versions = self.history.get(path, [])
        index = bisect_right(versions, at, key=lambda version: version[0])
        return versions[index - 1][1] if index else None

    # -- commands ----------------------------------------------------------------

    def execute(
        self, at: Position, clocks: tuple[int, int], command: c.Command, found: tuple[Answer, ...]
    ) -> tuple[Answer, ...]:
        """What it should answer. `found` is what it did, which decides where only that knows."""
        self.at = at
        self.clock_ms = max(self.clock_ms, clocks[0])
        self.elapsed_ms = max(self.elapsed_ms, clocks[1])
        answers = self._execute(at, command, found)
        self.changes[at] = self.tier.change
        return answers

    def _execute(
        self, at: Position, command: c.Command, found: tuple[Answer, ...]
    ) -> tuple[Answer, ...]:
        match command:
            case c.OpenSession(who, application):
                number = len(self.sessions) + 1
                self.sessions[number] = {}
                self.who[number] = who
                self.applications[number] = application
                return (("done", number, True),)
            case c.IssueToken(name=name, paths=paths):
                return (self.tier.note(self._issue(name, paths)),)
            case c.RevokeToken(name):
                known, revoked = self.tokens.get(name, ((), False))
                self.tokens[name] = (known, True)
                return (self.tier.note(("done", int(bool(known)), not revoked)),)
            case c.Commit(puts=puts):
                return tuple(self._once(put.session, put.sequence, put) for put in puts)
            case c.Sweep():
                return (("done", 0, True),)
            case c.SetPolicy() | c.RemovePolicy() | c.Mark() | c.Unmark():
                return (self.tier.execute(at, command),)
            case c.AttachTier() | c.DetachTier() | c.Keep() | c.Horizon() | c.Evict():
                return (self.tier.execute(at, command, found[0]),)
            case c.Mkdirs() | c.Rename() | c.Delete() | c.KeepLeases():
                return (self._once(command.session, command.sequence, command),)
        if isinstance(command, c.Past):
            return (self._once(command.session, command.sequence, command),)
        raise AssertionError(f"no client of the simulator sends {command}")

    def is_revoked(self, name: str) -> bool:
        return self.tokens.get(name, ((), False))[1]

    def _issue(self, name: str, paths: tuple[str, ...]) -> Answer:
        if name not in self.tokens:
            self.tokens[name] = (paths, False)
            return "done", 0, True
        same = self.tokens[name] == (paths, False)
        return ("done", 0, False) if same else ("refused", "AlreadyExists")

    def _once(self, session: int, sequence: int, command: c.Put | c.Command) -> Answer:
        answers = self.sessions[session]
        if sequence not in answers:
            answers[sequence] = (self.tier.note(self._run(command)), self.at)
        return answers[sequence][0]

    def _run(self, command: c.Put | c.Command) -> Answer:
        match command:
            case c.Put(overwrite=overwrite, files=(file,)):
                application = self.applications[command.session]
                return self._put(file.path, file.checksum, overwrite, application)
            case c.KeepLeases(roots=roots, over=over):
                application = self.applications[command.session]
                return self.leases.keep(application, roots, over, self.elapsed_ms)
            case c.Mkdirs(path=path):
                return self._mkdirs(path)
            case c.Rename(source=source, target=target, overwrite=overwrite):
                return self._rename(source, target, overwrite)
            case c.Delete(path=path, recursive=recursive, snapshots=snapshots):
                return self._delete(path, recursive, snapshots)
            case c.CreateSnapshot(paths=paths, name=name, cut=cut):
                return self._create([path.rstrip("/") for path in paths], name, cut)
            case c.RenameSnapshot(path=path, old=old, new=new):
                return self._rename_kept(path.rstrip("/"), old, new)
            case c.DeleteSnapshots(path=path, names=names):
                return self._delete_kept([(path.rstrip("/"), name) for name in names])
            case c.Clone(source=source, target=target):
                return self._clone(source, target)
            case c.Rollback(path=path, name=name, cut=cut, guarded=guarded):
                own = self.applications[command.session]
                return self._rollback(path.rstrip("/"), name, cut, guarded, own)
            case c.Prune(path=path, names=names):
                return swaps.prune(self, [f"{path}/{name}" for name in names])
            case c.Replace():
                return swaps.replace(self, command)
        raise AssertionError(command)

    def _put(self, path: str, checksum: int, overwrite: bool, application: str) -> Answer:
        if self._file_above(path):
            return "refused", "PathIsFile"
        old = self.nodes.get(path)
        if old == "dir":
            return "refused", "PathIsDirectory"
        if old is not None and not overwrite:
            return "refused", "AlreadyExists"
        if quotas.exceeds(self, (path, 1 if old is None else 0)):
            return "refused", "CapacityExceeded"
        if not self.leases.take(application, path, self.elapsed_ms):
            return "refused", "CheckpointInUse"
        self._make(above(path))
        self.last_file += 1
        self.set(path, (self.last_file, checksum, self.clock_ms))
        return "done", self.last_file, True

    def _mkdirs(self, path: str) -> Answer:
        if self._file_above(path):
            return "refused", "PathIsFile"
        if isinstance(self.nodes.get(path), tuple):
            return "refused", "AlreadyExists"
        changed = path not in self.nodes
        self._make(path)
        return "done", 0, changed

    def _rename(self, source: str, target: str, overwrite: bool) -> Answer:
        node = self.nodes.get(source)
        if node is None:
            return "refused", "NotFound"
        if error := self._error_of_rename(node, source, target, overwrite):
            return error
        if any(self.nodes.get(at) == "dir" and self.kept_within(at) for at in (source, target)):
            return "refused", "HasSnapshots"
        if source != target:
            moved, gone = quotas.files(self.copy(source)), quotas.files(self.copy(target))
            if quotas.exceeds(self, (source, -moved), (target, moved - gone)):
                return "refused", "CapacityExceeded"
            versions = self.versions_below(source)
            self.plant(target, self.take(source), versions)
        return "done", 0, True

    def _error_of_rename(
        self, node: Node, source: str, target: str, overwrite: bool
    ) -> Answer | None:
        """What would be refused without snapshots too."""
        if source == target:
            return None if overwrite else ("refused", "AlreadyExists")
        if target.startswith(source + "/"):
            return "refused", "BadRequest"
        if error := self._error_of_place(target):
            return error
        old = self.nodes.get(target)
        if old is None:
            return None
        if not overwrite:
            return "refused", "AlreadyExists"
        if old != "dir" and node == "dir":
            return "refused", "PathIsFile"
        if old == "dir" and node != "dir":
            return "refused", "PathIsDirectory"
        if old == "dir" and self._below(target):
            return "refused", "DirectoryNotEmpty"
        return None

    def _delete(self, path: str, recursive: bool, snapshots: bool) -> Answer:
        kept = self.kept_within(path)
        if kept and not snapshots and self.nodes.get(path) == "dir":
            return "refused", "HasSnapshots"
        if self._below(path) and not recursive:
            return "refused", "DirectoryNotEmpty"
        gone = self.take(path)
        if snapshots:
            self._forget(kept)
        return "done", 0, bool(gone) or (snapshots and bool(kept))

    # -- the past ----------------------------------------------------------------

    def _create(self, paths: list[str], name: str, cut: bool) -> Answer:
        if any(is_within(a, b) for a in paths for b in paths if a is not b):
            return "refused", "BadRequest"
        for path in paths:
            if self.nodes.get(path) != "dir":
                return "refused", "PathIsFile" if path in self.nodes else "NotFound"
        if any((path, name) in self.kept for path in paths) or (cut and self._cut(name)):
            return "refused", "AlreadyExists"
        if quotas.exceeds(self, *((path, quotas.files(self.copy(path))) for path in paths)):
            return "refused", "CapacityExceeded"
        first = self.last_kept + 1
        for path in paths:
            cut_name = name if cut else ""
            self._keep(path, name, self.copy(path), self.versions_below(path), cut_name, len(paths))
        return "done", first, True

    def _rename_kept(self, path: str, old: str, new: str) -> Answer:
        kept = self.kept.get((path, old))
        if kept is None:
            return "refused", "NotFound"
        if new != old:
            if (path, new) in self.kept:
                return "refused", "AlreadyExists"
            self._show(path, old, dict.fromkeys(kept.nodes))
            self._show(path, new, kept.nodes)
            self.kept = {
                (path, new) if key == (path, old) else key: one for key, one in self.kept.items()
            }
        return "done", kept.number, new != old

    def _delete_kept(self, keys: list[tuple[str, str]]) -> Answer:
        if any(key not in self.kept for key in keys):
            return "refused", "NotFound"
        self._forget(keys)
        return "done", len(keys), bool(keys)

    def _clone(self, source: str, target: str) -> Answer:
        copy = self.copy(source)
        if not copy:
            return "refused", "NotFound"
        if is_within(target, source.rstrip("/")):
            return "refused", "BadRequest"
        if error := self._error_of_place(target):
            return error
        if target in self.nodes:
            return "refused", "AlreadyExists"
        if quotas.exceeds(self, (target, quotas.files(copy))):
            return "refused", "CapacityExceeded"
        self.plant(target, copy, self.versions_below(source))
        return "done", 0, True

    def _rollback(self, path: str, name: str, cut: bool, guarded: bool, own: str) -> Answer:
        keys = self._cut(name) if cut else [(path, name)]
        found = [self.kept[key] for key in keys if key in self.kept]
        if not found or (cut and len(found) < found[0].cut_size):
            return "refused", "NotFound"
        if guarded and not all(self.leases.is_free(at, self.elapsed_ms) for at, _ in keys):
            return "refused", "CheckpointInUse"
        places = [at for at, _ in keys]
        for place in places:
            node = self.nodes.get(place)
            if isinstance(node, tuple):
                return "refused", "PathIsFile"
            if node is None and (error := self._error_of_place(place)):
                return error
        grows = [(at, quotas.files(one.nodes)) for at, one in zip(places, found, strict=True)]
        if quotas.exceeds(self, *grows):
            return "refused", "CapacityExceeded"
        before = self._free_name(f"before-{name}", places, cut)
        first, there = self.last_kept + 1, sum(place in self.nodes for place in places)
        for place, kept in zip(places, found, strict=True):
            versions, old = self.versions_below(place), self.take(place)
            self.plant(place, kept.nodes, kept.versions)
            if old:
                self._keep(place, before, old, versions, before if cut else "", there)
            if guarded:
                self.leases.bar(place, own, self.elapsed_ms)
        return "done", first if there else 0, True

    def _free_name(self, base: str, places: list[str], cut: bool) -> str:
        name, number = base, 1
        while any((place, name) in self.kept for place in places) or (cut and self._cut(name)):
            number += 1
            name = f"{base}-{number}"
        return name

    def _keep(
        self,
        path: str,
        name: str,
        nodes: dict[str, Node],
        versions: dict[str, int],
        cut: str,
        size: int,
    ) -> None:
        self.last_kept += 1
        self.kept[path, name] = Kept(self.last_kept, nodes, versions, cut, size if cut else 0)
        self._show(path, name, nodes)

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        for path, name in keys:
            self._show(path, name, dict.fromkeys(self.kept.pop((path, name)).nodes))

    def _show(self, path: str, name: str, nodes: dict[str, Node]) -> None:
        for below, node in nodes.items():
            self._note(path + SNAPSHOTS + name + below, node)

    def _cut(self, name: str) -> list[tuple[str, str]]:
        return [key for key, kept in self.kept.items() if kept.cut == name]

    def kept_within(self, path: str) -> list[tuple[str, str]]:
        return [key for key in self.kept if is_within(key[0], path)]

    # -- parts of commands -------------------------------------------------------

    def copy(self, path: str) -> dict[str, Node]:
        """All that is at a path, which may lead to a snapshot, and below it."""
        directory, mark, rest = path.partition(SNAPSHOTS)
        nodes = self.nodes
        if mark:
            name, slash, rest = rest.partition("/")
            kept = self.kept.get((directory, name))
            nodes, path = (kept.nodes if kept else {}), slash + rest
        return {at[len(path) :]: node for at, node in nodes.items() if is_within(at, path)}

    def take(self, path: str) -> dict[str, Node]:
        nodes = self.copy(path)
        for below in nodes:
            self.set(path + below, None)
        return nodes

    def plant(self, path: str, nodes: dict[str, Node], versions: dict[str, int]) -> None:
        """The very same directories, which they stay until something changes below them."""
        for below, node in nodes.items():
            self.set(path + below, node)
        for below, version in versions.items():
            self.versions[path + below] = version

    def versions_below(self, path: str) -> dict[str, int]:
        """Of the directories that `copy` finds."""
        directory, mark, rest = path.partition(SNAPSHOTS)
        versions = self.versions
        if mark:
            name, slash, rest = rest.partition("/")
            kept = self.kept.get((directory, name))
            versions, path = (kept.versions if kept else {}), slash + rest
        else:
            versions = {at: one for at, one in versions.items() if self.nodes.get(at) == "dir"}
        return {at[len(path) :]: one for at, one in versions.items() if is_within(at, path)}

    def _error_of_place(self, path: str) -> Answer | None:
        parent = self.nodes.get(above(path))
        if parent is None:
            return "refused", "NotFound"
        return ("refused", "PathIsFile") if parent != "dir" else None

    def _below(self, path: str) -> list[str]:
        return [other for other in self.nodes if other.startswith(path + "/")]

    def _file_above(self, path: str) -> bool:
        parent = above(path)
        while parent:
            if isinstance(self.nodes.get(parent), tuple):
                return True
            parent = above(parent)
        return False

    def _make(self, path: str) -> None:
        if path not in self.nodes:
            self._make(above(path))
            self.set(path, "dir")


def answer_of(result: c.Result) -> Answer:
    """A result in the model's terms: an error's text does not matter, its class does."""
    if isinstance(result, c.Refused):
        return "refused", result.reason
    return "done", result.number, result.changed
