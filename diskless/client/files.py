"""File objects: a writer whose file appears when it is closed, and a seekable reader.

Both stream with bounded memory. A writer that is not closed in order (discarded, left
by an exception, or garbage collected) leaves nothing visible. A reader that was read
from start to end in order checks the whole file's checksum and raises CorruptData.
"""

import io
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from diskless.checksum import FileChecksum
from diskless.client.caller import Caller
from diskless.client.fetch import (
    PIECE_BYTES,
    PREFETCH_BYTES,
    Content,
    ReadAhead,
    format_checksum,
    verify,
)
from diskless.client.upload import FRAME_BYTES, Frames, Upload
from diskless.protocol.messages import NewFile, Status

PUT_BYTES_MAX = FRAME_BYTES
"""Files up to this size travel in one frame."""
SEQUENTIAL_BYTES_MIN = PREFETCH_BYTES
"""Read in order for this long, a file is read ahead."""


class Writer(io.RawIOBase):
    """A new file at `path`. `put` stores a small one whole; it is the client's."""

    def __init__(
        self,
        caller: Caller,
        path: str,
        *,
        overwrite: bool,
        put: Callable[[NewFile, memoryview], Status],
    ) -> None:
        self.path = path
        self.status: Status | None = None
        """What became visible, once the file is closed."""
        self._caller = caller
        self._overwrite = overwrite
        self._put = put
        self._checksum = FileChecksum()
        self._size = 0
        self._frames = Frames()
        self._upload: Upload | None = None
        self._error: BaseException | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any, /) -> int:
        """Takes all of `data`. Raises what stopped the upload; the file is lost then."""
        self._check_usable()
        view = memoryview(data).cast("B")
        self._checksum.update(view)
        self._size += len(view)
        try:
            for frame in self._frames.cut(view, lasting=isinstance(data, bytes)):
                self._send(frame)
        except BaseException as error:
            self._abort(error)
            raise
        return len(view)

    def close(self) -> None:
        """Makes the file visible. Raises AlreadyExists if it may not replace another one."""
        if self.closed:
            return
        try:
            if self._error is not None:
                raise self._error
            self._commit()
        except BaseException as error:
            self._abort(error)
            raise
        finally:
            super().close()

    def discard(self) -> None:
        """Ends without making anything visible."""
        if not self.closed:
            self._abort(None)
            super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # io.IOBase would close it, which would make half a file visible.
        self.discard()

    def _send(self, chunk: memoryview) -> None:
        if self._upload is None:
            self._upload = Upload(self._caller, what=f"write {self.path}", path=self.path)
        self._upload.append(chunk)

    def _commit(self) -> None:
        file = NewFile(self.path, self._size, format_checksum(self._checksum.value()))
        tail = self._frames.tail
        if self._upload is None:
            self.status = self._put(file, tail)
        else:
            self.status = self._upload.commit([file], overwrite=self._overwrite, tail=tail)[0]

    def _abort(self, error: BaseException | None) -> None:
        self._error = error
        self._frames = Frames()
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.abort()

    def _check_usable(self) -> None:
        if self.closed:
            raise ValueError("write to a closed file")
        if self._error is not None:
            raise self._error


class Reader(io.RawIOBase):
    """The content that a path had when it was opened."""

    def __init__(self, caller: Caller, content: Content) -> None:
        self._content = content
        self._ahead = ReadAhead(caller, content)
        self._position = 0
        self._piece = memoryview(b"")
        self._piece_start = 0
        self._in_order_from = 0
        self._in_order_to = 0
        self._checksum: FileChecksum | None = FileChecksum()

    @property
    def status(self) -> Status:
        return self._content.status

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.status.size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        if self.closed:
            raise ValueError("read from a closed file")
        target = memoryview(buffer).cast("B")
        count = max(min(len(target), self.status.size - self._position), 0)
        if count:
            count = self._fill(target[:count])
        return count

    def readall(self) -> bytes:
        return read_bytes(self._read_exactly, max(self.status.size - self._position, 0))

    def close(self) -> None:
        if not self.closed:
            self._ahead.close()
        super().close()

    def _read_exactly(self, target: memoryview) -> None:
        while len(target):
            target = target[self.readinto(target) :]

    def _fill(self, target: memoryview) -> int:
        """Reads at least one byte, from wherever it can be had most cheaply."""
        start = self._position
        if start != self._in_order_to:
            self._in_order_from = start
            self._checksum = FileChecksum() if start == 0 else None
        done = self._content.copy_first(target, start) or self._copy_piece(target, start)
        if not done:
            done = self._fetch(target, start)
        self._position = self._in_order_to = start + done
        self._check(target[:done])
        return done

    def _fetch(self, target: memoryview, start: int) -> int:
        in_order = start - self._in_order_from >= SEQUENTIAL_BYTES_MIN
        if in_order and len(target) < 2 * PIECE_BYTES:
            piece = self._ahead.take(start)
            if piece is not None:
                self._piece, self._piece_start = piece, start
                return self._copy_piece(target, start)
        self._content.read_into(target, start)
        return len(target)

    def _copy_piece(self, target: memoryview, start: int) -> int:
        skip = start - self._piece_start
        if not 0 <= skip < len(self._piece):
            return 0
        here = self._piece[skip : skip + len(target)]
        target[: len(here)] = here
        return len(here)

    def _check(self, data: memoryview) -> None:
        """Follows a read from start to end, if this is one."""
        if self._checksum is None:
            return
        self._checksum.update(data)
        if self._in_order_to == self.status.size:
            verify(self.status, self._checksum.value())
            self._checksum = None


class _Memory(io.BytesIO):
    """Closed by the garbage collector, after an error, while views of it are garbage too."""

    def close(self) -> None:
        with suppress(BufferError):  # Python 3.13 would tell the user of it.
            super().close()


def read_bytes(fill: Callable[[memoryview], None], count: int) -> bytes:
    """`count` bytes as `fill` leaves them, allocated once and touched first by `fill`.

    BytesIO is the one way to fill a bytes object in place: it takes over one that nobody
    else holds, and gives it away when it is asked for its whole value, without a copy.
    """
    if not count:
        return b""
    memory = _Memory(bytes(count))
    with memory.getbuffer() as view:
        fill(view)
    return memory.getvalue()
