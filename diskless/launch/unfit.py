"""The nodes of a Ray on which agents did not start, and for how long they are passed over. Pure."""

from collections.abc import Collection
from typing import NamedTuple

from diskless.launch.seats import RayNode

UNFIT_S_MIN = 5.0
UNFIT_S_MAX = 120.0
"""How long a node is passed over: not for long at first, because a node that has just joined Ray is
not known to all of it, then twice as long each time."""


class _Unfit(NamedTuple):
    failures: int
    until_s: float
    why: str


class UnfitNodes:
    def __init__(self) -> None:
        self._nodes: dict[str, _Unfit] = {}

    def note(self, node: RayNode, why: str, *, now_s: float) -> str:
        """An agent did not start on a node; returns what to report."""
        before = self._nodes.get(node.id)
        failures = before.failures if before else 0
        until_s = now_s + doubled(UNFIT_S_MIN, failures, UNFIT_S_MAX)
        said = f"does not start on {node.host}: {why}"
        self._nodes[node.id] = _Unfit(failures + 1, until_s, said)
        return said

    def look(self, known: Collection[str], *, now_s: float) -> dict[str, str]:
        """The nodes that are passed over now, by id, and why. Forgets those that are not known."""
        self._nodes = {id_: unfit for id_, unfit in self._nodes.items() if id_ in known}
        return {id_: unfit.why for id_, unfit in self._nodes.items() if unfit.until_s > now_s}


def doubled(first_s: float, times: int, most_s: float) -> float:
    """`first_s`, doubled so many times, and at most `most_s`."""
    return min(first_s * 2 ** min(times, 16), most_s)
