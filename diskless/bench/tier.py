"""What a durable tier costs, and what it brings back: the same work with one and without, in turns.

The tier is a directory, and a real S3 server on this machine where one is installed. CPU is that
of all agents and, for the query, of its JVM. A store's own speed is measured beside, with the
library alone.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import psutil

from diskless.bench import queries, recovery, weed, works
from diskless.bench.clusters import QUICK_FREEING, Cluster, cluster, shape_settings
from diskless.bench.processes import cpu_s
from diskless.bench.query import Plan
from diskless.bench.recorder import Recorder, Say, in_turn, timed_s
from diskless.bench.sizes import Sizes
from diskless.client.client import connect
from diskless.config import GIB, MIB, ClusterSettings
from diskless.tier.address import open_store
from diskless.tier.store import Metered

SYSTEM = works.diskless(works.MAIN_SHAPE)
NONE, FILE, S3 = "none", "file", "s3"
QUERY = Plan(checkpoint="", keys=200_000, rows_per_batch=20_000)
MANY_PARTITIONS = 50
POLL_S = 0.05
FLEETING = "/fleeting"
OBJECT_BYTES = 8 * MIB
PUTS_AT_ONCE = 6
DISK_DIRECTORY = "/var/tmp"
MEMORY_BYTES = 2 * GIB


class Side:
    """A cluster, and the tier that it has or has not."""

    def __init__(self, running: Cluster, tier: str) -> None:
        self.running = running
        self.tier = tier
        self.client = running.client
        self.agents = [psutil.Process(pid) for pid in running.pids().values()]
        self._numbers = count()

    @property
    def store(self) -> Metered:
        settings = self.running.settings
        path = Path(settings.tier_credentials) if settings.tier_credentials else None
        return open_store(settings.tier, credentials=path)

    def commit(self, folder: str, times: int, data: bytes) -> float:
        """Milliseconds that one took in the middle."""
        names = [f"{folder}/{next(self._numbers)}" for _ in range(times)]
        took = [timed_s(lambda name=name: self.client.write(name, data)) for name in names]
        return 1000 * statistics.median(took)

    def made(self) -> int:
        """The number of files that there ever were."""
        return self.client.write(f"/made/{next(self._numbers)}", b"").id


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("tier")
    if sizes.repetitions or sizes.tier_turns or sizes.tier_many_batches:
        _beside(sizes, record, say)
    if sizes.tier_state_mb:
        say(f"a cold start with {sizes.tier_state_mb:g} MB of state")
        _cold(sizes, record)
    return record


def _beside(sizes: Sizes, record: Recorder, say: Say) -> None:
    """Clusters with a tier and one without, in turns."""
    with ExitStack() as stack:
        sides = []
        for name, uri, credentials in stack.enter_context(_places(sizes, record)):
            chosen = _settings(name, uri, credentials)
            sides.append(Side(stack.enter_context(cluster(chosen)), name))
        for turn in range(sizes.repetitions):
            say(f"commits and bulk, turn {turn + 1}")
            for side in in_turn(sides, turn):
                if side.tier != NONE:
                    _sync(side, sizes, record)
                _bulk(side, sizes, record)
        for turn in range(sizes.tier_turns):
            say(f"a query with a tier and without, turn {turn + 1}")
            for side in in_turn(sides, turn):
                _query(side, turn, sizes, record)
        if sizes.tier_many_batches:
            say(f"requests at {MANY_PARTITIONS} partitions")
            for side in sides:
                if side.tier != NONE:
                    _requests(side, sizes, record)


def _settings(name: str, uri: str, credentials: str) -> ClusterSettings:
    chosen = shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)
    return replace(chosen, name=f"bench-tier-{name}", tier=uri, tier_credentials=credentials)


@contextmanager
def _places(sizes: Sizes, record: Recorder) -> Iterator[list[tuple[str, str, str]]]:
    """Name, address and file of credentials of each store that is wanted."""
    wanted = sizes.tier_places
    with tempfile.TemporaryDirectory(dir=DISK_DIRECTORY, prefix="diskless-bench-") as directory:
        folder = Path(directory)
        local = [(NONE, "", ""), (FILE, f"file://{folder / 'tier'}", "")]
        found = [place for place in local if place[0] in wanted]
        if S3 not in wanted or weed.find_weed() is None:
            if S3 in wanted:
                record.note(weed.LEFT_OUT)
            yield found
            return
        (folder / "weed").mkdir()
        with weed.running(folder / "weed") as server:
            credentials = folder / "credentials"
            credentials.touch(mode=0o600)
            lines = server.settings("admin").items()  # who makes a bucket of what it writes to
            credentials.write_text("".join(f"{key}={value}\n" for key, value in lines))
            _make_bucket(f"s3://{weed.BUCKET}/made", credentials)
            yield [*found, (S3, f"s3://{weed.BUCKET}/bench", str(credentials))]


def _make_bucket(uri: str, credentials: Path) -> None:
    store = open_store(uri, credentials=credentials)
    asyncio.run(store.put_new("made", [b""]))


# Commits and bulk.


def _sync(side: Side, sizes: Sizes, record: Recorder) -> None:
    """A sync commit beside what it needs at least: a plain one, and an object's creation."""
    data = os.urandom(sizes.tiny_bytes)
    times = max(sizes.tiny_puts // 4, 1)
    side.client.policies.set("/sync", "durability", "sync")
    plain_ms = side.commit("/plain", times, data)
    create_ms = _create_ms(side.store, times, data)
    record.add(works.tier_sync(side.tier), SYSTEM, side.commit("/sync", times, data), "ms")
    record.add(works.tier_sync_least(side.tier), SYSTEM, plain_ms + create_ms, "ms")


def _create_ms(store: Metered, times: int, data: bytes) -> float:
    async def create() -> list[float]:
        took = []
        for number in range(times):
            began = time.perf_counter()
            await store.put_new(f"bench/{time.time_ns()}-{number}", [data])
            took.append(time.perf_counter() - began)
        return took

    return 1000 * statistics.median(asyncio.run(create()))


def _bulk(side: Side, sizes: Sizes, record: Recorder) -> None:
    """How fast the drain is, alone and behind a writer, beside writing and the library alone."""
    data, total = os.urandom(sizes.bulk_mib * MIB), sizes.bulk_mib * sizes.bulk_files

    def write(folder: str) -> None:
        for number in range(sizes.bulk_files):
            side.client.write(f"{folder}/{number}", data, overwrite=True)

    def add(work: str, took_s: float) -> None:
        record.add(work, SYSTEM, total / took_s, "MiB/s")

    began = time.perf_counter()
    write("/bulk")
    if side.tier == NONE:
        add(works.TIER_WRITE, time.perf_counter() - began)
        return
    side.client.tier.flush()
    add(works.tier_written(side.tier), time.perf_counter() - began)
    side.client.policies.set(FLEETING, "durability", "memory")
    write(FLEETING)
    side.client.tier.flush()
    began = time.perf_counter()
    for number in range(sizes.bulk_files):  # what makes them durable
        side.client.rename(f"{FLEETING}/{number}", f"/bulk/{number}", overwrite=True)
    side.client.tier.flush()
    add(works.tier_drain(side.tier), time.perf_counter() - began)
    if side.tier == S3:
        add(works.TIER_LIBRARY, _library_s(side.store, total))


def _library_s(store: Metered, mib: int) -> float:
    data, turn = os.urandom(OBJECT_BYTES), asyncio.Semaphore(PUTS_AT_ONCE)

    async def put(number: int) -> None:
        async with turn:
            await store.put_new(f"bench/{time.time_ns()}-{number}", [data])

    async def put_all() -> None:
        await asyncio.gather(*(put(n) for n in range(max(mib * MIB // OBJECT_BYTES, 1))))

    return timed_s(lambda: asyncio.run(put_all()))


# A query.


def _query(side: Side, turn: int, sizes: Sizes, record: Recorder) -> None:
    batches = sizes.spark_warm + sizes.tier_batches
    plan = _plan(side, f"/q{turn}", batches, QUERY.partitions)
    with queries.start(plan) as stream, _lags(side) as lags:
        _warm(stream, sizes)
        spark = psutil.Process(stream.pid)
        processes = [*side.agents, spark, *spark.children(recursive=True)]
        lags.clear()
        before_s = cpu_s(processes)
        found = [stream.next() for _ in range(sizes.tier_batches)]
        spent_ms = 1000 * (cpu_s(processes) - before_s) / len(found)
    record.add(works.tier_batch(side.tier), SYSTEM, spent_ms, "ms CPU")
    for news in found:
        record.add(works.tier_trigger(side.tier), SYSTEM, news["trigger_ms"], "ms")
        record.add(works.tier_checkpoint(side.tier), SYSTEM, news["checkpoint_ms"], "ms")
    if side.tier != NONE and lags:
        lag_s = sorted(lags)[min(int(0.99 * len(lags)), len(lags) - 1)]
        record.add(works.tier_lag(side.tier), SYSTEM, lag_s, "s")


def _warm(stream: queries.Running, sizes: Sizes) -> None:
    """Its session, and the first batches, which take far longer than all others."""
    for _ in range(1 + sizes.spark_warm):
        stream.next()


def _plan(side: Side, path: str, batches: int, partitions: int) -> Plan:
    return msgspec.structs.replace(
        QUERY, checkpoint=f"diskless://{path}", cluster=side.running.name, partitions=partitions,
        batches=batches,
    )  # fmt: skip


@contextmanager
def _lags(side: Side) -> Iterator[list[float]]:
    """How far the tier is behind, seen again and again."""
    seen: list[float] = []
    ended = threading.Event()

    def look() -> None:
        with connect(f"diskless://{side.running.name}/") as client:
            while not ended.wait(POLL_S):
                if (report := client.status().tier) is not None:
                    seen.append(report.lag_s)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _requests(side: Side, sizes: Sizes, record: Recorder) -> None:
    """What the store is asked for each file that Spark commits."""
    plan = _plan(side, "/many", sizes.spark_warm + sizes.tier_many_batches, MANY_PARTITIONS)
    with queries.start(plan) as stream:
        _warm(stream, sizes)
        made, asked = side.made(), _asked(side)
        found = [stream.next() for _ in range(sizes.tier_many_batches)]
        files, asked = side.made() - made, _asked(side) - asked
    record.add(works.tier_requests(side.tier), SYSTEM, asked / files, "requests")
    for news in found:
        record.add(works.tier_many_trigger(side.tier), SYSTEM, news["trigger_ms"], "ms")


def _asked(side: Side) -> int:
    report = side.client.status().tier
    assert report is not None
    return report.requests


# A cold start.


def _cold(sizes: Sizes, record: Recorder) -> None:
    """A query restarted on a healthy cluster, and on one that has just begun with its tier."""
    directory = Path(tempfile.mkdtemp(dir=DISK_DIRECTORY, prefix="diskless-bench-"))
    try:
        plan = recovery.restart_plan(directory / "checkpoint", "hdfs", sizes.tier_state_mb)
        recovery.build(plan)
        uri = f"file://{directory / 'tier'}"
        chosen = shape_settings(works.MAIN_SHAPE, memory_bytes=MEMORY_BYTES)
        with cluster(replace(chosen, name="bench-tier-cold", tier=uri)) as running:
            recovery.copy_in(running.client, directory / "checkpoint", "/cold")
            own = msgspec.structs.replace(plan, checkpoint="diskless:///cold", cluster=running.name)
            for _ in range(sizes.restarts):
                record.add(works.TIER_RESTART_WARM, SYSTEM, recovery.restart_s(own)[0], "s")
                running.restore()
                record.add(works.TIER_FIRST_BYTE, SYSTEM, _first_byte_s(running.name), "s")
                record.add(works.TIER_RESTART_COLD, SYSTEM, recovery.restart_s(own)[0], "s")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _first_byte_s(name: str) -> float:
    with connect(f"diskless://{name}/") as client:
        began = time.perf_counter()
        path = max(e.path for e in client.list("/cold/offsets") if not e.directory)
        with client.open(path) as file:
            file.read(1)
        return time.perf_counter() - began
