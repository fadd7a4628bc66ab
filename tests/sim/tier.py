"""What the commands about policies and the durable tier should answer, as the model has it."""

from typing import Any
from unittest.mock import ANY

from diskless.namespace import commands as c

_Answer = tuple[Any, ...]


class TierModel:
    def __init__(self) -> None:
        self.policies: dict[str, str] = {}
        self.attached = False
        self.marked = False
        self.change = 0
        self.newest = (0, 0)  # epoch and number of the last manifest
        self.horizon = 0

    def note(self, answer: _Answer) -> _Answer:
        """Counts what changed something that a tier keeps."""
        self.change += self.attached and answer[0] == "done" and answer[2]
        return answer

    def execute(self, at: tuple[int, int], command: c.Command) -> _Answer:
        match command:
            case c.SetPolicy(path=path, value=value):
                if value == "sync" and not self.attached:
                    return "refused", "BadRequest"
                before, self.policies[path] = self.policies.get(path), value
                return self.note(("done", 0, before != value))
            case c.RemovePolicy(path=path):
                had = self.policies.pop(path, None) is not None
                return self.note(("done", int(had), had))
            case c.Mark():
                self.marked = True
                return "done", at[0], True
            case c.Unmark():
                had, self.marked = self.marked, False
                return "done", 0, had
        return self._tier(command)

    def _tier(self, command: c.Command) -> _Answer:
        match command:
            case c.AttachTier(epoch=epoch, number=number):
                if self.attached and self.newest[0] == epoch and number <= self.newest[1]:
                    return "done", 0, False
                self.attached, self.newest, self.horizon = True, (epoch, number), 0
                self.change += 1
                return "done", 0, True
            case c.DetachTier():
                if "sync" in self.policies.values():
                    return "refused", "BadRequest"
                had, self.attached = self.attached, False
                return "done", 0, had
            case c.Keep():
                # How many of the files are there depends on what is swept.
                return ("done", ANY, ANY) if self.attached else ("refused", "BadRequest")
            case c.Horizon(epoch=epoch, number=number, change=change):
                known = self.horizon <= change <= self.change
                if not self.attached or not known or (epoch, number) <= self.newest:
                    return "done", 0, False
                self.newest, self.horizon = (epoch, number), change
                return "done", 0, True
        raise AssertionError(f"no client of the simulator sends {command}")
