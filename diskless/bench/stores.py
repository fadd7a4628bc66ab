"""The stores that do the same work: diskless, local files, and Redis with two replicas.

An *address* is small, can be sent to another process, and opens a store there. A store may
be used by many threads. A write has returned when it is as safe as that store makes it.
"""

import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from diskless.bench import redis_servers
from diskless.client.client import TIMEOUT_S, Client, connect

SETTLE_TIMEOUT_S = 60.0
SETTLE_POLL_S = 0.05
WAIT_MS = 10_000
"""How long Redis may take to have a write on both replicas."""
UNCOPIED_BYTES = 1024 * 1024
"""From here on a value is sent to Redis as it lies in memory."""
ROOT = "/bench"


class Store(Protocol):
    def write(self, key: str, data: bytes) -> None: ...
    def write_many(self, files: Mapping[str, bytes]) -> None: ...
    def read(self, key: str) -> bytes: ...
    def clear(self) -> None:
        """Deletes everything, and returns when its memory is free again."""

    def close(self) -> None: ...


class Address(Protocol):
    def open(self) -> Store: ...


@dataclass(frozen=True)
class DisklessAt:
    cluster: str
    timeout_s: float = TIMEOUT_S

    def open(self) -> "DisklessStore":
        return DisklessStore(connect(f"diskless://{self.cluster}/", timeout_s=self.timeout_s))


class DisklessStore:
    def __init__(self, client: Client) -> None:
        self.client = client

    def write(self, key: str, data: bytes) -> None:
        self.client.write(f"{ROOT}/{key}", data)

    def write_many(self, files: Mapping[str, bytes]) -> None:
        self.client.write_many({f"{ROOT}/{key}": data for key, data in files.items()})

    def read(self, key: str) -> bytes:
        return self.client.read(f"{ROOT}/{key}")

    def clear(self) -> None:
        self.client.delete(ROOT, recursive=True)
        wait_for_room(self.client)

    def close(self) -> None:
        self.client.close()


def wait_for_room(client: Client) -> None:
    """Waits until what was deleted has been freed."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while client.status().stripes_freed:
        if time.monotonic() > deadline:
            raise TimeoutError("deleted stripes were not freed")
        time.sleep(SETTLE_POLL_S)


@dataclass(frozen=True)
class FilesAt:
    directory: str
    fsync: bool = False

    def open(self) -> "FileStore":
        return FileStore(Path(self.directory), fsync=self.fsync)


class FileStore:
    """A temporary file that is renamed, as Hadoop's local file system and Spark do it.

    Those never call fsync: a write is then safe from a crash of the process, and from
    nothing else. With `fsync` the file, not its directory, is on the disk before the rename.
    """

    def __init__(self, root: Path, *, fsync: bool) -> None:
        self._root = root
        self._fsync = fsync
        self._made: set[Path] = set()

    def write(self, key: str, data: bytes) -> None:
        path = self._root / key
        if path.parent not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(path.parent)
        temporary = f"{path}.{threading.get_ident()}.tmp"
        with open(temporary, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if self._fsync:
                os.fsync(file.fileno())
        os.rename(temporary, path)

    def write_many(self, files: Mapping[str, bytes]) -> None:
        for key, data in files.items():
            self.write(key, data)

    def read(self, key: str) -> bytes:
        return (self._root / key).read_bytes()

    def clear(self) -> None:
        for entry in self._root.iterdir():
            shutil.rmtree(entry)
        self._made.clear()

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class RedisAt:
    port: int
    replicas: int = redis_servers.REPLICAS

    def open(self) -> "RedisStore":
        return RedisStore(redis_servers.connect(self.port), replicas=self.replicas)


class RedisStore:
    """SET and WAIT in one round trip; a burst is a pipeline of SETs and one WAIT."""

    def __init__(self, client: Any, *, replicas: int) -> None:
        self._client = client
        self._replicas = replicas
        self.wait_ms = WAIT_MS

    def write(self, key: str, data: bytes) -> None:
        if len(data) < UNCOPIED_BYTES:
            self.write_many({key: data})
        else:
            self._send_large(key.encode(), data)

    def write_many(self, files: Mapping[str, bytes]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for key, data in files.items():
                pipe.set(key, data)
            self._finish(pipe)

    def read(self, key: str) -> bytes:
        data = self._client.get(key)
        if data is None:
            raise KeyError(key)
        return bytes(data)

    def clear(self) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.flushall()
            self._finish(pipe)

    def close(self) -> None:
        self._client.close()

    def _send_large(self, key: bytes, data: bytes) -> None:
        """As `write_many`, but for the client's copies of the value, which halve its speed."""
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(data))
        numbers = [b"%d" % number for number in (self._replicas, self.wait_ms)]
        wait = b"\r\n*3\r\n$4\r\nWAIT\r\n" + b"".join(
            b"$%d\r\n%b\r\n" % (len(n), n) for n in numbers
        )
        pool = self._client.connection_pool
        connection = pool.get_connection()
        try:
            connection.send_packed_command([head, data, wait], check_health=False)
            connection.read_response()
            self._check(connection.read_response())
        finally:
            pool.release(connection)

    def _finish(self, pipe: Any) -> None:
        pipe.wait(self._replicas, self.wait_ms)
        self._check(pipe.execute()[-1])

    def _check(self, reached: int) -> None:
        if reached < self._replicas:
            raise TimeoutError(f"Redis reached {reached} of {self._replicas} replicas")
