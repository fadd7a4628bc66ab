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
from collections.abc import Awaitable, Callable, Collection, Sequence

from diskless.agent.cold import ColdReader, is_cold_extent
from diskless.agent.copies import Copies
from diskless.agent.fetcher import Fetcher
from diskless.agent.known import KnownStripes, Locate
from diskless.agent.memory import Memory
from diskless.agent.ports import ShardPeers
from diskless.agent.prospects import Prospects
from diskless.agent.roster import Roster
from diskless.agent.stripe_read import StripeRead
from diskless.codec import codec_of
from diskless.errors import NotFound, TooFewShards, Unavailable
from diskless.model import Extent, Stripe
from diskless.namespace.views import TierPiece

TOGETHER_MAX = 16
"""Extents that are read at once: each takes time of the loop, and others must have turns."""
RETRY_PAUSE_S = 0.1

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
        self._known = KnownStripes(locate=locate, roster=roster, memory=memory)
        self._locate = locate
        self._behind = behind
        self._hedge_delay_s = hedge_delay_s
        self._patience_s = patience_s
        self._cold = cold
        self._copies = copies
        self.fetcher = Fetcher(
            roster=roster,
            holders=holders,
            known=self._known,
            prospects=Prospects(roster, lost_after_s=lost_after_s),
            patience_s=patience_s,
        )
        self.degraded_reads = 0
        """Reads of a stripe that had to do without a shard that they wanted."""

    @property
    def corrupt_shards_seen(self) -> int:
        return self.fetcher.corrupt_shards_seen

    def learn(self, stripes: Sequence[Stripe]) -> None:
        """Remembers where stripes are, so that reading them asks nobody."""
        self._known.learn(stripes)

    def close(self) -> None:
        """Ends what runs in the background."""
        self.fetcher.close()
        self._known.close()

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
        known = {id_: stripe for id_ in wanted if (stripe := self._known.get(id_)) is not None}
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
        return b"".join(await self._run(self._reading(stripe, 0, stripe.payload_bytes)))

    async def gather(self, stripe: Stripe, *, skip: Collection[int]) -> dict[int, memoryview]:
        """As many whole shards as the stripe has data shards, verified; those in `skip`
        only if there are no others. Raises TooFewShards."""
        size = codec_of(stripe).shard_bytes(stripe.payload_bytes)
        return await self._reading(stripe, 0, 0).gather_columns(0, size, skip=set(skip))

    def _reading(
        self, stripe: Stripe, start: int, stop: int, file_bytes: int | None = None
    ) -> StripeRead:
        """For a client if it is told of how large a file: only then copies matter."""
        return StripeRead(
            self.fetcher,
            stripe,
            start,
            stop,
            hedge_delay_s=self._hedge_delay_s,
            copies=self._copies if file_bytes is not None else None,
            file_bytes=file_bytes or 0,
        )

    async def _run(self, reading: StripeRead) -> list[memoryview]:
        try:
            return await reading.run()
        finally:
            self.degraded_reads += reading.is_degraded

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
                return await self._run(self._reading(stripe, extent.offset, end, file_bytes))
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
