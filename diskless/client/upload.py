"""A stream of bytes on its way into the cluster, through one agent at a time.

It keeps the bytes that are not sealed in stripes yet, and nothing else: when the agent
or the connection fails it continues with another one from the last sealed stripe, as
docs/frames.md says. Nothing is visible before `commit` returns; after `commit` raised
SessionExpired, DeadlineExceeded or CorruptData (its answer never came through) the files may
or may not be.

Invariants: `_unsealed` holds exactly the bytes from `_sealed_bytes` on that were appended;
each try has a new upload number, so that no agent can mix up two tries; only the process
that began it continues with it, so that no stripe is committed twice.
"""

import os
import secrets
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from diskless.client.attempts import Attempts
from diskless.client.caller import Caller, Ticket
from diskless.client.connection import Connection
from diskless.config import MIB
from diskless.errors import DisklessError, Unavailable, UploadLost
from diskless.protocol.messages import (
    Abort,
    Commit,
    Kind,
    MarkedStripe,
    NewFile,
    Status,
    Write,
    Written,
)

FRAME_BYTES = MIB
"""Payload of one `write`: a whole stripe by default."""
FRAMES_MAX = 8
"""Unanswered `write` frames."""
UNSEALED_BYTES_MAX = 16 * MIB
"""With more than this unsealed, frames go one by one."""
UNSEALED_BYTES_LIMIT = 32 * MIB
"""An agent that takes this much and seals nothing is broken."""


class Frames:
    """Cuts a stream into frames, and copies only what does not fill one.

    The last frame, full or not, stays behind as `tail`, for `commit` or `put`.
    """

    def __init__(self) -> None:
        self._chunk = bytearray()

    @property
    def tail(self) -> memoryview:
        return memoryview(self._chunk)

    def cut(self, view: memoryview, *, lasting: bool) -> Iterator[memoryview]:
        """The frames that `view` completes. Parts of it are given out only if it is
        `lasting`: if it cannot change before they are sent."""
        while len(view):
            if len(self._chunk) == FRAME_BYTES:
                yield self.tail
                self._chunk = bytearray()
            if lasting and not self._chunk and len(view) > FRAME_BYTES:
                yield view[:FRAME_BYTES]
                view = view[FRAME_BYTES:]
            else:
                room = FRAME_BYTES - len(self._chunk)
                self._chunk += view[:room]
                view = view[room:]


class Upload:
    """`what` names the operation and its path in errors.

    An upload that starts again from its first byte takes over the `ticket` of the lost
    one, which may have been committed.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        what: str,
        path: str,
        ends: Sequence[int] = (),
        ticket: Ticket | None = None,
    ) -> None:
        """`path` is that of the first file; `ends` are the bytes at which one of several files
        ends, ascending."""
        self._path = path
        self.size = 0
        self._ends = ends
        self.ticket = ticket
        self._caller = caller
        self._what = what
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._number = 0
        self._resuming = False
        self._sealed: list[MarkedStripe] = []
        self._sealed_bytes = 0
        self._sent_bytes = 0
        self._received_bytes = 0
        """The most that any agent has said to have."""
        self._unsealed: deque[memoryview] = deque()

    @property
    def unsealed_bytes(self) -> int:
        """What it keeps in memory."""
        return self.size - self._sealed_bytes

    def append(self, chunk: memoryview) -> None:
        """Takes the next bytes, FRAME_BYTES at most; they must not change any more.

        Raises UploadLost if the stream cannot be continued, and other refusals.
        """
        assert 0 < len(chunk) <= FRAME_BYTES
        self._check_process()
        self._unsealed.append(chunk)
        self.size += len(chunk)
        attempts = self._caller.attempts(self._what)
        while True:
            try:
                self._send_unsent(attempts)
                return
            except DisklessError as error:
                self._fail(error, attempts)

    def commit(
        self, files: Sequence[NewFile], *, overwrite: bool, tail: memoryview
    ) -> list[Status]:
        """Appends the last bytes and makes the files visible, all at once."""
        self._check_process()
        attempts = self._caller.attempts(self._what)
        ticket = self.ticket = self.ticket or self._caller.ticket(attempts)
        meta = Commit(
            session=0, sequence=0, files=list(files), overwrite=overwrite, upload=0, offset=0
        )
        while True:
            ticket.stamp(meta)
            try:
                self._send_unsent(attempts)
                ticket.sent += 1
                reply = self._send_commit(meta, tail, attempts, again=ticket.sent > 1)
            except DisklessError as error:
                self._fail(error, attempts)
                continue
            if not isinstance(reply, DisklessError):
                return reply
            self._leave(reply)
            self._caller.reconsider(reply, ticket, attempts)

    def abort(self) -> None:
        """Lets the agent forget the bytes, if it can be told; never raises."""
        connection, self._connection = self._connection, None
        self._unsealed.clear()
        if connection is None or not connection.usable:
            return
        deadline = self._caller.attempts(self._what).deadline
        try:
            connection.send(Kind.ABORT, Abort(self._number), deadline=deadline)
            while connection.outstanding:
                connection.receive(deadline=deadline)
        except Unavailable:
            self._caller.drop(connection)
        else:
            self._caller.give_back(connection)

    # Sending.

    def _send_unsent(self, attempts: Attempts) -> None:
        connection = self._connection or self._begin(attempts)
        offset = self._sealed_bytes
        for chunk in list(self._unsealed):
            end = offset + len(chunk)
            if offset >= self._sent_bytes:
                while not self._has_room(connection):
                    self._receive(connection, attempts)
                resume, ends = self._take_resume(), self._cut(offset, end)
                meta = Write(self._number, offset, resume, ends, self._path)
                connection.send(
                    Kind.WRITE,
                    meta,
                    [chunk],
                    deadline=attempts.deadline,
                    within=attempts.within,
                )
                self._sent_bytes = end
            offset = end

    def _cut(self, start: int, end: int) -> list[int]:
        """The ends of files in these bytes, so that the agent can tell their checksums."""
        return list(self._ends[bisect_right(self._ends, start) : bisect_right(self._ends, end)])

    def _send_commit(
        self, meta: Commit, tail: memoryview, attempts: Attempts, *, again: bool
    ) -> list[Status] | DisklessError:
        """`again`: it failed before, so the agent must say in time what it waits for."""
        connection = self._connection
        assert connection is not None
        meta.upload, meta.offset, meta.resume = self._number, self.size, self._take_resume()
        parts = [tail] if len(tail) else []
        number = connection.send(
            Kind.COMMIT,
            meta,
            parts,
            deadline=attempts.deadline,
            within=attempts.within if again else 0,
        )
        while True:
            reply = connection.receive(deadline=attempts.deadline)
            if reply.request != number:
                self._note(reply.meta, reply.error, attempts)
            elif reply.error is not None:
                return reply.error
            else:
                self._finish(connection)
                files: list[Status] = reply.meta.files
                return files

    def _begin(self, attempts: Attempts) -> Connection:
        self._connection = self._caller.take(bulk=True, deadline=attempts.deadline)
        self._number = secrets.randbits(63)
        self._sent_bytes = self._sealed_bytes
        self._resuming = bool(self._sealed)
        return self._connection

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UploadLost(f"{self._what}: only process {self._pid} can continue it, not a fork")

    def _take_resume(self) -> list[MarkedStripe]:
        """The sealed stripes, for the first frame after a failover."""
        if not self._resuming:
            return []
        self._resuming = False
        return self._sealed

    def _has_room(self, connection: Connection) -> bool:
        under_way = self._sent_bytes - self._sealed_bytes
        if connection.outstanding == 0:
            if under_way >= UNSEALED_BYTES_LIMIT:
                raise UploadLost(f"{self._what}: {under_way} bytes sent and none of them sealed")
            return True
        return connection.outstanding < FRAMES_MAX and under_way < UNSEALED_BYTES_MAX

    # Replies.

    def _receive(self, connection: Connection, attempts: Attempts) -> None:
        reply = connection.receive(deadline=attempts.deadline)
        self._note(reply.meta, reply.error, attempts)

    def _note(self, written: Written, error: DisklessError | None, attempts: Attempts) -> None:
        if error is not None:
            raise error
        before = self._received_bytes, self._sealed_bytes
        self._received_bytes = max(self._received_bytes, written.received)
        position = written.sealed_from
        for stripe in written.sealed:
            if position == self._sealed_bytes:
                self._seal(stripe)
            position += stripe.payload_bytes
        if (self._received_bytes, self._sealed_bytes) != before:
            # Bytes that were there before are none: else a commit that is refused again and
            # again, for which they are sent each time, would never come to its deadline.
            attempts.progressed()
        if written.sealed and position != self._sealed_bytes:
            raise Unavailable(f"{self._what}: sealed stripes do not follow one another")

    def _seal(self, stripe: MarkedStripe) -> None:
        self._sealed.append(stripe)
        self._sealed_bytes += stripe.payload_bytes
        drop = stripe.payload_bytes
        while drop and self._unsealed:
            chunk = self._unsealed.popleft()
            if drop < len(chunk):
                self._unsealed.appendleft(chunk[drop:])
                return
            drop -= len(chunk)

    # Ends.

    def _fail(self, error: DisklessError, attempts: Attempts) -> None:
        """Returns if another try makes sense; else raises."""
        self._leave(error)
        if not error.retryable:
            raise error
        attempts.failed(error)

    def _leave(self, error: DisklessError) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closed: an agent forgets what it has of an upload when its connection goes.
            self._caller.refused(connection, error, reuse=False)

    def _finish(self, connection: Connection) -> None:
        self._connection = None
        self._unsealed.clear()
        if connection.outstanding:
            connection.close()  # A reply to a `write` may come after that to `commit`.
        else:
            self._caller.give_back(connection)
