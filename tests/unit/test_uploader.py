"""An agent's part in the drain: nothing that fails its checksum is brought to the tier."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from diskless.agent import uploader as uploaders
from diskless.agent.memory import Memory
from diskless.agent.ports import Stretch, Uploaded, UploadPart
from diskless.agent.uploader import RUNS_MAX, Uploader
from diskless.checksum import file_checksum
from diskless.config import GIB
from diskless.errors import CorruptData, Unavailable
from diskless.model import Extent, FileRecord

CONTENT = bytes(range(200)) * 3
PART = 200
WHOLE = FileRecord(7, 600, 0, file_checksum(CONTENT), None, (Extent("0.1.1", 0, 600),))


class Agent:
    """Reader and tier of an uploader."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.uploaded: list[Stretch] = []
        self.memory = Memory(GIB)
        self.uploader = Uploader(reader=cast(Any, self), tiers=cast(Any, self), memory=self.memory)

    def learn(self, stripes: Sequence[object]) -> None: ...

    def get(self) -> "Agent":
        return self

    async def read(self, extents: Sequence[Extent]) -> list[memoryview]:
        await asyncio.sleep(0)
        view = memoryview(self.content)
        return [view[one.offset : one.offset + one.length] for one in extents]

    async def upload(self, files: Sequence[Stretch], *, number: int, name: str) -> Uploaded:
        assert self.memory.of("segments") > 0, "what is in hand is charged"
        self.uploaded += files
        return Uploaded(number, name, sum(len(memoryview(file.data)) for file in files), ())

    async def part(self, start: int, *, run: str = "run", record: FileRecord = WHOLE) -> None:
        extents = (Extent("0.1.1", start, PART),)
        await self.uploader.upload(
            (replace(record, extents=extents),),
            (),
            number=1,
            name=f"segments/{run}-{start}",
            part=UploadPart(start, start + PART, run),
        )


def run(work: Callable[[Agent], Awaitable[None]]) -> Agent:
    async def main() -> Agent:
        agent = Agent()
        async with asyncio.timeout(30):
            await work(agent)
        assert agent.memory.of("segments") == 0
        return agent

    return asyncio.run(main())


def test_parts_are_read_in_order_whichever_comes_first_and_the_last_ends_the_file() -> None:
    async def work(agent: Agent) -> None:
        await asyncio.gather(*(agent.part(start) for start in (0, 400, 200)))

    agent = run(work)
    assert [(one.start, one.more) for one in agent.uploaded] == [
        (0, True),
        (200, True),
        (400, False),
    ]
    assert b"".join(bytes(one.data) for one in agent.uploaded) == CONTENT


@pytest.mark.parametrize("at", range(3))
def test_a_large_file_that_fails_its_own_checksum_does_not_end(at: int) -> None:
    """Whichever part is not what was written: each of them may be read well."""

    async def work(agent: Agent) -> None:
        bad = bytearray(CONTENT)
        bad[at * PART + 5] ^= 1
        agent.content = bytes(bad)
        await agent.part(0)
        await agent.part(200)
        with pytest.raises(CorruptData, match="file 7 fails its checksum"):
            await agent.part(400)
        assert [one.start for one in agent.uploaded] == [0, 200]

    run(work)


def test_a_small_file_that_fails_its_checksum_is_not_uploaded() -> None:
    async def work(agent: Agent) -> None:
        await agent.uploader.upload((WHOLE,), (), number=1, name="segments/1")
        assert [bytes(one.data) for one in agent.uploaded] == [CONTENT]
        for bad in (b"x" * len(CONTENT), CONTENT[:-1]):
            agent.content = bad
            with pytest.raises(CorruptData, match="file 7 fails its checksum"):
                await agent.uploader.upload((WHOLE,), (), number=1, name="segments/2")
        assert len(agent.uploaded) == 1

    run(work)


def test_a_part_without_those_before_it_is_refused_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploaders, "WAIT_S", 0.01)

    async def work(agent: Agent) -> None:
        with pytest.raises(Unavailable, match="begin with the first"):
            await agent.part(200)
        await agent.part(0)
        with pytest.raises(Unavailable, match="begin with the first"):
            await agent.part(400)
        assert [one.start for one in agent.uploaded] == [0]

    run(work)


def test_a_part_that_could_not_be_read_ends_those_after_it_at_once() -> None:
    async def work(agent: Agent) -> None:
        await agent.part(0)
        agent.content = CONTENT[:210]
        second, third = (asyncio.create_task(agent.part(start)) for start in (200, 400))
        with pytest.raises(CorruptData):
            await second
        with pytest.raises(Unavailable, match="begin with the first"):
            await third

    run(work)


def test_files_that_were_given_up_half_way_are_not_kept_for_ever() -> None:
    async def work(agent: Agent) -> None:
        for number in range(RUNS_MAX + 1):
            await agent.part(0, run=f"run-{number}")
        with pytest.raises(Unavailable, match="begin with the first"):
            await agent.part(200, run="run-0")
        await agent.part(200, run="run-1")

    run(work)
