"""The bytes of an opened file: which extents hold a range, and fetching it.

An opened file is pinned: its extents are of one content and stay readable for a while.
If they are gone, the file is opened again, and read on only if it still has the same
content; otherwise NotFound. So bytes of two versions are never mixed. Every reply has a
checksum (client/connection.py); a file that came whole with its opening is checked as a whole.
"""

import time
from bisect import bisect_right
from collections import deque
from itertools import accumulate

from diskless.checksum import FileChecksum, file_checksum
from diskless.client.attempts import Attempts
from diskless.client.caller import Caller
from diskless.client.connection import Connection
from diskless.config import KIB, MIB
from diskless.errors import (
    CorruptData,
    DisklessError,
    InternalError,
    NotFound,
    PathIsDirectory,
    Unavailable,
)
from diskless.protocol.frames import pack_within
from diskless.protocol.messages import Kind, MarkedExtent, Open, Opened, Read, Status

PIECE_BYTES = MIB
"""Payload of one `read`; it begins and ends at multiples of this, as stripes mostly do,
so that it takes one stripe and not parts of two."""
PIECES_MAX = 12
"""Unanswered `read` requests."""
PREFETCH_BYTES = 64 * KIB
"""What opening a file brings along, so that a small one takes one round trip."""
AHEAD_MAX = 4
"""Pieces that a sequential reader has under way."""
REOPENS_MAX = 3


def format_checksum(value: int) -> str:
    return f"{value:016x}"


def verify(status: Status, checksum: int) -> None:
    """Raises CorruptData if that is not the file's checksum."""
    if status.checksum and status.checksum != format_checksum(checksum):
        raise CorruptData(
            f"{status.path}: checksum is {format_checksum(checksum)}, {status.checksum} was stored"
        )


class Content:
    """One version of a file, opened: where its bytes are, and the first of them."""

    def __init__(self, caller: Caller, path: str, *, prefetch: int, what: str) -> None:
        self._caller = caller
        self._path = path
        self._what = what
        self.status: Status
        self._place(*self._open(prefetch))

    def reopen(self) -> None:
        """Finds where the same bytes are now. Raises NotFound if the file has others."""
        wanted = self.status.id
        try:
            opened, first = self._open(0)
        except PathIsDirectory:
            raise NotFound(f"{self._path} was deleted while it was read") from None
        if opened.file.id != wanted:
            raise NotFound(f"{self._path} was replaced while it was read")
        self._place(opened, first)

    def cut(self, start: int, length: int) -> list[MarkedExtent]:
        """The parts of the extents that hold `length` bytes from `start` on. The mark of an
        extent is good for its parts."""
        parts = []
        index = bisect_right(self._starts, start) - 1
        while length > 0:
            extent = self._extents[index]
            skip = start - self._starts[index]
            count = min(extent.length - skip, length)
            parts.append(MarkedExtent(extent.stripe, extent.offset + skip, count, extent.mark))
            start, length, index = start + count, length - count, index + 1
        return parts

    def read_into(
        self, target: memoryview, start: int, checksum: FileChecksum | None = None
    ) -> None:
        """Fills `target` with the bytes from `start` on, which must all be in the file. They are
        added to `checksum` while others are on their way."""
        done = self.copy_first(target, start)
        if checksum is not None:
            checksum.update(target[:done])
        if done < len(target):
            fetch = _Fetch(self._caller, self, checksum, what=self._what)
            fetch.run(target[done:], start + done)

    def copy_first(self, target: memoryview, start: int) -> int:
        """How many bytes of `target` the opening brought along already; they are copied."""
        here = self.first[start : start + len(target)]
        target[: len(here)] = here
        return len(here)

    def _open(self, prefetch: int) -> tuple[Opened, memoryview]:
        meta = Open(self._path, prefetch)
        reply = self._caller.call(Kind.OPEN, meta, what=self._what)
        return reply.meta, memoryview(reply.payload)

    def _place(self, opened: Opened, first: memoryview) -> None:
        self.status = opened.file
        self.first = first
        self._extents = opened.extents
        starts = list(accumulate((extent.length for extent in opened.extents), initial=0))
        self._starts = starts[:-1]
        if max(starts[-1], len(first)) < self.status.size:
            raise InternalError(
                f"{self._path}: {starts[-1]} of its {self.status.size} bytes have a place"
            )
        if len(first) == self.status.size:
            verify(self.status, file_checksum(first))


def _piece_bytes(start: int, end: int) -> int:
    """How much of [start, end) to ask for in one piece that begins at `start`."""
    return min(PIECE_BYTES - start % PIECE_BYTES, end - start)


class _Fetch:
    """Fills one buffer, with several pieces under way on one connection."""

    def __init__(
        self, caller: Caller, content: Content, checksum: FileChecksum | None, *, what: str
    ) -> None:
        self._caller = caller
        self._content = content
        self._checksum = checksum
        self._what = what
        self._waiting: deque[tuple[int, memoryview]] = deque()
        self._under_way: dict[int, tuple[int, memoryview]] = {}
        self._arrived: dict[int, memoryview] = {}  # and not in the checksum yet
        self._summed_to = 0
        self._reopens = 0

    def run(self, target: memoryview, start: int) -> None:
        self._summed_to = start
        end = start + len(target)
        position = start
        while position < end:
            count = _piece_bytes(position, end)
            skip = position - start
            self._waiting.append((position, target[skip : skip + count]))
            position += count
        attempts = self._caller.attempts(self._what)
        while self._waiting:
            try:
                connection = self._caller.take(bulk=True, deadline=attempts.deadline)
            except Unavailable as error:
                attempts.failed(error)
                continue
            self._use(connection, attempts)

    def _use(self, connection: Connection, attempts: Attempts) -> None:
        """Fetches all there is, or as much as this connection gives."""
        try:
            self._exchange(connection, attempts)
        except DisklessError as error:
            self._caller.refused(connection, error)
            self._wait_again()
            self._recover(error, attempts)
        else:
            self._caller.give_back(connection)

    def _exchange(self, connection: Connection, attempts: Attempts) -> None:
        while self._waiting or self._under_way:
            while self._waiting and len(self._under_way) < PIECES_MAX:
                start, target = self._waiting[0]
                meta = Read(self._content.cut(start, len(target)), self._content.status.size)
                number = connection.send(
                    Kind.READ,
                    meta,
                    deadline=attempts.deadline,
                    into=target,
                    within=attempts.within,
                )
                self._under_way[number] = self._waiting.popleft()
            self._sum_up()  # while the agent is at work, and they are in the processor's cache
            reply = connection.receive(deadline=attempts.deadline)
            if reply.error is not None:
                raise reply.error
            start, target = self._under_way.pop(reply.request)
            if self._checksum is not None:
                self._arrived[start] = target
            attempts.progressed()
        self._sum_up()

    def _sum_up(self) -> None:
        """Adds to the checksum what has arrived and follows what is in it."""
        while (piece := self._arrived.pop(self._summed_to, None)) is not None:
            assert self._checksum is not None
            self._checksum.update(piece)
            self._summed_to += len(piece)

    def _wait_again(self) -> None:
        self._waiting.extendleft(self._under_way.values())
        self._under_way.clear()

    def _recover(self, error: DisklessError, attempts: Attempts) -> None:
        if isinstance(error, NotFound) and self._reopens < REOPENS_MAX:
            self._reopens += 1
            self._content.reopen()
        elif error.retryable:
            attempts.failed(error)
        else:
            raise error


class ReadAhead:
    """Pieces of a file fetched before they are asked for, on a connection of its own.

    It never retries: whatever goes wrong, `take` gives None, and the caller reads the
    plain way. It begins with one piece and holds at most AHEAD_MAX, so that little is
    fetched for nothing for a reader who stops soon.
    """

    def __init__(self, caller: Caller, content: Content) -> None:
        self._caller = caller
        self._content = content
        self._pieces_max = 1
        self._connection: Connection | None = None
        self._numbers: deque[tuple[int, int]] = deque()
        self._arrived: dict[int, memoryview] = {}
        self._next = 0

    def take(self, start: int) -> memoryview | None:
        """The piece that begins at `start`, if it can be had; more are on their way then."""
        try:
            if not self._numbers or self._numbers[0][0] != start:
                self._restart(start)
            self._ask()
            piece = self._receive_first()
            self._pieces_max = min(self._pieces_max + 1, AHEAD_MAX)
            self._ask()
            return piece
        except DisklessError:
            self.close()
            return None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._numbers.clear()
        self._arrived.clear()
        if connection is None:
            return
        if connection.usable and not connection.outstanding:
            self._caller.give_back(connection)
        else:
            connection.close()

    def _restart(self, start: int) -> None:
        self.close()
        self._next = start
        self._pieces_max = 1
        self._connection = self._caller.take(bulk=True, deadline=self._deadline())

    def _ask(self) -> None:
        connection = self._connection
        assert connection is not None
        while len(self._numbers) < self._pieces_max and self._next < self._content.status.size:
            count = _piece_bytes(self._next, self._content.status.size)
            target = memoryview(bytearray(count))
            meta = Read(self._content.cut(self._next, count), self._content.status.size)
            deadline = self._deadline()
            within = pack_within(deadline - time.monotonic())
            number = connection.send(Kind.READ, meta, deadline=deadline, into=target, within=within)
            self._numbers.append((self._next, number))
            self._next += count

    def _receive_first(self) -> memoryview | None:
        connection = self._connection
        assert connection is not None
        if not self._numbers:
            return None
        _, wanted = self._numbers.popleft()
        while wanted not in self._arrived:
            reply = connection.receive(deadline=self._deadline())
            if reply.error is not None:
                raise reply.error
            self._arrived[reply.request] = memoryview(reply.payload)
        return self._arrived.pop(wanted)

    def _deadline(self) -> float:
        return time.monotonic() + self._caller.timeout_s / 3
