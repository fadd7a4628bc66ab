"""The logs of all agents of a cluster, wherever they run, for `diskless logs`."""

from collections.abc import Mapping, Sequence

from diskless.launch import logs
from diskless.operate import ray_cluster


class Reader:
    """The logs of a cluster's agents on all hosts, each read on from where it was."""

    def __init__(self, name: str, cluster_id: str, slots: Sequence[int]) -> None:
        self._name = name
        self._cluster_id = cluster_id
        here = set(logs.slots_here(cluster_id))
        self._here = [slot for slot in slots if slot in here]
        self._elsewhere = [slot for slot in slots if slot not in here]
        self._positions: dict[int, logs.Position] = {}

    def read(self) -> Mapping[int, list[str]]:
        """What is new of each agent. Raises Unavailable if the Ray that knows other hosts
        cannot be reached."""
        found: dict[int, list[str]] = {}
        for slot in self._here:
            found[slot] = self._take(slot, logs.read(self._cluster_id, slot, self._at(slot)))
        if self._elsewhere:
            with ray_cluster.signals_to(self._name) as there:
                for slot in self._elsewhere:
                    answer = there.run(slot, logs.read, self._cluster_id, slot, self._at(slot))
                    if answer is not None:
                        found[slot] = self._take(slot, answer)
        return found

    def _at(self, slot: int) -> logs.Position:
        return self._positions.get(slot, logs.UNREAD)

    def _take(self, slot: int, answer: tuple[list[str], logs.Position]) -> list[str]:
        lines, self._positions[slot] = answer
        return lines
