"""Repair: how fast lost shards are rebuilt, and what clients notice of it meanwhile."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from diskless.client.client import Client
from diskless.config import MIB
from diskless.errors import DisklessError

FILE_BYTES = 64 * MIB
TINY = b"t" * 200
HEALTHY_S = 3.0
"""How long tiny commits are measured before anything is lost."""
POLL_S = 0.02
REPAIR_TIMEOUT_S = 300.0


def rebuild(store: Client, lose_two: Callable[[], object], *, size: int) -> dict[str, Any]:
    """Loses two agents, which `lose_two` returns empty, under a stream of tiny commits."""
    write_s = _fill(store, size)
    with _Commits(store) as commits:
        time.sleep(HEALTHY_S)
    healthy_s = commits.median_s
    before = _lives(store.status())
    lose_two()
    # From the first that is back: repair does not wait for the other either.
    _wait(store, lambda status: _lives(status) > before)
    began = time.perf_counter()
    with _Commits(store) as commits:
        _wait(store, lambda status: _lives(status) == before + 2 and _is_protected(status))
        took_s = time.perf_counter() - began
    rate, write_rate = size / took_s, size / write_s
    return {
        "logical_bytes": size,
        "seconds": took_s,
        "bytes_per_s": rate,
        "write_bytes_per_s": write_rate,
        "rate_of_write": rate / write_rate,
        "commit_healthy_s": healthy_s,
        "commit_repairing_s": commits.median_s,
        "commit_repairing_mean_s": statistics.fmean(commits.took_s),
        "commits_while_repairing": len(commits.took_s),
        "commit_of_healthy": commits.median_s / healthy_s,
    }


def _lives(status: dict[str, Any]) -> int:
    """How many lives all agents together have had."""
    return sum(agent["incarnation"] for agent in status["agents"])


def _is_protected(status: dict[str, Any]) -> bool:
    return bool(status["margin"] == status["parity_shards"])


def _fill(store: Client, size: int) -> float:
    """Writes `size` bytes in large files; how long it took."""
    data = bytes(range(256)) * (FILE_BYTES // 256)
    began = time.perf_counter()
    for n in range(size // FILE_BYTES):
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


def _wait(store: Client, reached: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + REPAIR_TIMEOUT_S
    while not reached(store.status()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not repaired within {REPAIR_TIMEOUT_S:g} s: {store.status()}")
        time.sleep(POLL_S)
