"""The shard memories of all agents, including this one.

The only place that knows whether a shard is local or remote. Everything that stores, fetches or
drops shards uses it.
"""

import logging
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

from diskless.agent.ports import Buffer, ShardPeers
from diskless.agent.shards import ShardStore
from diskless.errors import Unavailable
from diskless.model import AgentInfo, HeldShard, ShardName, slot_name

log = logging.getLogger(__name__)


class Holders:
    """Implements ShardPeers. Local calls are done at once, without waiting."""

    def __init__(self, *, slot: int, shards: ShardStore, peers: ShardPeers) -> None:
        self._slot = slot
        self._shards = shards
        self._peers = peers

    def store(
        self,
        agent: AgentInfo,
        *,
        stripe: str,
        index: int,
        data: Buffer,
        checksums: bytes,
        version: int = 0,
        from_reserve: bool = False,
    ) -> Coroutine[Any, Any, int]:
        if agent.slot == self._slot:
            return self._store_here(
                stripe, index, data, checksums, version=version, from_reserve=from_reserve
            )
        return self._peers.store(
            agent,
            stripe=stripe,
            index=index,
            data=data,
            checksums=checksums,
            version=version,
            from_reserve=from_reserve,
        )

    async def _store_here(
        self,
        stripe: str,
        index: int,
        data: Buffer,
        checksums: bytes,
        *,
        version: int,
        from_reserve: bool,
    ) -> int:
        return self._shards.store(
            stripe, index, memoryview(data), checksums, version=version, from_reserve=from_reserve
        )

    def fetch(
        self, agent: AgentInfo, *, stripe: str, index: int, first_block: int, blocks: int
    ) -> Coroutine[Any, Any, tuple[memoryview, bytes]]:
        if agent.slot == self._slot:
            return self._fetch_here(stripe, index, first_block=first_block, blocks=blocks)
        return self._peers.fetch(
            agent, stripe=stripe, index=index, first_block=first_block, blocks=blocks
        )

    async def _fetch_here(
        self, stripe: str, index: int, *, first_block: int, blocks: int
    ) -> tuple[memoryview, bytes]:
        return self._shards.fetch(stripe, index, first_block=first_block, blocks=blocks)

    async def drop(self, agent: AgentInfo, stripes: Sequence[str]) -> None:
        if agent.slot == self._slot:
            self._shards.drop(stripes)
        else:
            await self._peers.drop(agent, stripes)

    async def drop_superseded(self, agent: AgentInfo, shards: Sequence[HeldShard]) -> None:
        if agent.slot == self._slot:
            self._shards.drop_superseded(shards)
        else:
            await self._peers.drop_superseded(agent, shards)

    async def verify(self, agent: AgentInfo, *, stripe: str, index: int) -> bool:
        if agent.slot == self._slot:
            return self._shards.verify(stripe, index)
        return await self._peers.verify(agent, stripe=stripe, index=index)

    async def miss(self, agent: AgentInfo, shards: Sequence[ShardName]) -> int:
        if agent.slot == self._slot:
            return self._shards.miss(shards)
        return await self._peers.miss(agent, shards)


async def deliver(agent: AgentInfo, drop: Awaitable[None]) -> None:
    """Awaits a drop at that agent, best effort: an agent that is not reached has its shards
    reviewed when it returns."""
    try:
        await drop
    except Unavailable as error:
        log.info("drop not delivered agent=%s error=%s", slot_name(agent.slot), error)
