"""Starts the queries of `diskless.bench.query` and hears of their batches."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from diskless.bench.query import Plan

NEWS_TIMEOUT_S = 300.0
END_TIMEOUT_S = 120.0

News = dict[str, Any]


class Running:
    """A query's process: when it was started, and what it tells."""

    def __init__(
        self, process: subprocess.Popen[str], errors: IO[str], *, started_s: float
    ) -> None:
        self.started_s = started_s
        self.pid = process.pid
        self._process = process
        self._errors = errors
        self._news: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> News:
        """What it tells next. Raises TimeoutError, and RuntimeError if it ended instead."""
        try:
            news = self._news.get(timeout=NEWS_TIMEOUT_S)
        except queue.Empty:
            raise TimeoutError(f"the query said nothing for {NEWS_TIMEOUT_S:g} s") from None
        if news is None:
            self._errors.seek(0)
            raise RuntimeError(f"the query ended: {self._errors.read()[-2000:]}")
        return news

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._news.put(json.loads(line))
        self._news.put(None)


@contextmanager
def start(plan: Plan) -> Iterator[Running]:
    """A process of its own; it has ended when the block has."""
    with tempfile.TemporaryFile("w+") as errors:
        started_s = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "diskless.bench.query"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None
        try:
            running = Running(process, errors, started_s=started_s)
            process.stdin.write(msgspec.json.encode(plan).decode() + "\n")
            process.stdin.flush()
            yield running
            process.stdin.close()
            process.wait(END_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(END_TIMEOUT_S)


def batches(plan: Plan) -> Iterator[News]:
    """The batches of a query that ends by itself."""
    with start(plan) as running:
        running.next()  # the session
        for _ in range(plan.batches):
            yield running.next()
