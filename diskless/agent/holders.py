"""The shard memories of all agents, this one's among them.

The one place that knows whether a shard lies here or elsewhere: whoever stores, fetches or
drops shards asks it, and need not know.
"""

from collections.abc import Coroutine, Sequence
from typing import Any

from diskless.agent.ports import Buffer, ShardPeers
from diskless.agent.shards import ShardStore
from diskless.model import AgentInfo, HeldShard, ShardName


class Holders:
    """Implements ShardPeers. What lies here is done at once, without waiting."""

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
