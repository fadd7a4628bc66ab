"""Commits of the replicated namespace: their latency, and the gap when the leader dies."""

import threading
import time
from collections.abc import Callable
from itertools import pairwise

from diskless.bench import works
from diskless.bench.clusters import QUICK_FREEING, Cluster, cluster, shape_settings
from diskless.bench.plain import PlainStream, plain_stream
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import Sizes
from diskless.bench.store import Putters
from diskless.bench.stores import ROOT, DisklessAt
from diskless.client.client import Client
from diskless.errors import DisklessError
from diskless.model import parse_slot

WARM_PUTS = 300
TINY = b"x" * 1000
TRAFFIC_S = 0.5
GAP_TIMEOUT_S = 60.0
SYSTEM = works.diskless(works.MAIN_SHAPE)
BESIDE = "alone"


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("commits")
    record.beside = BESIDE
    settings = shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)
    with plain_stream() as plain, cluster(settings) as running:
        say("latency")
        _latency(running, plain, sizes, record)
        say("the leader killed under load")
        _failover(running, sizes, record)
    return record


def _latency(running: Cluster, plain: PlainStream, sizes: Sizes, record: Recorder) -> None:
    """A tiny put, stat and list beside a plain unary call, and 32 putters, in turns."""
    store, count = running.client, sizes.tiny_puts
    for n in range(WARM_PUTS):
        store.write(f"/warm/{n}", TINY)
    store.write_many({f"/ten/{n}": TINY for n in range(10)})
    with Putters() as putters:
        for turn in range(sizes.repetitions):
            folder = f"/serial-{turn}"
            note = _noter(record)
            record.add(works.UNARY, works.PLAIN, 1000 * plain.unary_s(count), "ms")
            note(works.TINY_SERIAL, _mean_s(count, lambda n: store.write(f"{folder}/{n}", TINY)))  # noqa: B023
            note(works.STAT, _mean_s(count, lambda n: store.stat(f"{folder}/{n}")))  # noqa: B023
            note(works.LIST, _mean_s(count, lambda _: list(store.list("/ten"))))
            note(works.TINY_MANY, putters.put_s(DisklessAt(running.name), f"{turn}", sizes))
            for path in (folder, ROOT):
                store.delete(path, recursive=True)


def _noter(record: Recorder) -> Callable[[str, float], None]:
    return lambda work, seconds: record.add(work, SYSTEM, 1000 * seconds, "ms")


def _mean_s(count: int, work: Callable[[int], object]) -> float:
    started = time.perf_counter()
    for n in range(count):
        work(n)
    return (time.perf_counter() - started) / count


def _failover(running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """The leader SIGKILLed under load: how long no put is acknowledged, and whether one is lost."""
    store = running.client
    acknowledged: list[str] = []
    timeout_s = running.settings.tuning.failure_timeout_s
    for turn in range(sizes.leader_kills):
        running.wait_recovered()
        leader = parse_slot(store.status().leader)
        gap_s = _gap_s(store, lambda: running.kill([leader]), f"/gap-{turn}", acknowledged)  # noqa: B023
        record.add(works.GAP, SYSTEM, gap_s / timeout_s, "failure timeouts")
    if not sizes.leader_kills:
        return
    running.wait_recovered()
    turns = range(sizes.leader_kills)
    present = {entry.path for turn in turns for entry in store.list(f"/gap-{turn}")}
    lost = len(set(acknowledged) - present)
    record.add(works.LOST, SYSTEM, lost, "puts", note=f"of {len(acknowledged)}")


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
    try:
        time.sleep(TRAFFIC_S)
        kill()
        killed = time.monotonic()
        while not (times and times[-1] > killed + TRAFFIC_S):
            if time.monotonic() > killed + GAP_TIMEOUT_S:
                raise TimeoutError(f"no put for {GAP_TIMEOUT_S:g} s after the leader was killed")
            time.sleep(0.01)
    finally:
        stop.set()
        writer.join()
    return max(later - earlier for earlier, later in pairwise(times))
