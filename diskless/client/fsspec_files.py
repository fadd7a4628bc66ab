"""The file objects of the fsspec file system, and its transaction.

A file that is written appears when it is closed or, if it is staged, when it is
committed; one that is left by an exception or never closed leaves nothing visible.
Nothing here knows of fsspec's paths and URLs: that is the file system's job.
"""

import io
import logging
import mmap
from collections.abc import Iterable
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from fsspec.transaction import Transaction

from diskless.client.client import Client
from diskless.client.connection import Buffer
from diskless.client.files import Reader, Writer
from diskless.config import MIB
from diskless.errors import AlreadyExists
from diskless.protocol.messages import Status

if TYPE_CHECKING:
    from diskless.client.fsspec import DisklessFileSystem

SPOOL_BYTES_MAX = 16 * MIB
"""A larger file of a transaction waits in a temporary file, not in memory."""

log = logging.getLogger(__name__)


def describe(status: Status) -> dict[str, Any]:
    """What fsspec calls the info of a file."""
    return {
        "name": status.path,
        "size": status.size,
        "type": "directory" if status.directory else "file",
        "mtime": status.mtime_ms / 1000,
        "id": status.id,
        "checksum": status.checksum,
    }


class ReadFile(io.BufferedReader):
    """A file opened for reading: the content that its path had then."""

    mode = "rb"

    def __init__(self, fs: "DisklessFileSystem", path: str, *, buffer_bytes: int) -> None:
        raw = cast(Reader, cast(io.BufferedReader, fs.client.open(path)).detach())
        super().__init__(raw, buffer_bytes)
        self.fs = fs
        self.path = path
        self.size = raw.status.size
        self._status = raw.status

    def info(self) -> dict[str, Any]:
        return describe(self._status)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.fs, self.path, self.tell())


def _reopen(fs: "DisklessFileSystem", path: str, position: int) -> ReadFile:
    file: ReadFile = fs.open(path)
    file.seek(position)
    return file


class WriteFile(io.RawIOBase):
    """A new file. A staged one (`autocommit` is False) goes to a spool, others straight
    to the cluster."""

    def __init__(
        self,
        fs: "DisklessFileSystem",
        path: str,
        mode: str,
        *,
        overwrite: bool,
        sink: Writer | SpooledTemporaryFile[bytes],
    ) -> None:
        self.fs = fs
        self.path = path
        self.mode = mode
        self.overwrite = overwrite
        self.autocommit = isinstance(sink, Writer)
        self._sink = sink

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sink.tell()

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("write to a closed file")
        return self._sink.write(data)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self.autocommit:
                self._sink.close()
        finally:
            super().close()

    def discard(self) -> None:
        """Ends without making anything visible."""
        if isinstance(self._sink, Writer):
            self._sink.discard()
        else:
            self._sink.close()
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
        if not self.closed:
            log.warning("file discarded reason=never-closed file=%r", self)
            self.discard()

    # Staged.

    @property
    def waits(self) -> bool:
        """Whether it is staged, and neither committed nor discarded."""
        return not self.autocommit and not self._sink.closed

    def commit(self) -> None:
        """Makes a staged file visible, once it is closed."""
        _commit(self.fs.client, [self])

    def content(self) -> Buffer:
        """The bytes of a staged file."""
        spool = cast(SpooledTemporaryFile[bytes], self._sink)
        size = spool.tell()
        spool.seek(0)
        if size <= SPOOL_BYTES_MAX:
            return spool.read()
        return memoryview(mmap.mmap(spool.fileno(), size, access=mmap.ACCESS_READ))


class CompressedFile(io.RawIOBase):
    """A compressor and the file below it, which most compressors leave open at their end."""

    def __init__(self, compressor: IO[bytes], file: WriteFile) -> None:
        self._compressor = compressor
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._compressor.write(data)
        return memoryview(data).nbytes

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._compressor.close()
            self._file.close()
        finally:
            super().close()


class DisklessTransaction(Transaction):
    """Its files become visible in one step when it ends, or none of them."""

    def complete(self, commit: bool = True) -> None:
        fs, files = self.fs, list(self.files)
        try:
            if commit:
                _commit(fs.client, files)
        finally:
            for file in files:
                file.discard()
            self.files.clear()
            fs._intrans, fs._transaction, self.fs = False, None, None


def _commit(client: Client, files: Iterable[WriteFile]) -> None:
    """Makes staged files visible in one step; of several for one path, the last.

    If some of them may replace a file and some not, the latter are checked just before.
    """
    staged = {file.path: file for file in files if file.waits}
    still_open = [path for path, file in staged.items() if not file.closed]
    if still_open:
        raise ValueError(f"nothing was stored, because these are still open: {still_open}")
    overwrite = any(file.overwrite for file in staged.values())
    for path, file in staged.items():
        if overwrite and not file.overwrite and client.exists(path):
            raise AlreadyExists(f"{path} exists already")
    if staged:
        contents = {path: file.content() for path, file in staged.items()}
        client.write_many(contents, overwrite=overwrite)
    for file in staged.values():
        file.discard()
