"""What encryption costs: the same work on a cluster with TLS and on one without, in turns.

By TCP, as from another host: a client on an agent's host uses its Unix socket, which is not
encrypted. CPU is that of all agents and of this process.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from statistics import mean

import psutil
from msgspec import structs

from diskless.bench import works
from diskless.bench.clusters import QUICK_FREEING, Cluster, cluster, shape_settings
from diskless.bench.processes import cpu_s
from diskless.bench.recorder import Recorder, Say, in_turn
from diskless.bench.sizes import Sizes
from diskless.client.caller import Caller
from diskless.client.client import TIMEOUT_S, Client
from diskless.client.connection import Connection
from diskless.client.descriptor import load
from diskless.client.greeting import Greeter
from diskless.config import MIB
from diskless.protocol.messages import Peer

SYSTEM = works.diskless(works.MAIN_SHAPE)
OPENED = 100
"""Connections that are opened, one after the other, in one repetition."""
OPEN_TIMEOUT_S = 10.0


class Afar(Greeter):
    """Reaches agents as from another host."""

    def connect(self, peer: Peer, *, client: str, deadline: float) -> Connection:
        afar = structs.replace(peer, socket="")
        connection = super().connect(afar, client=client, deadline=deadline)
        connection.peer = peer  # by which its caller knows it, and uses it again
        return connection


class Side:
    """One of the two clusters, a client of it by TCP, and its processes."""

    def __init__(self, running: Cluster, *, tls: bool) -> None:
        self.tls = tls
        self._known = load(running.name)
        self.greeter = Afar(self._known)
        self.client = Client(Caller(self._known, timeout_s=TIMEOUT_S, greeter=self.greeter))
        self._agents = [psutil.Process(pid) for pid in running.pids().values()]
        self._numbers = count()

    def open(self) -> None:
        for peer in self._known.gateways[:1] * OPENED:
            deadline = time.monotonic() + OPEN_TIMEOUT_S
            self.greeter.connect(peer, client="bench", deadline=deadline).close()

    def commit(self, times: int, data: bytes) -> None:
        for _ in range(times):
            self.client.write(f"/t/{next(self._numbers) % 1000}", data, overwrite=True)

    def cpu_ms(self, work: Callable[[], object], *, agents_only: bool = False) -> float:
        processes = self._agents if agents_only else [psutil.Process(), *self._agents]
        before_s = cpu_s(processes)
        work()
        return 1000 * (cpu_s(processes) - before_s)


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("identity")
    settings = shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)
    with ExitStack() as stack:
        sides = []
        for tls in (False, True):
            chosen = replace(settings, name=f"bench-tls-{tls:d}", tls=tls)
            sides.append(Side(stack.enter_context(cluster(chosen)), tls=tls))
        say("with TLS and without, in turns")
        for turn, into in record.turns(sizes.repetitions):
            order = in_turn(sides, turn)
            _commits(order, sizes, into)
            _bulk(order, sizes, into)
            _opening(order, into)
        for side in sides:
            side.client.close()
    return record


def _commits(sides: list[Side], sizes: Sizes, record: Recorder) -> None:
    data = os.urandom(sizes.tiny_bytes)
    for side in sides:
        took_ms = side.cpu_ms(lambda side=side: side.commit(sizes.tiny_puts, data))
        work = works.IDENTITY_COMMIT_TLS if side.tls else works.IDENTITY_COMMIT
        record.add(work, SYSTEM, took_ms / sizes.tiny_puts, "ms CPU")


def _bulk(sides: list[Side], sizes: Sizes, record: Recorder) -> None:
    """Several files in turns, because what TLS adds is a small difference of large sums."""
    data = os.urandom(sizes.bulk_mib * MIB)
    more: dict[str, list[float]] = {works.IDENTITY_WRITE_MORE: [], works.IDENTITY_READ_MORE: []}
    for _ in range(sizes.bulk_files):
        spent: dict[str, dict[bool, float]] = {work: {} for work in more}
        for side in sides:
            store = side.client
            spent[works.IDENTITY_WRITE_MORE][side.tls] = side.cpu_ms(
                lambda store=store: store.write("/bulk", data, overwrite=True)
            )
            spent[works.IDENTITY_READ_MORE][side.tls] = side.cpu_ms(
                lambda store=store: store.read("/bulk")
            )
        for work, took_ms in spent.items():
            more[work].append((took_ms[True] - took_ms[False]) / sizes.bulk_mib)
    for work, samples in more.items():
        record.add(work, SYSTEM, mean(samples), "ms CPU")


def _opening(sides: list[Side], record: Recorder) -> None:
    for side in sides:
        took_ms = side.cpu_ms(side.open, agents_only=True)
        work = works.IDENTITY_OPEN_TLS if side.tls else works.IDENTITY_OPEN
        record.add(work, SYSTEM, took_ms / OPENED, "ms CPU")
