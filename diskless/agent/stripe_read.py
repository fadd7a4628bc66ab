"""Reading a range of one stripe: from the shards that have it, or rebuilt from the others."""

import asyncio
from collections.abc import Iterable

from diskless.agent.copies import Copies
from diskless.agent.fetcher import Fetcher
from diskless.codec import codec_of
from diskless.errors import (
    CorruptData,
    DisklessError,
    NotFound,
    ShardsAway,
    TooFewShards,
    Unavailable,
)
from diskless.model import Stripe, slot_name


class StripeRead:
    """One read of a range of one stripe's payload."""

    def __init__(
        self,
        fetcher: Fetcher,
        stripe: Stripe,
        start: int,
        stop: int,
        *,
        hedge_delay_s: float,
        copies: Copies | None = None,
        file_bytes: int = 0,
    ) -> None:
        """For a client with `copies`, and then of a file of so many bytes."""
        self._fetcher = fetcher
        self._prospects = fetcher.prospects
        self._hedge_delay_s = hedge_delay_s
        self._copies = copies
        self._keeps = copies is not None and copies.takes(file_bytes)
        self._stripe = stripe
        self._codec = codec_of(stripe)
        self._pieces = self._codec.locate(
            payload_bytes=stripe.payload_bytes, start=start, stop=stop
        )
        self._bad: dict[int, DisklessError] = {}
        self.is_degraded = False
        """Whether it has to do without a shard that it wanted."""

    async def run(self) -> list[memoryview]:
        found = await self._fetch_pieces()
        lost = [piece for piece in self._pieces if piece[0] not in found]
        if lost:
            self.is_degraded = True
            found |= await self._reconstruct(lost)
        return [found[index] for index, _, _ in self._pieces]

    async def _fetch_pieces(self) -> dict[int, memoryview]:
        """The healthy way: each piece from a copy, or its data shard; slow ones are left out."""
        prospects, stripe = self._prospects, self._stripe
        found: dict[int, memoryview | None] = {**self._copied(self._pieces)}
        wanted = [piece for piece in self._pieces if piece[0] not in found]
        likely = [piece for piece in wanted if prospects.is_prompt(stripe, piece[0])]
        if len(likely) < len(wanted):
            self._fetcher.note_unlikely(stripe)
        near = [piece for piece in likely if prospects.is_near(stripe, piece[0])]
        if len(likely) == 1 and not near:
            return _there(found | await self._fetch_alone(*likely[0]))
        tasks = {
            index: asyncio.create_task(self._try(index, a, b))
            for index, a, b in likely
            if (index, a, b) not in near
        }
        try:
            for index, a, b in near:  # which waits for nothing, while the others are under way
                found[index] = await self._try(index, a, b)
            if tasks:
                await asyncio.wait(tasks.values(), timeout=self._hedge_delay_s)
        finally:
            for task in tasks.values():
                task.cancel()
        found |= {i: task.result() for i, task in tasks.items() if task.done()}
        return _there(found)

    async def _fetch_alone(self, index: int, start: int, stop: int) -> dict[int, memoryview | None]:
        """The only piece of a small read that lies elsewhere: nothing goes on beside it, so it
        needs no task."""
        try:
            async with asyncio.timeout(self._hedge_delay_s):
                return {index: await self._try(index, start, stop)}
        except TimeoutError:
            return {}

    def _copied(self, pieces: Iterable[tuple[int, int, int]]) -> dict[int, memoryview]:
        """What of these is copied here, by index, verified; what lies here needs no copy."""
        copies, stripe = self._copies, self._stripe
        if copies is None:
            return {}
        found = {
            index: copies.find(stripe.id, index, start, stop)
            for index, start, stop in pieces
            if not self._prospects.is_near(stripe, index)
        }
        return {index: data for index, data in found.items() if data is not None}

    async def _try(self, index: int, start: int, stop: int) -> memoryview | None:
        copies, far = self._copies, not self._prospects.is_near(self._stripe, index)
        keep = copies if self._keeps and far and index < self._stripe.data_shards else None
        try:
            data = await self._fetcher.fetch(self._stripe, index, start, stop, keep=keep)
        except (NotFound, CorruptData, Unavailable) as error:
            self._bad[index] = error
            self._fetcher.note_failure(self._stripe, index, error)
            return None
        if copies is not None and far:
            copies.missed(len(data))
        return data

    async def _reconstruct(self, lost: list[tuple[int, int, int]]) -> dict[int, memoryview]:
        """The lost pieces, from the same columns of any m shards, or of their own after all."""
        low = min(start for _, start, _ in lost)
        high = max(stop for _, _, stop in lost)
        wanted = {index for index, _, _ in lost}
        columns = await self.gather_columns(low, high, skip=wanted, wanted=wanted)
        missing = [index for index, _, _ in lost if index not in columns]
        rebuilt = self._codec.reconstruct(columns, missing) if missing else {}
        whole = columns | rebuilt
        return {index: memoryview(whole[index])[a - low : b - low] for index, a, b in lost}

    async def gather_columns(
        self, low: int, high: int, *, skip: set[int], wanted: set[int] | None = None
    ) -> dict[int, memoryview]:
        """Columns [low, high) of m shards; those in `skip` come last, if at all. Fewer if all
        `wanted` are among them: they were only slow, and may be all that is left."""
        need = self._stripe.data_shards
        columns = self._copied((index, low, high) for index in range(need))
        order = sorted(
            (i for i in range(self._codec.total_shards) if i not in {*self._bad, *columns}),
            key=lambda i: (
                not self._prospects.is_likely(self._stripe, i),
                self._prospects.is_late(self._stripe, i),
                i in skip,
                not self._prospects.is_near(self._stripe, i),
            ),
        )
        waiting: dict[asyncio.Task[memoryview | None], int] = {}
        try:
            while len(columns) < need and not (wanted and wanted <= columns.keys()):
                while order and len(columns) + len(waiting) < need:
                    index = order.pop(0)
                    waiting[asyncio.create_task(self._try(index, low, high))] = index
                if not waiting:
                    raise self._too_few(len(columns))
                done, _ = await asyncio.wait(
                    waiting,
                    timeout=self._hedge_delay_s if order else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:  # all that we asked are slow: ask one more
                    index = order.pop(0)
                    waiting[asyncio.create_task(self._try(index, low, high))] = index
                for task in done:
                    index = waiting.pop(task)
                    if (data := task.result()) is not None:
                        columns[index] = data
        finally:
            for task in waiting:
                task.cancel()
        return columns

    def _too_few(self, readable: int) -> TooFewShards:
        stripe = self._stripe
        away = [i for i, error in self._bad.items() if self._prospects.may_return(stripe, i, error)]
        is_lost = readable + len(away) < stripe.data_shards
        slots = sorted({stripe.places[index].slot for index in self._bad})
        kind, what = (TooFewShards, "gone") if is_lost else (ShardsAway, "silent or gone")
        return kind(
            f"stripe {stripe.id}: {readable} of {stripe.data_shards} required "
            f"shards readable ({what}: {', '.join(slot_name(slot) for slot in slots)})"
        )


def _there(found: dict[int, memoryview | None]) -> dict[int, memoryview]:
    return {index: data for index, data in found.items() if data is not None}
