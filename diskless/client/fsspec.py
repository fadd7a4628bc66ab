"""diskless as an fsspec file system, for pandas, pyarrow, dask and all that speak fsspec.

    fsspec.open("diskless:///a.csv")          the cluster called "default"
    fsspec.open("diskless://orders/a.csv")    the cluster of that name
    fsspec.open("diskless://host:7000/a.csv") the cluster of that gateway
    fsspec.filesystem("diskless", cluster="orders", timeout_s=30)

It connects at the first use, again in a forked child, and again when the name has come
to mean another cluster. Instances hold no secret: whoever unpickles one needs the
cluster's descriptor, or its secret in the environment, as for any other client.

What fsspec leaves open is settled like this:

- A file appears when it is closed: not before, not if its `with` block raised (also in
  text mode, compressed, and through `fsspec.open`), not if it is garbage collected.
- Directories are real. They are made as needed by whatever is put into them, stay when
  they are empty, and are moved or deleted with all they hold in one step.
- `exists`, `isdir` and `isfile` raise if the cluster cannot be asked: a checkpoint that
  is out of reach is not one that was never made.
- Appending (`ab`) writes the whole file anew; the last of several appenders wins.
- `with fs.transaction:` holds back the files that are written in it (it spools them in
  this process, large ones in a temporary file) and makes them visible in one step at its
  end, or none. Deleting, moving and making directories happen at once, also inside.
"""

import io
import logging
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import lru_cache
from glob import has_magic
from typing import IO, Any, cast

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import OpenFile, get_compression
from fsspec.transaction import Transaction
from fsspec.utils import stringify_path

from diskless.client.client import BUFFER_BYTES, TIMEOUT_S, Client, connect
from diskless.client.connection import Buffer
from diskless.client.descriptor import SCHEME, parse_uri, resolve
from diskless.client.files import Reader, Writer
from diskless.config import MIB
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    DisklessError,
    NotFound,
    PathIsDirectory,
    PathIsFile,
)
from diskless.gateway.messages import Status
from diskless.paths import normalize

CLIENTS_MAX = 8
"""Clients that instances share: fsspec makes an instance for every thread."""
RESOLVE_INTERVAL_S = 1.0
"""How often a cluster's name is looked up again."""
SPOOL_BYTES_MAX = 16 * MIB
"""A file of a transaction that is larger waits in a temporary file, not in memory."""
FRAMES_MAX = 10
"""How far up the stack `fsspec.open` is looked for."""

log = logging.getLogger(__name__)


@lru_cache(maxsize=CLIENTS_MAX)
def _client_of(authority: str, cluster: str, timeout_s: float) -> Client:
    """`cluster` is the id that the authority means now; "" if that is not known."""
    return connect(f"{SCHEME}://{authority}/", timeout_s=timeout_s)


def _describe(status: Status) -> dict[str, Any]:
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

    def __init__(self, fs: "DisklessFileSystem", path: str, buffer_bytes: int) -> None:
        raw = cast(Reader, cast(io.BufferedReader, fs.client.open(path)).detach())
        super().__init__(raw, buffer_bytes)
        self.fs = fs
        self.path = path
        self.size = raw.status.size
        self.details = _describe(raw.status)

    def info(self) -> dict[str, Any]:
        return self.details

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.fs, self.path, self.tell())


def _reopen(fs: "DisklessFileSystem", path: str, position: int) -> ReadFile:
    file = ReadFile(fs, path, BUFFER_BYTES)
    file.seek(position)
    return file


class _Discarding:
    """Files of which nothing is visible after an exception, or if nobody closed them."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # io.IOBase would close it, and so make half a file visible.
        with suppress(ValueError):  # A TextIOWrapper that was detached, or never attached.
            if not self.closed:
                if self.writable():
                    log.warning("file discarded reason=never-closed file=%r", self)
                self.discard()


class WriteFile(_Discarding, io.RawIOBase):
    """A new file, streamed to the cluster. It appears when it is closed."""

    autocommit = True

    def __init__(self, fs: "DisklessFileSystem", path: str, mode: str, sink: Writer) -> None:
        self.fs = fs
        self.path = path
        self.mode = mode
        self._sink = sink

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sink.tell()

    def write(self, data: Any, /) -> int:
        return self._sink.write(data)

    def close(self) -> None:
        if self.closed:
            return
        if _with_block_failed():
            self.discard()
            return
        try:
            self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        self._sink.close()

    def discard(self) -> None:
        self._sink.discard()
        super().close()


class StagedFile(WriteFile):
    """A new file that waits, closed, until `commit` or its transaction makes it visible."""

    autocommit = False

    def __init__(
        self, fs: "DisklessFileSystem", path: str, mode: str, *, overwrite: bool = True
    ) -> None:
        self._spool = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX)  # noqa: SIM115
        super().__init__(fs, path, mode, cast(Writer, self._spool))
        self.overwrite = overwrite

    @property
    def waiting(self) -> bool:
        """Whether it is neither committed nor discarded."""
        return not self._spool.closed

    def content(self) -> Buffer:
        size = self._spool.tell()
        self._spool.seek(0)
        if size <= SPOOL_BYTES_MAX:
            return self._spool.read()
        return memoryview(mmap.mmap(self._spool.fileno(), size, access=mmap.ACCESS_READ))

    def close(self) -> None:
        if not self.closed and _with_block_failed():
            self.discard()
        io.RawIOBase.close(self)

    def commit(self) -> None:
        _commit_staged(self.fs.client, [self])

    def discard(self) -> None:
        self._spool.close()
        io.RawIOBase.close(self)


def _commit_staged(client: Client, files: Iterable[StagedFile]) -> None:
    """Makes all of them visible in one step. Of several for one path the last one counts.

    If only some may replace what is there, the others are checked a moment before.
    """
    staged = {file.path: file for file in files if file.waiting}
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


class DisklessTransaction(Transaction):
    """Its files become visible in one step when it ends, or none of them."""

    def complete(self, commit: bool = True) -> None:
        fs, files = self.fs, list(self.files)
        self.files.clear()
        try:
            if commit:
                _commit_staged(fs.client, files)
        finally:
            for file in files:
                file.discard()
            fs._intrans, fs._transaction, self.fs = False, None, None


class _TextFile(_Discarding, io.TextIOWrapper):
    def discard(self) -> None:
        if self.writable():
            self.buffer.discard()
        self.close()


class _CompressedFile(_Discarding, io.RawIOBase):
    """A compressor and the file it writes to, which closing the compressor leaves open."""

    def __init__(self, compressor: IO[bytes], file: WriteFile) -> None:
        self._compressor = compressor
        self._file = file

    def __repr__(self) -> str:
        return repr(self._file)

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
            self.discard()

    def discard(self) -> None:
        super().close()
        with suppress(DisklessError, OSError, ValueError):
            self._compressor.close()  # It has bytes left, and nowhere to put them.
        if not self._file.closed:
            self._file.discard()


def _with_block_failed() -> bool:
    """Whether it is a failed `with fsspec.open(...)` that closes the file just now.

    OpenFile closes its files in the same way after an exception as without. Only its
    own arguments tell, and without them half a file would become visible.
    """
    frame = sys._getframe(2)
    for _ in range(FRAMES_MAX):
        if frame.f_code is OpenFile.__exit__.__code__:
            return any(frame.f_locals.get("args", ()))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


class DisklessFileSystem(AbstractFileSystem):
    """Files in the memory of a cluster. Threads may share an instance, transactions aside.

    Every method raises the classes of diskless.errors, most of which are built-in ones
    too: NotFound is a FileNotFoundError, and so on.
    """

    protocol = SCHEME
    root_marker = "/"
    transaction_type = DisklessTransaction

    def __init__(self, cluster: str = "", timeout_s: float = TIMEOUT_S, **options: Any) -> None:
        """`cluster` is a name, HOST:PORT of a gateway, or a URI; "" is the default one."""
        super().__init__(**options)
        self.cluster = parse_uri(cluster)[0] if cluster.startswith(f"{SCHEME}:") else cluster
        self.timeout_s = timeout_s
        self._client: Client | None = None
        self._resolve_at = 0.0

    @property
    def client(self) -> Client:
        """The client of the cluster that the name means now. Raises NoCluster."""
        if self._client is None or time.monotonic() >= self._resolve_at:
            cluster = resolve(self.cluster).cluster
            self._client = _client_of(self.cluster, cluster, self.timeout_s)
            self._resolve_at = time.monotonic() + RESOLVE_INTERVAL_S
        return self._client

    # Paths.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        return parse_uri(path)[1] if path.startswith(f"{SCHEME}:") else normalize(path)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        authority = parse_uri(path)[0] if path.startswith(f"{SCHEME}:") else ""
        return {"cluster": authority} if authority else {}

    def unstrip_protocol(self, name: str) -> str:
        return f"{SCHEME}://{self.cluster}{self._strip_protocol(name)}"

    # Questions.

    def _stat(self, path: str) -> Status | None:
        try:
            return self.client.stat(self._strip_protocol(path))
        except NotFound:
            return None

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """`mtime` is in seconds, `checksum` the XXH3-64 of the content in hexadecimal
        digits; `id` is another one whenever the content is."""
        return _describe(self.client.stat(self._strip_protocol(path)))

    def exists(self, path: str, **_: Any) -> bool:
        return self._stat(path) is not None

    def isdir(self, path: str) -> bool:
        status = self._stat(path)
        return status is not None and status.directory

    def isfile(self, path: str) -> bool:
        status = self._stat(path)
        return status is not None and not status.directory

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        entries = self.client.list(self._strip_protocol(path))
        return [_describe(entry) if detail else entry.path for entry in entries]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **_: Any,
    ) -> Any:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        root = self._stat(path)
        found: dict[str, Status] = {}
        level = [root] if root else []
        depth = 0
        while level:
            found |= {entry.path: entry for entry in level}
            inner = [entry.path for entry in level if entry.directory]
            level = []
            if maxdepth is None or depth < maxdepth:
                for directory in inner:
                    with suppress(NotFound):  # It was deleted meanwhile.
                        level += self.client.list(directory)
            depth += 1
        chosen = sorted(path for path in found if withdirs or not found[path].directory)
        return {path: _describe(found[path]) for path in chosen} if detail else chosen

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **_: Any,
    ) -> Any:
        if total and maxdepth is None:
            return self.client.summary(self._strip_protocol(path)).bytes
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def checksum(self, path: str) -> int:
        """The XXH3-64 of a file's content."""
        return int(self.info(path)["checksum"], 16) if self.isfile(path) else super().checksum(path)

    def ukey(self, path: str) -> str:
        """Differs for every content that was ever put."""
        info = self.info(path)
        return f"{info['id']:x}-{info['checksum']}" if info["id"] else super().ukey(path)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=UTC)

    def created(self, path: str) -> datetime:
        """When the content was put. Raises PathIsDirectory: of those it is not known."""
        if self.isdir(path):
            raise PathIsDirectory(f"{path} is a directory: when it was made is not known")
        return self.modified(path)

    # Content.

    def open(  # noqa: PLR0913
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """As fsspec describes it, with modes rb, wb, xb and ab, and r, w, x and a for text."""
        if "b" not in mode:
            text = {key: kwargs.pop(key) for key in TEXT_OPTIONS if key in kwargs}
            binary = mode.replace("t", "") + "b"
            file = self.open(path, binary, block_size, compression=compression, **kwargs)
            return _TextFile(file, **text)
        file = super().open(path, mode, block_size, **kwargs)
        codec = get_compression(path, compression)
        if codec is None:
            return file
        compressed = compr[codec](file, mode=mode[0])
        return compressed if mode == "rb" else _CompressedFile(compressed, file)
