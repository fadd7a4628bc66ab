"""What the namespace should answer: a second, simpler implementation to check against.

It executes the committed commands one by one and remembers every path's history, so
that a read of any past moment can be checked. Written from the documented meaning of
the commands, with a flat dict of paths: it shares no code with the state.
"""

from bisect import bisect_right

from diskless.namespace import commands as c

Position = tuple[int, int]
File = tuple[int, int, int]  # id, checksum, time
Node = File | str | None  # "dir", or None if there is nothing

Answer = tuple[str | int | bool, ...]


def above(path: str) -> str:
    return path.rsplit("/", 1)[0]


class Model:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"": "dir"}
        self.history: dict[str, list[tuple[Position, Node]]] = {}
        self.sessions: dict[int, dict[int, tuple[Answer, Position]]] = {}
        self.last_file = 0
        self.clock_ms = 0
        self.at: Position = (0, 0)

    # -- the state at any time ---------------------------------------------------

    def set(self, path: str, node: Node) -> None:
        if node is None:
            del self.nodes[path]
        else:
            self.nodes[path] = node
        self.history.setdefault(path, []).append((self.at, node))

    def read(self, path: str, at: Position) -> Node:
        versions = self.history.get(path, [])
        index = bisect_right(versions, at, key=lambda version: version[0])
        return versions[index - 1][1] if index else None

    # -- commands ----------------------------------------------------------------

    def execute(self, at: Position, time_ms: int, command: c.Command) -> tuple[Answer, ...]:
        self.at = at
        self.clock_ms = max(self.clock_ms, time_ms)
        match command:
            case c.OpenSession():
                number = len(self.sessions) + 1
                self.sessions[number] = {}
                return (("done", number, True),)
            case c.Commit(puts=puts):
                return tuple(self._once(put.session, put.sequence, put) for put in puts)
            case c.Mkdirs() | c.Rename() | c.Delete():
                return (self._once(command.session, command.sequence, command),)
        raise AssertionError(f"no client of the simulator sends {command}")

    def _once(self, session: int, sequence: int, command: c.Put | c.Command) -> Answer:
        answers = self.sessions[session]
        if sequence not in answers:
            answers[sequence] = (self._run(command), self.at)
        return answers[sequence][0]

    def _run(self, command: c.Put | c.Command) -> Answer:
        match command:
            case c.Put(overwrite=overwrite, files=(file,)):
                return self._put(file.path, file.checksum, overwrite)
            case c.Mkdirs(path=path):
                return self._mkdirs(path)
            case c.Rename(source=source, target=target, overwrite=overwrite):
                return self._rename(source, target, overwrite)
            case c.Delete(path=path, recursive=recursive):
                return self._delete(path, recursive)
        raise AssertionError(command)

    def _put(self, path: str, checksum: int, overwrite: bool) -> Answer:
        if self._file_above(path):
            return "refused", "PathIsFile"
        old = self.nodes.get(path)
        if old == "dir":
            return "refused", "PathIsDirectory"
        if old is not None and not overwrite:
            return "refused", "AlreadyExists"
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
        if source == target:
            return ("done", 0, True) if overwrite else ("refused", "AlreadyExists")
        if target.startswith(source + "/"):
            return "refused", "BadRequest"
        parent = self.nodes.get(above(target))
        if parent is None:
            return "refused", "NotFound"
        if parent != "dir":
            return "refused", "PathIsFile"
        old = self.nodes.get(target)
        if old is not None:
            if not overwrite:
                return "refused", "AlreadyExists"
            if old != "dir" and node == "dir":
                return "refused", "PathIsFile"
            if old == "dir" and node != "dir":
                return "refused", "PathIsDirectory"
            if old == "dir" and self._below(target):
                return "refused", "DirectoryNotEmpty"
        moved = [(path, self.nodes[path]) for path in [source, *self._below(source)]]
        for path, _ in moved:
            self.set(path, None)
        for path, below in moved:
            self.set(target + path[len(source) :], below)
        return "done", 0, True

    def _delete(self, path: str, recursive: bool) -> Answer:
        if path not in self.nodes:
            return "done", 0, False
        below = self._below(path)
        if below and not recursive:
            return "refused", "DirectoryNotEmpty"
        for gone in [path, *below]:
            self.set(gone, None)
        return "done", 0, True

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
