"""From payload to a protected stripe: encode, scatter, replace targets that fail.

A sealed stripe has all its m'+k shards on different agents and is still invisible:
a commit names it later. Until then it is *held*, so that nobody takes its shards
for leftovers; whoever seals must `release` in the end.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from diskless.agent.memory import Memory, Use
from diskless.agent.ports import ShardPeers
from diskless.agent.roster import Roster
from diskless.agent.shards import ShardStore
from diskless.checksum import block_checksums, seed
from diskless.codec import codec_for
from diskless.config import ClusterSettings
from diskless.errors import CapacityExceeded, CorruptData, Unavailable
from diskless.model import AgentInfo, Place, Stripe, StripeId, slot_name
from diskless.placement import place, prompt, stripe_width

log = logging.getLogger(__name__)

SEAL_ATTEMPTS_MAX = 8


class Writer:
    def __init__(
        self,
        *,
        settings: ClusterSettings,
        roster: Roster,
        shards: ShardStore,
        holders: ShardPeers,
        memory: Memory,
    ) -> None:
        """`shards` only tells which life this agent is in: that is part of a stripe's id."""
        self._memory = memory
        self._settings = settings
        self._roster = roster
        self._shards = shards
        self._holders = holders
        self._counter = 0
        self._held: set[int] = set()
        self._sealing = 0
        self._one_sealed = asyncio.Event()
        self._drops: set[asyncio.Task[None]] = set()

    @property
    def held_from(self) -> int:
        """All stripes of this writer numbered below are committed or given up."""
        return min(self._held, default=self._counter + 1)

    def release(self, stripe: Stripe) -> None:
        """The stripe is committed, or nobody will commit it any more."""
        if self._holds(stripe):
            self._held.discard(StripeId.parse(stripe.id).counter)

    def _holds(self, stripe: Stripe) -> bool:
        who = StripeId.parse(stripe.id)
        mine = (self._roster.slot, self._shards.incarnation)
        return (who.slot, who.incarnation) == mine and who.counter in self._held

    def check_protectable(self) -> None:
        """Raises TooFewAgents when nothing that survives k losses can be written now;
        Unavailable when only this agent cannot reach the others."""
        self._width(len(self._roster.takers()))

    def _width(self, reached: int) -> int:
        """How many data shards a stripe can have on so many agents.

        An agent that was cut off suspects all others. That they are too few is a final
        answer to a client, so it takes the namespace's word for it, not this agent's.
        """
        m, k = self._settings.data_shards, self._settings.parity_shards
        up = sum(agent.up and not agent.draining for agent in self._roster.agents.values())
        if reached < k + 1 <= up:
            raise Unavailable(
                f"{slot_name(self._roster.slot)} reaches {reached} of the {up} agents that are "
                f"up, and a write needs {k + 1}"
            )
        return stripe_width(data_shards=m, parity_shards=k, alive=reached)

    async def seal(self, payload: bytes, *, from_reserve: bool = False) -> Stripe:
        """Stores `payload` as a stripe that survives any k losses.

        Raises CapacityExceeded, TooFewAgents, or Unavailable when targets kept
        failing; then nothing stays behind but shards that will be dropped.
        """
        failed: dict[int, Exception] = {}
        k = self._settings.parity_shards
        with self._memory.charged("stripes", len(payload)):
            for _ in range(SEAL_ATTEMPTS_MAX):
                candidates, width = self._choose(failed)
                async with self._turn(len(payload) * (width + k) // width):
                    stripe = await self._try(payload, candidates, width, failed, from_reserve)
                if stripe is not None:
                    return stripe
        raise Unavailable(f"{SEAL_ATTEMPTS_MAX} tries to store a stripe failed: {failed}")

    @property
    def is_sealing(self) -> bool:
        return self._sealing > 0

    async def one_sealed(self) -> None:
        """Returns when something that is being sealed has been, or has failed."""
        await self._one_sealed.wait()

    @asynccontextmanager
    async def _turn(self, size: int) -> AsyncIterator[None]:
        """Begins when there is room for so many bytes of shards, or nothing else is being sealed:
        what is has deadlines, so the wait ends too."""
        while self._sealing and self._memory.room(Use.TRANSIT) < size:
            await self.one_sealed()
        self._sealing += 1
        try:
            with self._memory.charged("stripes", size):
                yield
        finally:
            self._sealing -= 1
            self._one_sealed.set()
            self._one_sealed = asyncio.Event()

    def _choose(self, failed: dict[int, Exception]) -> tuple[list[AgentInfo], int]:
        """The agents to try, and how many data shards they allow."""
        if self._shards.incarnation is None:
            raise Unavailable(f"{slot_name(self._roster.slot)} has not joined the cluster yet")
        k = self._settings.parity_shards
        full = {slot for slot, error in failed.items() if isinstance(error, CapacityExceeded)}
        dead = failed.keys() - full
        alive = [agent for agent in self._roster.takers() if agent.slot not in dead]
        quick = prompt(alive, enough=k + 1)
        width = self._width(len(quick))
        roomy = [agent for agent in quick if agent.slot not in full]
        if len(roomy) < width + k:  # then slow ones too: they may have room
            width = self._width(len(alive))
            roomy = [agent for agent in alive if agent.slot not in full]
        if len(roomy) < width + k:
            raise CapacityExceeded(
                f"{len(full)} of {len(alive)} agents are full and a stripe needs {width + k}: "
                "delete files, or start the cluster with more --memory or --agents"
            )
        return roomy, width

    async def _try(
        self,
        payload: bytes,
        candidates: list[AgentInfo],
        width: int,
        failed: dict[int, Exception],
        from_reserve: bool,
    ) -> Stripe | None:
        """One stripe id's attempt; None, with `failed` grown, when agents ran out."""
        k = self._settings.parity_shards
        self._counter += 1
        self._held.add(self._counter)
        incarnation = self._shards.incarnation
        assert incarnation is not None
        stripe_id = str(StripeId(self._roster.slot, incarnation, self._counter))
        scatter = _Scatter(self, stripe_id, payload, width, candidates, self._counter, from_reserve)
        places: list[Place] | None = None
        try:
            places = await scatter.run(failed)
        finally:
            if places is None:
                self._held.discard(StripeId.parse(stripe_id).counter)
                self._drop(stripe_id, scatter.stored)
        if places is None:
            return None
        return Stripe(stripe_id, width, k, len(payload), tuple(places))

    async def store(
        self,
        agent: AgentInfo,
        stripe: str,
        index: int,
        data: memoryview,
        checksums: bytes,
        *,
        from_reserve: bool,
    ) -> int:
        """One shard to one agent, which may be this one."""
        return await self._holders.store(
            agent,
            stripe=stripe,
            index=index,
            data=data,
            checksums=checksums,
            from_reserve=from_reserve,
        )

    def suspect(self, agent: AgentInfo, error: Exception) -> None:
        log.warning("shard not stored agent=%s error=%s", slot_name(agent.slot), error)
        if isinstance(error, Unavailable):
            self._roster.suspect(agent)

    def give_up(self, stripe: Stripe) -> None:
        """Drops the shards of a stripe that certainly will not be committed.

        Only of one that was sealed here and is still held: of any other this agent
        cannot know that no file lies in it.
        """
        if not self._holds(stripe):
            return
        self.release(stripe)
        holders = [self._roster.holder(place) for place in stripe.places]
        self._drop(stripe.id, [agent for agent in holders if agent is not None])

    def _drop(self, stripe: str, stored: list[AgentInfo]) -> None:
        """As well as may be; what stays is found by the review of unknown shards."""

        async def drop() -> None:
            for agent in stored:
                try:
                    await self._holders.drop(agent, [stripe])
                except Unavailable as error:
                    log.info("drop not delivered stripe=%s error=%s", stripe, error)

        if stored:
            task = asyncio.create_task(drop())
            self._drops.add(task)
            task.add_done_callback(self._drops.discard)


class _Scatter:
    """The shards of one stripe on their way; a target that fails gets a substitute."""

    def __init__(
        self,
        writer: Writer,
        stripe: str,
        payload: bytes,
        width: int,
        candidates: list[AgentInfo],
        turn: int,
        from_reserve: bool,
    ) -> None:
        codec = codec_for(width, writer._settings.parity_shards)
        self._writer = writer
        self._stripe = stripe
        self._shards = codec.encode(payload)
        self._candidates = {agent.slot: agent for agent in candidates}
        self._turn = turn
        self._from_reserve = from_reserve
        self._places: list[Place | None] = [None] * codec.total_shards
        self.stored: list[AgentInfo] = []

    async def run(self, failed: dict[int, Exception]) -> list[Place] | None:
        tried: set[int] = set()
        while True:
            wanting = [index for index, at in enumerate(self._places) if at is None]
            if not wanting:
                return [at for at in self._places if at is not None]
            fresh = [a for slot, a in self._candidates.items() if slot not in tried]
            used_hosts = [agent.host for agent in self.stored]
            slots = place(fresh, count=len(wanting), turn=self._turn, avoid=used_hosts)
            if len(slots) < len(wanting):
                return None
            tried.update(slots)
            errors = await asyncio.gather(
                *(self._store(index, slot) for index, slot in zip(wanting, slots, strict=True))
            )
            failed.update({slot: e for slot, e in zip(slots, errors, strict=True) if e})

    async def _store(self, index: int, slot: int) -> Exception | None:
        agent = self._candidates[slot]
        data = self._shards[index]
        checksums = block_checksums(data, seed=seed(self._stripe, index))
        try:
            incarnation = await self._writer.store(
                agent, self._stripe, index, data, checksums, from_reserve=self._from_reserve
            )
        except (Unavailable, CapacityExceeded, CorruptData) as error:
            self._writer.suspect(agent, error)
            return error
        self._places[index] = Place(slot, incarnation)
        self.stored.append(agent)
        return None
