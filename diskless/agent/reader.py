"""From extents to bytes: fetch what is needed, verify it, reconstruct what is missing.

A healthy read fetches only the blocks of the data shards that hold its range, its
own memory first. A shard that is missing, slow or corrupt is replaced by the same
columns of others. What is returned was verified; otherwise an error is raised. The holder
of a shard that could not be read is asked to look at it, so that it is repaired.

Bytes of which too few shards can be had are read from the tier, if it has them.

Down is not lost: where agents that are only silent could make up for what is missing, a read
waits for them, and in the end is refused in a way that lets its client ask again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from diskless.agent.cold import ColdReader, is_cold_extent
from diskless.agent.copies import Copies
from diskless.agent.memory import Memory
from diskless.agent.ports import ShardPeers
from diskless.agent.roster import Roster
from diskless.checksum import BLOCK_BYTES, seed, verify_blocks
from diskless.codec import codec_of
from diskless.errors import (
    AgentGone,
    CorruptData,
    DisklessError,
    NotFound,
    ShardsAway,
    TooFewShards,
    Unavailable,
)
from diskless.model import AgentInfo, Extent, Stripe, slot_name
from diskless.namespace.views import TierPiece

log = logging.getLogger(__name__)

STRIPES_CACHED_MAX = 16_384
STRIPE_CACHED_BYTES = 560
"""What Python's objects for a remembered stripe take, as measured with 50,000 of them."""
CACHE_SHARE = 1 / 64
"""The part of the agent's memory for stripes that it remembers, if that holds fewer."""
TOGETHER_MAX = 16
"""Extents that are read at once: each takes time of the loop, and others must have turns."""
RETRY_PAUSE_S = 0.1
COMPLAINTS_MAX = 64
"""Questions to holders that may be under way; what is not asked is found by the next read."""
REFRESH_PAUSE_S = 1.0
"""Between two questions where stripes are whose shards seem to have moved."""

Locate = Callable[[Sequence[str]], Awaitable[list[Stripe]]]
Behind = Callable[[Extent], Awaitable[list[TierPiece] | None]]


class Reader:
    def __init__(
        self,
        *,
        roster: Roster,
        holders: ShardPeers,
        locate: Locate,
        behind: Behind,
        hedge_delay_s: float,
        patience_s: float,
        lost_after_s: float,
        memory: Memory,
        cold: ColdReader,
        copies: Copies | None = None,
    ) -> None:
        """`locate` asks the namespace where stripes are; it raises NotFound for freed ones.
        `behind` asks it what the tier has of an extent.
        `patience_s` is how long silent agents are asked again when there are no others;
        one that has been down for `lost_after_s` is not waited for any more. `copies` are what
        this agent keeps of other agents' shards, if it does."""
        self._roster = roster
        self._holders = holders
        self._locate = locate
        self._behind = behind
        self.hedge_delay_s = hedge_delay_s
        self._patience_s = patience_s
        self._lost_after_s = lost_after_s
        self._cold = cold
        self.copies = copies
        self._stripes: dict[str, Stripe] = {}
        self._stripes_max = min(
            int(CACHE_SHARE * memory.bytes_max / STRIPE_CACHED_BYTES), STRIPES_CACHED_MAX
        )
        memory.meter(
            lambda: {"caches": STRIPE_CACHED_BYTES * len(self._stripes)},
            lambda: (0, STRIPE_CACHED_BYTES * len(self._stripes)),
        )
        self._complaints: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._moved: set[str] = set()
        self._refresh: asyncio.Task[None] | None = None
        self.corrupt_shards_seen = 0
        self.degraded_reads = 0
        """Reads of a stripe that had to do without a shard that they wanted."""

    def learn(self, stripes: Sequence[Stripe]) -> None:
        """Remembers where stripes are, so that reading them asks nobody."""
        for stripe in stripes:
            self._stripes[stripe.id] = stripe
        while len(self._stripes) > self._stripes_max:
            del self._stripes[next(iter(self._stripes))]

    def close(self) -> None:
        """Ends what runs in the background."""
        for task in [*self._complaints.values(), *([self._refresh] if self._refresh else [])]:
            task.cancel()

    async def read(
        self,
        extents: Sequence[Extent],
        *,
        away: list[TooFewShards] | None = None,
        file_bytes: int | None = None,
    ) -> list[memoryview]:
        """The bytes of `extents`, in order, as a list of parts. What it waits for meanwhile is the
        last of `away`, for callers that may have to give up sooner. If a client reads a file, of so
        many bytes, copies serve it, and what comes from other agents is kept for the next time.

        Raises TooFewShards, naming the stripe and the agents that are gone, or ShardsAway
        if they may be back; NotFound if the bytes have been freed; Unavailable if the
        namespace cannot be asked. Of cold files also what `ColdReader.read` does.
        """
        away = [] if away is None else away
        if any(map(is_cold_extent, extents)):
            return await self._read_cold(extents, away, file_bytes)
        wanted = {extent.stripe for extent in extents}
        known = {id_: stripe for id_ in wanted if (stripe := self._remembered(id_)) is not None}
        if len(known) < len(wanted):
            located = await self._locate(sorted(wanted - known.keys()))
            self.learn(located)
            known |= {stripe.id: stripe for stripe in located}
        if len(extents) == 1:
            return await self._read_extent(extents[0], known[extents[0].stripe], away, file_bytes)
        pieces: list[memoryview] = []
        for start in range(0, len(extents), TOGETHER_MAX):
            parts = await asyncio.gather(
                *(
                    self._read_extent(extent, known[extent.stripe], away, file_bytes)
                    for extent in extents[start : start + TOGETHER_MAX]
                )
            )
            pieces += [piece for part in parts for piece in part]
        return pieces

    def _remembered(self, id_: str) -> Stripe | None:
        """Where a stripe is, as far as that is known here. Not of one that is being moved off an
        agent, or was: that may be gone when it is asked, and the read would be a degraded one."""
        stripe, ending = self._stripes.get(id_), self._roster.ending
        if stripe is not None and ending and any(p.slot in ending for p in stripe.places):
            return None
        return stripe

    async def _read_cold(
        self, extents: Sequence[Extent], away: list[TooFewShards], file_bytes: int | None
    ) -> list[memoryview]:
        """Some of these lie in the tier."""
        parts = await asyncio.gather(
            *(
                self._cold.read(extent)
                if is_cold_extent(extent)
                else self.read([extent], away=away, file_bytes=file_bytes)
                for extent in extents
            )
        )
        return [piece for part in parts for piece in part]

    async def read_stripe(self, stripe: Stripe) -> bytes:
        """The whole payload of a stripe that need not be committed yet."""
        parts = await _StripeRead(self, stripe, 0, stripe.payload_bytes).run()
        return b"".join(parts)

    async def gather(self, stripe: Stripe, *, skip: Collection[int]) -> dict[int, memoryview]:
        """As many whole shards as the stripe has data shards, verified; those in `skip`
        only if there are no others. Raises TooFewShards."""
        size = codec_of(stripe).shard_bytes(stripe.payload_bytes)
        read = _StripeRead(self, stripe, 0, 0)
        return await read.gather_columns(0, size, skip=set(skip))

    async def _read_extent(
        self,
        extent: Extent,
        stripe: Stripe,
        away: list[TooFewShards],
        file_bytes: int | None,
    ) -> list[memoryview]:
        end = extent.offset + extent.length
        if extent.offset < 0 or extent.length < 0 or end > stripe.payload_bytes:
            raise NotFound(f"stripe {stripe.id} has no bytes {extent.offset} to {end}")
        give_up_s = asyncio.get_running_loop().time() + self._patience_s
        asked = not self._cold.has_tier
        while True:
            try:
                return await _StripeRead(self, stripe, extent.offset, end, file_bytes).run()
            except TooFewShards as error:
                # The shards may have moved, or been freed, since we learned of them.
                (again,) = await self._locate([stripe.id])
                late = asyncio.get_running_loop().time() > give_up_s
                if again == stripe and not asked:
                    asked = True
                    pieces = await self._behind(extent)
                    if pieces is not None:
                        try:
                            return await self._cold.read_pieces(pieces)
                        except Unavailable:
                            if not error.retryable:
                                raise  # the tier may be back, and these shards will not
                if again == stripe and (late or not error.retryable):
                    raise
                if error.retryable:
                    away[:] = [error]
            self.learn([again])
            stripe = again
            await asyncio.sleep(RETRY_PAUSE_S)

    async def fetch(
        self, stripe: Stripe, index: int, start: int, stop: int, *, keep: Copies | None = None
    ) -> memoryview:
        """Bytes `start` to `stop` of one shard, verified; a copy goes to `keep`.

        Raises NotFound, CorruptData, Unavailable.
        """
        place = stripe.places[index]
        agent = self._roster.holder(place)
        if agent is None:
            raise NotFound(f"{slot_name(place.slot)} restarted without the shard")
        first = start // BLOCK_BYTES
        blocks = -(-stop // BLOCK_BYTES) - first
        data, checksums = await self._fetch_from(
            agent, stripe=stripe.id, index=index, first_block=first, blocks=blocks
        )
        good = verify_blocks(data, checksums, seed=seed(stripe.id, index), first_block=first)
        if not good or len(data) < stop - first * BLOCK_BYTES:
            self.corrupt_shards_seen += 1
            log.error(
                "corrupt shard stripe=%s index=%d agent=%s",
                stripe.id, index, slot_name(place.slot),
            )  # fmt: skip
            raise CorruptData(f"shard {index} of stripe {stripe.id} fails its checksum")
        if keep is not None:
            keep.keep(stripe.id, index, first, data, checksums)
        return data[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    async def _fetch_from(self, agent: AgentInfo, **blocks: Any) -> tuple[memoryview, bytes]:
        """An agent that is silent already is not given all the time of a fetch, so that the
        client hears why its read fails before its own time is up."""
        if self._is_there(agent):
            return await self._holders.fetch(agent, **blocks)
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._holders.fetch(agent, **blocks)
        except TimeoutError:
            raise Unavailable(f"{slot_name(agent.slot)} is silent") from None

    def _is_there(self, agent: AgentInfo) -> bool:
        return agent.up and not self._roster.suspects(agent)

    def is_near(self, stripe: Stripe, index: int) -> bool:
        return stripe.places[index].slot == self._roster.slot

    def is_likely(self, stripe: Stripe, index: int) -> bool:
        """Whether the holder of a shard is there, as far as we know."""
        agent = self._roster.holder(stripe.places[index])
        return agent is not None and self._is_there(agent)

    def is_prompt(self, stripe: Stripe, index: int) -> bool:
        """Whether it is likely, and not late."""
        agent = self._roster.holder(stripe.places[index])
        if agent is None or not self._is_there(agent):
            return False
        return not agent.slow or self.is_near(stripe, index)

    def is_late(self, stripe: Stripe, index: int) -> bool:
        """Whether the holder of a shard is known to be slow: then others are asked first."""
        agent = self._roster.holder(stripe.places[index])
        return agent is not None and agent.slow and not self.is_near(stripe, index)

    def may_return(self, stripe: Stripe, index: int, error: DisklessError) -> bool:
        """Whether a shard that could not be had is perhaps only away: its agent is silent, or
        in a life that this agent has not heard of yet. One whose process has ended is not
        waited for once the leader knows it too."""
        place = stripe.places[index]
        agent = self._roster.agents.get(place.slot)
        if agent is None or agent.incarnation < place.incarnation:
            return True
        return (
            agent.incarnation == place.incarnation
            and isinstance(error, Unavailable)
            and (agent.up or not isinstance(error, AgentGone))
            and self._roster.down_s(agent) < self._lost_after_s
        )

    def is_up(self, stripe: Stripe, index: int) -> bool:
        """Whether the leader holds the agent that has a shard to be up."""
        agent = self._roster.holder(stripe.places[index])
        return agent is not None and agent.up

    def note_unlikely(self, stripe: Stripe) -> None:
        """Shards of this stripe were not even asked for."""
        if any(not self.is_up(stripe, index) for index in range(len(stripe.places))):
            self._note_moved(stripe)

    def note_failure(self, stripe: Stripe, index: int, error: DisklessError) -> None:
        """Suspects a silent agent; asks one that answered what it has there."""
        agent = self._roster.holder(stripe.places[index])
        if agent is None:
            self._note_moved(stripe)
        elif isinstance(error, Unavailable):
            self._roster.suspect(agent)
        elif (stripe.id, index) not in self._complaints and len(self._complaints) < COMPLAINTS_MAX:
            self._note_moved(stripe)
            key = (stripe.id, index)
            task = self._complaints[key] = asyncio.create_task(self._complain(agent, *key))
            task.add_done_callback(lambda _: self._complaints.pop(key, None))

    async def _complain(self, agent: AgentInfo, stripe: str, index: int) -> None:
        try:
            await self._holders.verify(agent, stripe=stripe, index=index)
        except DisklessError as error:
            log.info("complaint not delivered agent=%s error=%s", slot_name(agent.slot), error)

    def _note_moved(self, stripe: Stripe) -> None:
        """A stripe that we remember may have been repaired: asks, in the background, where
        its shards are now. What we remember is enough to continue with."""
        if self._stripes.get(stripe.id) is not stripe or len(self._moved) >= self._stripes_max:
            return
        self._moved.add(stripe.id)
        if self._refresh is None:
            self._refresh = asyncio.create_task(self._refresh_moved())

    async def _refresh_moved(self) -> None:
        try:
            await asyncio.sleep(REFRESH_PAUSE_S)
            moved, self._moved = self._moved, set()
            known = [id_ for id_ in sorted(moved) if id_ in self._stripes]
            self.learn(await self._locate(known))
        except DisklessError as error:
            log.info("stripes not located again error=%s", error)
        finally:
            self._refresh = None


class _StripeRead:
    """One read of a range of one stripe's payload."""

    def __init__(
        self, reader: Reader, stripe: Stripe, start: int, stop: int, file_bytes: int | None = None
    ) -> None:
        """For a client if it is told of how large a file: only then copies matter."""
        self._copies = reader.copies if file_bytes is not None else None
        self._keeps = self._copies is not None and self._copies.takes(file_bytes or 0)
        self._reader = reader
        self._stripe = stripe
        self._codec = codec_of(stripe)
        self._pieces = self._codec.locate(
            payload_bytes=stripe.payload_bytes, start=start, stop=stop
        )
        self._bad: dict[int, DisklessError] = {}

    async def run(self) -> list[memoryview]:
        found = await self._fetch_pieces()
        lost = [piece for piece in self._pieces if piece[0] not in found]
        if lost:
            self._reader.degraded_reads += 1
            found |= await self._reconstruct(lost)
        return [found[index] for index, _, _ in self._pieces]

    async def _fetch_pieces(self) -> dict[int, memoryview]:
        """The healthy way: each piece from a copy, or its data shard; slow ones are left out."""
        reader, stripe = self._reader, self._stripe
        found: dict[int, memoryview | None] = {**self._copied(self._pieces)}
        wanted = [piece for piece in self._pieces if piece[0] not in found]
        likely = [piece for piece in wanted if reader.is_prompt(stripe, piece[0])]
        if len(likely) < len(wanted):
            reader.note_unlikely(stripe)
        near = [piece for piece in likely if reader.is_near(stripe, piece[0])]
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
                await asyncio.wait(tasks.values(), timeout=reader.hedge_delay_s)
        finally:
            for task in tasks.values():
                task.cancel()
        found |= {i: task.result() for i, task in tasks.items() if task.done()}
        return _there(found)

    async def _fetch_alone(self, index: int, start: int, stop: int) -> dict[int, memoryview | None]:
        """The only piece of a small read that lies elsewhere: nothing goes on beside it, so it
        needs no task."""
        try:
            async with asyncio.timeout(self._reader.hedge_delay_s):
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
            if not self._reader.is_near(stripe, index)
        }
        return {index: data for index, data in found.items() if data is not None}

    async def _try(self, index: int, start: int, stop: int) -> memoryview | None:
        copies, far = self._copies, not self._reader.is_near(self._stripe, index)
        keep = copies if self._keeps and far and index < self._stripe.data_shards else None
        try:
            data = await self._reader.fetch(self._stripe, index, start, stop, keep=keep)
        except (NotFound, CorruptData, Unavailable) as error:
            self._bad[index] = error
            self._reader.note_failure(self._stripe, index, error)
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
                not self._reader.is_likely(self._stripe, i),
                self._reader.is_late(self._stripe, i),
                i in skip,
                not self._reader.is_near(self._stripe, i),
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
                    timeout=self._reader.hedge_delay_s if order else None,
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
        away = [i for i, error in self._bad.items() if self._reader.may_return(stripe, i, error)]
        is_lost = readable + len(away) < stripe.data_shards
        slots = sorted({stripe.places[index].slot for index in self._bad})
        kind, what = (TooFewShards, "gone") if is_lost else (ShardsAway, "silent or gone")
        return kind(
            f"stripe {stripe.id}: {readable} of {stripe.data_shards} required "
            f"shards readable ({what}: {', '.join(slot_name(slot) for slot in slots)})"
        )


def _there(found: dict[int, memoryview | None]) -> dict[int, memoryview]:
    return {index: data for index, data in found.items() if data is not None}
