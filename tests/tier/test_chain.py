"""Who gets a number, and what everybody else learns."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from diskless.errors import DamagedTier, NotFound, StoreDown, Superseded
from diskless.tier import restore
from diskless.tier.chain import Chain
from diskless.tier.manifest import Manifest, chain_name
from diskless.tier.sweep import Collector
from tests.tier import loop
from tests.tier.faulty import FaultyStore
from tests.tier.hand import Hand, said


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(random.Random(1))


def run(work: Coroutine[Any, Any, None]) -> None:
    loop.run(work)


async def take_over(
    store: FaultyStore, cluster: str, at: restore.At = restore.NEWEST
) -> tuple[Chain, Manifest]:
    chain = Chain(store, cluster=cluster, name=cluster, epoch=0)
    manifest = await chain.take_over(restore.resuming(chain, at), round_id=lambda: cluster)
    return chain, manifest


def test_a_small_round_is_one_object_and_two_requests_find_it(store: FaultyStore) -> None:
    async def work() -> None:
        hand = Hand(store)
        await hand.write({1: b"a", 2: b"b"})
        assert list(store.objects) == [chain_name(1)]
        before = store.requests
        await hand.write({3: b"c"})
        assert store.requests == before + 1
        newest = await Chain(store, cluster="one", name="", epoch=1).newest(2)
        assert newest == hand.newest
        assert store.requests == before + 5, "is 2 there, is 3, read, settle"
        assert await hand.read(2, 1) == b"b"

    run(work())


@pytest.mark.parametrize("hint", [0, 1, 5, 19, 20])
def test_the_newest_is_found_from_any_number_that_was(store: FaultyStore, hint: int) -> None:
    async def work() -> None:
        hand = Hand(store)
        for _ in range(20):
            await hand.write()
        assert (await hand.chain.newest(hint)) == hand.newest

    run(work())


def test_an_empty_store_has_no_newest_and_nothing_to_take_over(store: FaultyStore) -> None:
    async def work() -> None:
        assert await Hand(store).chain.newest() is None
        with pytest.raises(DamagedTier, match="holds no tier"):
            await take_over(store, "two")

    run(work())


def test_whoever_loses_a_number_to_a_leader_of_its_epoch_is_given_that_manifest(
    store: FaultyStore,
) -> None:
    async def work() -> None:
        first, second = Hand(store), Hand(store)
        await first.write({1: b"a"})
        second.op = 5
        appended = await second.chain.append(await second.pack({1: b"other"}))
        assert not appended.mine
        assert appended.manifest == first.newest

    run(work())


def test_an_answer_that_was_lost_is_found_out_by_reading(store: FaultyStore) -> None:
    async def work() -> None:
        hand = Hand(store)
        finished = await hand.pack({1: b"a"})
        store.faults.lost = 1.0
        asked = asyncio.ensure_future(hand.chain.append(finished))
        while chain_name(1) not in store.objects:
            await asyncio.sleep(0.01)
        store.faults.lost = 0.0
        assert (await asked).mine

    run(work())


def test_a_write_that_lands_late_is_adopted_by_the_round_that_meets_it(store: FaultyStore) -> None:
    async def work() -> None:
        hand = Hand(store)
        late = await hand.pack({1: b"a"})
        store.faults.late = 1.0
        with pytest.raises(StoreDown):
            await hand.chain.append(late)
        store.faults.late = 0.0
        await asyncio.sleep(200)
        hand.op = 7
        appended = await hand.chain.append(await hand.pack({1: b"a", 2: b"b"}))
        assert not appended.mine
        assert appended.manifest == late.manifest
        again = await hand.chain.append(late)
        assert again.mine

    run(work())


def test_a_restore_ends_the_old_cluster(store: FaultyStore) -> None:
    async def work() -> None:
        old = Hand(store)
        await old.write({1: b"a"})
        chain, beginning = await take_over(store, "two")
        assert (beginning.epoch, beginning.number, beginning.previous) == (2, 2, 1)
        assert beginning.takeovers == (2,)
        with pytest.raises(Superseded, match="belongs to cluster two"):
            await old.write({2: b"b"})
        newest = await old.chain.newest(1)
        assert newest is not None
        with pytest.raises(Superseded):
            old.chain.judge(newest)
        assert await said(chain, beginning) == ["journal [1]", "rows [1]"]

    run(work())


def test_of_two_restores_at_once_one_wins_or_they_follow_each_other(store: FaultyStore) -> None:
    async def work() -> None:
        await Hand(store).write({1: b"a"})
        results = await asyncio.gather(
            *(take_over(store, f"c{n}") for n in range(6)), return_exceptions=True
        )
        won = [result for result in results if isinstance(result, tuple)]
        assert won
        epochs = sorted(manifest.epoch for _, manifest in won)
        assert epochs == list(range(2, 2 + len(won)))
        assert all(isinstance(r, Superseded) for r in results if not isinstance(r, tuple))

    run(work())


def test_two_clusters_cannot_begin_one_chain(store: FaultyStore) -> None:
    async def work() -> None:
        await Hand(store).write()
        with pytest.raises(Superseded, match="belongs to cluster hand"):
            await Hand(store, cluster="other").write()

    run(work())


def test_a_return_to_the_past_goes_on_from_there_and_keeps_the_future(store: FaultyStore) -> None:
    async def work() -> None:
        hand = Hand(store)
        for n in range(1, 5):
            await hand.write({n: b"x"}, whole=n == 1)
        chain, beginning = await take_over(store, "two", restore.At(op=2))
        assert (beginning.number, beginning.previous, beginning.op) == (5, 2, 2)
        points = await restore.points_of(chain, beginning)
        assert [point.number for point in points] == [1, 2, 3, 4, 5]
        assert (await said(chain, beginning))[-1] == "rows [2]"
        _, again = await take_over(store, "three", restore.At(op=4))
        assert again.previous == 4
        with pytest.raises(NotFound, match="the oldest is position 1"):
            await take_over(store, "four", restore.At(time_ms=999))

    run(work())


def test_a_number_that_was_used_and_freed_is_not_won_again(store: FaultyStore) -> None:
    """A restorer looks, sleeps while the old cluster goes on and clears away, and then writes."""

    async def work() -> None:
        hand = Hand(store)
        await hand.write({1: b"a"}, whole=True)
        chain = Chain(store, cluster="two", name="two", epoch=0)
        seen = []

        async def slowly(newest: Manifest) -> tuple[Manifest, None]:
            if not seen:
                for _ in range(3):
                    await hand.write({}, whole=True)
                collector = Collector(hand.chain)
                assert hand.newest is not None
                told = await collector.plan(hand.newest)
                assert chain_name(2) in told.doomed
                await collector.clear(await hand.write({}, told=told))
                assert chain_name(2) not in store.objects
            seen.append(newest.number)
            return newest, None

        beginning = await chain.take_over(slowly, round_id=lambda: f"try {len(seen)}")
        assert seen == [1, 5]
        assert beginning.number == 6

    run(work())


def test_a_leader_that_slept_while_the_chain_was_cleared_is_told(store: FaultyStore) -> None:
    async def work() -> None:
        hand, sleeper = Hand(store), Hand(store)
        await hand.write({1: b"a"}, whole=True)
        sleeper.newest = await sleeper.chain.newest(1)
        sleeper.op = 1
        finished = await sleeper.pack({5: b"x"})
        for _ in range(3):
            await hand.write({}, whole=True)
        collector = Collector(hand.chain)
        assert hand.newest is not None
        told = await collector.plan(hand.newest)
        await collector.clear(await hand.write({}, told=told))
        with pytest.raises(Superseded, match="has moved on past manifest 2"):
            await sleeper.chain.append(finished)

    run(work())


@pytest.mark.parametrize("met", ["by probing", "by losing the number"])
def test_what_a_killed_leader_left_is_safe_before_it_is_adopted(met: str) -> None:
    """It died between making the name and syncing the directory; then the machine dies."""
    store = FaultyStore(random.Random(1), files=True)

    async def work() -> None:
        killed, heir = Hand(store), Hand(store)
        finished = await killed.pack({1: b"a"})
        writing = asyncio.ensure_future(killed.chain.append(finished))
        while chain_name(1) not in store.objects:
            await asyncio.sleep(0.0001)
        writing.cancel()
        await asyncio.sleep(1)
        assert store.unsynced == {chain_name(1)}
        if met == "by probing":
            assert await heir.chain.newest() == finished.manifest
        else:
            heir.op = 3
            assert not (await heir.chain.append(await heir.pack({1: b"b"}))).mine
        assert not store.unsynced
        store.crash()
        assert chain_name(1) in store.objects

    run(work())
