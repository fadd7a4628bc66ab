"""A 4+2 cluster alone, beside the plain limit: one large file, small files, space at rest."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from diskless.bench import works
from diskless.bench.clusters import QUICK_FREEING, cluster, shape_settings
from diskless.bench.plain import PlainStream, plain_stream
from diskless.bench.recorder import Recorder, Say, timed_s
from diskless.bench.sizes import Sizes
from diskless.bench.stores import SETTLE_TIMEOUT_S, wait_for_room
from diskless.client.client import Client
from diskless.config import KIB, MIB
from diskless.model import ClusterStatus

SMALL_FILES = 1000
SMALL_BYTES = 20 * KIB
WRITERS = 16
SERIAL_FILES = 200
INLINE_FOR_GOOD_BYTES = 4 * KIB
"""Smaller files stay in the namespace, on every voter."""
SPACE_BYTES = (1 * KIB, 20 * KIB, 64 * KIB, 300 * KIB, 5 * MIB)
SYSTEM = works.diskless(works.MAIN_SHAPE)
VICTIMS = (2, 4)
STAY_DEGRADED_S = 86_400.0
BESIDE = "alone"
COUNTERS_S = 0.6
"""Agents report their counters with each answer to a beat."""


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("single")
    record.beside = BESIDE
    settings = shape_settings(works.MAIN_SHAPE, repair_delay_s=STAY_DEGRADED_S, **QUICK_FREEING)
    with plain_stream() as plain, cluster(settings) as running:
        say("space at rest")
        _space(running.client, record)
        say("one large file")
        _bulk(running.client, plain, sizes, record, lambda: running.kill(VICTIMS, stay_dead=True))
    settings = shape_settings(works.MAIN_SHAPE, inline_bytes_max=0, **QUICK_FREEING)
    with cluster(settings) as running:
        say("small files that are not inline")
        _small_files(running.client, record)
    return record


def _bulk(
    store: Client,
    plain: PlainStream,
    sizes: Sizes,
    record: Recorder,
    lose_two: Callable[[], None],
) -> None:
    """One client writing and reading one large file; then the same with two agents gone."""
    mib = sizes.single_mib
    data = os.urandom(mib * MIB)
    store.write("/warm", data)  # so that memory is touched once before we measure
    store.delete("/warm")
    path = ""

    def read(work: str) -> None:
        took_s = timed_s(lambda: _check(store.read(path), data))
        record.add(work, SYSTEM, mib / took_s, "MiB/s")

    for turn in range(sizes.repetitions):
        if path:
            store.delete(path)
        wait_for_room(store)
        record.add(works.STREAM, works.PLAIN, plain.stream_mib_per_s(mib), "MiB/s")
        path = f"/bulk-{turn}"
        took_s = timed_s(lambda: store.write(path, data))  # noqa: B023
        record.add(works.SINGLE_WRITE, SYSTEM, mib / took_s, "MiB/s")
        read(works.SINGLE_READ)
    lose_two()
    for _ in range(sizes.repetitions):
        read(works.SINGLE_READ_DOWN)


def _small_files(store: Client, record: Recorder) -> None:
    """20 KiB files, one after the other and from 16 writers, through one gateway."""
    data = os.urandom(SMALL_BYTES)
    for n in range(50):
        store.write(f"/small/warm/{n}", data)

    def one_by_one() -> None:
        for n in range(SERIAL_FILES):
            store.write(f"/small/serial/{n}", data)

    def together() -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda n: store.write(f"/small/many/{n}", data), range(SMALL_FILES)))

    record.add(works.SMALL_ONE_WRITER, SYSTEM, SERIAL_FILES / timed_s(one_by_one), "files/s")
    before = _messages(store)
    record.add(works.SMALL_WRITERS, SYSTEM, SMALL_FILES / timed_s(together), "files/s")
    messages = (_messages(store) - before) / SMALL_FILES
    record.add(works.SMALL_MESSAGES, SYSTEM, messages, "messages")


def _space(store: Client, record: Recorder) -> None:
    """Bytes stored for each logical byte, at rest, by the size of files in KiB."""
    for size in SPACE_BYTES:
        store.delete("/space", recursive=True)
        wait_for_room(store)
        count = min(200, max(4, 8 * MIB // size))
        before = store.status()
        for n in range(count):
            store.write(f"/space/{n}", os.urandom(size))
        after = _at_rest(store, before.bytes_inline if size > INLINE_FOR_GOOD_BYTES else None)
        stored = after.bytes_stored - before.bytes_stored
        record.add(works.STORED, SYSTEM, stored / (size * count), "×", size=size / KIB)
    store.delete("/space", recursive=True)
    wait_for_room(store)


def _at_rest(store: Client, inline_bytes: int | None) -> ClusterStatus:
    """The status once what was written inline has moved into stripes, if it will."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while inline_bytes is not None and store.status().bytes_inline > inline_bytes:
        if time.monotonic() > deadline:
            raise TimeoutError("inline files were not moved into stripes")
        time.sleep(0.1)
    wait_for_room(store)
    return store.status()


def _messages(store: Client) -> int:
    time.sleep(COUNTERS_S)
    return int(store.status().grpc_messages)


def _check(found: bytes, expected: bytes) -> None:
    if found != expected:
        raise AssertionError("what was read is not what was written")
