"""What chaos does to processes, where all agents live in one: kills are real, freezing is not."""

import threading
from collections.abc import Mapping, Sequence

from diskless.launch.local import LocalCluster


class LocalSignals:
    """Implements chaos.faults.Signals. A killed agent comes back by itself, as with Ray."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._reviving: list[threading.Thread] = []

    def kill(self, slots: Sequence[int], *, stay_dead: bool) -> dict[int, int]:
        self._cluster.kill(*slots)
        if not stay_dead:
            thread = threading.Thread(target=self._cluster.revive, args=slots)
            self._reviving.append(thread)
            thread.start()
        return self.pids(slots)

    def pids(self, slots: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(slots, 0)

    def freeze(self, pids: Mapping[int, int]) -> None:
        raise NotImplementedError

    def thaw(self, pids: Mapping[int, int]) -> list[int]:
        raise NotImplementedError

    def kill_host(self, host: str) -> list[int]:
        raise NotImplementedError

    def wait(self) -> None:
        for thread in self._reviving:
            thread.join()
