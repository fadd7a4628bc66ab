"""Commits of the replicated namespace: their latency, and the gap when the leader dies."""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from diskless.bench.plain import PlainStream
from diskless.client.client import Client, connect
from diskless.config import Tuning
from diskless.errors import DisklessError
from diskless.model import parse_slot

PUTS = 400
PUTTERS = 32
PROCESSES = 4
CONCURRENT_PUTS = 3200
ROUNDS = 5
KILLS = 10
WARM_PUTS = 300
TINY = b"x" * 1000
RECOVERY_TIMEOUT_S = 60.0
TRAFFIC_S = 0.5


def latency(store: Client, plain: PlainStream) -> dict[str, Any]:
    """A tiny put, stat and list beside a plain unary call, interleaved; then 32 putters."""
    for n in range(WARM_PUTS):
        store.write(f"/warm/{n}", TINY)
    store.write_many({f"/ten/{n}": TINY for n in range(10)})
    rounds = [_round(store, plain, f"/serial-{turn}") for turn in range(ROUNDS)]
    concurrent_s = _concurrent_put_s(store)
    median = {key: statistics.median(entry[key] for entry in rounds) for key in rounds[0]}
    return {
        "unary_ms": 1000 * median["unary_s"],
        "put_ms": 1000 * median["put_s"],
        "stat_ms": 1000 * median["stat_s"],
        "list_ms": 1000 * median["list_s"],
        "concurrent_put_ms": 1000 * concurrent_s,
        "put_of_unary": statistics.median(e["put_s"] / e["unary_s"] for e in rounds),
        "stat_of_put": statistics.median(e["stat_s"] / e["put_s"] for e in rounds),
        "list_of_put": statistics.median(e["list_s"] / e["put_s"] for e in rounds),
        "concurrent_of_serial": median["put_s"] / concurrent_s,
    }


def _concurrent_put_s(store: Client) -> float:
    """The time of one put when 32 putters, in four processes, are at it."""
    name = store.status()["name"]
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        barrier = manager.Barrier(PROCESSES)
        with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
            times = list(
                pool.map(_put_many, [name] * PROCESSES, range(PROCESSES), [barrier] * PROCESSES)
            )
    begun, ended = min(begin for begin, _ in times), max(end for _, end in times)
    return (ended - begun) / CONCURRENT_PUTS


def _put_many(name: str, number: int, barrier: Any) -> tuple[float, float]:
    """One process's share; when it began and ended, by the machine's clock."""
    with connect(f"diskless://{name}/") as store, ThreadPoolExecutor(PUTTERS // PROCESSES) as pool:
        store.write(f"/many/{number}/warm", TINY)
        barrier.wait()
        begun = time.monotonic()
        share = CONCURRENT_PUTS // PROCESSES
        list(pool.map(lambda n: store.write(f"/many/{number}/{n}", TINY), range(share)))
        return begun, time.monotonic()


def _round(store: Client, plain: PlainStream, folder: str) -> dict[str, float]:
    return {
        "unary_s": plain.unary_s(PUTS),
        "put_s": _mean_s(PUTS, lambda n: store.write(f"{folder}/{n}", TINY)),
        "stat_s": _mean_s(PUTS, lambda n: store.stat(f"{folder}/{n}")),
        "list_s": _mean_s(PUTS, lambda _: list(store.list("/ten"))),
    }


def failover(store: Client, kill: Callable[[int], object]) -> dict[str, Any]:
    """The leader SIGKILLed under load, ten times: how long no put is acknowledged."""
    gaps = []
    acknowledged: list[str] = []
    for turn in range(KILLS):
        _wait_recovered(store)
        leader = parse_slot(store.status()["leader"])
        gaps.append(_gap_s(store, lambda: kill(leader), f"/gap-{turn}", acknowledged))  # noqa: B023
    _wait_recovered(store)
    present = {entry.path for turn in range(KILLS) for entry in store.list(f"/gap-{turn}")}
    timeout_s = Tuning().failure_timeout_s
    return {
        "gaps_s": gaps,
        "median_timeouts": statistics.median(gaps) / timeout_s,
        "worst_timeouts": max(gaps) / timeout_s,
        "acknowledged": len(acknowledged),
        "lost": len(set(acknowledged) - present),
    }


def _gap_s(
    store: Client, kill: Callable[[], object], folder: str, acknowledged: list[str]
) -> float:
    """The longest time between two acknowledged puts around the kill."""
    times: list[float] = []
    stop = threading.Event()

    def put() -> None:
        n = 0
        while not stop.is_set():
            path = f"{folder}/{n}"
            n += 1
            try:
                store.write(path, TINY)
            except DisklessError:
                continue
            acknowledged.append(path)
            times.append(time.monotonic())

    writer = threading.Thread(target=put)
    writer.start()
    time.sleep(TRAFFIC_S)
    kill()
    killed = time.monotonic()
    while not (times and times[-1] > killed + TRAFFIC_S):
        time.sleep(0.01)
    stop.set()
    writer.join()
    return max(later - earlier for earlier, later in pairwise(times))


def _wait_recovered(store: Client) -> None:
    """Until all agents are up and every voter takes part."""
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    while True:
        status = store.status()
        up = all(agent["state"] == "up" for agent in status["agents"])
        if up and status["margin"] == status["parity_shards"]:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster did not recover from the last kill")
        time.sleep(0.05)


def _mean_s(count: int, work: Callable[[int], object]) -> float:
    started = time.perf_counter()
    for n in range(count):
        work(n)
    return (time.perf_counter() - started) / count
