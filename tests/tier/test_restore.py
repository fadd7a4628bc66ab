"""Reading back: whole tiers on real stores, damage, encryption, and a loop that is not held up."""

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diskless.agent.ports import Stretch
from diskless.bench.weed import BUCKET, Weed
from diskless.errors import DamagedTier, StoreDown, WrongKey
from diskless.identity.cipher import Cipher
from diskless.tier import restore
from diskless.tier.address import open_store
from diskless.tier.chain import Chain
from diskless.tier.manifest import Stream, chain_name
from diskless.tier.remote import RemoteStore
from diskless.tier.round import Round, upload
from diskless.tier.store import Metered, Store
from diskless.tier.sweep import Collector
from diskless.tier.verify import verify
from tests.tier import loop
from tests.tier.faulty import FaultyStore
from tests.tier.hand import Hand, said

_numbers = itertools.count()
KEY = Cipher(bytes(range(32)))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def remote(weed: Weed, prefix: str) -> Metered:
    return Metered(RemoteStore(f"s3://{BUCKET}/{prefix}", weed.settings()), request_s=30)


@pytest.fixture(params=["file", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    if request.param == "file":
        return lambda: open_store(f"file://{tmp_path}/tier")
    weed: Weed = request.getfixturevalue("weed")
    prefix = f"restore/{os.getpid()}-{next(_numbers)}"
    return lambda: remote(weed, prefix)


@pytest.mark.parametrize("cipher", [None, KEY], ids=["plain", "sealed"])
def test_a_tier_is_written_collected_verified_and_read_back(
    make: Callable[[], Store], cipher: Cipher | None
) -> None:
    rng = random.Random(3)
    files = {n: rng.randbytes(rng.choice((0, 5, 5000, 1_500_000))) for n in range(1, 30)}
    files[30] = bytes(5_000_000)
    parts = [rng.randbytes(1_200_000), bytes(900), rng.randbytes(2_100_000)]
    files[31] = b"".join(parts)

    async def write() -> None:
        hand = Hand(make(), cipher=cipher)
        for n in range(1, 30):
            large = {31: parts} if n == 5 else {}
            await hand.write({n: files[n]}, large=large, whole=n % 10 == 1)
        await hand.write({30: files[30]})
        collector = Collector(hand.chain)
        assert hand.newest is not None
        told = await collector.plan(hand.newest)
        assert told.doomed
        condemned = await hand.write({}, told=told)
        await collector.clear(condemned)
        left = await hand.store.names("")
        assert not set(told.doomed) & set(left)

    async def read() -> None:
        chain = Chain(make(), cluster="new", name="new", epoch=0, cipher=cipher)
        beginning = await chain.take_over(restore.resuming(chain), round_id=lambda: "r")
        hand = Hand(chain.store, cluster="new", epoch=chain.epoch, cipher=cipher)
        async for step in restore.contents(chain, beginning):
            hand.learn(step.rows or ())
            hand.segments.update((row.number, row) for row in step.segments or ())
        assert hand.rows.keys() == files.keys()
        for id_, data in files.items():
            assert await hand.read(id_, len(data)) == data
            start, end = sorted(rng.choices(range(len(data) + 1), k=2))
            assert await hand.read(id_, len(data), start, end) == data[start:end]
        for full in (False, True):
            report = await verify(chain, full=full)
            assert report.sound, report.problems
            assert report.files == len(files)

    run(write())
    run(read())


def test_a_manifest_that_builds_on_another_one_of_that_number_is_damage() -> None:
    """Each of both verifies by itself; together they are no state that there ever was."""

    async def work() -> None:
        hand, other = (Hand(FaultyStore(random.Random(n))) for n in (1, 2))
        other.op = 5
        for one in (hand, other):
            await one.write({1: b"1"}, whole=True)
            await one.write({2: b"2"})
        assert hand.newest is not None
        assert len(await restore.run_of(hand.chain, hand.newest)) == 2
        name = chain_name(1)
        hand.store.objects[name] = other.store.objects[name]  # type: ignore[attr-defined]
        with pytest.raises(DamagedTier, match="builds on another of that number"):
            await restore.run_of(hand.chain, hand.newest)

    loop.run(work())


@pytest.mark.parametrize("lost", range(3))
def test_a_part_that_no_manifest_names_or_that_lies_elsewhere_is_told(lost: int) -> None:
    async def work() -> None:
        hand = Hand(FaultyStore(random.Random(1)), cipher=KEY)
        data = [b"a" * 1000, b"b" * 1000, b"c" * 1000]
        await hand.write({}, large={1: data}, whole=True)
        rows = hand.rows[1]
        assert (await verify(hand.chain, full=True)).sound
        # What lies where another part should does not verify, whatever it is.
        hand.rows[1] = [msgspec.structs.replace(rows[lost], start=rows[lost - 1].start)]
        with pytest.raises(DamagedTier, match="checksum"):
            await hand.read(1, 3000)
        hand.rows[1] = [row for row in rows if row is not rows[lost]]
        await hand.write({}, whole=True)
        report = await verify(hand.chain)
        assert len(report.problems) == 1
        assert "file 1: " in report.problems[0]

    run(work())


def test_agents_upload_segments_that_a_round_only_names() -> None:
    async def work() -> None:
        hand = Hand(FaultyStore(random.Random(1)))
        async with Round(hand.chain, None, round_id="r") as round_:
            await round_.add(Stream.JOURNAL, b"journal")
            shares = []
            for files in ([Stretch(1, b"a"), Stretch(2, b"b")], [Stretch(3, b"c")]):
                number, name = round_.reserve()
                shares.append(upload(hand.store, name=name, number=number, files=files))
            for segment, rows in await asyncio.gather(*shares):
                round_.name_segment(segment, rows)
            finished = await round_.finish(op=1, time_ms=1, last_file=3)
        appended = await hand.chain.append(finished)
        hand.landed(appended.manifest, finished.rows)
        assert [await hand.read(id_, 1) for id_ in (1, 2, 3)] == [b"a", b"b", b"c"]
        assert (await verify(hand.chain, full=True)).sound

    run(work())


def test_a_server_that_dies_in_the_middle_of_a_round_costs_the_round_and_nothing_else(
    weed: Weed,
) -> None:
    async def before() -> Hand:
        hand = Hand(remote(weed, "dies"))
        await hand.write({1: b"a" * 10_000}, whole=True)
        return hand

    async def meanwhile(hand: Hand) -> None:
        hand.chain.store = remote(weed, "dies")
        with pytest.raises(StoreDown):
            await hand.pack({2: random.Random(1).randbytes(10_000)})
        with pytest.raises(StoreDown):
            await hand.chain.newest(1)

    async def after(hand: Hand) -> None:
        hand.chain.store = hand.store = remote(weed, "dies")
        async with asyncio.timeout(60):
            while hand.op == 1:
                try:
                    await hand.write({2: b"b" * 10_000})
                except StoreDown:
                    await asyncio.sleep(0.2)
        assert await hand.read(1, 10_000) == b"a" * 10_000
        assert (await verify(hand.chain, full=True)).sound

    hand = asyncio.run(before())
    weed.kill()
    try:
        run(meanwhile(hand))
    finally:
        weed.start()
    run(after(hand))


# --- damage ---


async def damaged_tier() -> tuple[FaultyStore, Hand]:
    store = FaultyStore(random.Random(1))
    hand = Hand(store)
    for n in range(1, 7):
        await hand.write({n: random.Random(n).randbytes(5000)}, whole=n in (1, 4))
    return store, hand


def test_every_object_that_is_gone_or_torn_is_named_and_a_manifest_before_it_is_offered() -> None:
    async def work() -> None:
        store, hand = await damaged_tier()
        newest = hand.newest
        assert newest is not None
        kept = dict(store.objects)
        for name, before in ((chain_name(5), 4), (chain_name(4), 3)):
            for broken in (None, kept[name][:-20], kept[name].replace(b"journal", b"Journal")):
                if broken == kept[name]:
                    broken = kept[name][:50] + b"!" + kept[name][51:]
                store.objects = dict(kept)
                if broken is None:
                    del store.objects[name]
                else:
                    store.objects[name] = broken
                with pytest.raises(DamagedTier) as caught:
                    await said(hand.chain, newest)
                assert caught.value.name == name
                assert caught.value.before == before
                report = await verify(hand.chain, hint=6)
                assert not report.sound
                assert name in report.problems[0]
                assert f"manifest {before}" in report.problems[0]
                offered = await hand.chain.read(before)
                assert await said(hand.chain, offered)

    run(work())


def test_a_segment_that_is_gone_or_altered_is_found_by_verify() -> None:
    async def work() -> None:
        store, hand = await damaged_tier()
        kept = dict(store.objects)
        name = next(name for name in kept if name.startswith("segments/000000000005"))
        del store.objects[name]
        report = await verify(hand.chain)
        assert report.problems == [f"{name} is gone from {store.uri}"]
        store.objects[name] = kept[name][:-1]
        assert f"{name} is damaged" in (await verify(hand.chain)).problems[0]
        altered = bytearray(kept[name])
        altered[1000] ^= 1
        store.objects[name] = bytes(altered)
        assert (await verify(hand.chain)).sound, "only a full look reads every byte"
        assert f"{name} is damaged" in (await verify(hand.chain, full=True)).problems[0]
        with pytest.raises(DamagedTier, match=name):
            await hand.read(5, 5000)

    run(work())


def test_no_byte_of_an_altered_tier_is_served_wrong() -> None:
    """Whatever single byte is flipped, wherever: right, or refused."""

    async def work() -> None:
        store = FaultyStore(random.Random(1))
        hand = Hand(store)
        files = {1: b"abc" * 100, 2: b"x" * 20}
        newest = await hand.write(files)
        name = chain_name(1)
        whole = store.objects[name]
        heard = await said(hand.chain, newest)
        for at in range(len(whole)):
            store.objects[name] = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
            with pytest.raises((DamagedTier, WrongKey)):
                await hand.chain.read(1)
            with suppress(DamagedTier):
                assert await said(hand.chain, newest) == heard
                for id_, data in files.items():
                    assert await hand.read(id_, len(data)) == data

    loop.run(work())


def test_a_wrong_key_is_said_before_anything_is_taken_over() -> None:
    async def work() -> None:
        store = FaultyStore(random.Random(1))
        await Hand(store, cipher=KEY).write({1: b"a"})
        before = dict(store.objects)
        for cipher, says in ((None, "is encrypted"), (Cipher(bytes(32)), "with another key")):
            chain = Chain(store, cluster="two", name="two", epoch=0, cipher=cipher)
            with pytest.raises(WrongKey, match=says):
                await chain.take_over(restore.resuming(chain), round_id=lambda: "r")
        assert store.objects == before
        assert not any(b"journal" in data for data in before.values())

    run(work())


# --- the loop ---


def test_packing_and_reading_large_files_leaves_the_loop_free(tmp_path: Path) -> None:
    """By how often another task gets its turn while 64 MiB are packed, sealed and read."""

    async def work() -> None:
        hand = Hand(open_store(f"file://{tmp_path}/tier"), cipher=KEY)
        data = random.Random(1).randbytes(32 * 1024 * 1024)
        turns = 0
        done = asyncio.Event()

        async def count() -> None:
            nonlocal turns
            while not done.is_set():
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        began = time.thread_time()
        await hand.write({1: data, 2: bytes(len(data))}, limit_bytes=4 * 1024 * 1024)
        assert await hand.read(1, len(data)) == data
        assert await hand.read(2, len(data), 5_000_000, 6_000_000) == bytes(1_000_000)
        done.set()
        await counting
        assert turns > 1000, f"{turns} turns in {time.thread_time() - began:.2f} s"

    run(work())
