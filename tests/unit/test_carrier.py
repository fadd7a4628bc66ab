"""How files come to the tier: one agent's word is not enough to call a large one lost."""

import asyncio
from collections.abc import Sequence

import pytest

from diskless.agent.leading.carrier import (
    PARTS_AT_ONCE,
    SEGMENT_FILES_MAX,
    Carrier,
    Limits,
    shares,
)
from diskless.agent.leading.pacer import Pacer
from diskless.agent.ports import Uploaded
from diskless.errors import CorruptData, DisklessError, ShardsAway, TooFewShards
from diskless.model import FileRecord

SEGMENT, AGENTS = 1000, 3
LARGE = FileRecord(5, 5 * SEGMENT, 0, 0, None, ())


class Run:
    """All parts of a file by one agent; the first `bad` ones fail at the last part."""

    def __init__(self, bad: int, error: DisklessError) -> None:
        self._bad, self._error = bad, error
        self.agent = self.under_way = self.most = 0

    async def upload(self, record: FileRecord, span, *, number: int, name: str) -> Uploaded:
        if self.agent < self._bad and span.end == record.size:
            raise self._error
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        row = (record.id, number, 0, 1, 0, span.start, span.end - span.start)
        return Uploaded(number, name, 1, (row,))

    def next_agent(self) -> bool:
        self.agent += 1
        return self.agent < AGENTS


class Source:
    def __init__(self, run: Run) -> None:
        self._run = run

    async def read(self, record: FileRecord) -> bytes:
        raise AssertionError("a large file is never held whole")

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        raise AssertionError("a large file is no part of a segment")

    def begin_parts(self) -> Run:
        return self._run


class Draft:
    def __init__(self) -> None:
        self.named: list[Uploaded] = []
        self._number = 0

    def reserve(self) -> tuple[int, str]:
        self._number += 1
        return self._number, f"segments/{self._number}"

    def name(self, uploaded: Uploaded) -> None:
        self.named.append(uploaded)


class Waiting:
    """What is to be done, as a backlog tells it."""

    presses = False

    def __init__(self, failing: bool) -> None:
        self.failing = failing


class Busy(Pacer):
    """Of clients that are always at work."""

    def wave_ends(self, took_s: float, *, clients_at_work: bool) -> float:
        return 20.0


class Tier:
    async def confirm(self, uploaded: Uploaded) -> None:
        pass


def carrier_of(
    source: Source,
    waiting: Waiting,
    pacer: Pacer,
    *,
    limits: Limits = Limits(small_bytes=10, segment_bytes=SEGMENT),  # noqa: B008
) -> Carrier:
    return Carrier(
        source=source,
        tier=Tier,
        latest=lambda record: record,
        check_room=lambda: None,
        backlog=waiting,
        pacer=pacer,
        limits=limits,
        now_s=lambda: 0.0,
    )


def bring_by(run: Run, *, failing: bool = False) -> tuple[Draft, set[int]]:
    carrier = carrier_of(Source(run), Waiting(failing), Pacer(share=1.0))
    draft = Draft()
    asyncio.run(carrier.bring(draft, [LARGE]))
    return draft, carrier.files_lost


def bring(bad: int, error: DisklessError) -> tuple[Draft, set[int]]:
    return bring_by(Run(bad, error))


@pytest.mark.parametrize("error", [CorruptData("its checksum"), TooFewShards("3 of 4")])
@pytest.mark.parametrize("bad", range(AGENTS))
def test_a_large_file_that_some_agent_can_read_is_brought(bad: int, error: DisklessError) -> None:
    draft, lost = bring(bad, error)
    assert not lost
    assert sum(row[-1] for uploaded in draft.named for row in uploaded.rows) == LARGE.size


def test_one_that_no_agent_can_read_is_lost_and_nothing_of_it_is_named() -> None:
    draft, lost = bring(AGENTS, CorruptData("its checksum"))
    assert lost == {LARGE.id}
    assert not draft.named


def test_one_whose_shards_are_only_away_is_not_lost() -> None:
    with pytest.raises(ShardsAway):
        bring(AGENTS, ShardsAway("silent"))


@pytest.mark.parametrize("failing", [False, True])
def test_while_rounds_fail_one_part_goes_after_the_other(failing: bool) -> None:
    """All at once on a slow store, none would be in time, in this round or the next."""
    run = Run(0, CorruptData("never"))
    bring_by(run, failing=failing)
    assert run.most == (1 if failing else PARTS_AT_ONCE)


def test_parts_that_give_way_go_on_when_somebody_begins_to_wait_for_the_tier() -> None:
    """A flush came while the drain paused for clients, and waited for the pause."""

    async def check() -> None:
        waiting, draft = Waiting(failing=False), Draft()
        carrier = carrier_of(Source(Run(0, CorruptData("never"))), waiting, Busy(share=0.5))
        task = asyncio.create_task(carrier.bring(draft, [LARGE]))
        done, _ = await asyncio.wait([task], timeout=0.1)
        assert not done, "it gives way"
        waiting.presses = True
        await asyncio.wait_for(task, timeout=10)  # half of one pause
        assert len(draft.named) == 5

    asyncio.run(check())


class Segments(Source):
    """Agents that make segments, and how many files came with each."""

    def __init__(self) -> None:
        self.files: list[int] = []

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        self.files.append(len(records))
        return Uploaded(number, name, 1, ())


def test_many_tiny_files_are_several_segments_and_no_body_of_a_manifest() -> None:
    """All rows of a segment are handled in one step, here and on each agent that uploads one."""
    source, count = Segments(), 2 * SEGMENT_FILES_MAX + 1
    carrier = carrier_of(source, Waiting(False), Pacer(share=1.0), limits=Limits())
    records = [FileRecord(n, 1, 0, 0, b"x", ()) for n in range(count)]
    asyncio.run(carrier.bring(Draft(), records))
    assert source.files == [SEGMENT_FILES_MAX, SEGMENT_FILES_MAX, 1]


@pytest.mark.parametrize("sizes", [[], [1], [9, 9, 9], [10, 11, 1], [19, 19], [1, 19, 20, 1]])
def test_shares_have_all_files_in_order_and_two_segments_at_most(sizes: list[int]) -> None:
    records = [FileRecord(n, size, 0, 0, None, ()) for n, size in enumerate(sizes)]
    found = list(shares(records, 10))
    assert [record for share in found for record in share] == records
    assert all(0 < sum(record.size for record in share) <= 20 for share in found)
    assert all(sum(record.size for record in share) >= 10 for share in found[:-1])
