"""So much at once: in order, within both limits, and whoever gives up leaves nothing behind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from diskless.agent.room import Room
from diskless.errors import Unavailable


class Crowd:
    def __init__(self, room: Room) -> None:
        self.room = room
        self.inside: list[str] = []
        self._doors: dict[str, asyncio.Event] = {}

    def come(self, name: str, size: int) -> "asyncio.Task[None]":
        self._doors[name] = asyncio.Event()
        return asyncio.create_task(self._stay(name, size))

    async def _stay(self, name: str, size: int) -> None:
        async with self.room.take(size):
            self.inside.append(name)
            await self._doors[name].wait()
            self.inside.remove(name)

    async def leave(self, name: str) -> None:
        self._doors[name].set()
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(main())


def test_small_ones_do_not_pass_by_a_large_one_that_waits() -> None:
    async def work() -> None:
        crowd = Crowd(Room(10, wait_s=30, what="things"))
        for name, size in (("a", 6), ("large", 9), ("b", 1), ("c", 1)):
            crowd.come(name, size)
        await settle()
        assert crowd.inside == ["a"]
        await crowd.leave("a")
        assert crowd.inside == ["large", "b"]
        await crowd.leave("large")
        assert crowd.inside == ["b", "c"]

    run(work)


def test_what_is_larger_than_all_of_it_goes_alone() -> None:
    async def work() -> None:
        crowd = Crowd(Room(10, wait_s=30, what="things"))
        for name, size in (("a", 1), ("huge", 50), ("b", 1)):
            crowd.come(name, size)
        await settle()
        assert crowd.inside == ["a"]
        await crowd.leave("a")
        assert crowd.inside == ["huge"]
        await crowd.leave("huge")
        assert crowd.inside == ["b"]

    run(work)


def test_there_is_a_limit_to_their_number_too() -> None:
    async def work() -> None:
        crowd = Crowd(Room(1000, count_max=2, wait_s=30, what="things"))
        for name in "abc":
            crowd.come(name, 0)
        await settle()
        assert crowd.inside == ["a", "b"]
        await crowd.leave("a")
        assert crowd.inside == ["b", "c"]

    run(work)


@pytest.mark.parametrize("granted", [False, True], ids=["while it waits", "as its turn comes"])
def test_whoever_gives_up_leaves_room_for_the_next(granted: bool) -> None:
    async def work() -> None:
        crowd = Crowd(Room(10, wait_s=30, what="things"))
        crowd.come("a", 6)
        await settle()
        large = crowd.come("large", 9)
        crowd.come("b", 4)
        await settle()
        if granted:
            crowd._doors["a"].set()
            await asyncio.sleep(0)
        large.cancel()
        await settle()
        assert crowd.inside == (["b"] if granted else ["a", "b"])
        crowd.come("c", 6)
        await crowd.leave("a")
        assert crowd.inside == ["b", "c"], "nothing is still taken by who gave up"

    run(work)


def test_who_waits_too_long_is_told_so_and_the_next_has_its_turn() -> None:
    async def work() -> None:
        crowd = Crowd(Room(10, wait_s=0.05, what="things"))
        crowd.come("a", 6)
        await settle()
        large = crowd.come("large", 9)
        with pytest.raises(Unavailable, match="is busy with things"):
            await large
        crowd.come("b", 4)
        await settle()
        assert crowd.inside == ["a", "b"]

    run(work)
