"""The audit file of an agent: every event of the log, and refused attempts, one JSON object to
a line.

The event loop only puts events into a queue. A thread formats and writes the lines, so a slow disk
delays nobody. If the disk is full, broken or too slow for the queue, lines are dropped and counted,
and the file says how many as soon as it can be written again. Nothing is synced: what a power
failure loses is in other voters' files. A full file is renamed to `.1`, that one to `.2`, and the
last one is deleted.

Reading goes backwards, in any thread, a bounded number of bytes at a time.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from diskless.config import KIB, MIB
from diskless.errors import DisklessError
from diskless.model import Event, slot_name
from diskless.namespace import events
from diskless.namespace.lookback import EventsFound, Look

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 16 * MIB
FILES_MAX = 8
QUEUE_MAX = 8192
"""Events that wait for the disk. Further ones are dropped and counted."""
BATCH_MAX = 1024
PAUSE_S = 0.05
"""Between two batches, so that batches are few and large."""
RETRY_S = 1.0
"""After a failure."""
WARN_EVERY_S = 60.0
CLOSE_TIMEOUT_S = 2.0
FLUSH_TIMEOUT_S = 1.0
REFUSED_PER_S_MAX = 5
"""Lines about refused attempts. The next one says how many there were in between."""
READ_BYTES_MAX = 8 * MIB
"""Bytes that are searched for one page."""
BLOCK_BYTES = 64 * KIB
LINE_BYTES_MAX = 64 * KIB
"""We write no longer line: a longer one is skipped."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode

Line = events.Note | Event


class AuditFile:
    def __init__(
        self,
        directory: str,
        *,
        slot: int,
        wall_ms: Callable[[], int],
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        self.slot = slot
        self._path = Path(directory) / f"audit-{slot_name(slot)}.log"
        self._wall_ms = wall_ms
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._queue: deque[Line] = deque()
        self._noted = 0  # lines that were requested
        self._done = 0  # of those, written or dropped
        self._overflowed = 0
        self._failed = 0
        self._told = 0  # dropped lines that the file reports
        self._last_op = 0
        self._refused_s = 0
        self._refused = self._refused_more = 0
        self._handle: int | None = None
        self._size = 0
        self._warned_s = -WARN_EVERY_S
        self._renaming = threading.Lock()
        self._progress = threading.Condition()
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what is left, unless the disk takes too long."""
        self._closing.set()
        self._hurry.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    @property
    def dropped(self) -> int:
        """Lines that were not written, since the start."""
        return self._overflowed + self._failed

    @property
    def bytes_used(self) -> int:
        return events.EVENT_BYTES * len(self._queue)

    # -- for the event loop ----------------------------------------------------------

    def note(self, note: Line) -> None:
        if note.op > self._last_op:
            self._last_op = note.op
        self._noted += 1
        if len(self._queue) >= QUEUE_MAX:
            self._overflowed += 1
            return
        self._queue.append(note)
        if not self._wake.is_set():
            self._wake.set()

    def gap(self, op: int) -> None:
        """The namespace was transferred from another voter, as it was after `op`."""
        if op <= self._last_op:
            return
        begin = f"{self._last_op + 1} to {op}" if self._last_op else f"up to {op}"
        text = f"the namespace came from another voter: what is missing of {begin} is in its file"
        self.note(Event(op, self._wall_ms(), "gap", text))

    def refused(self, door: str, error: DisklessError, peer: str) -> None:
        """An attempt was refused. Of very many only some get a line of their own."""
        now_ms = self._wall_ms()
        if now_ms // 1000 != self._refused_s:
            self._refused_s, self._refused = now_ms // 1000, 0
        self._refused += 1
        if self._refused > REFUSED_PER_S_MAX:
            self._refused_more += 1
            return
        more = f", and {self._refused_more} more before" if self._refused_more else ""
        self._refused_more = 0
        text = f"{door}: {peer}: {error.reason}: {error}"[: events.TEXT_CHARS_MAX] + more
        self.note(Event(self._last_op, now_ms, "refused", text))

    # -- the writer's thread ---------------------------------------------------------

    def _run(self) -> None:
        while self._queue or not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._hurry.clear()
            while self._queue:
                count = min(len(self._queue), BATCH_MAX)
                written = self._write([self._queue.popleft() for _ in range(count)])
                with self._progress:
                    self._done += count
                    self._progress.notify_all()
                if not written and self._closing.wait(RETRY_S):
                    return
            self._hurry.wait(PAUSE_S)
        if self._handle is not None:
            os.close(self._handle)

    def _write(self, batch: list[Line]) -> bool:
        dropped = self.dropped
        try:
            lines = [
                _encode(events.describe(n) if isinstance(n, events.Note) else n) for n in batch
            ]
            if dropped > self._told:
                text = f"{dropped - self._told} lines were not written here"
                lines.insert(0, _encode(Event(batch[0].op, self._wall_ms(), "lost", text)))
            self._append(b"\n".join(lines) + b"\n")
        except (OSError, ValueError) as error:  # a ValueError: text that is not Unicode
            self._failed += len(batch)
            self._close_file()
            self._warn(error)
            return False
        self._told = dropped
        return True

    def _append(self, data: bytes) -> None:
        if self._handle is not None and self._size and self._is_full(len(data)):
            self._rotate()
        if self._handle is None:
            self._open()
            if self._size and self._is_full(len(data)):
                self._rotate()
                self._open()
        assert self._handle is not None
        while data:
            count = os.write(self._handle, data)
            self._size += count
            data = data[count:]

    def _is_full(self, more: int) -> bool:
        return self._size + more > self._file_bytes_max

    def _open(self) -> None:
        """Raises OSError. A line that a failed write has left incomplete is ended first."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._handle).st_size
        if self._size and os.pread(self._handle, 1, self._size - 1) != b"\n":
            self._size += os.write(self._handle, b"\n")

    def _close_file(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                os.close(self._handle)
            self._handle = None

    def _rotate(self) -> None:
        self._close_file()
        with self._renaming:
            for number in range(self._files_max - 1, 0, -1):
                with suppress(FileNotFoundError):
                    os.replace(self._named(number - 1), self._named(number))
            if self._files_max == 1:
                os.unlink(self._path)
        self._size = 0

    def _named(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def _warn(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._warned_s >= WARN_EVERY_S:
            self._warned_s = now_s
            log.warning("audit not written path=%s error=%s", self._path, error)

    # -- reading, in any thread --------------------------------------------------------

    def flush(self) -> None:
        """Returns when all earlier events are written, or cannot be for now."""
        self._hurry.set()
        with self._progress:
            # What overflowed is in no queue and never marked done.
            target = self._noted - self._overflowed
            self._progress.wait_for(lambda: self._done >= target, FLUSH_TIMEOUT_S)

    def look_back(self, look: Look) -> EventsFound:
        """Continues a page in the files, through at most `READ_BYTES_MAX` bytes of them."""
        self.flush()
        scan, begin = _Scan(self._files()), look.begin
        try:
            if begin.slot == self.slot:
                scan.go_to(begin.file, begin.offset)
                look.take(scan.events(), seen=begin.seen)
            else:
                look.take(scan.events())
        finally:
            scan.close()
        if scan.is_over:
            return look.result(place=None)
        return look.result(place=look.place(slot=self.slot, file=scan.file, offset=scan.offset))

    def _files(self) -> list[int]:
        """Handles of all files, the newest first."""
        found = []
        with self._renaming:
            for number in range(self._files_max):
                with suppress(OSError):
                    found.append(os.open(self._named(number), os.O_RDONLY | os.O_CLOEXEC))
        return found


class _Scan:
    """Reads files backwards, line by line. `file` and `offset` say where the lines begin that were
    consumed: those that were yielded, except for the last one until the next is requested."""

    def __init__(self, handles: list[int]) -> None:
        self._handles = handles
        self._files = [(os.fstat(handle), handle) for handle in handles]
        self._left = READ_BYTES_MAX
        self.is_over = False
        self.file = self._files[0][0].st_ino if self._files else 0
        self.offset = self._files[0][0].st_size if self._files else 0

    def go_to(self, file: int, offset: int) -> None:
        """Starts there; at the end of everything if that file and all older ones are gone."""
        while self._files and self._files[0][0].st_ino != file:
            del self._files[0]
        self.file, self.offset = file, max(offset, 0)  # clients send it back

    def events(self) -> Iterator[Event]:
        for number, (stat, handle) in enumerate(self._files):
            if number:
                self.file, self.offset = stat.st_ino, stat.st_size
            for line, start in self._lines(handle, min(self.offset, stat.st_size)):
                with suppress(msgspec.DecodeError):  # an incomplete line
                    yield _decode(line)
                self.offset = start
                if self._left <= 0:
                    return
        self.is_over = True

    def _lines(self, handle: int, end: int) -> Iterator[tuple[bytes, int]]:
        """The lines before `end`, the last first, and where each begins."""
        at = cut = end
        rest = b""  # the end of a line whose start is not read yet
        while at and len(rest) <= LINE_BYTES_MAX:
            size = min(BLOCK_BYTES, at)
            at -= size
            self._left -= size
            first, *pieces = (os.pread(handle, size, at) + rest).split(b"\n")
            for piece in reversed(pieces):
                cut -= len(piece)
                if piece:
                    yield piece, cut
                cut -= 1
            rest = first
        if rest and not at:
            yield rest, 0

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)
