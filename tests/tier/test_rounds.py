"""Rounds of the drain, one at a time: what moves, is freed or fails to be read meanwhile."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from diskless.agent.leading import backlog as backlogs
from diskless.agent.leading import cut
from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.drainer import Drainer, Limits, RoundEnded
from diskless.agent.ports import Uploaded
from diskless.agent.tiers import Tiers
from diskless.checksum import file_checksum
from diskless.errors import NotFound, StoreDown, TooFewShards
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace.journal import Journal
from diskless.namespace.replication.machine import NamespaceMachine
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Kept, Segment
from diskless.tier.port import TierPort
from diskless.tier.store import Metered
from tests.tier.faulty import FaultyStore
from tests.tier.loop import run

URI = FaultyStore.uri
SMALL, LARGE = Limits(), Limits(small_bytes=1, segment_bytes=20)


class Room:
    """A leader with one voter: World and Source of its drainer."""

    def __init__(self, limits: Limits) -> None:
        self.machine = NamespaceMachine()
        self.store = FaultyStore(random.Random(1))
        self.port = TierPort(Metered(self.store), cluster="c", name="c")  # type: ignore[arg-type]
        self.uploads_to = self.port
        self.op = 0
        self.sequence = 0
        self.on_read: Callable[[FileRecord], None] = lambda record: None
        now_s = asyncio.get_running_loop().time
        self.backlog = Backlog(world=self, now_s=now_s)
        self.drainer = Drainer(
            world=self,
            tiers=Tiers(
                open_tier=lambda uri, options: self.port,
                look=lambda: (self.state.tier.uri, self.state.tier.options),
            ),
            source=self,
            backlog=self.backlog,
            now_s=now_s,
            limits=limits,
        )
        self.session = self.do(c.OpenSession("test"))
        self.do(c.AttachTier(URI, 1, 0, ""))

    @property
    def state(self) -> NamespaceState:
        return self.machine.state

    @property
    def journal(self) -> Journal:
        assert self.machine.journal is not None
        return self.machine.journal

    def apply(self, command: c.Command) -> tuple[c.Result, ...]:
        self.op += 1
        time_ms = 1000 * self.op
        return self.machine.apply(self.op, time_ms, time_ms, c.encode(command))

    def do(self, command: c.Command) -> int:
        (result,) = self.apply(command)
        assert isinstance(result, c.Done), result
        return result.number

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        return self.apply(command)

    def put(self, path: str, data: bytes) -> int:
        self.sequence += 1
        file = c.NewFile(path, len(data), file_checksum(data), data)
        return self.do(c.Commit((), (c.Put(self.session, self.sequence, True, (file,)),)))

    def move(self, id_: int) -> None:
        """What lay somewhere lies elsewhere now, as after repacking."""
        file = self.state.files[id_]
        file.record = replace(file.record, layout=file.record.layout + 1)

    async def read(self, record: FileRecord) -> bytes:
        self.on_read(record)
        assert record.inline is not None
        return record.inline

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        files = [(record.id, await self.read(record)) for record in records]
        return await self.uploads_to.upload(files, number=number, name=name)


def gone_where_it_was(room: Room, id_: int, error: Exception) -> Callable[[FileRecord], None]:
    """The file is moved, and what it lay in dropped, as it is read for the first time."""

    def on_read(record: FileRecord) -> None:
        if record.id == id_ and record.layout == 0:
            if not room.state.files[id_].record.layout:
                room.move(id_)
            raise error

    return on_read


@pytest.mark.parametrize("limits", [SMALL, LARGE])
@pytest.mark.parametrize("error", [TooFewShards("gone"), NotFound("gone")])
def test_a_file_that_was_moved_in_a_round_is_not_lost(limits: Limits, error: Exception) -> None:
    async def main() -> None:
        room = Room(limits)
        ids = [room.put(f"/{n}", b"x" * 30) for n in range(3)]
        await room.drainer.catch_up()
        room.on_read = gone_where_it_was(room, ids[1], error)
        await room.drainer.round()
        assert room.drainer.files_lost == set()
        assert all(id_ in room.state.tier.places for id_ in ids)

    run(main())


@pytest.mark.parametrize("limits", [SMALL, LARGE])
def test_a_file_that_nobody_has_any_more_keeps_no_other_from_the_tier(limits: Limits) -> None:
    async def main() -> None:
        room = Room(limits)
        ids = [room.put(f"/{n}", b"x" * 30) for n in range(3)]
        await room.drainer.catch_up()

        def on_read(record: FileRecord) -> None:
            if record.id == ids[1]:
                raise TooFewShards("lost")

        room.on_read = on_read
        await room.drainer.round()
        assert room.drainer.files_lost == {ids[1]}
        assert [id_ in room.state.tier.places for id_ in ids] == [True, False, True]

    run(main())


def test_a_segment_that_an_agent_put_somewhere_else_is_not_announced() -> None:
    """As on several hosts whose directories of that name are not the same one."""

    async def main() -> None:
        room, elsewhere = Room(LARGE), Room(LARGE)
        await room.drainer.catch_up()
        await room.drainer.round()
        room.put("/a", b"x" * 30)
        number, room.uploads_to = room.state.tier.number, elsewhere.port
        with pytest.raises(StoreDown, match="must be the same one on all hosts"):
            await room.drainer.round()
        assert room.state.tier.number == number
        room.uploads_to = room.port
        await room.drainer.round()
        assert room.state.tier.number == number + 1

    run(main())


def test_what_is_reaped_under_a_round_ends_it() -> None:
    """It lived at the round's moment: a manifest without it is no prefix."""

    async def main() -> None:
        room = Room(SMALL)
        await room.drainer.catch_up()
        await room.drainer.round()
        room.put("/a", b"bytes")
        number = room.state.tier.number

        def on_read(record: FileRecord) -> None:
            room.drainer.end_round()
            raise TooFewShards("reaped while it was read")

        room.on_read = on_read
        with pytest.raises(RoundEnded):
            await room.drainer.round()
        assert room.state.tier.number == number

    run(main())


def test_a_store_that_takes_its_time_with_a_manifest_keeps_nothing_from_being_reaped() -> None:
    async def main() -> None:
        room = Room(SMALL)
        await room.drainer.catch_up()
        await room.drainer.round()
        room.put("/a", b"bytes")
        seen: list[bool] = []
        put_new = room.store.put_new

        async def slow(name: str, parts: Any) -> None:
            seen.append(room.drainer.collecting)
            await put_new(name, parts)

        room.store.put_new = slow  # type: ignore[method-assign]
        await room.drainer.round()
        assert seen == [False]

    run(main())


def test_a_whole_manifest_goes_through_its_rows_once_however_many_segments_there_are() -> None:
    walks = 0

    class Rows(list[Any]):
        def __iter__(self) -> Any:
            nonlocal walks
            walks += 1
            return super().__iter__()

    state = NamespaceState()
    for number in range(1, 101):
        state.tier.restore_segment(number, Segment(f"segments/{number}", 10))
    rows = Rows((id_, *_kept(id_ % 100 + 1)) for id_ in range(1000))
    moment = cut.Moment(change=1, op=1, time_ms=1, last_file=1)
    whole = cut.Whole(moment=moment, rows=rows)
    found = list(whole.segments(state))
    assert len(found) == 100
    assert sorted(row for held in found for row in held.rows) == sorted(list.__iter__(rows))
    assert all(row[1] == held.number for held in found for row in held.rows)
    assert walks == 1


def test_a_leader_that_finds_no_chain_where_one_was_begins_no_other() -> None:
    async def main() -> None:
        room = Room(SMALL)
        await room.drainer.catch_up()
        await room.drainer.round()
        number = room.state.tier.number
        room.store.objects.clear()
        with pytest.raises(StoreDown, match=f"lacks manifest {number}"):
            await room.drainer.catch_up()
        assert room.store.objects == {}

    run(main())


def _kept(segment: int) -> tuple[int, int, int, int]:
    kept = Kept(segment, 0, 1, 0)
    return kept.segment, kept.offset, kept.stored_bytes, kept.flags


def test_a_tier_that_is_silent_for_days_takes_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlogs, "SAMPLES_MAX", 50)

    async def main() -> None:
        room = Room(SMALL)
        await room.drainer.catch_up()
        await room.drainer.round()
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        for _ in range(500):
            room.put("/a", b"1")
            room.backlog.note()
            await asyncio.sleep(1)
        assert len(room.backlog._samples) <= 50
        assert room.backlog.lag().seconds == asyncio.get_running_loop().time() - began_s
        await room.drainer.round()
        assert room.backlog.lag().seconds == 0

    run(main())
