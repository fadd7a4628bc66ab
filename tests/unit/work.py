"""Counts the work of a step instead of its time: lines of ours that ran, and memory taken.

Lines show loops; memory shows what a single call copies (`list`, `sorted`, `dict.update`).
Neither depends on how busy the machine is.
"""

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import diskless

HOME = str(Path(diskless.__file__).parent)


class Work(NamedTuple):
    lines: int
    peak_bytes: int


def work_of(run: Callable[[], Any]) -> Work:
    """What it takes to run this once, after a first try that may fill caches is not needed:
    nothing of ours caches by state."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return Work(lines, peak - start)


def worst(steps: list[Work]) -> Work:
    return Work(max(work.lines for work in steps), max(work.peak_bytes for work in steps))
