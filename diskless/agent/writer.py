"""From payload to a protected stripe: encodes, distributes, replaces targets that fail.

A stripe has the parity of the *grade* of its files (`policy.py`), so all its files have the same
grade. A sealed stripe has all its m'+k shards on different agents and is still invisible: a commit
names it later. Until then it is *held*, so that its shards are not dropped as orphans; every seal
must be followed by a `release`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import reduce

from diskless.agent.copies import Copies
from diskless.agent.holders import deliver
from diskless.agent.memory import Memory, Use
from diskless.agent.ports import Buffer, ShardPeers
from diskless.agent.roster import Roster
from diskless.agent.shards import ShardStore
from diskless.checksum import block_checksums, seed
from diskless.codec import codec_for
from diskless.config import ClusterSettings
from diskless.errors import CapacityExceeded, CorruptData, MemoryFull, Unavailable
from diskless.model import AgentInfo, Place, Stripe, StripeId, slot_name
from diskless.placement import place, prompt, steady, stripe_width
from diskless.policy import GRADE_DEFAULT, Grade, highest, parity_of

log = logging.getLogger(__name__)

SEAL_ATTEMPTS_MAX = 8
FULL_WAIT_S = 1.5
"""How long a client's bytes wait for room in one attempt: less than the client waits for an answer.
The client retries then."""
FULL_PAUSE_S = 0.05


class Writer:
    def __init__(
        self,
        *,
        settings: ClusterSettings,
        roster: Roster,
        shards: ShardStore,
        holders: ShardPeers,
        memory: Memory,
        copies: Copies | None = None,
    ) -> None:
        """`shards` is only used for this agent's incarnation, which is part of a stripe's id. What
        clients write is also kept in `copies`."""
        self._copies = copies
        self._memory = memory
        self._settings = settings
        self._roster = roster
        self._shards = shards
        self._holders = holders
        self._counter = 0
        self._held: set[int] = set()
        self._sealing = 0
        self._one_sealed = asyncio.Event()
        self._full = asyncio.Lock()
        self._waits: MemoryFull | None = None  # why seals wait, while they do
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
        k = self._settings.parity_shards
        self._width(len(self._roster.takers_for(k + 1)), k)

    def grade_of(self, paths: Iterable[str]) -> Grade:
        """The highest grade that these paths ask for, as far as this agent knows."""
        grades = self._roster.grades
        return reduce(highest, map(grades.at, paths)) if grades else GRADE_DEFAULT

    def parity_of(self, grade: Grade) -> int:
        return parity_of(grade, self._settings.parity_shards)

    def _width(self, reached: int, k: int) -> int:
        """How many data shards a stripe can have on so many agents.

        An agent that was cut off suspects all others. TooFewAgents is final for a client, so it is
        decided by the namespace's roster, not by this agent's suspicions.
        """
        m = self._settings.data_shards
        if reached < k + 1:
            up = sum(agent.up and not agent.draining for agent in self._roster.agents.values())
            if k + 1 <= up:
                raise Unavailable(
                    f"{slot_name(self._roster.slot)} reaches {reached} of the {up} agents that "
                    f"are up, and a write needs {k + 1}"
                )
        return stripe_width(data_shards=m, parity_shards=k, alive=reached)

    async def seal(
        self,
        payload: Buffer,
        *,
        grade: Grade = GRADE_DEFAULT,
        from_reserve: bool = False,
        patient: bool = False,
        file_bytes: int | None = None,
    ) -> Stripe:
        """Stores `payload` as a stripe that survives any k losses, or as many as its grade asks
        for. A client's file, of so many bytes, is also copied here.

        Raises CapacityExceeded, TooFewAgents, or Unavailable when targets kept failing; shards that
        were stored are dropped later. If `patient` it waits for eviction to make room, and raises
        MemoryFull when that takes too long.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FULL_WAIT_S
        with self._memory.charged("stripes", len(payload)):
            while True:
                try:
                    stripe = await self._seal(
                        payload, self.parity_of(grade), from_reserve, self._takes(file_bytes)
                    )
                    self._waits = None
                    return stripe
                except CapacityExceeded as error:
                    if not patient or not self._roster.relief:
                        raise
                    self._waits = MemoryFull(
                        f"memory is full until more of it is in the tier alone: {error}"
                    )
                    if loop.time() >= until_s:
                        raise self._waits from None
                async with self._full:  # one at a time: a failed attempt costs as much as a success
                    await asyncio.sleep(FULL_PAUSE_S)

    @contextmanager
    def saying_why(self) -> Iterator[None]:
        """Tells a caller that cannot wait any longer that there is no room."""
        try:
            yield
        except asyncio.CancelledError:
            if self._waits is None:
                raise
            raise self._waits from None

    def _takes(self, file_bytes: int | None) -> Copies | None:
        """Where copies of such a file are kept, if they are."""
        copies = self._copies
        if copies is None or file_bytes is None or not copies.takes(file_bytes):
            return None
        return copies

    def let_go(self, stripes: Iterable[Stripe], *, file_bytes: int) -> None:
        """Drops the copies of a file that turned out to be too large."""
        if self._copies is not None and not self._copies.takes(file_bytes):
            self._copies.drop(stripe.id for stripe in stripes)

    async def _seal(
        self, payload: Buffer, k: int, from_reserve: bool, copies: Copies | None
    ) -> Stripe:
        failed: dict[int, Exception] = {}
        for _ in range(SEAL_ATTEMPTS_MAX):
            candidates, width = self._choose(failed, k)
            async with self._turn(len(payload) * (width + k) // width):
                stripe = await self._try(
                    payload, candidates, (width, k), failed, from_reserve, copies
                )
            if stripe is not None:
                return stripe
        raise Unavailable(f"{SEAL_ATTEMPTS_MAX} tries to store a stripe failed: {failed}")

    @property
    def is_sealing(self) -> bool:
        return self._sealing > 0

    async def one_sealed(self) -> None:
        """Returns when a seal in progress has succeeded or failed."""
        await self._one_sealed.wait()

    @asynccontextmanager
    async def _turn(self, size: int) -> AsyncIterator[None]:
        """Waits for room for so many bytes of shards, or until nothing else is being sealed. Seals
        have timeouts, so the wait ends."""
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

    def _choose(self, failed: dict[int, Exception], k: int) -> tuple[list[AgentInfo], int]:
        """The agents to try, and how many data shards beside k parity shards they allow."""
        if self._shards.incarnation is None:
            raise Unavailable(f"{slot_name(self._roster.slot)} has not joined the cluster yet")
        full = {slot for slot, error in failed.items() if isinstance(error, CapacityExceeded)}
        dead = failed.keys() - full
        alive = [agent for agent in self._roster.takers_for(k + 1) if agent.slot not in dead]
        quick = prompt(alive, enough=k + 1)
        width = self._width(len(quick), k)
        roomy = [agent for agent in quick if agent.slot not in full]
        if len(roomy) < width + k:  # then slow ones too: they may have room
            width = self._width(len(alive), k)
            roomy = [agent for agent in alive if agent.slot not in full]
        if len(roomy) < width + k:
            raise CapacityExceeded(
                f"{len(full)} of {len(alive)} agents are full and a stripe needs {width + k}: "
                "delete files, or start the cluster with more --memory or --agents"
            )
        return list(steady(roomy, unsteady=self._roster.unsteady, enough=width + k)), width

    async def _try(
        self,
        payload: Buffer,
        candidates: list[AgentInfo],
        shape: tuple[int, int],
        failed: dict[int, Exception],
        from_reserve: bool,
        copies: Copies | None,
    ) -> Stripe | None:
        """One attempt with one stripe id; None, with more in `failed`, if too few agents are
        left."""
        self._counter += 1
        self._held.add(self._counter)
        incarnation = self._shards.incarnation
        assert incarnation is not None
        stripe_id = str(StripeId(self._roster.slot, incarnation, self._counter))
        scatter = _Scatter(self, stripe_id, payload, shape, candidates, self._counter, from_reserve)
        places: list[Place] | None = None
        try:
            places = await scatter.run(failed)
        finally:
            if places is None:
                self._held.discard(StripeId.parse(stripe_id).counter)
                self._drop(stripe_id, scatter.stored)
        if places is None:
            return None
        if copies is not None:
            here = self._roster.slot
            away = (i for i, place in enumerate(places[: shape[0]]) if place.slot != here)
            copies.keep_written(stripe_id, map(scatter.shard, away))
        return Stripe(stripe_id, *shape, len(payload), tuple(places))

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
        awaited = self._roster.relief and isinstance(error, CapacityExceeded)
        level = logging.DEBUG if awaited else logging.WARNING
        log.log(level, "shard not stored agent=%s error=%s", slot_name(agent.slot), error)
        if isinstance(error, Unavailable):
            self._roster.suspect(agent)

    def give_up(self, stripe: Stripe) -> None:
        """Drops the shards of a stripe that certainly will not be committed.

        Only if it was sealed here and is still held: for any other stripe this agent cannot know
        that no file uses it.
        """
        if not self._holds(stripe):
            return
        self.release(stripe)
        holders = [self._roster.holder(place) for place in stripe.places]
        self._drop(stripe.id, [agent for agent in holders if agent is not None])

    def _drop(self, stripe: str, stored: list[AgentInfo]) -> None:
        """Best effort: the review of unknown shards finds the rest."""

        async def drop() -> None:
            for agent in stored:
                await deliver(agent, self._holders.drop(agent, [stripe]))

        if stored:
            task = asyncio.create_task(drop())
            self._drops.add(task)
            task.add_done_callback(self._drops.discard)


class _Scatter:
    """The shards of one stripe while they are stored; a target that fails is replaced."""

    def __init__(
        self,
        writer: Writer,
        stripe: str,
        payload: Buffer,
        shape: tuple[int, int],
        candidates: list[AgentInfo],
        turn: int,
        from_reserve: bool,
    ) -> None:
        codec = codec_for(*shape)
        self._writer = writer
        self._stripe = stripe
        self._shards = codec.encode(payload)
        self._candidates = {agent.slot: agent for agent in candidates}
        self._turn = turn
        self._from_reserve = from_reserve
        self._checksums: list[bytes] = [b""] * codec.total_shards
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

    def shard(self, index: int) -> tuple[int, memoryview, bytes]:
        """A shard that is stored, and its checksums."""
        return index, self._shards[index], self._checksums[index]

    async def _store(self, index: int, slot: int) -> Exception | None:
        agent = self._candidates[slot]
        data = self._shards[index]
        checksums = block_checksums(data, seed=seed(self._stripe, index))
        self._checksums[index] = checksums
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
