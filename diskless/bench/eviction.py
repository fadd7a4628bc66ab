"""Memory as a cache of the tier: what a checkpoint takes of it, how an evicted file is read, and
whether bulk writing through a small memory is as quick as the drain.

The tier is an S3 server on this machine. The library alone reads an object of the same size from
the same server, in turns. A file is evicted by a policy, as an old batch of a checkpoint.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from diskless.bench import weed, works
from diskless.bench.clusters import QUICK_FREEING, Cluster, cluster, shape_settings, wait_for
from diskless.bench.processes import cpu_s
from diskless.bench.recorder import Recorder, Say, timed_s
from diskless.bench.sizes import Sizes
from diskless.config import KIB, MIB
from diskless.model import ClusterStatus

SYSTEM = works.diskless(works.MAIN_SHAPE)
PARTITIONS = 4
DELTA_BYTES = 50 * KIB
SNAPSHOT_BYTES = 200 * KIB
SNAPSHOT_EVERY = 10
FILE_BYTES = 64 * MIB
BULK_FILE_BYTES = 8 * MIB
SMALL_MEMORY_BYTES = 64 * MIB
"""Of each of six agents: a quarter GiB of files at most."""
TIMEOUT_S = 300.0


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("eviction")
    if weed.find_weed() is None:
        record.note(weed.LEFT_OUT)
        return record
    with _server() as found:
        _make_bucket(found)
        with _tiered("cache") as running:
            say("a checkpoint, and what of it stays")
            _checkpoint(running, sizes, record)
            say("evicted files, and the library alone")
            _reading(running, sizes, record, found)
            say("bulk, with memory for all of it")
            rate = _bulk(running, sizes)
            record.add(works.EVICTION_DRAIN, SYSTEM, rate, "MiB/s")
        with _tiered("small", memory_bytes=SMALL_MEMORY_BYTES) as running:
            say("bulk, through a small memory")
            rate = _bulk(running, sizes)
            record.add(works.EVICTION_BULK, SYSTEM, rate, "MiB/s")
    return record


@contextmanager
def _server() -> Iterator[dict[str, str]]:
    """What a client of it needs, which is in the environment meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="diskless-bench-s3-") as folder,
        weed.running(Path(folder)) as server,
    ):
        found = server.settings("admin") | {"AWS_ALLOW_HTTP": "true"}
        with _environment(found):
            yield found


@contextmanager
def _environment(found: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in found}
    os.environ.update(found)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _tiered(name: str, **settings: int) -> Iterator[Cluster]:
    shape = shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)
    uri = f"s3://{weed.BUCKET}/{name}"
    chosen = replace(shape, name=f"bench-{name}", tier=uri, **settings)
    with cluster(chosen) as running:
        yield running


def _store(found: dict[str, str]) -> object:
    from obstore.store import S3Store

    return S3Store(
        weed.BUCKET,
        endpoint=found["AWS_ENDPOINT_URL"],
        access_key_id=found["AWS_ACCESS_KEY_ID"],
        secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
        region=found["AWS_REGION"],
        client_options={"allow_http": True},
    )


def _make_bucket(found: dict[str, str]) -> None:
    """It makes a bucket of whatever an admin writes to."""
    import obstore

    obstore.put(_store(found), "made", b"")  # type: ignore[arg-type]


def _drained(status: ClusterStatus) -> bool:
    return status.tier is not None and not status.tier.lag_commands and not status.stripes_freed


def _settled(running: Cluster, *, files: int = 0) -> ClusterStatus:
    """Once all is in the tier, what was freed is gone, and so many files are only there."""

    def reached(status: ClusterStatus) -> bool:
        evicted = status.tier.eviction.files if status.tier is not None else 0
        return _drained(status) and evicted >= files

    return wait_for(running.client, reached, timeout_s=TIMEOUT_S, what="the tier has everything")


# -- a checkpoint --------------------------------------------------------------------


def _checkpoint(running: Cluster, sizes: Sizes, record: Recorder) -> None:
    client, batches = running.client, sizes.evicted_batches
    before = _settled(running).bytes_stored
    for batch in range(batches):
        files = {f"/q/offsets/{batch}": b"offsets", f"/q/commits/{batch}": b"commits"}
        for part in range(PARTITIONS):
            folder = f"/q/state/0/{part}"
            files[f"{folder}/{batch + 1}.delta"] = os.urandom(DELTA_BYTES)
            if batch % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
                files[f"{folder}/{batch + 1}.snapshot"] = os.urandom(SNAPSHOT_BYTES)
        client.write_many(files)
    all_kept = _settled(running).bytes_stored - before
    restart_ms = [_restart_ms(running, batches) for _ in range(sizes.repetitions)]
    client.policies.set("/q", "keep-in-memory", "2")
    old = PARTITIONS * (batches - SNAPSHOT_EVERY - 2)
    kept = _settled(running, files=old).bytes_stored - before
    record.add(works.EVICTION_MEMORY, SYSTEM, all_kept / MIB, "MiB")
    record.add(works.EVICTION_MEMORY_KEPT, SYSTEM, kept / MIB, "MiB")
    for took_ms in restart_ms:
        record.add(works.EVICTION_RESTART, SYSTEM, took_ms, "ms CPU")
        after_ms = _restart_ms(running, batches)
        record.add(works.EVICTION_RESTART_KEPT, SYSTEM, after_ms, "ms CPU")


def _restart_ms(running: Cluster, batches: int) -> float:
    """CPU of all processes for what a query reads when it starts again."""
    first = (batches - 1) // SNAPSHOT_EVERY * SNAPSHOT_EVERY
    paths = [f"/q/offsets/{batches - 1}", f"/q/commits/{batches - 1}"]
    for part in range(PARTITIONS):
        paths += [f"/q/state/0/{part}/{first}.snapshot"] if first else []
        paths += [f"/q/state/0/{part}/{n}.delta" for n in range(first + 1, batches + 1)]
    processes = [psutil.Process(), *map(psutil.Process, running.pids().values())]
    before_s = cpu_s(processes)
    for _ in range(10):  # one is too short for the clock of processes
        for path in paths:
            running.client.read(path)
    return 100 * (cpu_s(processes) - before_s)


# -- reading -------------------------------------------------------------------------


def _reading(running: Cluster, sizes: Sizes, record: Recorder, found: dict[str, str]) -> None:
    import obstore

    client, store = running.client, _store(found)
    client.policies.set("/old", "keep-in-memory", "1")
    client.write_many({"/old/offsets/99": b"offsets", "/old/commits/99": b"commits"})
    before = _settled(running).tier
    assert before is not None
    for number in range(sizes.evicted_files):
        data = os.urandom(FILE_BYTES)
        client.write(f"/old/state/0/0/{number + 1}.zip", data)
        obstore.put(store, f"object-{number}", data)  # type: ignore[arg-type]
    _settled(running, files=before.eviction.files + sizes.evicted_files)
    for number in range(sizes.evicted_files):
        path, name = f"/old/state/0/0/{number + 1}.zip", f"object-{number}"

        def ours(path: str = path) -> None:
            assert len(client.read(path)) == FILE_BYTES

        def theirs(name: str = name) -> None:
            assert len(obstore.get(store, name).bytes()) == FILE_BYTES  # type: ignore[arg-type]

        turns = [(works.EVICTION_READ, SYSTEM, ours)]
        turns.insert(number % 2, (works.EVICTION_LIBRARY, works.LIBRARY, theirs))
        for work, system, read in turns:
            record.add(work, system, FILE_BYTES / MIB / timed_s(read), "MiB/s")


# -- writing -------------------------------------------------------------------------


def _bulk(running: Cluster, sizes: Sizes) -> float:
    """MiB a second of files that are written one after the other, until all is in the tier."""
    data = os.urandom(BULK_FILE_BYTES)
    files = sizes.evicted_bulk_mib * MIB // BULK_FILE_BYTES
    with_more_time = running.client

    def write() -> None:
        for number in range(files):
            with_more_time.write(f"/bulk/{number}", data)
        wait_for(
            running.client,
            lambda status: status.tier is not None and not status.tier.lag_commands,
            timeout_s=TIMEOUT_S,
            what="the tier has everything",
        )

    took_s = timed_s(write)
    running.client.delete("/bulk", recursive=True)
    return files * BULK_FILE_BYTES / MIB / took_s
