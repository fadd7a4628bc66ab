"""The store measured as a client sees it, beside the plain limit, interleaved."""

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from diskless.bench.plain import PlainStream
from diskless.client.client import Client
from diskless.config import KIB, MIB

BULK_MIB = 256
ROUNDS = 5
SMALL_FILES = 1000
SMALL_BYTES = 20 * KIB
WRITERS = 16
SERIAL_FILES = 200
SETTLE_TIMEOUT_S = 60.0
INLINE_FOR_GOOD_BYTES = 4 * KIB
"""Smaller files stay in the namespace, on every voter."""


def bulk(store: Client, plain: PlainStream, kill_two: Callable[[], None]) -> dict[str, Any]:
    """One client writing and reading one large file; then the same with two agents gone.

    Every round measures the plain stream too, because this machine's speed wanders.
    """
    data = os.urandom(BULK_MIB * MIB)
    store.write("/warm", data)  # so that memory is touched once before we measure
    store.delete("/warm")
    rounds: list[dict[str, float]] = []
    for turn in range(ROUNDS):
        wait_for_room(store)
        streamed = plain.stream_mib_per_s(BULK_MIB)
        path = f"/bulk-{turn}"
        wrote = _rate(lambda: store.write(path, data))  # noqa: B023
        got = _rate(lambda: _check(store.read(path), data))  # noqa: B023
        rounds.append({"plain": streamed, "write": wrote, "read": got})
        if turn < ROUNDS - 1:
            store.delete(path)
    kill_two()
    degraded = [_rate(lambda: _check(store.read(path), data)) for _ in range(ROUNDS)]
    found = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    limit = [r["write"] / (r["plain"] / 1.5) for r in rounds]
    read = [r["read"] / r["plain"] for r in rounds]
    return {
        "plain_mib_s": found["plain"],
        "write_mib_s": found["write"],
        "read_mib_s": found["read"],
        "degraded_read_mib_s": statistics.median(degraded),
        "write_of_limit": statistics.median(limit),
        "read_of_plain": statistics.median(read),
        "degraded_of_healthy": statistics.median(degraded) / found["read"],
    }


def small_files(store: Client) -> dict[str, Any]:
    """20 KiB files, one after the other and from 16 writers, through one gateway."""
    data = os.urandom(SMALL_BYTES)
    for n in range(50):
        store.write(f"/small/warm/{n}", data)
    started = time.perf_counter()
    for n in range(SERIAL_FILES):
        store.write(f"/small/serial/{n}", data)
    serial = SERIAL_FILES / (time.perf_counter() - started)
    before = _messages(store)
    started = time.perf_counter()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda n: store.write(f"/small/many/{n}", data), range(SMALL_FILES)))
    concurrent = SMALL_FILES / (time.perf_counter() - started)
    messages = _messages(store) - before
    return {
        "serial_files_s": serial,
        "concurrent_files_s": concurrent,
        "concurrent_of_serial": concurrent / serial,
        "grpc_messages_per_file": messages / SMALL_FILES,
    }


def space(store: Client) -> dict[str, Any]:
    """Bytes stored for each logical byte, at rest, by file size."""
    found: dict[str, Any] = {}
    for size in (1 * KIB, 20 * KIB, 64 * KIB, 300 * KIB, 5 * MIB):
        store.delete("/space", recursive=True)
        wait_for_room(store)
        count = min(200, max(4, 8 * MIB // size))
        before = store.status()
        for n in range(count):
            store.write(f"/space/{n}", os.urandom(size))
        after = _at_rest(store, before["bytes_inline"] if size > INLINE_FOR_GOOD_BYTES else None)
        stored = after["bytes_stored"] - before["bytes_stored"]
        found[f"{size // KIB} KiB"] = stored / (size * count)
    store.delete("/space", recursive=True)
    return found


def _at_rest(store: Client, inline_bytes: int | None) -> dict[str, Any]:
    """The status once what was written inline has moved into stripes, if it will."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while inline_bytes is not None and store.status()["bytes_inline"] > inline_bytes:
        if time.monotonic() > deadline:
            raise TimeoutError("inline files were not moved into stripes")
        time.sleep(0.1)
    wait_for_room(store)
    return store.status()


def wait_for_room(store: Client) -> None:
    """Waits until what was deleted has been freed."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while store.status()["stripes_freed"]:
        if time.monotonic() > deadline:
            raise TimeoutError("deleted stripes were not freed")
        time.sleep(0.05)


def _messages(store: Client) -> int:
    """The counters as of now: agents report them with each answer to a beat."""
    time.sleep(0.6)
    return int(store.status()["grpc_messages"])


def _rate(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return BULK_MIB / (time.perf_counter() - started)


def _check(found: bytes, expected: bytes) -> None:
    if found != expected:
        raise AssertionError("what was read is not what was written")
