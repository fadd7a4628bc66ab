"""`file://`: a directory as a store of objects, whose objects outlive a crash of the machine.

Reads are the library's. Writes are ours, because it does not fsync: an object is written and
fsynced under a temporary name, linked to its own, which fails if that is in use, and the
directory is fsynced. So a name is either absent or the name of a whole object, always.

A directory may be on a mount that hangs, and whoever touches it with it. So only threads of its
own do, a few: never the event loop, nor the threads that all others share.
"""

import asyncio
import ctypes
import errno
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar

import obstore
from obstore.store import LocalStore
from typing_extensions import Buffer

from diskless.errors import StoreDenied, StoreDown
from diskless.tier.store import Missing, Taken

TEMPORARY = ".tmp"
STALE_S = 3600
"""A temporary file that old, by the clock of its file system, is of a writer that died. Whoever
writes looks for them as often."""
THREADS = 8
_BUFFERS_MAX = 512
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FileStore:
    def __init__(
        self,
        root: Path,
        *,
        fsync: Callable[[int], None] = os.fsync,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._fsync = fsync
        self._now_s = now_s
        self._next_sweep_s = float("-inf")
        self._made: set[Path] = set()
        self._is: tuple[int, int] | None = None  # which directory the root was
        self._last = ""  # what was created there last
        self._local: LocalStore | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tier")
        self.uri = f"file://{root}"

    async def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        await self._aside(self._put_new, name, parts)

    async def get(self, name: str, start: int = 0, end: int | None = None) -> memoryview:
        options = {} if not start and end is None else {"range": _range(start, end)}
        if end is not None and end <= start:
            return memoryview(b"")
        try:
            reader = self._local or await self._aside(self._reader)
            result = await obstore.get_async(reader, name, options=options)  # type: ignore[arg-type]
            return memoryview(await result.bytes_async())
        except FileNotFoundError:
            raise Missing(f"{self.uri} has no {name}") from None
        except obstore.exceptions.BaseError as error:
            raise await self._aside(self._why, name, start, error) from None

    async def size(self, name: str) -> int:
        return await self._aside(self._size, name)

    async def delete(self, name: str) -> None:
        await self._aside(self._delete, name)

    async def names(self, prefix: str) -> list[str]:
        return await self._aside(self._names, prefix)

    async def settle(self, name: str) -> None:
        try:
            await self._aside(self._sync_directory, (self._root / name).parent)
        except OSError as error:
            raise self._failed(error, name) from None

    async def _aside(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`work(*args)` on a thread. Who gives up while that has not begun leaves nothing behind,
        however long the threads hang."""
        todo = [partial(work, *args, **kwargs)]

        def begin() -> _T:
            return todo.pop()()

        try:
            return await asyncio.wrap_future(self._threads.submit(begin))
        finally:
            todo.clear()

    def _put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        target = self._root / name
        try:
            self._check_root()
            self._make_directory(target.parent)
            self._make_directory(self._root / TEMPORARY)
            temporary = self._root / TEMPORARY / secrets.token_hex(16)
            try:
                self._write(temporary, parts)
                taken = not _link(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            # Also if it is taken: whoever made it may have died before its name was safe.
            self._sync_directory(target.parent)
            found = self._root.stat()
        except OSError as error:
            raise self._failed(error, name) from None
        self._is, self._last = (found.st_dev, found.st_ino), name
        if self._now_s() >= self._next_sweep_s:
            self._next_sweep_s = self._now_s() + STALE_S
            with suppress(OSError):  # the next one tries again
                self.sweep()
        if taken:
            raise Taken(f"{self.uri} has {name} already")

    def _check_root(self) -> None:
        """What was mounted there may be gone, or the directory deleted. In the one that is there
        instead nothing could ever be restored; it must not seem to be the tier."""
        if self._is is None:
            return
        try:
            found = self._root.stat()
        except FileNotFoundError:
            raise StoreDown(f"{self.uri} is not there any more") from None
        if (found.st_dev, found.st_ino) != self._is and not (self._root / self._last).exists():
            raise StoreDown(f"{self.uri} is another directory than it was: it lacks {self._last}")

    def _write(self, path: Path, parts: Sequence[Buffer]) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            views = iter([view for part in parts if len(view := memoryview(part).cast("B"))])
            while batch := list(islice(views, _BUFFERS_MAX)):
                _write_all(handle, batch)
            self._fsync(handle)
        finally:
            os.close(handle)

    def _make_directory(self, path: Path) -> None:
        """Also makes the directory's own name safe, and those above it that are new."""
        if path in self._made and path.is_dir():
            return
        if not path.is_dir():
            self._make_directory(path.parent)
            with suppress(FileExistsError):  # Another writer may be making it.
                path.mkdir(mode=0o700)
            self._sync_directory(path.parent)
        self._made.add(path)

    def _sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._fsync(handle)
        finally:
            os.close(handle)

    def _reader(self) -> LocalStore:
        if self._local is None:
            if not self._root.is_dir():
                raise Missing(f"{self.uri} is not there")
            self._local = LocalStore(self._root)
        return self._local

    def _size(self, name: str) -> int:
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            raise Missing(f"{self.uri} has no {name}") from None
        except OSError as error:
            raise self._failed(error, name) from None

    def _delete(self, name: str) -> None:
        try:
            (self._root / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error, name) from None

    def _names(self, prefix: str) -> list[str]:
        folder = self._root / prefix.rpartition("/")[0]
        try:
            found = sorted(entry.relative_to(self._root).as_posix() for entry in folder.rglob("*"))
        except OSError as error:
            raise self._failed(error, prefix) from None
        return [name for name in found if name.startswith(prefix)]

    def sweep(self) -> int:
        """Removes what writers left that died, and says how many. Others may do so too."""
        folder = self._root / TEMPORARY
        now = folder / secrets.token_hex(16)
        now.touch()
        limit = now.stat().st_mtime - STALE_S
        now.unlink()
        found = 0
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < limit:
                    path.unlink()
                    found += 1
        return found

    def _why(self, name: str, start: int, error: Exception) -> Exception:
        """What kept an object from being read: the library says it in words alone."""
        try:
            with (self._root / name).open("rb") as file:
                if start >= os.fstat(file.fileno()).st_size:
                    return Missing(f"{self.uri} has no byte {start} of {name}")
        except FileNotFoundError:
            return Missing(f"{self.uri} has no {name}")
        except OSError as failure:
            return self._failed(failure, name)
        return StoreDown(f"{self.uri}: {name} cannot be read ({_first_line(error)})")

    def _failed(self, error: OSError, name: str) -> Exception:
        where = error.filename or name
        text = f"{self.uri}: {where}: {error.strerror or error}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreDenied(f"{text}; a tier's directory must be writable by this user")
        if error.errno in (errno.ENOTDIR, errno.ENOENT):
            return StoreDenied(f"{text}; a tier needs a directory there")
        return StoreDown(text)


def _range(start: int, end: int | None) -> object:
    return {"offset": start} if end is None else (start, end)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _write_all(handle: int, views: list[memoryview]) -> None:
    while views:
        written = os.writev(handle, views)
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]


def _link(source: Path, target: Path) -> bool:
    """Whether it could be done: not if `target` is there."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _rename_new(source, target)
    return True


def _rename_new(source: Path, target: Path) -> bool:
    """As `_link`, where there are no hard links."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = libc.renameat2(
        _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE
    )
    number = ctypes.get_errno() if code else 0
    if number not in (0, errno.EEXIST):
        raise OSError(number, os.strerror(number), str(target))
    return number == 0
