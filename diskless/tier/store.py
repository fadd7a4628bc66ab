"""What the tier asks of a store of objects. `address` opens one.

Every request has a deadline, is counted, and fails with one of our own errors in one clear line:
StoreDown (again later; a write may have happened), StoreDenied, NoSuchBucket, or Missing and
Taken, which are answers.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import Buffer

from diskless.errors import (
    AlreadyExists,
    NoSuchBucket,
    NotFound,
    StoreDenied,
    StoreDown,
    Superseded,
)
from diskless.tier import form

REQUEST_S = 20.0
BYTES_PER_S_MIN = 1024 * 1024
"""A request has REQUEST_S, and more for what it carries."""


class Taken(AlreadyExists):
    """An object of that name is there already."""


class Missing(NotFound):
    """No object of that name is there."""


class Store(Protocol):
    """Objects by name. All but Taken and Missing are raised by every method: StoreDown,
    StoreDenied, NoSuchBucket."""

    uri: str
    """For people and for the log: it holds no secret."""

    async def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        """Creates an object, whole or not at all. Raises Taken if the name is in use: perhaps
        by this very request, sent again by the library."""

    async def get(self, name: str, start: int = 0, end: int | None = None) -> memoryview:
        """The bytes from `start` to `end`, fewer if the object ends before. Raises Missing."""

    async def size(self, name: str) -> int:
        """Raises Missing."""

    async def delete(self, name: str) -> None:
        """No error if there is none."""

    async def names(self, prefix: str) -> list[str]:
        """Names that begin so, in order. A hint: some may be gone, others may be absent."""

    async def settle(self, name: str) -> None:
        """Returns once the object, which was seen, outlives a crash of the machine too."""


@dataclass
class Counts:
    """What was asked of a store, for `status`."""

    requests: int = 0
    objects_put: int = 0
    bytes_put: int = 0
    bytes_got: int = 0
    requests_failed: int = 0


class Metered:
    """A store with deadlines and counts around another one."""

    def __init__(self, store: Store, *, request_s: float = REQUEST_S) -> None:
        self._store = store
        self._request_s = request_s
        self.uri = store.uri
        self.counts = Counts()

    async def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        size = form.total_bytes(parts)
        async with self._request("write", name, size):
            await self._store.put_new(name, parts)
        self.counts.objects_put += 1
        self.counts.bytes_put += size

    async def get(self, name: str, start: int = 0, end: int | None = None) -> memoryview:
        async with self._request("read", name, 0 if end is None else end - start):
            data = await self._store.get(name, start, end)
        self.counts.bytes_got += len(data)
        return data

    async def size(self, name: str) -> int:
        async with self._request("find", name):
            return await self._store.size(name)

    async def delete(self, name: str) -> None:
        async with self._request("delete", name):
            await self._store.delete(name)

    async def names(self, prefix: str) -> list[str]:
        async with self._request("list", prefix, 10 * BYTES_PER_S_MIN):
            return await self._store.names(prefix)

    async def settle(self, name: str) -> None:
        async with self._request("settle", name):
            await self._store.settle(name)

    @asynccontextmanager
    async def _request(self, verb: str, name: str, size: int = 0) -> AsyncIterator[None]:
        self.counts.requests += 1
        limit_s = self._request_s + size / BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            self.counts.requests_failed += 1
            raise StoreDown(f"{self.uri} did not {verb} {name} within {limit_s:.0f} s") from None
        except (StoreDown, StoreDenied, NoSuchBucket):
            self.counts.requests_failed += 1
            raise


class ReadOnly:
    """A store that refuses every change: for a trial restore beside a cluster
    that continues with the tier."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.uri = store.uri
        self.get = store.get
        self.size = store.size
        self.names = store.names

    async def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        raise Superseded(f"{self.uri} is only read here: {name} is not written")

    async def delete(self, name: str) -> None:
        raise Superseded(f"{self.uri} is only read here: {name} is not deleted")

    async def settle(self, name: str) -> None:
        """Its own cluster has seen to that."""


async def check(store: Store, *, write: bool = True) -> None:
    """Whether the store is fit to be a tier, told by doing: raises what a first round would.

    Reads before it writes: some servers make a bucket of whatever name is written to.
    """
    name = f"probe/{secrets.token_hex(8)}"
    with suppress(Missing):
        await store.get(name)
    if not write:
        return
    with suppress(Taken):  # The library's second attempt may meet its first one.
        await store.put_new(name, [b"diskless"])
    try:
        await store.put_new(name, [b"again"])
    except Taken:
        if bytes(await store.get(name)) == b"diskless":
            return
    finally:
        await store.delete(name)
    raise StoreDenied(
        f"{store.uri} overwrites objects that were to be created: no tier can be there"
    )
