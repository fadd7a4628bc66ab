"""What processes have used of the CPU."""

from collections.abc import Iterable

import psutil


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)
