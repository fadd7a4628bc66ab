"""Reading what is in the tier alone: which chunks are fetched, by whom, and how many ahead."""

import asyncio
import gc
import logging
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from diskless.agent.chunks import CHUNK_BYTES
from diskless.agent.claims import CLAIMS_MAX, Claims
from diskless.agent.cold import CLAIM_CHUNKS_MAX, REQUESTS_MAX, ColdName, ColdReader
from diskless.agent.leading.hydrator import DAMAGED_PAUSE_S, Hydrator
from diskless.agent.leading.pacer import Pacer
from diskless.agent.memory import Memory
from diskless.agent.ports import CacheCounts, Pulse
from diskless.checksum import BLOCK_BYTES, block_checksums, file_checksum, seed
from diskless.config import GIB, KIB, MIB, Tuning
from diskless.errors import (
    BadRequest,
    CorruptData,
    DamagedTier,
    NotFound,
    StoreDown,
    Unavailable,
)
from diskless.model import AgentInfo, Extent, FileRecord, Stripe
from diskless.namespace import commands as c
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import File
from diskless.namespace.views import TierPlace

SIZE = 40 * MIB
NAME = ColdName(7, SIZE, 0)
AMPLE = 4 * GIB
"""Of memory: runs of four chunks, eight ahead. With 1 GiB it is four, with little one."""


class Tier:
    """A tier with large files, in parts of `part_bytes`; a byte tells which MiB it is of."""

    uri = "file:///t"

    def __init__(self, part_bytes: int, segment: str = "new") -> None:
        self.segment = segment
        self.places = [
            TierPlace(f"{segment}-{at}", 12, 1, 0, at, min(part_bytes, SIZE - at))
            for at in range(0, SIZE, part_bytes)
        ]
        self.reads: list[tuple[int, int]] = []
        self.asked: list[int] = []
        self.under_way = self.most_under_way = 0
        self.gate: asyncio.Event | None = None
        """Nothing is answered before it is open."""
        self.fails = 0

    async def read(
        self, place: TierPlace, *, file: int, size: int, start: int, stop: int
    ) -> list[memoryview]:
        assert size in (SIZE, MIB)
        stop = min(stop, place.start + (place.size or size))
        self.under_way += stop - start
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        self.under_way -= stop - start
        if not place.segment.startswith(self.segment):
            raise DamagedTier(f"{place.segment} is gone", name=place.segment)
        self.reads.append((start, stop))
        if self.fails:
            self.fails -= 1
            raise StoreDown("silent")
        return [memoryview(bytes([at // MIB]) * MIB) for at in range(start, stop, MIB)]

    async def locate(self, id_: int, at: int) -> list[TierPlace]:
        self.asked.append(at)
        return [place for place in self.places if place.start + place.size > at]


class Agents:
    """Some agents that read, and what passes between them. The first keeps the claims."""

    def __init__(self, count: int, tier: Tier, memory_bytes: int = AMPLE) -> None:
        infos = {slot: cast(AgentInfo, Info(slot)) for slot in range(count)}
        self.tier = tier
        self.dead: set[int] = set()
        self.slow: set[int] = set()
        """Agents that hear late what they have claimed."""
        self.passed = Counter[str]()
        self.memories = [Memory(memory_bytes) for _ in range(count)]
        self.all = [
            ColdReader(
                tiers=cast(Any, Tiers(tier)),
                locate=tier.locate,
                memory=memory,
                roster=Roster(slot, infos),
                peers=Peers(self, slot),
            )
            for slot, memory in enumerate(self.memories)
        ]


class Info:
    def __init__(self, slot: int) -> None:
        self.slot = slot


class Tiers:
    known = True

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def get(self) -> Tier:
        return self._tier


class Roster:
    def __init__(self, slot: int, agents: dict[int, AgentInfo]) -> None:
        self.slot = slot
        self.agents = agents
        self.suspected: set[int] = set()

    def registrar(self, file: int) -> AgentInfo | None:
        first = self.alive()[0]
        return None if first.slot == self.slot else first

    def alive(self) -> list[AgentInfo]:
        return [agent for agent in self.agents.values() if agent.slot not in self.suspected]

    def suspect(self, agent: AgentInfo) -> None:
        self.suspected.add(agent.slot)


class Peers:
    def __init__(self, agents: Agents, slot: int) -> None:
        self._agents = agents
        self._slot = slot

    async def claim(
        self, agent: AgentInfo, *, file: int, chunks: range, without: int | None
    ) -> list[int]:
        await self._pass("claim", agent)
        found = self._agents.all[agent.slot].claim(self._slot, file, chunks, without=without)
        while self._slot in self._agents.slow:
            await asyncio.sleep(0)
        return found

    async def fetch(
        self, agent: AgentInfo, *, stripe: str, index: int, first_block: int, blocks: int
    ) -> tuple[memoryview, bytes]:
        await self._pass("fetch", agent)
        try:
            return await self._agents.all[agent.slot].serve(stripe, index)
        except asyncio.CancelledError:
            if agent.slot not in self._agents.dead:
                raise
            raise Unavailable("it died") from None

    async def _pass(self, what: str, agent: AgentInfo) -> None:
        await asyncio.sleep(0)
        if agent.slot in self._agents.dead:
            self._agents.passed[f"in vain to {agent.slot}"] += 1
            raise Unavailable("dead")
        self._agents.passed[what] += 1


def reader(tier: Tier, memory_bytes: int = AMPLE) -> ColdReader:
    return Agents(1, tier, memory_bytes).all[0]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def chunk_of(number: int, name: ColdName = NAME) -> Extent:
    return Extent(str(name), number * CHUNK_BYTES, CHUNK_BYTES)


def chunks(tier: Tier) -> list[int]:
    return sorted(at // CHUNK_BYTES for one in tier.reads for at in range(*one, CHUNK_BYTES))


# Ahead


@pytest.mark.parametrize(
    ("memory_bytes", "first", "then"),
    [(AMPLE, 8, [(0, 4), (4, 16), (16, 32)]), (GIB, 4, [(0, 4), (4, 16)]),
     (64 * MIB, 2, [(0, 4), (4, 8)])],
)  # fmt: skip
def test_who_reads_in_order_has_the_next_chunks_on_their_way_with_few_requests(
    memory_bytes: int, first: int, then: list[tuple[int, int]]
) -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        cold = reader(tier, memory_bytes)
        await cold.read(Extent(str(NAME), 0, MIB))
        await settle()
        assert chunks(tier) == list(range(first))
        assert sorted(tier.reads) == [(start * MIB, stop * MIB) for start, stop in then]
        for number in range(1, 10):
            (part, *_) = await cold.read(chunk_of(number))
            assert part[0] == 4 * number
        await settle()
        assert chunks(tier) == list(range(10)), "each of them once"

    run(work)


@pytest.mark.parametrize(("offset", "length"), [(0, 64 * KIB), (20 * MIB, MIB), (SIZE - 9, 9)])
def test_who_looks_here_and_there_has_one_chunk_fetched(offset: int, length: int) -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        await reader(tier).read(Extent(str(NAME), offset, length))
        await settle()
        assert chunks(tier) == [offset // CHUNK_BYTES]

    run(work)


@pytest.mark.parametrize("memory_bytes", [AMPLE, GIB, 64 * MIB])
def test_what_is_fetched_ahead_is_bounded_for_all_readers_together(memory_bytes: int) -> None:
    """Twenty that read in order have what one may have, and nothing is fetched twice for them."""

    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(1, tier, memory_bytes)
        cold, kept_max = agents.all[0], max(memory_bytes // 32, 8 * MIB)
        kept_max = min(kept_max, 64 * MIB)
        names = [ColdName(id_, SIZE, 0) for id_ in range(20)]
        tier.gate = asyncio.Event()
        reads = [asyncio.create_task(cold.read(chunk_of(0, name))) for name in names]
        await settle()
        assert tier.most_under_way <= kept_max
        used = agents.memories[0].used
        assert tier.under_way <= used <= kept_max + 64 * KIB, "and all of it is charged"
        tier.gate.set()
        await asyncio.gather(*reads)
        await settle()
        assert agents.memories[0].used <= kept_max + 64 * KIB
        ahead = len(tier.reads) - len(names)
        assert sum(stop - start for start, stop in tier.reads) <= (
            len(names) * CHUNK_BYTES + kept_max // 2
        ), ahead

    run(work)


def test_who_stops_reading_leaves_room_for_others_to_be_ahead() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        cold = reader(tier, 64 * MIB)  # a chunk ahead, in all
        await cold.read(chunk_of(0, ColdName(1, SIZE, 0)))
        await settle()
        for number in range(4):
            await cold.read(chunk_of(number))
        await settle()
        assert 4 in chunks(tier)

    run(work)


def test_who_gives_up_does_not_end_it_for_others() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        cold = reader(tier)
        tier.gate = asyncio.Event()
        reads = [asyncio.create_task(cold.read(chunk_of(9))) for _ in range(2)]
        await settle()
        reads[0].cancel()
        await settle()
        tier.gate.set()
        assert (await reads[1])[0][0] == 36
        assert chunks(tier) == [9]

    run(work)


# Parts


def test_a_chunk_that_lies_in_two_parts_is_put_together() -> None:
    async def work() -> None:
        tier = Tier(6 * MIB)
        data = b"".join(await reader(tier).read(chunk_of(1)))
        assert data[::MIB] == bytes([4, 5, 6, 7])
        assert tier.reads == [(4 * MIB, 6 * MIB), (6 * MIB, 8 * MIB)]
        assert tier.asked == [4 * MIB], "one answer has the parts that follow"

    run(work)


def test_any_range_is_cut_right() -> None:
    async def work() -> None:
        cold = reader(Tier(6 * MIB), GIB)
        whole = b"".join(await cold.read(Extent(str(NAME), 0, SIZE)))
        assert whole == b"".join(bytes([at]) * MIB for at in range(40))
        for start, stop in [(0, 1), (MIB - 1, MIB + 1), (3 * MIB + 5, 17 * MIB - 9), (SIZE, SIZE)]:
            part = b"".join(await cold.read(Extent(str(NAME), start, stop - start)))
            assert part == whole[start:stop]

    run(work)


def test_a_file_that_was_written_anew_in_other_parts_is_found_again() -> None:
    async def work() -> None:
        tier = Tier(8 * MIB)
        cold = reader(tier)
        cold.learn(NAME.id, *Tier(16 * MIB, segment="old").places)
        data = b"".join(await cold.read(Extent(str(NAME), 8 * MIB, CHUNK_BYTES)))
        assert data[::MIB] == bytes([8, 9, 10, 11])
        cold.learn(NAME.id, TierPlace("whole", 12, 1, 0))
        tier.places, tier.segment = [TierPlace("whole", 12, 1, 0, 0, SIZE)], "whole"
        data = b"".join(await cold.read(Extent(str(NAME), 32 * MIB, 2 * MIB)))
        assert data[::MIB] == bytes([32, 33])
        tier.places, tier.segment = [], "elsewhere"
        with pytest.raises(NotFound):
            await cold.read(Extent(str(NAME), 36 * MIB, 2))

    run(work)


# Several agents


def test_a_lone_reader_fetches_for_itself_and_nothing_passes_between_agents() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(6, tier)
        for number in range(10):
            await agents.all[3].read(chunk_of(number))
        assert agents.passed["fetch"] == 0
        assert 0 < agents.passed["claim"] <= 5, "one for each run"
        assert chunks(tier) == list(range(10))

    run(work)


@pytest.mark.parametrize("memory_bytes", [AMPLE, GIB])
def test_many_readers_everywhere_cost_one_download(memory_bytes: int) -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(6, tier, memory_bytes)

        async def read(number: int) -> None:
            for at in range(10):
                parts = await agents.all[number % 6].read(chunk_of(at))
                assert parts[0][0] == 4 * at

        await asyncio.gather(*map(read, range(60)))
        await settle()
        assert chunks(tier) == list(range(10))

    run(work)


@pytest.mark.parametrize("dead", [0, 1], ids=["who keeps the claims", "who has claimed"])
def test_an_agent_that_dies_is_made_good_for_and_by_one_alone(dead: int) -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(6, tier)
        tier.gate = asyncio.Event()
        first = asyncio.create_task(agents.all[1].read(chunk_of(9)))
        others = [asyncio.create_task(agents.all[slot].read(chunk_of(9))) for slot in (2, 3, 4, 5)]
        await settle()
        agents.dead.add(dead)
        if dead == 1:
            agents.all[1].close()  # whoever waits for it hears that it failed
        tier.gate.set()
        for parts in await asyncio.gather(*others):
            assert parts[0][0] == 36
        await asyncio.wait([first])
        assert chunks(tier) == [9], "the first one's never ended, or was the only one"
        agents.dead.add(0)
        await agents.all[4].read(chunk_of(5))
        assert chunks(tier) == [5, 9], "who keeps the claims need not be there"
        vain = agents.passed["in vain to 0"]
        await agents.all[4].read(chunk_of(2))
        assert agents.passed["in vain to 0"] == vain > 0, "and is not asked again at once"

    run(work)


def test_who_hears_late_that_it_has_claimed_a_chunk_keeps_those_waiting_that_were_sent_to_it() -> (
    None
):
    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(3, tier)
        agents.slow = {1}
        reads = [asyncio.create_task(agents.all[1].read(chunk_of(9)))]
        await settle()
        reads.append(asyncio.create_task(agents.all[2].read(chunk_of(9))))
        await settle()
        assert not tier.reads
        agents.slow = set()
        await asyncio.gather(*reads)
        assert chunks(tier) == [9]

    run(work)


def test_an_agent_that_has_a_chunk_no_more_is_not_asked_for_it_for_ever() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(3, tier, 64 * MIB)  # two chunks are kept
        for number in (9, 5, 2):
            await agents.all[1].read(chunk_of(number))
        assert (await agents.all[2].read(chunk_of(9)))[0][0] == 36
        fetches = agents.passed["fetch"]
        assert chunks(tier) == [2, 5, 9, 9]
        assert (await agents.all[0].read(chunk_of(9)))[0][0] == 36
        assert agents.passed["fetch"] == fetches + 1
        assert chunks(tier) == [2, 5, 9, 9], "the second one is known to have it"

    run(work)


def test_what_another_agent_has_no_more_is_fetched_in_runs_all_the_same() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(3, tier)
        for number in range(10):
            await agents.all[1].read(chunk_of(number))
        first = sorted(tier.reads)
        for at in range(4):  # so much that it keeps nothing of it
            for number in range(4):
                await agents.all[1].read(chunk_of(number, ColdName(100 + at, SIZE, 0)))
        await settle()
        tier.reads.clear()
        for number in range(10):
            assert (await agents.all[2].read(chunk_of(number)))[0][0] == 4 * number
        assert chunks(tier) == list(range(10))
        assert sorted(tier.reads) == first, "as if nobody had read it before"

    run(work)


def test_an_agent_that_stalls_is_waited_for_once_and_not_for_each_chunk_that_it_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("diskless.agent.cold.LATE_S", 0.0)
    asked = Counter[int]()

    async def stalled(self: Peers, agent: AgentInfo, **_: Any) -> tuple[memoryview, bytes]:
        asked[agent.slot] += 1
        await asyncio.sleep(0.01)
        raise Unavailable("did not answer within 5 s")

    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(3, tier)
        for number in range(10):
            await agents.all[1].read(chunk_of(number))
        monkeypatch.setattr(Peers, "fetch", stalled)
        for number in range(10):
            assert (await agents.all[2].read(chunk_of(number)))[0][0] == 4 * number
        assert asked == {1: 8}, "the first, and what was fetched ahead of it meanwhile"

    run(work)


def test_who_waits_for_room_to_ask_a_stalled_agent_does_not_wait_for_the_agent_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With little memory two are asked at a time, and ten readers of ten files would each wait."""
    monkeypatch.setattr("diskless.agent.cold.LATE_S", 0.0)
    asked = Counter[int]()

    async def stalled(self: Peers, agent: AgentInfo, **_: Any) -> tuple[memoryview, bytes]:
        asked[agent.slot] += 1
        await asyncio.sleep(0.01)
        raise Unavailable("did not answer within 5 s")

    async def work() -> None:
        agents = Agents(3, Tier(16 * MIB), 64 * MIB)
        names = [ColdName(id_, SIZE, 0) for id_ in range(10)]
        for name in names:
            await agents.all[1].read(chunk_of(5, name))
        monkeypatch.setattr(Peers, "fetch", stalled)
        found = await asyncio.gather(*(agents.all[2].read(chunk_of(5, name)) for name in names))
        assert [parts[0][0] for parts in found] == [20] * 10
        assert asked == {1: 2}

    run(work)


def test_what_the_store_refuses_is_refused_and_asked_for_again_by_the_next() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(3, tier)
        tier.fails = 1
        with pytest.raises(StoreDown):
            await agents.all[1].read(chunk_of(9))
        for slot in (2, 1):
            assert (await agents.all[slot].read(chunk_of(9)))[0][0] == 36
        assert len(tier.reads) == 2

    run(work)


@pytest.mark.parametrize("damage", ["a byte", "the end"])
def test_a_chunk_that_was_damaged_between_agents_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    whole = Peers.fetch

    async def damaged(self: Peers, agent: AgentInfo, **what: Any) -> tuple[memoryview, bytes]:
        data, _ = await whole(self, agent, **what)
        if damage == "a byte":
            return memoryview(b"?" + bytes(data[1:])), _
        short = data[:-BLOCK_BYTES]  # with the right checksums of what is left
        return short, block_checksums(short, seed=seed(what["stripe"], what["index"]))

    monkeypatch.setattr(Peers, "fetch", damaged)

    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(3, tier)
        for slot in (1, 2):
            views = await agents.all[slot].read(chunk_of(9))
            assert b"".join(views) == b"".join(bytes([at]) * MIB for at in range(36, 40))
        assert agents.passed["fetch"]
        assert chunks(tier) == [9, 9]

    run(work)


def test_a_whole_file_that_fails_its_checksum_is_not_returned() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        with pytest.raises(CorruptData, match="fails its checksum"):
            await reader(tier).read(Extent(str(ColdName(7, MIB, 1)), 0, MIB))

    run(work)


def test_an_agent_that_lacks_a_chunk_does_not_say_that_the_file_is_gone() -> None:
    """Agents that know of no claims pass NotFound on to their clients."""

    async def work() -> None:
        with pytest.raises(Unavailable, match="chunk 3 of file 7 is not here"):
            await reader(Tier(16 * MIB)).serve(str(NAME), 3)

    run(work)


def test_agents_that_ask_for_a_chunk_share_its_bytes_and_these_count() -> None:
    async def work() -> None:
        agents = Agents(1, Tier(16 * MIB))
        cold = agents.all[0]
        await cold.read(chunk_of(9))
        before = agents.memories[0].by_kind()["caches"]
        served = await asyncio.gather(*(cold.serve(str(NAME), 9) for _ in range(40)))
        served.append(await cold.serve(str(NAME), 9))
        assert len({id(data.obj) for data, _ in served}) == 1
        assert agents.memories[0].by_kind()["caches"] == before + CHUNK_BYTES
        served.clear()  # they have been sent; the thread that packed them lets go a little later
        async with asyncio.timeout(30):
            while agents.memories[0].by_kind()["caches"] > before:
                await asyncio.sleep(0.001)
        assert agents.memories[0].by_kind()["caches"] == before

    run(work)


def test_who_gives_up_asking_another_agent_does_not_end_it_for_others() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        tier.gate = asyncio.Event()
        cold = reader(tier)
        own = asyncio.create_task(cold.read(chunk_of(9)))
        await settle()
        asked = asyncio.create_task(cold.serve(str(NAME), 9))
        await settle()
        asked.cancel()
        await settle()
        tier.gate.set()
        assert (await own)[0][0] == 36
        assert chunks(tier) == [9]

    run(work)


def test_many_small_files_are_few_requests_at_a_time() -> None:
    async def work() -> None:
        tier = Tier(16 * MIB)
        tier.gate = asyncio.Event()
        cold = reader(tier)
        small = [ColdName(file, MIB, 0) for file in range(100)]
        tasks = [asyncio.create_task(cold.read(Extent(str(name), 0, MIB // 4))) for name in small]
        await settle()
        assert tier.under_way == REQUESTS_MAX * MIB
        for task in tasks:
            task.cancel()
        cold.close()
        await settle()

    run(work)


def test_only_so_many_chunks_are_claimed_at_once() -> None:
    cold = reader(Tier(16 * MIB))
    assert len(cold.claim(1, 7, range(CLAIM_CHUNKS_MAX))) == CLAIM_CHUNKS_MAX
    with pytest.raises(BadRequest):
        cold.claim(1, 7, range(CLAIM_CHUNKS_MAX + 1))


def test_agents_that_disagree_on_who_fetches_do_not_wait_for_each_other() -> None:
    """Each was told, by another keeper of claims, that the other one has it."""

    async def work() -> None:
        tier = Tier(16 * MIB)
        agents = Agents(3, tier)
        for cold, other in ((agents.all[1], 2), (agents.all[2], 1)):
            asked = [other, other, other]

            async def claim(agent: AgentInfo, *, asked: list[int] = asked, **_: Any) -> list[int]:
                await asyncio.sleep(0)
                return [asked.pop()]

            cast(Any, cold)._peers.claim = claim
        both = await asyncio.gather(*(agents.all[slot].read(chunk_of(9)) for slot in (1, 2)))
        assert [parts[0][0] for parts in both] == [36, 36]

    run(work)


# Claims


def test_the_first_who_claims_a_chunk_has_it_until_it_is_gone_or_named_as_lacking_it() -> None:
    there = {1, 2, 3}
    claims = Claims(lambda slot: slot in there)
    assert claims.claim(1, 7, range(2)) == [1, 1]
    assert claims.claim(2, 7, range(4)) == [1, 1, 2, 2]
    assert claims.claim(3, 7, [0], without=1) == [3]
    assert claims.claim(2, 7, [0], without=1) == [3], "another one was faster"
    there.remove(1)
    assert claims.claim(2, 7, [0, 1]) == [3, 2]
    assert claims.claim(2, 8, [0]) == [2]


def test_claims_are_bounded_and_the_oldest_go_first() -> None:
    claims = Claims(lambda slot: True)
    claims.claim(1, 7, range(CLAIMS_MAX))
    full = claims.weight
    claims.claim(2, 7, [0])
    claims.claim(2, 8, range(9))
    assert claims.weight == full
    assert claims.claim(3, 7, [0, 1]) == [1, 3]


# Back into memory


class Hydration:
    """A hydrator, with the writer and the replica that it uses."""

    def __init__(self, tier: Tier) -> None:
        self.state = NamespaceState()
        self.held: set[str] = set()
        """Stripes that are held until the namespace names them."""
        self.moved: list[c.Move] = []
        self.pulses: dict[int, Pulse] = {}
        self.hydrator = Hydrator(
            replica=cast(Any, self),
            cold=reader(tier),
            writer=cast(Any, self),
            pacer=Pacer(share=1.0),
            pulses=self.pulses,
            tuning=Tuning(),
            now_s=asyncio.get_running_loop().time,
        )

    async def seal(self, data: bytes, *, grade: int) -> Stripe:
        stripe = Stripe(f"0.1.{len(self.held) + 1}", 4, 2, len(data), ())
        self.held.add(stripe.id)
        return stripe

    def release(self, stripe: Stripe) -> None:
        self.held.remove(stripe.id)

    async def execute(self, command: c.Relocate) -> tuple[c.Result, ...]:
        assert {stripe.id for stripe in command.stripes} == self.held, "nobody drops them yet"
        self.moved += command.moves
        return (c.Done(len(command.moves)),)


@pytest.mark.parametrize("good", [True, False])
def test_a_large_file_comes_back_into_memory_only_if_its_checksum_is_right(good: bool) -> None:
    async def work() -> None:
        one = Hydration(Tier(16 * MIB))
        checksum = file_checksum(b"".join(bytes([at]) * MIB for at in range(SIZE // MIB)))
        record = FileRecord(7, SIZE, 0, checksum if good else checksum ^ 1, None, ())
        assert await one.hydrator.hydrate([record]) == good
        assert [move.id for move in one.moved] == [7] * good
        assert set(one.hydrator.damaged) == (set() if good else {7})
        assert not one.held

    run(work)


def test_a_damaged_file_is_told_of_while_it_is_there_and_is_tried_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its object may have been restored in the store, or the file deleted, as the alarm says."""

    async def work() -> None:
        one, now_s = Hydration(Tier(16 * MIB)), 0.0
        monkeypatch.setattr(one.hydrator, "_now_s", lambda: now_s)
        records = {id_: FileRecord(id_, MIB, 0, 1, None, ()) for id_ in (7, 8)}
        for record in records.values():
            one.state.take(File(record, 1))
        assert one.hydrator._next() == [records[8], records[7]]
        await one.hydrator.hydrate([records[7], records[8]])
        assert one.hydrator.report().damaged == 2
        one.state.tier.warm(8)
        assert one.hydrator.report().damaged == 1, "the other is not there alone any more"
        assert one.hydrator._next() == one.hydrator._next() == []
        one.hydrator.want([7])
        assert one.hydrator._next() == []
        now_s = DAMAGED_PAUSE_S
        assert [*one.hydrator._next(), *one.hydrator._next()] == [records[7]], "from the first on"
        one.hydrator.want([7])
        assert one.hydrator._next() == [records[7]]

    run(work)


def test_what_was_evicted_for_a_policy_does_not_come_back_for_being_read() -> None:
    async def work() -> None:
        one = Hydration(Tier(16 * MIB))
        records = {id_: FileRecord(id_, MIB, 0, 0, None, ()) for id_ in (7, 8, 9)}
        for id_, record in records.items():
            one.state.take(File(record, 1))
            one.state.tier.warm(id_)
            one.state.tier.set_aside(record)
        cache = CacheCounts(wanted=(7, 8, 9, 10))
        one.pulses[0] = Pulse("boot", 0, 0, {}, 100, 0, 0, (), cache=cache)
        one.hydrator.shun([7, 8])
        one.hydrator.welcome([8])
        one.hydrator._hear()
        assert one.hydrator._next_wanted() == [records[8], records[9]]

    run(work)


def test_of_files_that_are_damaged_in_the_tier_nothing_stays_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error holds the frames that it came through, and those the bytes that were compared."""

    async def work() -> None:
        tier = Tier(16 * MIB)
        hydrator = Hydration(tier).hydrator
        seen: list[weakref.ref[memoryview]] = []
        read = tier.read

        async def noted(*args: Any, **more: Any) -> list[memoryview]:
            views = await read(*args, **more)
            seen.extend(map(weakref.ref, views))
            return views

        tier.read = noted  # type: ignore[method-assign]
        caplog.set_level(logging.CRITICAL, "diskless")  # it keeps errors, too
        assert await hydrator.hydrate([FileRecord(7, MIB, 0, 1, None, ())]) == 0
        assert await hydrator.hydrate([FileRecord(8, MIB, 0, 1, None, ())]) == 0
        assert len(hydrator.damaged) == 2
        await settle()
        gc.collect()
        assert len(seen) == 2
        assert not [ref for ref in seen if ref() is not None]

    run(work)
