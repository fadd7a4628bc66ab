"""What processes have used of the CPU."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

_CPUCLOCK_SCHED = 2


class Cost(NamedTuple):
    """Of some work: the time that it took, and the CPU of all who did it, user and system."""

    took_s: float
    cpu_ms: float


def cost_of(work: Callable[[], object], pids: Sequence[int] = ()) -> Cost:
    """Does some work, which takes CPU in this process and in these others, as far as they live."""
    before_s = _used_s([os.getpid(), *pids])
    began_s = time.perf_counter()
    work()
    took_s = time.perf_counter() - began_s
    after_s = _used_s(list(before_s))
    return Cost(took_s, 1000 * sum(after_s[pid] - before_s[pid] for pid in after_s))


def _used_s(pids: Sequence[int]) -> dict[int, float]:
    """Of each that there is."""
    found = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found[pid] = cpu_s([psutil.Process(pid)])
    return found


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """To the nanosecond: what /proc tells is counted in ticks of 10 ms, as long as ten commits.
    Raises psutil.NoSuchProcess."""
    return sum(_clock_s(process.pid) for process in processes)


def _clock_s(pid: int) -> float:
    """The process's own clock; this is how Linux spells the number of another's."""
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
