"""diskless as an fsspec file system, for pandas, pyarrow, dask and all that speak fsspec.

    fsspec.open("diskless:///a.csv")            # the cluster called "default"
    fsspec.open("diskless://orders/a.csv")      # the cluster of that name
    fsspec.open("diskless://host:7000/a.csv")   # the cluster of that gateway
    fsspec.filesystem("diskless", cluster="orders", token_file="/run/orders.token", timeout_s=30)

It connects at the first use, again in a forked child, and again when the name has come to
mean another cluster. Instances hold no secret: whoever unpickles one needs the token's file, a
token in $DISKLESS_TOKEN or the cluster's descriptor, like any other client.

What fsspec leaves open is settled like this:

- A file appears when it is closed: not before, not if its `with` block raised, and not if
  it is garbage collected. In text mode, with compression and through `fsspec.open` there is
  a wrapper of fsspec's on top, which closes the file, and so commits it, in all these cases.
- Directories are real. They are made as needed by what is put into them, stay when they
  are empty, and are moved or deleted with all they hold in one step.
- `exists`, `isdir` and `isfile` raise if the cluster cannot be asked: a checkpoint out of
  reach is not one that was never made.
- Appending (`ab`) writes the whole file again; the last of several appenders wins.
- `with fs.transaction:` holds back the files written in it (spooled by this process, large
  ones to its temporary directory) and makes them visible in one step at its end, or none
  of them. Deleting, moving and making directories happen at once, also in there.
"""

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from glob import has_magic
from tempfile import SpooledTemporaryFile
from typing import Any, cast

from fsspec import AbstractFileSystem
from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.utils import stringify_path

from diskless.client.client import BUFFER_BYTES, TIMEOUT_S, Client, connect
from diskless.client.descriptor import SCHEME, parse_uri, read_token, resolve
from diskless.client.fsspec_files import (
    SPOOL_BYTES_MAX,
    CompressedFile,
    DisklessTransaction,
    ReadFile,
    WriteFile,
    describe,
)
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    DisklessError,
    NotFound,
    PathIsDirectory,
    PathIsFile,
)
from diskless.paths import normalize

CLIENTS_MAX = 8
"""Clients that instances share: fsspec makes an instance for every thread."""
RESOLVE_INTERVAL_S = 1.0
"""How often a cluster's name is looked up again."""


@lru_cache(maxsize=CLIENTS_MAX)
def _client_of(authority: str, cluster: str, token: str, timeout_s: float) -> Client:
    """`cluster` is the id that the authority means now."""
    return connect(f"{SCHEME}://{authority}/", token=token, timeout_s=timeout_s)


class DisklessFileSystem(AbstractFileSystem):
    """Files in the memory of a cluster. Threads may share one, except in a transaction.

    Raises the classes of diskless.errors, most of which are built-in ones too: NotFound
    is a FileNotFoundError. Signatures are fsspec's.
    """

    protocol = SCHEME
    root_marker = "/"
    transaction_type = DisklessTransaction

    def __init__(
        self,
        cluster: str = "",
        timeout_s: float = TIMEOUT_S,
        token_file: str = "",
        **options: Any,
    ) -> None:
        """`cluster` is a name, HOST:PORT of a gateway, or a URI; "" is the default one.
        `token_file` holds a token to use it with, unless the environment or the cluster's
        descriptor does."""
        super().__init__(**options)
        self.cluster = parse_uri(cluster)[0] if cluster.startswith(f"{SCHEME}:") else cluster
        self.timeout_s = timeout_s
        self.token_file = token_file
        self._client: Client | None = None
        self._resolve_at = 0.0

    @property
    def client(self) -> Client:
        """The client of the cluster that the name means now. Raises NoCluster."""
        if self._client is None or time.monotonic() >= self._resolve_at:
            token = read_token(self.token_file) if self.token_file else ""
            known = resolve(self.cluster, token=token)
            self._client = _client_of(self.cluster, known.cluster, known.token, self.timeout_s)
            self._resolve_at = time.monotonic() + RESOLVE_INTERVAL_S
        return self._client

    # Paths.

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        return parse_uri(path)[1] if path.startswith(f"{SCHEME}:") else normalize(path)

    @staticmethod
    def _get_kwargs_from_urls(path):
        authority = parse_uri(path)[0] if path.startswith(f"{SCHEME}:") else ""
        return {"cluster": authority} if authority else {}

    def unstrip_protocol(self, name):
        return f"{SCHEME}://{self.cluster}{self._strip_protocol(name)}"

    # Questions.

    def info(self, path, **_):
        """`mtime` is in seconds; `checksum` the XXH64 of the content, in hexadecimal; `id`
        differs for every content that was ever put."""
        return describe(self.client.stat(self._strip_protocol(path)))

    def _type(self, path) -> str | None:
        try:
            return cast(str, self.info(path)["type"])
        except NotFound:
            return None

    def exists(self, path, **_):
        return self._type(path) is not None

    def isdir(self, path):
        return self._type(path) == "directory"

    def isfile(self, path):
        return self._type(path) == "file"

    def ls(self, path, detail=True, **_):
        entries = self.client.list(self._strip_protocol(path))
        return [describe(entry) if detail else entry.path for entry in entries]

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **_):
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        found: dict[str, dict[str, Any]] = {}
        level: list[dict[str, Any]] = []
        with suppress(NotFound):
            level.append(self.info(path))
        depth = 0
        while level:
            found |= {entry["name"]: entry for entry in level}
            directories = [entry["name"] for entry in level if entry["type"] == "directory"]
            level = []
            for directory in directories if maxdepth is None or depth < maxdepth else ():
                with suppress(NotFound):  # It was deleted meanwhile.
                    level += self.ls(directory)
            depth += 1
        names = sorted(name for name in found if withdirs or found[name]["type"] == "file")
        return {name: found[name] for name in names} if detail else names

    def du(self, path, total=True, maxdepth=None, withdirs=False, **_):
        if total and maxdepth is None:
            return self.client.summary(self._strip_protocol(path)).bytes
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def modified(self, path):
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=UTC)

    def created(self, path):
        """When this content was put. Raises PathIsDirectory: of those it is not known."""
        if self.isdir(path):
            raise PathIsDirectory(f"{path} is a directory: when it was made is not known")
        return self.modified(path)

    # Content.

    def open(self, path, mode="rb", block_size=None, cache_options=None, compression=None, **more):
        """As fsspec says, for the modes rb, wb, xb, ab, and without `b` for text."""
        codec = get_compression(path, compression)
        if codec is None or "b" not in mode:
            return super().open(path, mode, block_size, cache_options, codec, **more)
        file = super().open(path, mode, block_size, cache_options, **more)
        compressed = compr[codec](file, mode=mode[0])
        return compressed if mode == "rb" else CompressedFile(compressed, file)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, overwrite=None, **_):
        if mode == "rb":
            buffer_bytes = block_size if isinstance(block_size, int) else BUFFER_BYTES
            return ReadFile(self, path, buffer_bytes=buffer_bytes)
        if mode not in ("wb", "xb", "ab") or (mode == "ab" and not autocommit):
            modes = "rb, wb, xb, ab" if autocommit else "rb, wb, xb (it is to be staged)"
            raise BadRequest(f"open {path}: mode {mode!r} is none of {modes}")
        overwrite = mode != "xb" if overwrite is None else overwrite
        if not overwrite and self.exists(path):
            raise AlreadyExists(f"{path} exists already")
        if autocommit:
            sink = self.client.open(path, "wb", overwrite=overwrite)
        else:
            sink = SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX)  # noqa: SIM115
        file = WriteFile(self, path, mode, overwrite=overwrite, sink=sink)
        if mode == "ab" and self.exists(path):
            self._copy_into(file, path)
        return file

    def _copy_into(self, file: WriteFile, path: str) -> None:
        try:
            with self.client.open(path) as source:
                shutil.copyfileobj(source, file, self.blocksize)
        except BaseException:
            file.discard()
            raise

    def cat_file(self, path, start=None, end=None, **_):
        start = start or 0
        if start >= 0 and (end is None or end >= 0):
            length = None if end is None else max(end - start, 0)
            return self.client.read(self._strip_protocol(path), start, length)
        with self.open(path) as file:
            first, last, _ = slice(start, end).indices(file.size)
            file.seek(first)
            return file.read(max(last - first, 0))

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        """Of several files the small ones come in as few requests as hold them."""
        if kwargs and not recursive:
            return super().cat(path, on_error=on_error, **kwargs)
        given = path if isinstance(path, list) else [path]
        if recursive:
            files = [file for one in given for top in self._match(one) for file in self.find(top)]
        else:
            files = self.expand_path(path)
            if not isinstance(path, list) and files == [self._strip_protocol(path)]:
                return self.cat_file(files[0])
        if not kwargs:
            return self.client.read_many(files, on_error=on_error)
        contents: dict[str, bytes | DisklessError] = {}
        for file in files:
            try:
                contents[file] = self.cat_file(file, **kwargs)
            except DisklessError as error:
                if on_error == "raise":
                    raise
                if on_error == "return":
                    contents[file] = error
        return contents

    def pipe(self, path, value=None, mode="overwrite", **_):
        """Several files, as {path: value}, become visible in one step."""
        given = path if isinstance(path, Mapping) else {path: value}
        files = {self._strip_protocol(name): data for name, data in given.items()}
        overwrite = mode != "create"
        if not self._intrans:
            if files:
                self.client.write_many(files, overwrite=overwrite)
            return
        for name, data in files.items():
            with self.open(name, "wb", overwrite=overwrite) as file:
                file.write(data)

    def pipe_file(self, path, value, mode="overwrite", **_):
        self.pipe({path: value}, mode=mode)

    def put_file(self, lpath, rpath, *args, mode="overwrite", **kwargs):
        kwargs["overwrite"] = mode != "create"
        super().put_file(lpath, rpath, *args, mode=mode, **kwargs)

    def cp_file(self, path1, path2, **_):
        try:
            source = self.open(path1)
        except PathIsDirectory:
            self.makedirs(path2, exist_ok=True)
            return
        with source, self.open(path2, "wb") as target:
            shutil.copyfileobj(source, target, self.blocksize)

    def touch(self, path, truncate=True, **_):
        """Raises NotImplementedError for a file that exists and must not be emptied."""
        try:
            self.pipe_file(path, b"", mode="overwrite" if truncate else "create")
        except AlreadyExists:
            raise NotImplementedError(f"{path}: its time cannot be changed alone") from None

    # Moving and deleting.

    def mkdir(self, path, create_parents=True, **_):
        path = self._strip_protocol(path)
        if not self.client.mkdirs(path, parents=create_parents):
            raise AlreadyExists(f"{path} exists already")

    def makedirs(self, path, exist_ok=False):
        if exist_ok:
            self.client.mkdirs(self._strip_protocol(path))
        else:
            self.mkdir(path)

    def rmdir(self, path):
        """Raises DirectoryNotEmpty, NotFound, PathIsFile."""
        if self.info(path)["type"] != "directory":
            raise PathIsFile(f"{path} is a file")
        self.client.delete(self._strip_protocol(path))

    def rm_file(self, path):
        if self.info(path)["type"] == "directory":
            raise PathIsDirectory(f"{path} is a directory: delete it with rm(recursive=True)")
        self.client.delete(self._strip_protocol(path))

    def rm(self, path, recursive=False, maxdepth=None):
        """A directory goes in one step, unless `maxdepth` spares what lies deeper.

        A path that exists is taken literally, even if it looks like a pattern.
        """
        for one in path if isinstance(path, list) else [path]:
            for found in self._match(one):
                if not recursive:
                    self.rm_file(found)
                elif maxdepth is None:
                    self.client.delete(found, recursive=True)
                else:
                    self._rm_shallow(found, maxdepth)

    def _rm_shallow(self, path: str, maxdepth: int) -> None:
        for inner in reversed(self.find(path, maxdepth=maxdepth, withdirs=True)):
            with suppress(DirectoryNotEmpty):
                self.client.delete(inner)

    def _match(self, path) -> list[str]:
        """What a path or a pattern means, the deepest first. Raises NotFound."""
        path = self._strip_protocol(path)
        found = [path] if self.exists(path) else self.glob(path) if has_magic(path) else []
        if not found:
            raise NotFound(f"{path}: no such file or directory")
        return found[::-1]

    def mv(self, path1, path2, recursive=False, maxdepth=None, **_):
        """One path is moved in one step, into `path2` if that is a directory.

        It may replace a file. Several (a list or a pattern) are copied, then deleted.
        """
        if isinstance(path1, list) or maxdepth is not None or not self.exists(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source == target:
            return
        if stringify_path(path2).endswith("/") or self.isdir(target):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        try:
            self.client.rename(source, target, overwrite=True)
        except NotFound:
            self.client.mkdirs(self._parent(target))
            self.client.rename(source, target, overwrite=True)
