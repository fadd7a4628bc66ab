"""A store in memory that does all that stores do to their callers.

It counts, delays, refuses, loses answers, answers after the caller gave up, is away for a while,
lists what is gone and not what is there, and dies. What a request does happens whether or not its
caller still lives. As a file system, a name that was just made can vanish in a crash, until the
directory is synced. `record` is what happened, in order.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from typing_extensions import Buffer

from diskless.errors import StoreDown
from diskless.tier.store import Missing, Taken

_T = TypeVar("_T")
PATIENCE_S = 10.0


@dataclass
class Faults:
    """Shares of requests."""

    refused: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    stale_lists: float = 0.0


class FaultyStore:
    uri = "memory://faulty"

    def __init__(self, rng: random.Random, faults: Faults | None = None, *, files: bool = False):
        self.rng = rng
        self.faults = faults or Faults()
        self.files = files
        self.away = False
        self.objects: dict[str, bytes] = {}
        self.unsynced: set[str] = set()
        self.record: list[tuple[str, str]] = []
        self.requests = 0
        self._before: list[str] = []  # what stale listings show
        self._pending: set[asyncio.TimerHandle] = set()

    # --- the store ---

    async def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)

        def apply() -> None:
            if name in self.objects:
                self._sync(name)
                raise Taken(name)
            self.objects[name] = data
            self.record.append(("put", name))
            if self.files:
                self.unsynced.add(name)

        await self._ask("put", name, apply, after=lambda: self._sync(name))

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        def apply() -> bytes:
            data = self.find(name)
            if start and start >= len(data):
                raise Missing(name)
            return data[start:end]

        return await self._ask("get", name, apply)

    async def size(self, name: str) -> int:
        return await self._ask("size", name, lambda: len(self.find(name)))

    async def delete(self, name: str) -> None:
        def apply() -> None:
            if self.objects.pop(name, None) is not None:
                self.record.append(("delete", name))
            self.unsynced.discard(name)

        await self._ask("delete", name, apply)

    async def names(self, prefix: str) -> list[str]:
        def apply() -> list[str]:
            found = sorted(self.objects)
            if self.rng.random() < self.faults.stale_lists:
                found = self._before
            else:
                self._before = found
            return [name for name in found if name.startswith(prefix)]

        return await self._ask("list", prefix, apply)

    async def settle(self, name: str) -> None:
        await self._ask("settle", name, lambda: self._sync(name))

    # --- what is done to it ---

    def crash(self) -> None:
        """The machine of a file system dies, with all that was under way."""
        for handle in self._pending:
            handle.cancel()
        self._pending.clear()
        for name in sorted(self.unsynced):
            if self.rng.random() < 0.5:
                del self.objects[name]
                self.record.append(("vanish", name))
        self.unsynced.clear()

    def _sync(self, name: str) -> None:
        folder = name.rpartition("/")[0] + "/"
        self.unsynced = {other for other in self.unsynced if not other.startswith(folder)}

    def find(self, name: str) -> bytes:
        try:
            return self.objects[name]
        except KeyError:
            raise Missing(name) from None

    async def _ask(
        self,
        verb: str,
        name: str,
        apply: Callable[[], _T],
        *,
        after: Callable[[], None] = lambda: None,
    ) -> _T:
        """`apply` happens at one moment; `after` at a later one, and then the answer comes."""
        self.requests += 1
        rng, faults = self.rng, self.faults
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()
        roll = rng.random()
        writes = verb in ("put", "delete")
        if not writes:
            roll **= 1 / 3  # Reads are tried three times by every library.
        there_s = self._delay()
        back_s = self._delay()
        if self.away or roll < faults.refused:
            await asyncio.sleep(there_s)
            raise StoreDown(f"{verb} {name}: 503")
        roll -= faults.refused
        lost = roll < faults.lost
        late = not lost and writes and roll - faults.lost < faults.late
        if late:
            there_s += PATIENCE_S + rng.random() * 100

        def finish(result: _T) -> None:
            # On a file system it is the caller that syncs: not if it was killed meanwhile.
            if not answer.cancelled():
                after()
            if not lost:
                _answer(answer, result)

        def arrive() -> None:
            try:
                result = apply()
            except (Taken, Missing) as error:
                refusal = error
                self._later(back_s, lambda: _fail(answer, refusal))
            else:
                self._later(back_s, lambda: finish(result))

        self._later(there_s, arrive)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await answer
        except TimeoutError:
            raise StoreDown(f"{verb} {name}: no answer") from None

    def _later(self, delay_s: float, work: Callable[[], object]) -> None:
        def run() -> None:
            self._pending.discard(handle)
            work()

        handle = asyncio.get_running_loop().call_later(delay_s, run)
        self._pending.add(handle)

    def _delay(self) -> float:
        slow = self.rng.random() < self.faults.slow
        return self.rng.random() * (0.45 * PATIENCE_S if slow else 0.05)


class Glance:
    """The objects of a store as they are now: reading takes no time and never fails."""

    uri = "memory://glance"

    def __init__(self, store: FaultyStore) -> None:
        self._store = store

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self._store.find(name)[start:end]

    async def size(self, name: str) -> int:
        return len(self._store.find(name))

    async def names(self, prefix: str) -> list[str]:
        return [name for name in sorted(self._store.objects) if name.startswith(prefix)]

    async def settle(self, name: str) -> None:
        pass

    async def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        raise AssertionError("whoever looks changes nothing")

    async def delete(self, name: str) -> None:
        raise AssertionError("whoever looks changes nothing")


def _answer(future: "asyncio.Future[_T]", result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[_T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
