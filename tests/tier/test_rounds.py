"""Rounds of the drain, one at a time: what moves, is freed or fails to be read meanwhile."""

import asyncio
import gc
import logging
import random
import weakref
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from diskless.agent.leading import backlog as backlogs
from diskless.agent.leading import cut
from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.distance import FAR_S
from diskless.agent.leading.drainer import Drainer, Limits, RoundEnded
from diskless.agent.ports import Stretch, Uploaded
from diskless.agent.tiers import Tiers
from diskless.checksum import file_checksum
from diskless.errors import NotFound, StoreDown, Superseded, TooFewShards, Unavailable
from diskless.model import Extent, FileRecord
from diskless.namespace import commands as c
from diskless.namespace import picture
from diskless.namespace.journal import Journal
from diskless.namespace.parts import Span
from diskless.namespace.replication.machine import NamespaceMachine
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import FORGET_PLACES, Kept, Segment
from diskless.namespace.views import tier_place
from diskless.tier.chain import Chain
from diskless.tier.manifest import chain_name
from diskless.tier.port import ChainDraft, TierPort
from diskless.tier.restore import resuming
from diskless.tier.store import Metered
from diskless.tier.sweep import tidy
from diskless.tier.verify import verify
from tests.tier.faulty import FaultyStore
from tests.tier.loop import VirtualLoop, run
from tests.tier.parts import Parts

URI = FaultyStore.uri
SMALL, LARGE = Limits(), Limits(small_bytes=1, segment_bytes=20)
PARTS = Limits(small_bytes=1, segment_bytes=8)
"""What a file of 24 bytes becomes: a part of the manifest, a segment, three segments."""


class Room:
    """A leader with one voter: World and Source of its drainer."""

    def __init__(self, limits: Limits) -> None:
        self.machine = NamespaceMachine()
        self.store = FaultyStore(random.Random(1))
        self.port = port_of(self.store)
        self.uploads_to = self.port
        self.op = 0
        self.sequence = 0
        self.on_read: Callable[[FileRecord], None] = lambda record: None
        self.dies: Callable[[Span], bool] = lambda span: False
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
        files = [Stretch(record.id, await self.read(record)) for record in records]
        return await self.uploads_to.upload(files, number=number, name=name)

    def begin_parts(self) -> Parts:
        return Parts(self.read, self.uploads_to, self.dies)


def port_of(store: FaultyStore) -> TierPort:
    return TierPort(Metered(store), cluster="c", name="c")  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.1)


def gone_where_it_was(room: Room, id_: int, error: Exception) -> Callable[[FileRecord], None]:
    """The file is moved, and what it lay in dropped, as it is read for the first time."""

    def on_read(record: FileRecord) -> None:
        if record.id == id_ and record.layout == 0:
            if not room.state.files[id_].record.layout:
                room.move(id_)
            raise error

    return on_read


def round_s(*, busy: bool, waiting: int) -> float:
    """How long a round of many segments takes."""

    async def main() -> float:
        room = Room(LARGE)
        for n in range(60):
            room.put(f"/{n}", b"x" * 24)
        await room.drainer.catch_up()
        room.backlog.waiting = waiting
        if busy:
            room.on_read = lambda record: room.drainer.pacer.note_command(0.001)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await room.drainer.round()
        return loop.time() - began_s

    return run(main())


def test_a_large_round_gives_way_to_clients_unless_they_wait_for_it() -> None:
    alone_s = round_s(busy=False, waiting=0)
    assert round_s(busy=True, waiting=0) > 1.3 * alone_s
    assert round_s(busy=True, waiting=1) <= 1.1 * alone_s


@pytest.mark.parametrize("limits", [SMALL, LARGE, PARTS])
@pytest.mark.parametrize("error", [TooFewShards("gone"), NotFound("gone")])
def test_a_file_that_was_moved_in_a_round_is_not_lost(limits: Limits, error: Exception) -> None:
    async def main() -> None:
        room = Room(limits)
        ids = [room.put(f"/{n}", b"x" * 24) for n in range(3)]
        await room.drainer.catch_up()
        room.on_read = gone_where_it_was(room, ids[1], error)
        await room.drainer.round()
        assert room.drainer.files_lost == set()
        assert all(id_ in room.state.tier.places for id_ in ids)

    run(main())


@pytest.mark.parametrize("limits", [SMALL, LARGE, PARTS])
def test_a_file_that_nobody_has_any_more_keeps_no_other_from_the_tier(limits: Limits) -> None:
    async def main() -> None:
        room = Room(limits)
        ids = [room.put(f"/{n}", b"x" * 24) for n in range(3)]
        await room.drainer.catch_up()

        def on_read(record: FileRecord) -> None:
            if record.id == ids[1]:
                raise TooFewShards("lost")

        room.on_read = on_read
        await room.drainer.round()
        assert room.drainer.files_lost == {ids[1]}
        assert [id_ in room.state.tier.places for id_ in ids] == [True, False, True]
        room.sequence += 1
        room.do(c.Delete(room.session, room.sequence, "/1", False))
        assert room.drainer.files_lost == set(), "nobody misses it any more"

    run(main())


CONTENT = bytes(range(24))


async def kept(room: Room, id_: int) -> bytes:
    """A file's bytes, as the tier has them."""
    found = b""
    for part in room.state.tier.parts(id_):
        place = tier_place(room.state.tier, id_, part.start)
        assert place is not None
        found += b"".join(await room.port.read(place, file=id_, size=24, start=part.start, stop=24))
    return found


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_agent_that_dies_with_any_part_costs_the_parts_before_it(part: int, after: bool) -> None:
    """Others begin with the first again; nothing of what it left is named."""

    async def main() -> None:
        room = Room(PARTS)
        await room.drainer.catch_up()
        await room.drainer.round()
        id_ = room.put("/large", CONTENT)
        deaths = iter([False, True] if after else [True])
        room.dies = lambda span: span.start == 8 * part and next(deaths, False)
        await room.drainer.round()
        assert next(deaths, None) is None
        assert await kept(room, id_) == CONTENT
        named = {segment.name for segment in room.state.tier.segments.values()}
        assert all(name.endswith("-2") for name in named if name.startswith("segments/"))
        chain = Chain(room.store, cluster="c", name="c", epoch=1)
        newest = await chain.newest()
        assert newest is not None
        garbage = await tidy(chain, newest, (), dry_run=False)
        assert garbage.deleted >= 1
        assert {name for name in room.store.objects if name.startswith("segments/")} <= named
        assert await kept(room, id_) == CONTENT
        assert room.drainer.files_lost == set()

    run(main())


def test_a_large_file_that_every_agent_dies_of_ends_the_round_and_names_none_of_it() -> None:
    async def main() -> None:
        room = Room(PARTS)
        await room.drainer.catch_up()
        await room.drainer.round()
        number, id_ = room.state.tier.number, room.put("/large", CONTENT)
        room.dies = lambda span: span.start == 16
        with pytest.raises(Unavailable):
            await room.drainer.round()
        assert room.state.tier.number == number
        assert id_ not in room.state.tier.places
        room.dies = lambda span: False
        await room.drainer.round()
        assert await kept(room, id_) == CONTENT
        await room.drainer.round()

    run(main())


def test_what_is_lost_of_a_large_file_in_its_middle_leaves_none_of_it_in_a_manifest() -> None:
    async def main() -> None:
        room = Room(PARTS)
        ids = [room.put("/lost", bytes(40)), room.put("/good", CONTENT)]
        await room.drainer.catch_up()
        reads = 0

        def on_read(record: FileRecord) -> None:
            nonlocal reads
            reads += record.id == ids[0]
            if record.id == ids[0] and reads > 4:
                raise TooFewShards("lost")

        room.on_read = on_read
        await room.drainer.round()
        assert room.drainer.files_lost == {ids[0]}
        assert ids[0] not in room.state.tier.places
        assert await kept(room, ids[1]) == CONTENT
        chain = Chain(room.store, cluster="c", name="c", epoch=1)
        report = await verify(chain, full=True)
        assert report.sound, report.problems
        assert report.files == 1

    run(main())


def test_a_large_file_that_is_deleted_while_it_is_uploaded_is_garbage_that_is_found() -> None:
    async def main() -> None:
        room = Room(PARTS)
        await room.drainer.catch_up()
        await room.drainer.round()
        id_ = room.put("/large", CONTENT)
        seen = []

        def on_read(record: FileRecord) -> None:
            seen.append(record.id)
            if len(seen) == 2:
                room.sequence += 1
                room.do(c.Delete(room.session, room.sequence, "/large", False))

        room.on_read = on_read
        await room.drainer.round()
        assert seen == [id_] * 3
        assert id_ not in room.state.tier.places
        assert not room.state.tier.segments
        room.put("/small", b"x")
        await room.drainer.round()
        chain = Chain(room.store, cluster="c", name="c", epoch=1)
        assert (await verify(chain, full=True)).sound

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


def test_what_the_files_of_a_round_lie_in_is_needed_until_they_are_read() -> None:
    async def main() -> None:
        room = Room(SMALL)
        await room.drainer.catch_up()
        await room.drainer.round()
        ids = [room.put(f"/{n}", b"x" * 24) for n in range(2)]
        for id_ in ids:
            file = room.state.files[id_]
            extents = (Extent(f"0.1.{id_}", 0, 24),)
            file.record = replace(file.record, inline=None, extents=extents)
        seen: list[Any] = []

        async def read(record: FileRecord) -> bytes:
            seen.append((room.drainer.collecting, room.drainer.needed))
            return b"x" * 24

        room.read = read  # type: ignore[method-assign]
        await room.drainer.round()
        assert seen == [(True, frozenset(f"0.1.{id_}" for id_ in ids))] * 2

    run(main())


@pytest.mark.parametrize("mostly_dead", [False, True])
def test_a_whole_round_brings_the_files_of_segments_that_are_to_be_given_up(
    mostly_dead: bool,
) -> None:
    async def main() -> None:
        room = Room(SMALL)
        id_ = room.put("/a", b"x" * 24)
        await room.drainer.catch_up()
        await room.drainer.round()
        (before,) = room.state.tier.segments
        room.do(c.Mark())
        whole = cut.Whole(
            moment=cut.Moment(change=1, op=1, time_ms=1, last_file=1),
            rewrite=frozenset({before} if mostly_dead else ()),
        )
        for chunk in picture.rows(room.state):
            cut.sort_files(room.state, chunk, None, whole)
        assert [record.id for record in whole.records] == [id_] * mostly_dead
        assert list(whole.rows) == [before] * (not mostly_dead)

    run(main())


def test_what_lands_after_the_tier_was_attached_anew_is_passed_by() -> None:
    """A round that had begun before: it has its number, and no state builds on it."""

    async def main() -> None:
        room = Room(SMALL)
        await room.drainer.catch_up()
        await room.drainer.round()
        id_ = room.put("/a", CONTENT)

        def again(record: FileRecord) -> None:
            room.on_read = lambda record: None
            while room.do(c.DetachTier()):
                pass
            room.do(c.AttachTier(URI, 2, 1, ""))

        room.on_read = again
        draining = asyncio.create_task(room.drainer.run())
        room.backlog.note()
        await until(lambda: room.state.tier.horizon_file >= id_)
        draining.cancel()
        assert (room.state.tier.epoch, room.state.tier.number) == (2, 3)
        assert await kept(room, id_) == CONTENT
        chain = Chain(room.store, cluster="c", name="c", epoch=2)
        newest = await chain.newest()
        assert newest is not None
        assert newest.number == newest.base == 3, "the first of its epoch is whole"
        assert (await chain.read(2)).epoch == 1
        report = await verify(chain, full=True)
        assert report.sound, report.problems
        assert report.files == 1

    run(main())


def test_a_whole_manifest_has_the_rows_of_each_segment_together() -> None:
    state = NamespaceState()
    for number in range(1, 101):
        state.tier.restore_segment(number, Segment(f"segments/{number}", 10))
    rows = {number: [(id_, *_kept(number)) for id_ in range(10)] for number in range(1, 101)}
    whole = cut.Whole(moment=cut.Moment(change=1, op=1, time_ms=1, last_file=1), rows=rows)
    found = {held.number: [*held.rows] for held in whole.segments(state)}
    assert found == rows


def test_a_whole_manifest_of_many_files_takes_many_short_turns_and_tells_only_what_it_brought() -> (
    None
):
    segments, files = 12, 5000

    async def main() -> None:
        room = Room(SMALL)
        await room.drainer.catch_up()
        draft = room.port.draft("round")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for number in range(1, segments + 1):
            rows = tuple((files * number + n, *_kept(number)) for n in range(files))
            draft.keep(Uploaded(number, f"segments/{number}", 10, rows))
        await draft.add_file(1, b"new")
        before = loop.turns
        landed = await draft.append(change=1, op=1, time_ms=1, last_file=10**6)
        assert [row[0] for row in landed.rows] == [1]
        assert loop.turns - before >= segments, (
            "others have their turn between the pieces of its table"
        )
        found = await room.port.look(landed.number, epoch=landed.epoch)
        assert found is not None
        assert len(found.rows) == segments * files + 1

    run(main())


@pytest.mark.parametrize("limits", [SMALL, LARGE, PARTS])
def test_a_whole_round_tells_the_namespace_of_the_files_that_it_brought_and_of_no_others(
    limits: Limits,
) -> None:
    async def main() -> None:
        room = Room(limits)
        for n in range(3):
            room.put(f"/{n}", b"x" * 24)
        await room.drainer.catch_up()
        await room.drainer.round()
        new, known = room.put("/new", b"y" * 24), set(room.state.tier.segments)
        told: list[c.Command] = []
        execute = room.execute

        async def noted(command: c.Command) -> tuple[c.Result, ...]:
            told.append(command)
            return await execute(command)

        room.execute = noted  # type: ignore[method-assign]
        room.drainer._since_whole = limits.whole_after
        await room.drainer.round()
        assert c.Mark in map(type, told), "it was whole"
        rows = [row for command in told if isinstance(command, c.Keep) for row in command.rows]
        assert new in {row[0] for row in rows}
        assert known.isdisjoint(row[1] for row in rows), "where nothing is new"
        assert set(room.state.tier.places) == set(room.state.files)

    run(main())


def test_a_new_leader_reads_no_places_of_files_that_the_namespace_knows() -> None:
    """A whole manifest has those of all files: as much as the namespace has, once more."""

    async def main() -> None:
        room = Room(SMALL)
        room.put("/a", b"x")
        await room.drainer.catch_up()
        await room.drainer.round()
        known = room.state.tier.number
        gets: list[tuple[str, int]] = []
        get = room.store.get

        async def noted(name: str, start: int = 0, end: int | None = None) -> memoryview:
            gets.append((name, start))
            return await get(name, start, end)

        room.store.get = noted  # type: ignore[method-assign]
        await room.drainer.catch_up()
        assert gets.count((chain_name(known), 0)) == 1
        assert all(start == 0 for _, start in gets)
        room.put("/b", b"y")
        await room.drainer.round()
        assert len(room.state.tier.places) == 2

    run(main())


@pytest.mark.parametrize("places", [0, 1])
def test_what_a_leader_left_of_a_tier_that_is_detached_is_cleared_up_by_the_next(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskless.namespace.tier.FORGET_PLACES", 1)

    async def main() -> None:
        room = Room(SMALL)
        for n in range(1 + places):
            room.put(f"/{n}", b"x")
        await room.drainer.catch_up()
        await room.drainer.round()
        assert room.do(c.DetachTier()) == places, "left to be forgotten"
        room.do(c.Mark())  # of a round that had begun; and then both are gone
        draining = asyncio.create_task(room.drainer.run())
        await asyncio.sleep(10)
        draining.cancel()
        assert room.state.marked is None
        assert not room.state.tier.places

    run(main())


def test_a_cluster_that_lost_its_tier_to_another_one_uses_the_next_that_it_is_given() -> None:
    """By the leader that it has: nobody may become the next one for a long time."""

    async def main() -> None:
        room = Room(SMALL)
        ids = [room.put(f"/{n}", b"x") for n in range(FORGET_PLACES + 1)]
        draining = asyncio.create_task(room.drainer.run())
        await until(lambda: room.state.tier.horizon_file == ids[-1])
        other = Chain(room.store, cluster="d", name="d", epoch=0)
        await other.take_over(resuming(other), round_id=lambda: "d")
        await until(lambda: room.drainer.superseded is not None)
        with pytest.raises(Superseded):
            await room.backlog.reach(room.state.tier.change + 1, 1.0)
        assert room.do(c.DetachTier()) > 0, "some places are left to be forgotten"
        await until(lambda: not room.state.tier.places)
        room.port = room.uploads_to = port_of(FaultyStore(random.Random(2)))
        room.do(c.AttachTier(f"{URI}/next", 1, 0, ""))
        await until(lambda: room.state.tier.horizon_file == ids[-1])
        assert room.drainer.superseded is None
        room.put("/new", b"y")
        await room.backlog.reach(room.state.tier.change, 10.0)
        draining.cancel()

    run(main())


def test_a_tier_is_trusted_with_files_only_while_its_store_answers_this_leader() -> None:
    """Not before its first answer either: a store that hangs takes long to be found out."""

    async def main() -> None:
        room = Room(SMALL)
        hangs = True
        get, size = room.store.get, room.store.size

        async def answer(work: Callable[..., Any], *args: Any) -> Any:
            while hangs:
                await asyncio.sleep(1)
            return await work(*args)

        room.store.get = lambda *args: answer(get, *args)  # type: ignore[method-assign]
        room.store.size = lambda *args: answer(size, *args)  # type: ignore[method-assign]
        room.put("/a", b"x")
        draining = asyncio.create_task(room.drainer.run())
        await asyncio.sleep(1)
        assert room.drainer.error is None
        assert not room.drainer.is_trusted
        hangs = False
        await until(lambda: room.state.tier.change == room.state.tier.horizon_change)
        await until(lambda: room.drainer.is_trusted)
        hangs = True
        await until(lambda: room.drainer.error is not None)
        assert not room.drainer.is_trusted
        hangs = False
        await until(lambda: room.drainer.is_trusted)
        other = Chain(room.store, cluster="d", name="d", epoch=0)
        await other.take_over(resuming(other), round_id=lambda: "d")
        await until(lambda: room.drainer.superseded is not None)
        assert not room.drainer.is_trusted
        draining.cancel()

    run(main())


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


def test_of_a_round_that_failed_nothing_stays_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While a store is silent the next round is made beside it, and a whole one has rows of all
    files."""

    async def main() -> None:
        room = Room(SMALL)
        room.put("/a", b"x")
        drafts: list[weakref.ref[object]] = []
        draft = room.port.draft

        def noted(round_id: str) -> ChainDraft:
            found = draft(round_id)
            drafts.append(weakref.ref(found))
            return found

        room.port.draft = noted  # type: ignore[method-assign]

        async def silent(name: str, parts: Any) -> None:
            raise StoreDown("silent")

        room.store.put_new = silent  # type: ignore[method-assign]
        caplog.set_level(logging.CRITICAL, "diskless")  # it keeps errors, too
        draining = asyncio.create_task(room.drainer.run())
        await until(lambda: room.drainer.rounds_failed == 2)
        gc.collect()
        assert drafts
        assert not [ref for ref in drafts if ref() is not None]
        draining.cancel()
        assert "silent" in str(room.drainer.error)

    run(main())


def drained(*, puts_per_s: int, for_s: int) -> tuple[int, float]:
    """Rounds of a drain under so many puts a second, and how far it was behind, mostly: this store
    answers late now and then."""

    async def main() -> tuple[int, float]:
        room = Room(Limits())
        draining = asyncio.create_task(room.drainer.run())
        lags_s = []
        for number in range(puts_per_s * for_s):
            room.put(f"/{number}", b"x")
            room.backlog.note()
            await asyncio.sleep(1 / puts_per_s)
            lags_s.append(room.backlog.lag().seconds)
        draining.cancel()
        return room.drainer.rounds, median(lags_s)

    return run(main())


def test_few_changes_make_few_rounds_and_are_not_far_behind_for_it() -> None:
    few, few_lag_s = drained(puts_per_s=10, for_s=20)
    many, many_lag_s = drained(puts_per_s=200, for_s=20)
    assert 0 < few < 0.7 * many
    assert few_lag_s < FAR_S
    assert many_lag_s < FAR_S
