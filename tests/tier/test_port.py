"""The tier's port: what a leader's rounds leave in the chain, and what of the past goes."""

import asyncio
import random
from pathlib import Path

from diskless.tier import retention
from diskless.tier.chain import Chain
from diskless.tier.files import FileStore
from diskless.tier.manifest import intent_of, number_of
from diskless.tier.port import TierPort
from diskless.tier.restore import points_of
from diskless.tier.retention import Rule
from diskless.tier.store import Metered
from diskless.tier.verify import verify

LARGE = random.Random(7).randbytes(5 << 20)


class World:
    """Rounds, one change each."""

    def __init__(self, directory: Path, rules: tuple[Rule, ...] = ()) -> None:
        self.store = Metered(FileStore(directory))
        self.port = TierPort(self.store, cluster="c", name="n", rules=rules)
        self.change = 0

    async def round(self, *, whole: bool = False) -> None:
        self.change += 1
        if whole:
            await self.port.survey({}, thorough=True)
        draft = self.port.draft(f"{self.change:016x}")
        if whole:
            await draft.add_picture(b"picture %d" % self.change)
        else:
            await draft.add_journal([b"entry %d" % self.change])
        await draft.add_file(self.change, LARGE)
        landed = await draft.append(
            change=self.change,
            op=0,
            time_ms=60_000 * self.change,
            last_file=self.change,
        )
        await draft.abandon()
        await self.port.clear(landed.number)

    async def chain(self) -> list[int]:
        """The numbers that are there."""
        return [number_of(name) or 0 for name in await self.store.names("chain/")]

    def reader(self) -> Chain:
        return Chain(self.store, cluster="c", name="n", epoch=1)


async def run(world: World, rounds: str) -> None:
    await world.port.look(0, epoch=1)
    for kind in rounds:
        await world.round(whole=kind == "W")


def test_what_the_newest_two_runs_do_not_need_goes_and_the_rest_is_sound(tmp_path: Path) -> None:
    async def check() -> None:
        world = World(tmp_path)
        await run(world, "W..W..W..")
        assert await world.chain() == list(range(1, 10))
        await world.round(whole=True)
        await world.round()
        assert await world.chain() == list(range(4, 12))
        intents = {intent_of(name) for name in await world.store.names("segments/")}
        assert min(number for number in intents if number is not None) >= 4
        report = await verify(world.reader(), full=True)
        assert (report.problems, report.number) == ([], 11)

    asyncio.run(check())


def test_rules_keep_places_to_return_to(tmp_path: Path) -> None:
    async def check() -> None:
        world = World(tmp_path, retention.parse("every 3m keep 1d"))
        await run(world, "W.W.W.W.W.W.")
        chain = world.reader()
        newest = await chain.newest()
        assert newest is not None
        kept = {point.number for point in await points_of(chain, newest)}
        assert {1, 5, 7} <= kept, "the last whole one of every three minutes"
        assert 3 not in await world.chain(), "and no more"
        assert (await verify(world.reader(), full=True)).sound

    asyncio.run(check())


def test_a_new_leader_knows_the_past_again(tmp_path: Path) -> None:
    async def check() -> None:
        world = World(tmp_path)
        await run(world, "W..W..W.")
        later = World(tmp_path)
        later.change = 8
        await later.port.look(8, epoch=1)
        await later.round(whole=True)
        await later.round()
        assert await later.chain() == list(range(4, 11))
        assert (await verify(later.reader(), full=True)).sound

    asyncio.run(check())
