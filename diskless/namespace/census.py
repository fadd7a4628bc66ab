"""Goes through all files and says which of them may leave memory, and how much each is needed.

`census` is a generator: it yields whenever it has done enough at a stretch, and returns what it
found. The namespace changes meanwhile, so what it says are hints: the command that evicts looks
at each file again. It changes nothing, and keeps no more than the candidates that would go first.
"""

from collections.abc import Collection, Generator, Iterator
from typing import Any, NamedTuple

from diskless import eviction, policy
from diskless.eviction import Candidate, Priority, Standing, Wishes
from diskless.namespace import btree
from diskless.namespace.btree import Inner, Leaf
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import is_cold, is_evictable
from diskless.namespace.tree import Directory, File

STRETCH_STEPS = 1000
CANDIDATES_MAX = 10_000
"""That are remembered; the next census finds others."""
WANTED_MAX = 1000


class Checkpoint(NamedTuple):
    """Below which directory of a query's the walk is."""

    newest: int
    keep: int


class Census:
    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        """What may go when memory is short."""
        self.surplus: list[Candidate] = []
        """What is to go in any case: batches beyond those that a policy keeps, and what only
        snapshots show that are to be in the tier alone."""
        self.wanted: list[int] = []
        """Files that are to be here and have no bytes here: pinned, or of batches that are kept."""
        self.needed: list[int] = []
        """Of those that were set aside, the ones that are needed now: after a rollback, say."""

    def note(self, into: list[Candidate], candidate: Candidate) -> None:
        into.append(candidate)
        if len(into) > 2 * CANDIDATES_MAX:
            into.sort()
            del into[CANDIDATES_MAX:]

    def end(self, protected: set[int]) -> "Census":
        """A file with several paths is needed as much as by the one that needs it most."""
        needed = {one.id: one for one in sorted(self.candidates)}
        self.candidates = sorted(one for id_, one in needed.items() if id_ not in protected)
        surplus = {one.id: one for one in self.surplus}
        kept = protected | needed.keys()
        self.surplus = sorted(one for id_, one in surplus.items() if id_ not in kept)
        return self


class _Walk:
    """One census, with what it knows on its way."""

    def __init__(self, state: NamespaceState, priority: Priority, aside: Collection[int]) -> None:
        self._state = state
        self._aside = aside
        self._table = state.policies.table
        self._priority = priority
        self._shared: set[Any] = set()
        self.protected: set[int] = set()
        self._steps = 0
        self.found = Census()

    def _stretched(self) -> bool:
        self._steps += 1
        return self._steps % STRETCH_STEPS == 0

    def live(self) -> Generator[None, None, None]:
        """Every file that a path leads to."""
        pending: list[tuple[str, Directory, Checkpoint | None]] = [
            ("", self._state.tree.root, None)
        ]
        while pending:
            path, directory, checkpoint = pending.pop()
            self._meet(directory)
            wishes = eviction.wishes(self._table, path or "/")
            checkpoint = (yield from self._checkpoint(directory, wishes)) or checkpoint
            names: list[str] = []
            if checkpoint is not None:
                for leaf in btree.leaves(directory.node):
                    names += [name for name, node in leaf.entries.items() if type(node) is File]
                    if self._stretched():
                        yield
            first = None
            if checkpoint is not None:
                first = eviction.first_needed(names, newest=checkpoint.newest, keep=checkpoint.keep)
            for leaf in self._leaves(directory):
                for name, node in list(leaf.entries.items()):
                    below = f"{path}/{name}"
                    if isinstance(node, Directory):
                        pending.append((below, node, checkpoint))
                    else:
                        self._judge(below, name, node, first, wishes)
                    if self._stretched():
                        yield

    def _checkpoint(
        self, directory: Directory, wishes: Wishes
    ) -> Generator[None, None, Checkpoint | None]:
        offsets = btree.find(directory.node, "offsets")
        commits = btree.find(directory.node, "commits")
        if not isinstance(offsets, Directory) or not isinstance(commits, Directory):
            return None
        for log in (commits, offsets):
            newest = -1
            for leaf in btree.leaves(log.node):
                batch = eviction.newest_batch(leaf.entries)
                newest = newest if batch is None else max(newest, batch)
                if self._stretched():
                    yield
            if newest >= 0:
                return Checkpoint(newest, wishes.keep_batches or eviction.KEEP_BATCHES)
        return None

    def _leaves(self, directory: Directory) -> Iterator[Leaf]:
        pending: list[Any] = [directory.node]
        while pending:
            node = pending.pop()
            self._meet(node)
            if isinstance(node, Inner):
                pending += node.children
            else:
                yield node

    def _meet(self, thing: Any) -> bool:
        """Whether it was met before. Only what is shared can be met again."""
        if thing.refs <= 1:
            return False
        if thing in self._shared:
            return True
        self._shared.add(thing)
        return False

    def _judge(self, path: str, name: str, file: File, first: int | None, wishes: Wishes) -> None:
        record = file.record
        if path in self._table:
            wishes = eviction.wishes(self._table, path)
        self._meet(file)
        standing = eviction.standing_of(name, first)
        explicit = wishes.keep_batches is not None
        surplus = not wishes.pinned and explicit and standing is Standing.OLD
        if not surplus and record.id in self._aside:
            self.found.needed.append(record.id)
        if wishes.pinned or (explicit and standing is Standing.RECENT):
            self.protected.add(record.id)
            if is_cold(record) and len(self.found.wanted) < WANTED_MAX:
                self.found.wanted.append(record.id)
        else:
            self._add(path, file, standing, surplus=surplus)

    def _add(self, path: str, file: File, standing: Standing, *, surplus: bool) -> None:
        record = file.record
        if record.inline is not None or not is_evictable(self._state.tier, record):
            return
        candidate = Candidate(
            self._priority(path) if path else 0,
            standing, record.id, record.size, record.layout, path,
        )  # fmt: skip
        self.found.note(self.found.surplus if surplus else self.found.candidates, candidate)

    def alone(self, roots: list[Directory], *, surplus: bool) -> Iterator[None]:
        """Files that only these snapshots show, and none that was looked at before."""
        pending: list[Any] = list(roots)
        while pending:
            thing = pending.pop()
            if self._meet(thing):
                continue
            if isinstance(thing, Leaf):
                pending += thing.entries.values()
            elif isinstance(thing, Inner):
                pending += thing.children
            elif isinstance(thing, Directory):
                pending.append(thing.node)
            else:
                self._add("", thing, Standing.ALONE, surplus=surplus)
            if self._stretched():
                yield


def census(
    state: NamespaceState, priority: Priority, aside: Collection[int] = ()
) -> Generator[None, None, Census]:
    """`aside` are files that were found not to be needed before."""
    # Only those that there are now: what becomes shared on the way would seem to be theirs alone.
    here, there = _roots(state)
    walk = _Walk(state, priority, aside)
    yield from walk.live()
    yield from walk.alone(here, surplus=False)
    yield from walk.alone(there, surplus=True)
    return walk.found.end(walk.protected)


def _roots(state: NamespaceState) -> tuple[list[Directory], list[Directory]]:
    """Of snapshots that are kept in memory, and of those that need only be in the tier."""
    here: list[Directory] = []
    there: list[Directory] = []
    table = state.policies.table
    asked = {path for path, own in table.items() if own.get(policy.HISTORY_IN) == policy.TIER}
    known: dict[str, bool] = {}
    for snapshot in state.history.by_id.values():
        path = snapshot.path
        in_tier = bool(asked) and snapshot.by_policy
        if in_tier and path not in known:
            value = policy.effective(table, path, policy.HISTORY_IN, default=policy.MEMORY).value
            known[path] = value == policy.TIER
        (there if in_tier and known[path] else here).append(snapshot.root)
    return here, there


def is_still_there(state: NamespaceState, candidate: Candidate) -> bool:
    """Whether a file is where it was found: else another policy may hold for it."""
    file = state.files.get(candidate.id)
    if file is None or file.record.layout != candidate.layout:
        return False
    return not candidate.path or state.tree.find(candidate.path) is file
