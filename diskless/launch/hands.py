"""Signals to the agents of a cluster on Ray, on whichever host they are.

Attached to the cluster's Ray from the first use to the end, because attaching takes seconds.
What is on this host is signalled from here; elsewhere a Ray task on that node does it.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psutil

from diskless.errors import BadRequest
from diskless.launch import ray_cluster, ray_link
from diskless.model import slot_name

if TYPE_CHECKING:
    from diskless.launch.agents import Identity, Process

SIGNAL_TIMEOUT_S = 10.0


@contextmanager
def hands(name: str) -> Iterator["RayHands"]:
    """What its methods raise beside their own: Unavailable, BadRequest without a Ray."""
    with ExitStack() as until_closed:
        yield RayHands(lambda: until_closed.enter_context(ray_cluster.attached(name, ())))


class RayHands:
    """Implements chaos.faults.Hands."""

    def __init__(self, attach: "Callable[[], Identity]") -> None:
        self._attach = attach

    @cached_property
    def _identity(self) -> "Identity":
        return self._attach()

    def _running(self) -> "dict[int, Process]":
        """The agents that run. Attaches first: Ray must not be imported before that."""
        identity = self._identity
        from diskless.launch import agents

        return agents.processes(identity)

    def kill(self, slots: Sequence[int], *, stay_dead: bool) -> dict[int, int]:
        victims = self._processes(slots)
        from diskless.launch import agents

        agents.kill(self._identity, victims, stay_dead=stay_dead)
        return {victim.slot: victim.pid for victim in victims}

    def pids(self, slots: Sequence[int]) -> dict[int, int]:
        return {process.slot: process.pid for process in self._processes(slots)}

    def freeze(self, pids: Mapping[int, int]) -> None:
        self._signal(pids, signal.SIGSTOP)

    def thaw(self, pids: Mapping[int, int]) -> list[int]:
        return self._signal(pids, signal.SIGCONT)

    def kill_host(self, host: str) -> list[int]:
        """The raylet is the parent of its agents. Ours dies last, when Ray is let go."""
        victims = [p for p in self._running().values() if p.node.host == host]
        if not victims:
            raise BadRequest(f"no agent runs on host {host!r}")
        pids = [victim.pid for victim in victims]
        if victims[0].node.here:
            ray_link.detach()
            end_host(pids)
        else:
            _run_there(victims[0], end_host, pids)
        return sorted(victim.slot for victim in victims)

    def _processes(self, slots: Sequence[int]) -> "list[Process]":
        running = self._running()
        for slot in slots:
            if slot not in running:
                raise BadRequest(
                    f"{slot_name(slot)} is not running: `diskless chaos revive {slot}` starts it"
                )
        return [running[slot] for slot in slots]

    def _signal(self, pids: Mapping[int, int], number: int) -> list[int]:
        """Only to processes that still are those agents: numbers are used again."""
        running = self._running()
        reached = [
            running[slot]
            for slot, pid in pids.items()
            if slot in running and running[slot].pid == pid
        ]
        for process in reached:
            if process.node.here:
                send(process.pid, number)
            else:
                _run_there(process, send, process.pid, number)
        return [process.slot for process in reached]


def _run_there(process: "Process", work: Any, *arguments: Any) -> None:
    """Runs a function on the host of an agent. A host that dies of it gives no answer."""
    import ray

    from diskless.launch import spread

    task = ray.remote(work).options(
        num_cpus=0, max_retries=0, scheduling_strategy=spread.affinity(process.node.id)
    )
    answer = task.remote(*arguments)
    if work is end_host:
        ray.wait([answer], timeout=SIGNAL_TIMEOUT_S)
    else:
        ray.get(answer, timeout=SIGNAL_TIMEOUT_S)


def send(pid: int, number: int) -> None:
    """Runs on the process's host."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_host(pids: Sequence[int]) -> None:
    """Runs on the host that is ended: its agents, then the raylets that are their parents."""
    raylets = {psutil.Process(pid).ppid() for pid in pids if psutil.pid_exists(pid)}
    for pid in [*pids, *raylets]:
        send(pid, signal.SIGKILL)
