"""Clusters on Ray for the benchmark, several at once, each run from a process of its own.

Ray remembers the token of the first cluster that a process attaches to, so each cluster has
a *keeper* process, which starts it, kills agents and ends it. Descriptors are in a home that
nobody else knows.
"""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from diskless.client.client import Client, connect
from diskless.client.descriptor import HOME_VARIABLE
from diskless.config import MIB, ClusterSettings, Tuning
from diskless.errors import NoCluster
from diskless.model import ClusterStatus
from diskless.operate import ray_cluster
from diskless.tier.restore import At

MEMORY_BYTES = 1024 * MIB
QUICK_FREEING = {"free_delay_s": 0.3, "janitor_interval_s": 0.2}
"""So that what one repetition deleted does not crowd the next."""
RECOVERY_TIMEOUT_S = 60.0
POLL_S = 0.02
FAILURE_CHARS = 500
SPAWN = multiprocessing.get_context("spawn")


class Cluster:
    """A cluster that runs, and a client of it."""

    def __init__(
        self, settings: ClusterSettings, client: Client, keeper: ProcessPoolExecutor
    ) -> None:
        self.settings = settings
        self.client = client
        self.keeper = keeper
        """The process that started it, and may end it."""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def shape(self) -> str:
        return f"{self.settings.data_shards}+{self.settings.parity_shards}"

    def kill(self, slots: Sequence[int], *, stay_dead: bool = False) -> None:
        """SIGKILL, all at once; Ray restarts them in some seconds, unless they stay dead."""
        self.keeper.submit(ray_cluster.kill, self.name, slots, stay_dead=stay_dead).result()

    def restore(self) -> None:
        """Ends it and restores it from its tier, on another Ray, so by another keeper."""
        self.keeper.submit(ray_cluster.down, self.name).result()
        self.keeper.shutdown()
        self.keeper = _begin_keeper()
        self.keeper.submit(ray_cluster.up, self.settings, restore=At()).result()

    def pids(self) -> dict[int, int]:
        """Of the agents that are up, by slot."""
        agents = enumerate(self.client.status().agents)
        return {slot: agent.pid for slot, agent in agents if agent.is_there()}

    def wait_recovered(self) -> None:
        """Until all agents are up, every voter takes part and everything is protected."""
        wait_for(
            self.client,
            ClusterStatus.is_whole,
            timeout_s=RECOVERY_TIMEOUT_S,
            what="the cluster is well",
        )


def wait_for(
    client: Client, reached: Callable[[ClusterStatus], bool], *, timeout_s: float, what: str
) -> ClusterStatus:
    """The first status that is as wanted. Raises TimeoutError, with the last one."""
    deadline = time.monotonic() + timeout_s
    while not reached(status := client.status()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}; {status}")
        time.sleep(POLL_S)
    return status


def shape_settings(
    shape: str, *, agents: int = 0, memory_bytes: int = MEMORY_BYTES, **tuning: Any
) -> ClusterSettings:
    """Settings of a cluster by its `m+k`, with as many agents as that needs at least."""
    m, k = (int(part) for part in shape.split("+"))
    return ClusterSettings(
        name=f"bench-{m}-{k}" + (f"-{agents}" if agents else ""),
        agents=agents or max(m + k, 2 * k + 1),
        data_shards=m,
        parity_shards=k,
        memory_bytes=memory_bytes,
        tuning=Tuning(**tuning),
    )


@contextmanager
def home() -> Iterator[None]:
    """Descriptors of the clusters that are started in the block are in no user's home."""
    before = os.environ.get(HOME_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="diskless-bench-") as directory:
        os.environ[HOME_VARIABLE] = directory
        try:
            yield
        finally:
            if before is None:
                del os.environ[HOME_VARIABLE]
            else:
                os.environ[HOME_VARIABLE] = before


@contextmanager
def cluster(settings: ClusterSettings) -> Iterator[Cluster]:
    """A cluster on a Ray of its own; ended with all that it holds."""
    keeper = _begin_keeper()
    running: Cluster | None = None
    try:
        keeper.submit(ray_cluster.up, settings).result()
        with connect(f"diskless://{settings.name}/") as client:
            running = Cluster(settings, client, keeper)
            yield running
    finally:  # Also of one that is still starting: the keeper does one thing at a time.
        with running.keeper if running is not None else keeper as last, suppress(NoCluster):
            last.submit(ray_cluster.down, settings.name, discard=True).result()


def _begin_keeper() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=SPAWN, initializer=_apart)


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in a process of its own, and gives what it gave.

    Raises PartFailed with one line. An interrupt ends that process in order first.
    """
    here, there = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_answer, args=(there, work, arguments))
    process.start()
    there.close()
    try:
        failure, value = here.recv()
    except EOFError:
        process.join()
        raise PartFailed(f"its process ended with {process.exitcode}") from None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
    if failure:
        raise PartFailed(failure)
    return value


class PartFailed(Exception):
    """What another process failed with, in one line."""


def _answer(answer: Connection, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    os.setsid()  # A terminal's Ctrl-C is for our parent, and comes as one SIGTERM from there.
    _end_in_order()
    try:
        answer.send(("", work(*arguments)))
    except Exception as error:  # noqa: BLE001 - the edge of this process
        traceback.print_exc()
        line = " ".join(str(error).split())[:FAILURE_CHARS]
        answer.send((f"{type(error).__name__}: {line}", None))


def _apart() -> None:
    """A keeper outlives what a terminal or `timeout` sends to all of us: it ends the cluster.

    In a session of its own, because Ray sets handlers of its own for signals.
    """
    os.setsid()


def _end_in_order() -> None:
    """SIGTERM as an exception, so that clusters and servers are ended; only the first one."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        logging.getLogger("asyncio").disabled = True  # It would tell where it was interrupted.
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
