"""A small read, of one piece that lies elsewhere: whole, late, damaged or gone."""

import asyncio
import os
import time
from typing import Any

import pytest

from diskless.agent.memory import Memory
from diskless.agent.reader import Reader
from diskless.agent.roster import Roster
from diskless.checksum import BLOCK_BYTES, CHECKSUM_BYTES, block_checksums, seed
from diskless.codec import codec_for
from diskless.config import MIB
from diskless.errors import TooFewShards, Unavailable
from diskless.model import AgentInfo, Extent, Place, Stripe

M, K = 4, 2
STRIPE = Stripe("1.1.1", M, K, MIB, tuple(Place(slot, 1) for slot in range(1, M + K + 1)))
PAYLOAD = os.urandom(MIB)
EXTENT = Extent(STRIPE.id, 3 * BLOCK_BYTES + 100, 20_000)
WANTED = PAYLOAD[EXTENT.offset : EXTENT.offset + EXTENT.length]
DEADLINE_S = 20.0


class Holders:
    """Have all shards, but for what is said of some."""

    def __init__(self) -> None:
        self._shards = codec_for(M, K).encode(PAYLOAD)
        self.late: set[int] = set()
        self.damaged: set[int] = set()
        self.gone: set[int] = set()
        self.asked: list[int] = []
        self.cancelled: list[int] = []

    async def fetch(
        self, agent: AgentInfo, *, stripe: str, index: int, first_block: int, blocks: int
    ) -> tuple[memoryview, bytes]:
        self.asked.append(index)
        if index in self.gone:
            raise Unavailable("gone")
        if index in self.late:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(index)
                raise
        await asyncio.sleep(0)
        shard = bytes(self._shards[index])
        sums = block_checksums(shard, seed=seed(stripe, index))
        at, end = first_block, first_block + blocks
        data = bytearray(shard[at * BLOCK_BYTES : end * BLOCK_BYTES])
        if index in self.damaged:
            data[0] ^= 1
        return memoryview(data), bytes(sums[at * CHECKSUM_BYTES : end * CHECKSUM_BYTES])

    async def verify(self, agent: AgentInfo, *, stripe: str, index: int) -> bool:
        return False


def read(holders: Holders, *, hedge_delay_s: float) -> bytes:
    async def run() -> bytes:
        roster = Roster(slot=0, seeds={}, now_s=time.monotonic, suspect_s=1.0)
        slots = range(M + K + 1)
        agents = [AgentInfo(s, 1, "b", "a", "g", "s", f"host-{s}", "n", 1) for s in slots]
        roster.update(version=1, agents=agents)
        without_tier: Any = type("Cold", (), {"has_tier": False})
        shards: Any = holders
        reader = Reader(
            roster=roster,
            holders=shards,
            locate=locate,
            behind=nothing_behind,
            hedge_delay_s=hedge_delay_s,
            patience_s=0.0,
            lost_after_s=0.0,
            memory=Memory(64 * MIB),
            cold=without_tier,
        )
        reader.learn([STRIPE])
        async with asyncio.timeout(DEADLINE_S):
            parts = await reader.read([EXTENT], file_bytes=EXTENT.length)
        reader.close()
        return b"".join(parts)

    return asyncio.run(run())


async def locate(_: Any) -> list[Stripe]:
    return [STRIPE]


async def nothing_behind(_: Any) -> None:
    return None


def test_one_shard_is_asked_for_and_no_other() -> None:
    holders = Holders()
    assert read(holders, hedge_delay_s=DEADLINE_S) == WANTED
    assert holders.asked == [0]


def test_a_late_one_is_made_of_others_and_not_waited_for() -> None:
    holders = Holders()
    holders.late = {0}
    assert read(holders, hedge_delay_s=0.01) == WANTED
    assert holders.cancelled == [0]
    assert set(holders.asked) == {0, *range(1, M + 1)}


@pytest.mark.parametrize("kind", ["damaged", "gone"])
def test_a_bad_one_is_made_of_others(kind: str) -> None:
    holders = Holders()
    setattr(holders, kind, {0, 2})
    assert read(holders, hedge_delay_s=DEADLINE_S) == WANTED


@pytest.mark.parametrize("kind", ["damaged", "gone"])
def test_more_bad_ones_than_parity_fail_loudly(kind: str) -> None:
    holders = Holders()
    setattr(holders, kind, {0, 2, 5})
    with pytest.raises(TooFewShards):
        read(holders, hedge_delay_s=DEADLINE_S)
