"""A worker's part of a repair: reads what is left of a stripe, rebuilds what is lost, stores it.

Runs on every agent and decides nothing: the leader says which shards to rebuild and where to store
them. Everything that is read is verified, and whoever stores a shard verifies it again. The leader
calls `AllWorkers`, for any agent.
"""

import asyncio
from collections.abc import Mapping

from diskless.agent.memory import Memory
from diskless.agent.ports import Rebuilt, ShardPeers, Workers
from diskless.agent.reader import Reader
from diskless.agent.roster import Roster
from diskless.checksum import block_checksums, seed
from diskless.codec import codec_of
from diskless.errors import DisklessError, Unavailable
from diskless.model import AgentInfo, Place, Stripe, slot_name

REBUILDS_MAX = 8
"""Stripes that are held in memory here at once; the others wait."""
REBUILDS_SHARE = 1 / 16
"""The part of the agent's memory that they may take, if that is less; one always may."""
REBUILD_COPIES = 2
"""Memory that a stripe takes while it is rebuilt, in multiples of its payload."""


class Rebuilder:
    def __init__(
        self,
        *,
        roster: Roster,
        holders: ShardPeers,
        reader: Reader,
        memory: Memory,
        stripe_bytes: int,
    ) -> None:
        self._roster = roster
        self._holders = holders
        self._reader = reader
        self._memory = memory
        fitting = int(REBUILDS_SHARE * memory.bytes_max / (REBUILD_COPIES * stripe_bytes))
        self._room = asyncio.Semaphore(max(min(fitting, REBUILDS_MAX), 1))

    async def rebuild(self, stripe: Stripe, targets: Mapping[int, int]) -> Rebuilt:
        """Stores the shards `targets` of a stripe on slots, for its next version.

        A target that fails is reported and does not affect the others. Raises TooFewShards.
        """
        size = REBUILD_COPIES * stripe.payload_bytes
        async with self._room:
            with self._memory.charged("stripes", size):
                made = await self._make(stripe, sorted(targets))
                outcomes = await asyncio.gather(
                    *(self._store(stripe, i, made[i], slot) for i, slot in targets.items())
                )
        done = Rebuilt({}, {})
        for (index, slot), outcome in zip(targets.items(), outcomes, strict=True):
            if isinstance(outcome, Place):
                done.places[index] = outcome
            else:
                done.failed[slot] = outcome
        return done

    async def _make(self, stripe: Stripe, wanted: list[int]) -> dict[int, memoryview]:
        """Shards of a stripe: copied from their holders, otherwise rebuilt from the others."""
        codec = codec_of(stripe)
        size = codec.shard_bytes(stripe.payload_bytes)
        fetcher, prospects = self._reader.fetcher, self._reader.fetcher.prospects
        made: dict[int, memoryview] = {}
        for index in wanted:
            if prospects.is_likely(stripe, index) and not prospects.is_late(stripe, index):
                try:
                    made[index] = await fetcher.fetch(stripe, index, 0, size)
                except DisklessError as error:
                    fetcher.note_failure(stripe, index, error)
        lost = [index for index in wanted if index not in made]
        if lost:
            columns = await self._reader.gather(stripe, skip=lost)
            missing = [index for index in lost if index not in columns]
            made |= columns | codec.reconstruct(columns, missing)
        return made

    async def _store(
        self, stripe: Stripe, index: int, data: memoryview, slot: int
    ) -> Place | DisklessError:
        checksums = block_checksums(data, seed=seed(stripe.id, index))
        version = stripe.version + 1
        try:
            agent = self._roster.agents.get(slot)
            if agent is None or not agent.up:
                raise Unavailable(f"{slot_name(slot)} is not up")
            life = await self._holders.store(
                agent,
                stripe=stripe.id,
                index=index,
                data=data,
                checksums=checksums,
                version=version,
                from_reserve=True,
            )
        except DisklessError as error:
            return error
        return Place(slot, life)


class AllWorkers:
    """Implements Workers: the rebuilders of all agents, including this one."""

    def __init__(self, *, slot: int, here: Rebuilder, peers: Workers) -> None:
        self._slot = slot
        self._here = here
        self._peers = peers

    async def rebuild(
        self, agent: AgentInfo, stripe: Stripe, targets: Mapping[int, int]
    ) -> Rebuilt:
        if agent.slot == self._slot:
            return await self._here.rebuild(stripe, targets)
        return await self._peers.rebuild(agent, stripe, targets)
