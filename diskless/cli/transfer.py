"""Moving bytes between this machine and a cluster, for `put`, `get` and `cat`.

Owns copying in pieces, several files at a time, and the progress bar. Never holds a whole
file in memory, and never leaves half a file under its final name, here or there: a
writer that fails is discarded, and a local file is renamed into place when it is complete.
"""

import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from diskless.config import MIB
from diskless.errors import NotFound

if TYPE_CHECKING:
    from diskless.client import Client

PIECE_BYTES = MIB
FILES_AT_ONCE = 8
WAITING_MAX = 2 * FILES_AT_ONCE
"""Files taken from the plan ahead of time: the plan of a large tree is never whole."""
PROGRESS_BYTES_MIN = 4 * MIB
"""Less is over before anybody reads a bar."""
STDIO = "-"

Item = TypeVar("Item")
Done = TypeVar("Done")


class Stopped(Exception):
    """Another file failed, or the user pressed Ctrl-C: this one ends too."""


class Meter:
    """Counts bytes, on a bar if there is one; and passes on the word to stop."""

    def __init__(self, advance: Callable[[int], None] = lambda _count: None) -> None:
        self._advance = advance
        self._stop = threading.Event()

    def add(self, count: int) -> None:
        """Raises Stopped once `stop` was called."""
        if self._stop.is_set():
            raise Stopped
        self._advance(count)

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def metered(what: str, total_bytes: int | None) -> Iterator[Meter]:
    """A meter, with a bar on stderr if that is a terminal and the work is long."""
    short = total_bytes is not None and total_bytes < PROGRESS_BYTES_MIN
    if short or not sys.stderr.isatty():
        yield Meter()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total_bytes)
        yield Meter(lambda count: progress.advance(task, count))


def copy(source: IO[bytes], sink: Any, meter: Meter | None = None) -> int:
    """Copies all bytes, in pieces, and counts them."""
    total = 0
    while piece := source.read(PIECE_BYTES):
        sink.write(piece)
        total += len(piece)
        if meter is not None:
            meter.add(len(piece))
    return total


def run_all(
    work: Callable[[Item], Done], plan: Iterable[Item], meter: Meter
) -> Iterator[tuple[Item, Done]]:
    """Does the work for every item, several at a time, as the plan yields them.

    The first failure stops the rest and is raised.
    """
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        waiting: dict[Future[Done], Item] = {}
        try:
            for item in plan:
                waiting[pool.submit(work, item)] = item
                if len(waiting) >= WAITING_MAX:
                    yield from _finished(waiting)
            while waiting:
                yield from _finished(waiting)
        except BaseException:
            meter.stop()
            for future in waiting:
                future.cancel()
            raise


def _finished(waiting: dict[Future[Done], Item]) -> Iterator[tuple[Item, Done]]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        yield waiting.pop(future), future.result()


@contextmanager
def new_local_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `path` when the block ends well, and not at all otherwise.

    A device or a pipe that is there is written to as it is.
    """
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        with open(path, "wb") as file:
            yield file
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            os.fchmod(handle, 0o666 & ~_umask())
            yield file
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def is_directory(client: "Client", path: str) -> bool:
    """False also for what does not exist."""
    try:
        return client.stat(path).directory
    except NotFound:
        return False
