"""What the commands about policies and the durable tier should answer, as the model has it."""

from typing import Any
from unittest.mock import ANY

from diskless.namespace import commands as c
from diskless.policy import ASYNC, DURABILITY, NEED_A_TIER, QUOTA

_Answer = tuple[Any, ...]


class TierModel:
    def __init__(self) -> None:
        self.policies: dict[str, dict[str, str]] = {}
        self.steady = (0, 0)
        """Since when nobody has changed what paths ask for, or the tier."""
        self.evicts = False
        self.attached = False
        self.marked = False
        self.change = 0
        self.newest = (0, 0)  # epoch and number of the last manifest
        self.horizon = 0

    def note(self, answer: _Answer) -> _Answer:
        """Counts what changed something that a tier keeps."""
        self.change += self.attached and answer[0] == "done" and answer[2]
        return answer

    def quotas(self) -> list[tuple[str, int]]:
        return [(path, int(own[QUOTA])) for path, own in self.policies.items() if QUOTA in own]

    def asks(self, path: str) -> str:
        """Which durability, by the nearest path above that asks for any."""
        while True:
            if value := self.policies.get(path or "/", {}).get(DURABILITY):
                return value
            if not path:
                return ASYNC
            path = path.rpartition("/")[0]

    def execute(self, at: tuple[int, int], command: c.Command, found: _Answer = ()) -> _Answer:
        answer = self._execute(at, command, found)
        if not isinstance(command, c.Keep | c.Horizon | c.Evict | c.Mark | c.Unmark):
            self.steady = at
        return answer

    def _execute(self, at: tuple[int, int], command: c.Command, found: _Answer) -> _Answer:
        match command:
            case c.SetPolicy(path=path, key=key, value=value):
                if value in NEED_A_TIER and not self.attached:
                    return "refused", "BadRequest"
                own = self.policies.setdefault(path, {})
                before, own[key] = own.get(key), value
                return self.note(("done", 0, before != value))
            case c.RemovePolicy(path=path):
                had = len(self.policies.pop(path, ()))
                return self.note(("done", had, had > 0))
            case c.Mark():
                self.marked = True
                return "done", at[0], True
            case c.Unmark():
                had, self.marked = self.marked, False
                return "done", 0, had
        return self._tier(command, found)

    def _tier(self, command: c.Command, found: _Answer) -> _Answer:
        match command:
            case c.AttachTier(epoch=epoch, number=number):
                if self.attached and self.newest[0] == epoch and number <= self.newest[1]:
                    return "done", 0, False
                self.attached, self.newest, self.horizon = True, (epoch, number), 0
                self.change += 1
                return "done", 0, True
            case c.DetachTier():
                asked = {own.get(DURABILITY) for own in self.policies.values()}
                # Whether files are left that were evicted depends on what is swept.
                evicted = self.evicts and found == ("refused", "BadRequest")
                if evicted or asked & set(NEED_A_TIER):
                    return "refused", "BadRequest"
                had, self.attached = self.attached, False
                self.marked = self.marked and not had
                return "done", 0, had
            case c.Keep():
                # How many of the files are there depends on what is swept.
                return ("done", ANY, ANY) if self.attached else ("refused", "BadRequest")
            case c.Evict():
                # As with places. What it may let go of is looked at in the state itself.
                self.evicts = True
                return "done", ANY, ANY
            case c.Horizon(epoch=epoch, number=number, change=change):
                known = self.horizon <= change <= self.change
                if not self.attached or not known or (epoch, number) <= self.newest:
                    return "done", 0, False
                self.newest, self.horizon = (epoch, number), change
                return "done", 0, True
        raise AssertionError(f"no client of the simulator sends {command}")
