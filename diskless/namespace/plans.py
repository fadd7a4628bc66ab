"""What Spark's queries have planned lately: the changes that `durability=barrier` waits for.

A checkpoint is a directory with `offsets/` below it, and what is put below that is a plan. Only
what is beyond the horizon is in here, by path: where plans were put, and what came to its place as
a whole, renamed, cloned or rolled back, with plans that nobody put there. Nothing is known of
queries, batches and names of files. All voters apply the same changes, so the next leader
waits for the same.

What there is no room for, or came before anybody watched, makes everything wait: `floor`.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from diskless import paths
from diskless.namespace import commands as c
from diskless.namespace.journal import Change
from diskless.namespace.tree import Directory, Tree
from diskless.namespace.weights import plan_bytes
from diskless.policy import DURABILITY

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

OFFSETS, STATE = "offsets", "state"
BELOW_OFFSETS = f"/{OFFSETS}/"
ENTRIES_MAX = 1024
"""Of both tables: one beyond it makes everything wait for what was done by then."""

Row = tuple[str, int, bool]
"""A path, its change, and whether it came as a whole."""


class Plans:
    def __init__(self) -> None:
        self.put: dict[str, int] = {}  # by `offsets` directory; the oldest change first
        self.arrived: dict[str, int] = {}  # by path; the oldest change first
        self.floor = 0
        """Whatever was done up to this change may have been a plan."""
        self.bytes_used = 0

    def __len__(self) -> int:
        return len(self.put) + len(self.arrived)

    # -- changing -----------------------------------------------------------------

    def note(self, state: "NamespaceState", change: Change) -> None:
        """Takes in what the state's last change planned, or brought."""
        at = state.tier.change
        match change:
            case c.Put(files=files):
                for file in files:
                    if BELOW_OFFSETS in file.path:
                        self._plan(file.path, at)
            case c.Rename(target=target) | c.Clone(target=target):
                self._arrive(state.tree, target, at)
            case c.Replace(swaps=swaps):
                for swap in swaps:
                    self._arrive(state.tree, swap.path, at)
            case c.Rollback(cut=True):
                self.raise_floor(at)
            case c.Rollback(path=path):
                self._arrive(state.tree, path, at)
            case c.SetPolicy(key=key) | c.RemovePolicy(key=key) if key in ("", DURABILITY):
                self.raise_floor(at)

    def raise_floor(self, change: int) -> None:
        """What was done up to there is not looked at: all of it counts."""
        self.floor = change
        self.put, self.arrived, self.bytes_used = {}, {}, 0

    def trim(self, horizon: int) -> None:
        """What is durable is waited for no more."""
        for table in (self.put, self.arrived):
            while table and table[oldest := next(iter(table))] <= horizon:
                self._drop(table, oldest)

    def rows(self) -> Iterator[Row]:
        yield "", self.floor, False
        for whole, table in ((False, self.put), (True, self.arrived)):
            for path, change in table.items():
                yield path, change, whole

    def restore(self, rows: Iterable[Row]) -> None:
        for path, change, whole in rows:
            if path:
                self._add(self.arrived if whole else self.put, path, change)
            else:
                self.floor = change

    def _plan(self, path: str, change: int) -> None:
        for directory in offsets_above(path):
            self._add(self.put, directory, change)

    def _arrive(self, tree: Tree, path: str, change: int) -> None:
        """A file that is no plan brings none, wherever it lay."""
        whole = isinstance(tree.find(path), Directory)
        if whole or BELOW_OFFSETS in path:
            self._add(self.arrived, path, change)
            self._plan(path + "/" if whole else path, change)

    def _add(self, table: dict[str, int], path: str, change: int) -> None:
        self._drop(table, path)  # so that it comes last
        table[path] = change
        self.bytes_used += plan_bytes(path)
        if len(self) > ENTRIES_MAX:
            self.raise_floor(change)

    def _drop(self, table: dict[str, int], path: str) -> None:
        if table.pop(path, None) is not None:
            self.bytes_used -= plan_bytes(path)

    # -- what to wait for ---------------------------------------------------------

    def before_answer(self, tree: Tree, path: str) -> int:
        """The change that must be durable before it is acknowledged that something was put at a
        path: of the newest plan of each checkpoint that it is below of. A plan itself waits if its
        query has no state, whose files could wait in its place."""
        own = _own_checkpoint(tree, path)
        if own is None:
            return max(self.floor, self._came(path, itself=False), self._outside(path))
        if isinstance(tree.find(f"{own}/{STATE}"), Directory):
            return self._outside(path)
        return max(self.floor, self.put.get(f"{own}/{OFFSETS}", 0), self._outside(path))

    def before_opening(self, path: str, *, is_new: bool) -> int:
        """The same before a file is read which may be a plan; `is_new` says that its bytes came
        beyond the horizon. Others that are renamed onto it, or it with them, did."""
        if BELOW_OFFSETS not in path or paths.leads_to_snapshots(path):
            return 0
        need = max(self.floor, self._came(path, itself=True))
        if is_new:
            need = max(need, *(self.put.get(above, 0) for above in offsets_above(path)))
        return need

    def _came(self, path: str, *, itself: bool) -> int:
        """The newest change that brought a directory above a path, and all in it."""
        if not self.arrived:
            return 0
        need = self.arrived.get(path, 0) if itself else 0
        return max(need, *(self.arrived.get(above, 0) for above in _above(path)))

    def _outside(self, path: str) -> int:
        """The newest plan of all checkpoints above a path, which is no plan of theirs."""
        need = 0
        for above in _above(path) if self.put else ():
            offsets = f"{above.rstrip('/')}/{OFFSETS}"
            if not path.startswith(offsets + "/") and path != offsets:
                need = max(need, self.put.get(offsets, 0))
        return need


def offsets_above(path: str) -> Iterator[str]:
    """The directories above a path that are named as those of plans are."""
    at = path.find(BELOW_OFFSETS)
    while at >= 0:
        yield path[: at + len(BELOW_OFFSETS) - 1]
        at = path.find(BELOW_OFFSETS, at + 1)


def is_plan(tree: Tree, path: str) -> bool:
    return _own_checkpoint(tree, path) is not None


def _own_checkpoint(tree: Tree, path: str) -> str | None:
    """The directory whose plan a path is, if it is one: not where a checkpoint of its own lies
    below something that is named `offsets`."""
    at = path.rfind(BELOW_OFFSETS)
    if at < 0:
        return None
    inner = at + len(BELOW_OFFSETS) - 1
    for above in _above(path):
        if len(above) < inner:
            break
        if isinstance(tree.find(f"{above}/{OFFSETS}"), Directory):
            return None
    return path[:at]


def _above(path: str) -> Iterator[str]:
    """All directories above a path, the nearest first."""
    while path != paths.ROOT:
        path = path[: path.rfind("/")] or paths.ROOT
        yield path
