"""A local cluster that stands in for the user's own, and somebody who kills its agents.

While it is open, `diskless:///` means this cluster, in this process and in those that it starts:
it has a home of its own ($DISKLESS_HOME), so that no real cluster can be touched by mistake. That
changes the environment of the process, so there is one such cluster at a time.
"""

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import TracebackType
from typing import Self

from diskless.client.client import Client
from diskless.client.descriptor import (
    AUTHORITY_VARIABLE,
    DEFAULT_NAME,
    HOME_VARIABLE,
    TOKEN_VARIABLE,
)
from diskless.config import ClusterSettings, parse_bytes
from diskless.errors import BadRequest
from diskless.launch.local import LocalCluster
from diskless.model import ClusterStatus, parse_slot, slot_name

CLUSTER_VARIABLE = "DISKLESS_CLUSTER"
PROTECTED_TIMEOUT_S = 60.0
POLL_S = 0.05
PAUSE_S = 0.2

log = logging.getLogger(__name__)


class Cluster:
    """Agents in this process, at `diskless:///`. Use it in a `with` block, once."""

    _open: "Cluster | None" = None

    def __init__(
        self,
        *,
        agents: int = 6,
        data_shards: int = 4,
        parity_shards: int = 2,
        memory: str = "256MiB",
        tier: str = "",
    ) -> None:
        """`tier` is the address of a durable tier, if it shall have one. Raises BadSettings."""
        self.settings = ClusterSettings(
            name=DEFAULT_NAME,
            agents=agents,
            data_shards=data_shards,
            parity_shards=parity_shards,
            memory_bytes=parse_bytes(memory),
        ).validate()
        self._tier = tier
        self._home = ""
        self._environment: dict[str, str | None] = {}
        self._local: LocalCluster | None = None

    def __enter__(self) -> Self:
        if Cluster._open is not None:
            raise BadRequest("a diskless.testing.Cluster is open already: close it first")
        Cluster._open = self
        self._home = tempfile.mkdtemp(prefix="diskless-testing-")
        self._set({HOME_VARIABLE: self._home})
        try:
            self._local = LocalCluster(self.settings, tier=self._tier)
            self._local.__enter__()
        except BaseException:
            self._local = None
            self.close()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the agents and gives the environment back. May be called twice."""
        if Cluster._open is not self:
            return
        if self._local is not None:
            self._local.close()
            self._local = None
        for key, value in self._environment.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        shutil.rmtree(self._home, ignore_errors=True)
        Cluster._open = None

    @property
    def uri(self) -> str:
        """`diskless:///` means the same while it is open."""
        return self._running.uri

    def connect(self, *, timeout_s: float = 60.0) -> Client:
        return self._running.connect(timeout_s=timeout_s)

    def status(self) -> ClusterStatus:
        """As its leader sees it. Raises Unavailable, DeadlineExceeded."""
        with self.connect() as client:
            return client.status()

    # -- agents -------------------------------------------------------------------

    @property
    def alive(self) -> tuple[int, ...]:
        """The slots of the agents that run."""
        return tuple(sorted(self._running.nodes))

    @property
    def leader(self) -> int:
        """The slot of the agent that leads now."""
        return parse_slot(self.status().leader)

    def kill(self, *slots: int) -> None:
        """Ends agents at once, with all that they have in memory. More than k at once lose
        data; that is yours to try. Raises BadRequest for one that does not run."""
        for slot in slots:
            if slot not in self._running.nodes:
                raise BadRequest(f"{slot_name(slot)} does not run: alive are {self.alive}")
        self._running.kill(*slots)

    def revive(self, *slots: int) -> None:
        """Starts killed agents again, with empty memories; all of them if none is named."""
        dead = [slot for slot in range(self.settings.agents) if slot not in self._running.nodes]
        self._running.revive(*(slots or dead))

    def wait_protected(self, timeout_s: float = PROTECTED_TIMEOUT_S) -> None:
        """Returns when any k further losses are survived. Raises TimeoutError."""
        end_s = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if status.is_protected():
                return
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"margin {status.margin} of {status.parity_shards} after {timeout_s:g} s"
                )
            time.sleep(POLL_S)

    @contextmanager
    def kills(
        self, *, seed: int, at_once: int | None = None, pause_s: float = PAUSE_S
    ) -> Iterator["Killer"]:
        """While the block runs, agents are killed and started again, `at_once` of them (k unless
        you say less) at a time, the leader among them half of the times. The next are killed when
        all is protected again. Afterwards all run, and everything is protected.

        Raises whatever keeps the killer from its work, if the block itself raises nothing.
        """
        k = self.settings.parity_shards
        count = k if at_once is None else at_once
        if not 1 <= count <= k:
            raise BadRequest(f"at_once={count}: between 1 and k, which is {k}, can be survived")
        killer = Killer(self, Random(seed), count=count, pause_s=pause_s)
        killer.start()
        try:
            yield killer
        finally:
            killer.stop()
        killer.check()
        self.wait_protected()

    @property
    def _running(self) -> LocalCluster:
        if self._local is None:
            raise BadRequest("this cluster is not open: use it in a `with` block")
        return self._local

    def _set(self, values: dict[str, str]) -> None:
        """What would lead to another cluster goes, until the end."""
        hidden = (HOME_VARIABLE, TOKEN_VARIABLE, AUTHORITY_VARIABLE, CLUSTER_VARIABLE)
        self._environment = {key: os.environ.pop(key, None) for key in hidden}
        os.environ.update(values)


class Killer:
    """Kills agents of a cluster from a thread of its own, again and again."""

    def __init__(self, cluster: Cluster, random: Random, *, count: int, pause_s: float) -> None:
        self._cluster = cluster
        self._random = random
        self._count = count
        self._pause_s = pause_s
        self._ends = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="diskless-killer", daemon=True)
        self.killed: list[tuple[int, ...]] = []
        """Slots, in the order in which they were killed together."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Kills nobody any more; all agents run again when it returns."""
        self._ends.set()
        self._thread.join()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def wait_for(self, kills: int, timeout_s: float = PROTECTED_TIMEOUT_S) -> None:
        """Returns when agents were killed so many times. Raises TimeoutError."""
        self._wait(lambda: len(self.killed) >= kills, timeout_s)

    def _wait(self, is_true: Callable[[], bool], timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        while not is_true():
            self.check()
            if time.monotonic() > end_s:
                raise TimeoutError(f"killed {len(self.killed)} times within {timeout_s:g} s")
            time.sleep(POLL_S)

    def _work(self) -> None:
        try:
            while not self._ends.is_set():
                self._kill()
                self._cluster.wait_protected()
                self._ends.wait(self._pause_s)
        except Exception as error:  # noqa: BLE001 - a thread's edge: `check` raises it
            self._error = error

    def _kill(self) -> None:
        victims = self._choose()
        log.info("killed agents=%s", ",".join(map(slot_name, victims)))
        self._cluster.kill(*victims)
        self.killed.append(tuple(victims))
        try:
            self._ends.wait(self._pause_s)
        finally:
            self._cluster.revive(*victims)

    def _choose(self) -> Sequence[int]:
        slots = list(self._cluster.alive)
        victims = self._random.sample(slots, self._count)
        leader = self._cluster.leader
        if self._random.random() < 0.5 and leader not in victims:
            victims[0] = leader
        return victims
