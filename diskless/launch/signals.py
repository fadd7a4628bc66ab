"""Signals to the agents of a cluster on Ray, on whichever host they are.

Attached to the cluster's Ray from the first use to the end, because attaching takes seconds.
What is on this host is signalled from here; elsewhere a Ray task on that node does it.
An agent is called frozen only when it is: `stop` waits for the last of its threads.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from diskless.errors import BadRequest, DeadlineExceeded, Unavailable
from diskless.launch import ray_link
from diskless.launch.model import Identity, Process
from diskless.model import slot_name

SIGNAL_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
"""A thread stops when it next leaves the kernel: milliseconds, unless it waits there."""
STOP_POLL_S = 0.002
AT_REST = frozenset("TtZX")
"""States of threads that run no more: stopped, stopped by a debugger, ended."""


class RaySignals:
    """Implements chaos.faults.Signals."""

    def __init__(self, attach: Callable[[], Identity]) -> None:
        self._attach = attach

    @cached_property
    def _identity(self) -> Identity:
        return self._attach()

    def _running(self) -> dict[int, Process]:
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
        self._on_hosts(pids, stop)

    def thaw(self, pids: Mapping[int, int]) -> list[int]:
        return self._on_hosts(pids, send, signal.SIGCONT)

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

    def run(self, slot: int, work: Any, *arguments: Any) -> Any:
        """Runs a function on the host of an agent, for what it gives; None if it runs nowhere."""
        process = self._running().get(slot)
        if process is None:
            return None
        return work(*arguments) if process.node.here else _run_there(process, work, *arguments)

    def _processes(self, slots: Sequence[int]) -> "list[Process]":
        running = self._running()
        for slot in slots:
            if slot not in running:
                raise BadRequest(
                    f"{slot_name(slot)} is not running: `diskless chaos revive {slot}` starts it"
                )
        return [running[slot] for slot in slots]

    def _on_hosts(self, pids: Mapping[int, int], work: Any, *arguments: Any) -> list[int]:
        """Has `work` done on each host to its processes, and gives the slots. Only to those
        that still are the agents: numbers are used again."""
        running = self._running()
        reached = [
            running[slot]
            for slot, pid in pids.items()
            if slot in running and running[slot].pid == pid
        ]
        by_node: dict[str, list[Process]] = defaultdict(list)
        for process in reached:
            by_node[process.node.id].append(process)
        for there in by_node.values():
            numbers = [process.pid for process in there]
            if there[0].node.here:
                work(numbers, *arguments)
            else:
                _run_there(there[0], work, numbers, *arguments)
        return [process.slot for process in reached]


def _run_there(process: Process, work: Any, *arguments: Any) -> Any:
    """Runs a function on the host of an agent. A host that dies of it gives no answer."""
    import ray

    from diskless.launch import spread

    task = ray.remote(work).options(
        num_cpus=0, max_retries=0, scheduling_strategy=spread.affinity(process.node.id)
    )
    answer = task.remote(*arguments)
    if work is end_host:
        ray.wait([answer], timeout=SIGNAL_TIMEOUT_S)
        return None
    try:
        return ray.get(answer, timeout=SIGNAL_TIMEOUT_S)
    except ray.exceptions.GetTimeoutError:
        raise Unavailable(
            f"host {process.node.host} did not answer within {SIGNAL_TIMEOUT_S:g} s"
        ) from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DeadlineExceeded):
            raise error.cause from None
        raise


# What runs on the processes' host.


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(pids: Sequence[int], *, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Stops processes, and returns when none of them does anything any more.

    A signal is sent long before it is obeyed: until then, up to tens of milliseconds later,
    threads continue and answer requests. One that ends meanwhile is as good as stopped. Raises
    DeadlineExceeded; the processes stay stopped as far as they are.
    """
    send(pids, signal.SIGSTOP)
    end_s = time.monotonic() + timeout_s
    for pid in pids:
        seen: frozenset[str] | None = None
        while True:
            threads = thread_states(pid)
            running = sum(state not in AT_REST for state in threads.values())
            # Twice the same threads: one that was not listed yet can only have been begun by
            # one that ran, and none of these did when they were listed again.
            if not running and seen == threads.keys():
                break
            seen = frozenset(threads) if not running else None
            if time.monotonic() > end_s:
                raise DeadlineExceeded(
                    f"process {pid} is not stopped: {running} of its {len(threads)} threads "
                    f"still ran {timeout_s:g} s after SIGSTOP"
                )
            if running:
                time.sleep(STOP_POLL_S)


def thread_states(pid: int) -> dict[str, str]:
    """The state of each thread of a process, as /proc has it; none if it has ended.

    Elsewhere than on Linux only the process as a whole is known: all threads then count as
    stopped as soon as it does.
    """
    tasks = Path(f"/proc/{pid}/task")
    if not Path("/proc/self/task").is_dir():
        with suppress(psutil.NoSuchProcess):
            at_rest = psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
            return {str(pid): "T" if at_rest else "R"}
        return {}
    states = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(tasks):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended
                stat = (tasks / thread / "stat").read_text(errors="replace")
                states[thread] = stat.rpartition(")")[2].split()[0]  # its name may be anything
    return states


def end_host(pids: Sequence[int]) -> None:
    """Runs on the host that is ended: its agents, then the raylets that are their parents."""
    raylets = {psutil.Process(pid).ppid() for pid in pids if psutil.pid_exists(pid)}
    send([*pids, *raylets], signal.SIGKILL)
