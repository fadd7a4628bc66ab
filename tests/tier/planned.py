"""Checkpoints of queries for the schedules of the drain, and what `barrier` owes them.

A query puts plans below `offsets/` and effects elsewhere; it publishes some by rename; it starts
again and runs the plan that it finds; and its checkpoint is renamed, cloned, deleted in parts and
begun anew. The oracle knows nothing of how the namespace keeps its account: it looks at what is
below `offsets/` after every command. Whatever is new there is a plan, and an effect that is
acknowledged, or a plan that is run, owes it: from then on no restore may lack it.
"""

import random
from typing import Any

from diskless import policy
from diskless.checksum import file_checksum
from diskless.namespace import commands as c
from diskless.namespace.btree import in_order
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import Directory, File

TOP = "/q"
Debts = dict[str, tuple[str, int]]
"""By path, its checkpoint and the change that what is done there depends on."""
CHECKPOINTS = [f"{TOP}/1", f"{TOP}/2", f"{TOP}/in/3"]


class Planned:
    """Of one cluster."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.newest: dict[str, int] = {}
        """By checkpoint, the change that planned something there last."""
        self.since: dict[str, int] = {}
        """By plan, the change since which it is what it is."""
        self._moved = ""  # where a checkpoint is to be used next
        self._shown: dict[str, dict[str, int]] = {}
        self.owed = 0
        """The newest change that something acknowledged depends on."""
        self.owed_by = ""

    # -- what queries do ----------------------------------------------------------

    def act(self, state: NamespaceState, who: tuple[int, int]) -> c.Command:
        rng = self.rng
        at = rng.choice(CHECKPOINTS)
        name = rng.choice("0123")
        kind = rng.random()
        if self._moved:
            at, self._moved = self._moved, ""
            return self._put(who, f"{at}/commits/{name}")
        if kind < 0.04 and state.tier.attached:
            value = policy.ASYNC if rng.random() < 0.3 else policy.BARRIER
            return c.SetPolicy(TOP, policy.DURABILITY, value)
        if kind < 0.3:
            return self._put(who, f"{at}/offsets/{name}")
        if kind < 0.65:
            place = rng.choice(("commits", "state/0", "sources"))
            return self._put(who, f"{at}/{place}/{name}")
        if kind < 0.8:
            place = rng.choice(("offsets", "commits", "tmp", "tmp"))
            target = rng.choice(("offsets", "offsets", "commits"))
            return c.Rename(
                *who, f"{at}/{place}/{rng.choice('0123')}", f"{at}/{target}/{name}", True
            )
        if kind < 0.84:
            return self._put(who, f"{at}/tmp/{name}")
        if kind < 0.92:
            return self._move(state, who)
        gone = rng.choice(("", "", "/offsets", "/state", "/state", "/offsets/1"))
        return c.Delete(*who, at + gone, True)

    def _move(self, state: NamespaceState, who: tuple[int, int]) -> c.Command:
        """A whole checkpoint to where none is, and perhaps its query goes on there at once."""
        free = [at for at in CHECKPOINTS if state.tree.find(at) is None]
        taken = [at for at in CHECKPOINTS if at not in free]
        if not free or not taken:
            return c.Delete(*who, self.rng.choice(CHECKPOINTS), True)
        source, target = self.rng.choice(taken), self.rng.choice(free)
        self._moved = self.rng.choice((target, ""))
        if self.rng.random() < 0.5:
            return c.Clone(*who, source, target)
        return c.Rename(*who, source, target, False)

    def _put(self, who: tuple[int, int], path: str) -> c.Command:
        data = self.rng.randbytes(self.rng.choice((1, 9, 60)))
        file = c.NewFile(path, len(data), file_checksum(data), data)
        return c.Commit((), (c.Put(*who, True, (file,)),))

    def plan_to_run(self, state: NamespaceState) -> str:
        """A query starts again, and runs the newest of its plans; empty if it has none."""
        at = self.rng.choice(CHECKPOINTS)
        found = _below(state, at)
        return f"{at}/offsets/{max(found)}" if found else ""

    # -- what is owed -------------------------------------------------------------

    def begin(self, state: NamespaceState) -> None:
        """What a restore brought is in the tier."""
        self.look(state)
        self.newest = dict.fromkeys(self.newest, 0)
        self.since = dict.fromkeys(self.since, 0)

    def look(self, state: NamespaceState) -> None:
        """After every command: what is planned that was not."""
        for at in CHECKPOINTS:
            shown = _below(state, at)
            before = self._shown.get(at, {})
            for name, id_ in shown.items():
                if before.get(name) != id_:
                    self.newest[at] = self.since[f"{at}/offsets/{name}"] = state.tier.change
            self._shown[at] = shown

    def debts(self, state: NamespaceState, command: c.Command) -> Debts:
        """What an acknowledgement of a command, which was just done, depends on."""
        return {
            path: (at, self.newest.get(at, 0))
            for path in _places(command)
            for at in CHECKPOINTS
            if path.startswith(f"{at}/") and self._owes(state, path, at)
        }

    def acknowledged(self, state: NamespaceState, debts: Debts) -> None:
        """By what holds now: a path may ask for less than it did, or its query have state."""
        for path, (at, change) in debts.items():
            if self._owes(state, path, at):
                self.owe(change, f"{path} was acknowledged")

    def _owes(self, state: NamespaceState, path: str, at: str) -> bool:
        asked = state.policies.durability(path, default=state.tier.default_durability)
        is_plan = path.startswith(f"{at}/offsets/")
        return asked == policy.BARRIER and not (is_plan and _has_state(state, at))

    def owe(self, debt: int, why: str) -> None:
        if debt > self.owed:
            self.owed, self.owed_by = debt, why


def _has_state(state: NamespaceState, at: str) -> bool:
    return isinstance(state.tree.find(f"{at}/state"), Directory)


def _below(state: NamespaceState, at: str) -> dict[str, int]:
    """The plans of a checkpoint: names, and the files that they lead to."""
    node: Any = state.tree.find(f"{at}/offsets")
    if not isinstance(node, Directory):
        return {}
    entries = in_order(node.node).items()
    return {name: one.record.id for name, one in entries if isinstance(one, File)}


def _places(command: c.Command) -> list[str]:
    match command:
        case c.Commit(puts=puts):
            return [file.path for put in puts for file in put.files]
        case c.Rename(target=target):
            return [target]
    return []
