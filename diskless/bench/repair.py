"""Repair: how fast lost shards are rebuilt, and what clients notice of it meanwhile."""

import statistics
import threading
import time
from collections.abc import Callable

from diskless.bench import works
from diskless.bench.clusters import (
    QUICK_FREEING,
    Cluster,
    cluster,
    shape_settings,
    wait_for,
)
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import Sizes
from diskless.client.client import Client
from diskless.config import MIB
from diskless.errors import DisklessError
from diskless.model import ClusterStatus

FILE_MIB = 64
TINY = b"t" * 200
HEALTHY_S = 3.0
"""How long tiny commits are measured before anything is lost."""
VICTIMS = (2, 4)
SYSTEM = works.diskless(works.MAIN_SHAPE)
REPAIR_TIMEOUT_S = 300.0


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("repair")
    with cluster(shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)) as running:
        say(f"{sizes.repair_mib} MiB, two agents lost")
        _rebuild(running, sizes.repair_mib, record)
    return record


def _rebuild(running: Cluster, mib: int, record: Recorder) -> None:
    """Loses two agents, which Ray returns empty, under a stream of tiny commits."""
    store = running.client
    write_s = _fill(store, mib)
    with _Commits(store) as healthy:
        time.sleep(HEALTHY_S)
    before = _lives(store.status())
    running.kill(VICTIMS)

    def wait(reached: Callable[[ClusterStatus], bool], what: str) -> None:
        wait_for(store, reached, timeout_s=REPAIR_TIMEOUT_S, what=what)

    # From the first that is back: repair does not wait for the other either.
    wait(lambda status: _lives(status) > before, "an agent is back")
    began = time.perf_counter()
    with _Commits(store) as repairing:
        wait(lambda s: _lives(s) == before + 2 and s.is_protected(), "all is protected")
        took_s = time.perf_counter() - began
    record.add(works.REPAIR_WRITE, SYSTEM, mib / write_s, "MiB/s")
    record.add(works.REPAIR_RATE, SYSTEM, mib / took_s, "MiB/s")
    record.add(works.REPAIR_HEALTHY, SYSTEM, 1000 * healthy.median_s, "ms")
    mean_ms = 1000 * statistics.fmean(repairing.took_s)
    note = f"mean {mean_ms:.1f} ms of {len(repairing.took_s)}"
    record.add(works.REPAIR_COMMIT, SYSTEM, 1000 * repairing.median_s, "ms", note=note)


def _lives(status: ClusterStatus) -> int:
    """How many lives all agents together have had."""
    return sum(agent.incarnation for agent in status.agents)


def _fill(store: Client, mib: int) -> float:
    """Writes so much in files of 64 MiB or, if it is less, in one; how long it took."""
    file_mib = min(FILE_MIB, mib)
    data = bytes(range(256)) * (file_mib * MIB // 256)
    began = time.perf_counter()
    for n in range(mib // file_mib):
        store.write(f"/repair/{n}", data)
    return time.perf_counter() - began


class _Commits:
    """One client that commits tiny files, one after the other, while the block runs."""

    def __init__(self, store: Client) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took_s: list[float] = []

    @property
    def median_s(self) -> float:
        return statistics.median(self.took_s)

    def _run(self) -> None:
        n = 0
        while not self._stop.is_set():
            n += 1
            began = time.perf_counter()
            try:
                self._store.write(f"/tiny/{n % 100}", TINY, overwrite=True)
            except DisklessError:
                continue
            self.took_s.append(time.perf_counter() - began)

    def __enter__(self) -> "_Commits":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
