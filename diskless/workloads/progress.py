"""Following a streaming query batch by batch."""

import json
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.05

Progress = dict[str, Any]
"""As StreamingQueryProgress.json tells it."""


def follow(
    query: StreamingQuery, *, more: int, timeout_s: float, each: Callable[[Progress], None]
) -> int:
    """Waits until the query has committed so many batches with rows, and stops it.

    Each batch's progress goes to `each` as it comes. Gives the number of the last batch; the
    query may have been faster than us. Raises TimeoutError, and what the query failed with.
    """
    last = -1
    left = more
    end_s = time.monotonic() + timeout_s

    def look() -> None:
        nonlocal last, left
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                last = progress["batchId"]
                left -= 1
                each(json.loads(progress.json))

    while left > 0:
        if not query.isActive:
            query.awaitTermination()  # raises what it failed with
            raise RuntimeError("the query was stopped by somebody else")
        if time.monotonic() > end_s:
            raise TimeoutError(f"{left} of {more} batches were not committed in {timeout_s:g} s")
        time.sleep(POLL_S)
        look()
    query.stop()
    look()
    return last


def checkpoint_ms(progress: Progress) -> float:
    """What a batch spent on its checkpoint: the two logs, and the state of all partitions."""
    durations = progress["durationMs"]
    state_ms = sum(operator["commitTimeMs"] for operator in progress["stateOperators"])
    return float(durations.get("walCommit", 0) + durations.get("commitOffsets", 0) + state_ms)
