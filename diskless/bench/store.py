"""The same work for every store, in turns: tiny commits, bursts, large files, and losses.

All of them are up during the whole part. In each repetition every store has its turn at each
kind of work, another one first each time; what a store wrote is deleted, and its memory free
again, before the next one begins.
"""

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from diskless.bench import redis_servers, works
from diskless.bench.clusters import QUICK_FREEING, cluster, shape_settings
from diskless.bench.plain import PlainStream, plain_stream
from diskless.bench.processes import Cost, cost_of
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import Sizes
from diskless.bench.stores import Address, DisklessAt, FilesAt, RedisAt, Store
from diskless.config import MIB
from diskless.errors import DisklessError

DISK_PATH = "/var/tmp"
TMPFS_PATH = "/dev/shm"
PUTTERS = 32
PROCESSES = 4
WARM_PUTS = 200
STAY_DEGRADED_S = 86_400.0
"""Nothing is rebuilt while reads with agents down are measured."""
IDLE_S = 2.0
READ_FILES = 200
BARRIER_TIMEOUT_S = 60.0
LOUD_TIMEOUT_S = 5.0
"""How long somebody who reads with too many agents gone waits for the error."""


@dataclass
class Contender:
    """A store that takes part. `lose` makes k of its machines fail, and gives how many."""

    name: str
    address: Address
    store: Store
    pids: Callable[[], Sequence[int]] | None = None
    """The processes that hold what it stores, if they do so in memory."""
    lose: Callable[["Contender"], int] | None = None
    lose_one_more: Callable[[], Store] | None = None
    """Makes one more fail; through what it gives, nothing wrong may be read."""

    def cost_of(self, work: Callable[[], object], others: Sequence[int] = ()) -> Cost:
        """In this process, in those that store, and in others that take part."""
        pids = self.pids() if self.pids is not None else ()
        return cost_of(work, [*pids, *others])


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("store")
    for shape in sizes.shapes:
        record.beside = shape
        _run_beside(shape, sizes, record, lambda text: say(f"beside {shape}: {text}"))  # noqa: B023
    return record


def _run_beside(shape: str, sizes: Sizes, record: Recorder, say: Say) -> None:
    """One cluster and all other systems: clusters beside each other would cost each other CPU."""
    with ExitStack() as stack:
        plain = stack.enter_context(plain_stream())
        say("starting it")
        contenders = [
            _diskless(stack, shape),
            *stack.enter_context(line_up_rivals(record, say)),
        ]
        pool = stack.enter_context(Putters())
        for contender in contenders:
            _memory(contender, sizes, record)
        _warm_up(contenders, plain)
        record.add(works.IDLE, works.ALL, psutil.cpu_percent(IDLE_S), "%")
        for turn in range(sizes.repetitions):
            say(f"repetition {turn + 1} of {sizes.repetitions}")
            order = contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]
            _plain(plain, sizes, record)
            for work in (_tiny, _burst, _bulk):
                for contender in order:
                    work(contender, sizes, turn, record)
                    contender.store.clear()
            for contender in order:
                _tiny_many(contender, pool, sizes, turn, record)
                contender.store.clear()
        say("reads with k down")
        _with_losses(contenders, sizes, record)


def _plain(plain: PlainStream, sizes: Sizes, record: Recorder) -> None:
    """The plain limit's turn."""
    mib = sizes.bulk_mib * sizes.bulk_files
    unary = cost_of(lambda: plain.unary_s(sizes.tiny_puts), [plain.pid])
    stream = cost_of(lambda: plain.stream_mib_per_s(mib), [plain.pid])
    _add_each(record, works.UNARY, works.PLAIN, unary, sizes.tiny_puts)
    _add_rate(record, works.STREAM, works.PLAIN, stream, mib)


def _add_each(record: Recorder, work: str, system: str, cost: Cost, count: int) -> None:
    """What each of so many operations took."""
    record.add(work, system, 1000 * cost.took_s / count, "ms")
    record.add(works.cpu(work), system, cost.cpu_ms / count, "ms")


def _add_rate(record: Recorder, work: str, system: str, cost: Cost, mib: int) -> None:
    record.add(work, system, mib / cost.took_s, "MiB/s")
    record.add(works.cpu(work), system, cost.cpu_ms / mib, "ms/MiB")


# Who takes part.


@contextmanager
def line_up_rivals(record: Recorder, say: Say) -> Iterator[list[Contender]]:
    """Local files, and Redis if it is installed; else a note says what to install."""
    with ExitStack() as stack:
        found = []
        for name, parent, fsync in (
            (works.DISK, DISK_PATH, False),
            (works.DISK_FSYNC, DISK_PATH, True),
            (works.TMPFS, TMPFS_PATH, False),
        ):
            address = FilesAt(stack.enter_context(_directory(parent)), fsync)
            found.append(Contender(name, address, address.open()))
        try:
            servers = stack.enter_context(redis_servers.servers())
        except redis_servers.RedisMissing as missing:
            record.note(str(missing))
            say(str(missing))
        else:
            found.append(_redis(servers))
        yield found


def _redis(servers: redis_servers.Servers) -> Contender:
    def lose(contender: Contender) -> int:
        contender.store.close()
        contender.address = RedisAt(servers.lose_all_but_one_replica(), replicas=0)
        contender.store = contender.address.open()
        return redis_servers.REPLICAS

    at = RedisAt(servers.ports[0])
    return Contender(works.REDIS, at, at.open(), lambda: servers.pids, lose)


def _diskless(stack: ExitStack, shape: str) -> Contender:
    settings = shape_settings(shape, repair_delay_s=STAY_DEGRADED_S, **QUICK_FREEING)
    running = stack.enter_context(cluster(settings))
    address = DisklessAt(settings.name)
    k = settings.parity_shards
    victims = [2 * n + 2 for n in range(k + 1)] if settings.agents > 2 * k + 2 else None
    victims = victims or list(range(settings.agents))[-(k + 1) :]

    def lose(_: Contender) -> int:
        running.kill(victims[:k], stay_dead=True)
        return k

    def lose_one_more() -> Store:
        impatient = DisklessAt(settings.name, timeout_s=LOUD_TIMEOUT_S).open()
        stack.callback(impatient.close)
        running.kill(victims[k:], stay_dead=True)
        return impatient

    store = address.open()
    stack.callback(store.close)
    return Contender(
        works.diskless(shape),
        address,
        store,
        lambda: list(running.pids().values()),
        lose,
        lose_one_more,
    )


@contextmanager
def _directory(parent: str) -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="diskless-bench-", dir=parent)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _warm_up(contenders: Sequence[Contender], plain: PlainStream) -> None:
    """Connections, code and memory: each touched once before anything counts."""
    plain.stream_mib_per_s(64)
    block = os.urandom(64 * MIB)
    for contender in contenders:
        for n in range(WARM_PUTS):
            contender.store.write(f"warm/{n}", b"w" * 1024)
        contender.store.write("warm/large", block)
        contender.store.clear()


def _memory(contender: Contender, sizes: Sizes, record: Recorder) -> None:
    """How much more memory its processes have, fresh as they are, for each byte stored."""
    if contender.pids is None:
        return
    before = _resident_bytes(contender.pids())
    count = max(1, sizes.memory_mib // sizes.bulk_mib)
    data = os.urandom(sizes.bulk_mib * MIB)
    for n in range(count):
        contender.store.write(f"memory/{n}", data)
    grown = _resident_bytes(contender.pids()) - before
    record.add(works.MEMORY, contender.name, grown / (count * len(data)), "×")
    contender.store.clear()


def _resident_bytes(pids: Sequence[int]) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


# The work.


def _tiny(contender: Contender, sizes: Sizes, turn: int, record: Recorder) -> None:
    data = os.urandom(sizes.tiny_bytes)
    store = contender.store

    def put_all() -> None:
        for n in range(sizes.tiny_puts):
            store.write(f"tiny-{turn}/{n}", data)

    store.write(f"tiny-{turn}/first", data)
    cost = contender.cost_of(put_all)
    _add_each(record, works.TINY_SERIAL, contender.name, cost, sizes.tiny_puts)


def _burst(contender: Contender, sizes: Sizes, turn: int, record: Recorder) -> None:
    block = os.urandom(sizes.burst_files * sizes.burst_bytes)
    cut = [
        block[n * sizes.burst_bytes : (n + 1) * sizes.burst_bytes] for n in range(sizes.burst_files)
    ]
    bursts = [
        {f"burst-{turn}-{b}/{n}": data for n, data in enumerate(cut)} for b in range(sizes.bursts)
    ]
    store = contender.store
    store.write_many({f"burst-{turn}/{n}": data for n, data in enumerate(cut)})

    def write_all() -> None:
        for burst in bursts:
            store.write_many(burst)

    cost = contender.cost_of(write_all)
    _add_each(record, works.BURST, contender.name, cost, sizes.bursts)
    _read_small(contender, works.SMALL_READ, bursts[0], record)


def _read_small(contender: Contender, work: str, files: dict[str, bytes], record: Recorder) -> None:
    store, wanted = contender.store, list(files.items())[:READ_FILES]

    def read_all() -> None:
        for key, data in wanted:
            _check(store.read(key), data)

    _add_each(record, work, contender.name, contender.cost_of(read_all), len(wanted))


def _bulk(contender: Contender, sizes: Sizes, turn: int, record: Recorder) -> None:
    data = os.urandom(sizes.bulk_mib * MIB)
    store = contender.store

    def write_all() -> None:
        for n in range(sizes.bulk_files):
            store.write(f"bulk-{turn}/{n}", data)

    mib = sizes.bulk_mib * sizes.bulk_files
    _add_rate(record, works.BULK_WRITE, contender.name, contender.cost_of(write_all), mib)
    _read_bulk(contender, works.BULK_READ, f"bulk-{turn}", data, sizes, record)


def _read_bulk(
    contender: Contender, work: str, folder: str, data: bytes, sizes: Sizes, record: Recorder
) -> None:
    def read_all() -> None:
        for n in range(sizes.bulk_files):
            _check(contender.store.read(f"{folder}/{n}"), data)

    mib = sizes.bulk_mib * sizes.bulk_files
    _add_rate(record, work, contender.name, contender.cost_of(read_all), mib)


def _check(found: bytes, expected: bytes) -> None:
    if found != expected:
        raise AssertionError("what was read is not what was written")


# Many at once.


class Putters:
    """Four processes with eight threads each, which wait for each other before they begin."""

    def __enter__(self) -> "Putters":
        self._stack = ExitStack()
        context = multiprocessing.get_context("spawn")
        manager = self._stack.enter_context(context.Manager())
        self._barrier = manager.Barrier(PROCESSES)
        self._pool = self._stack.enter_context(ProcessPoolExecutor(PROCESSES, mp_context=context))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        return list(self._pool._processes)

    def puts(self, sizes: Sizes) -> int:
        """How many there are in all, with those that warm up."""
        return PROCESSES * (max(1, sizes.concurrent_puts // PROCESSES) + PUTTERS)

    def put_s(self, address: Address, folder: str, sizes: Sizes) -> float:
        """The time of all puts together divided by their number."""
        share = max(1, sizes.concurrent_puts // PROCESSES)
        jobs = [
            self._pool.submit(
                _put_share, address, f"{folder}/{n}", share, sizes.tiny_bytes, self._barrier
            )
            for n in range(PROCESSES)
        ]
        times = [job.result() for job in jobs]
        took_s = max(end for _, end in times) - min(begin for begin, _ in times)
        return took_s / (share * PROCESSES)


_opened: dict[Address, Store] = {}
"""In a putter's process: one store for each address, for all its turns."""


def _put_share(
    address: Address, folder: str, count: int, size: int, barrier: Any
) -> tuple[float, float]:
    """One process's share; when it began and ended, by the machine's clock."""
    if address not in _opened:
        _opened[address] = address.open()
    store = _opened[address]
    data = os.urandom(size)
    with ThreadPoolExecutor(PUTTERS // PROCESSES) as pool:
        list(pool.map(lambda n: store.write(f"{folder}/warm/{n}", data), range(PUTTERS)))
        barrier.wait(BARRIER_TIMEOUT_S)
        begun = time.monotonic()
        list(pool.map(lambda n: store.write(f"{folder}/{n}", data), range(count)))
        return begun, time.monotonic()


def _tiny_many(
    contender: Contender, pool: Putters, sizes: Sizes, turn: int, record: Recorder
) -> None:
    each_s: list[float] = []

    def put_all() -> None:
        each_s.append(pool.put_s(contender.address, f"many-{turn}", sizes))

    cost = contender.cost_of(put_all, pool.pids)
    record.add(works.TINY_MANY, contender.name, 1000 * each_s[0], "ms")
    puts = pool.puts(sizes)
    record.add(works.cpu(works.TINY_MANY), contender.name, cost.cpu_ms / puts, "ms")


# Losses.


def _with_losses(contenders: Sequence[Contender], sizes: Sizes, record: Recorder) -> None:
    """Reads with k gone, all compared; one more loss must be loud and never wrong."""
    data = os.urandom(sizes.bulk_mib * MIB)
    small = {f"kept-small/{n}": os.urandom(sizes.burst_bytes) for n in range(READ_FILES)}
    for contender in contenders:
        if contender.lose is None:
            record.add(works.SURVIVED, contender.name, 0, "losses", note="one machine holds it all")
            continue
        contender.store.write_many(small)
        for n in range(sizes.bulk_files):
            contender.store.write(f"kept/{n}", data)
        lost = contender.lose(contender)
        _read_bulk(contender, "warm", "kept", data, sizes, Recorder("unused"))
        for _ in range(sizes.repetitions):
            _read_bulk(contender, works.BULK_READ_DOWN, "kept", data, sizes, record)
            _read_small(contender, works.SMALL_READ_DOWN, small, record)
        record.add(works.SURVIVED, contender.name, lost, "losses", note=_one_more(contender, data))


def _one_more(contender: Contender, data: bytes) -> str:
    if contender.lose_one_more is None:
        return "by a failover by hand"
    store = contender.lose_one_more()
    try:
        _check(store.read("kept/0"), data)
    except DisklessError as error:
        return f"with one more: {error.reason}"
    return "with one more this file was still read"
