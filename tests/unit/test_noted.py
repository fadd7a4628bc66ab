"""The table of Spark's notes: what is kept, what goes first, and what it weighs."""

import gc
import random
import tracemalloc

import msgspec
import pytest

from diskless.agent.noted import (
    CHAR_BYTES,
    INDEX_ENTRIES_MAX,
    NOTE_BYTES,
    QUERIES_MAX,
    ROW_BYTES,
    NoteTable,
    Row,
)
from diskless.notes import NOTES_KEPT, RUNS_KEPT, BatchNote, pack, unpack

ROOMY = 1 << 30


def note(batch: int, time_ms: int = 0, rows: int = 0) -> BatchNote:
    return BatchNote(batch, time_ms or 1_800_000_000_000 + 1000 * batch, rows)


def packed(*batches: int) -> list[bytes]:
    return [pack(note(batch)) for batch in batches]


def batches(table: NoteTable, path: str, limit: int = NOTES_KEPT) -> list[int]:
    return [one.batch for one in table.of(path, limit).notes]


def test_a_note_comes_back_as_it_was() -> None:
    whole = BatchNote(*range(1, 1 + len(BatchNote.__struct_fields__)))
    for one in (whole, BatchNote(0, 0), BatchNote(2**63 - 1, 5, state_rows=0)):
        assert unpack(pack(one)) == one
        assert msgspec.json.decode(msgspec.json.encode(one), type=BatchNote) == one
    assert len(pack(BatchNote(10**9, 10**13, *[10**6] * 13))) < 120


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode([None, 1]),
             msgspec.msgpack.encode([-1, 1]), msgspec.msgpack.encode([1, "now"]),
             msgspec.msgpack.encode({"batch": 1}), msgspec.msgpack.encode([2**63, 1])],
)  # fmt: skip
def test_what_is_no_note_is_refused_and_nothing_is_kept(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack(data)
    table = NoteTable(ROOMY)
    with pytest.raises(msgspec.DecodeError):
        table.add("/q", "id", [*packed(1), data])
    assert (len(table), table.bytes_used) == (0, 0)


def test_the_last_thousand_of_a_query_are_kept() -> None:
    table = NoteTable(ROOMY)
    table.add("/q", "id", packed(*range(NOTES_KEPT + 5)))
    assert batches(table, "/q") == list(range(5, NOTES_KEPT + 5))
    assert batches(table, "/q", 3) == [NOTES_KEPT + 2, NOTES_KEPT + 3, NOTES_KEPT + 4]
    assert batches(table, "/q", 0) == batches(table, "/none") == []
    row = table.row("/q")
    assert row is not None
    assert len(row.notes) == NOTES_KEPT, "more are not even held"
    weight = sum(NOTE_BYTES + 24 + len(one) for one in row.notes)
    assert table.bytes_used == ROW_BYTES + CHAR_BYTES * len("/q") + weight


def run_notes(run: int, *batches: int) -> list[bytes]:
    return [
        pack(msgspec.structs.replace(note(batch), started_ms=1_700_000_000_000 + run))
        for batch in batches
    ]


def test_where_runs_began_and_ended_is_kept_when_what_lies_between_is_not() -> None:
    table = NoteTable(ROOMY)
    for run in range(5):
        table.add("/q", "id", run_notes(run, *range(10 * run, 10 * run + 10)))
    table.add("/q", "id", run_notes(5, *range(50, 50 + NOTES_KEPT)))
    found = batches(table, "/q")
    assert len(found) == NOTES_KEPT
    assert found[:11] == [0, 9, 10, 19, 20, 29, 30, 39, 40, 49, 50]
    assert found[11:] == list(range(50 + NOTES_KEPT - (NOTES_KEPT - 11), 50 + NOTES_KEPT))
    other = NoteTable(ROOMY)
    row = table.row("/q")
    assert row is not None
    other.merge(row)
    assert batches(other, "/q") == found
    assert other.bytes_used == table.bytes_used
    assert not other.lacks(table.index("")[0])


def test_runs_that_are_kept_are_bounded_too() -> None:
    table = NoteTable(ROOMY)
    runs = NOTES_KEPT // 2 + 50
    for run in range(runs):
        table.add("/q", "id", run_notes(run, 2 * run, 2 * run + 1))
    assert batches(table, "/q") == list(range(100, 100 + NOTES_KEPT)), "the newest"
    table.add("/q", "id", run_notes(runs, *range(2 * runs, 2 * runs + NOTES_KEPT)))
    found = batches(table, "/q")
    assert len(found) == NOTES_KEPT
    assert sum(one < 2 * runs for one in found) == 2 * (RUNS_KEPT - 1)


def test_a_repeat_changes_nothing_and_a_batch_that_ran_again_counts() -> None:
    table = NoteTable(ROOMY)
    assert table.add("/q", "id", packed(1, 2, 3)) == 3
    before = table.bytes_used
    assert table.add("/q", "id", packed(2, 3)) == 0
    assert table.bytes_used == before
    again = pack(note(2, time_ms=1_900_000_000_000, rows=7))
    assert table.add("/q", "id", [again]) == 1
    assert [one.rows for one in table.of("/q").notes if one.batch == 2] == [0, 7]


def test_another_query_in_the_same_place_begins_anew() -> None:
    table = NoteTable(ROOMY)
    table.add("/q", "first", packed(1, 2))
    table.add("/q", "second", packed(0))
    found = table.of("/q")
    assert (found.query, [one.batch for one in found.notes]) == ("second", [0])


def test_what_was_not_heard_of_for_longest_goes_first() -> None:
    each = ROW_BYTES + CHAR_BYTES * 2 + 10 * (NOTE_BYTES + 24 + len(packed(1)[0]))
    table = NoteTable(3 * each)
    for path in ("/a", "/b", "/c"):
        table.add(path, "id", packed(*range(10)))
    table.add("/a", "id", packed(10, 11))
    assert len(batches(table, "/a")) == 12
    assert len(batches(table, "/b")) == 8, "the oldest two of whom nothing was heard since"
    table.add("/d", "id", packed(*range(10)))
    assert batches(table, "/b") == []
    assert table.bytes_used <= 3 * each


def test_the_number_of_queries_is_bounded() -> None:
    table = NoteTable(ROOMY)
    for number in range(QUERIES_MAX + 3):
        table.add(f"/{number}", "id", packed(1))
    assert len(table) == QUERIES_MAX
    assert "/2" not in set(table)
    assert "/3" in set(table)


def test_one_query_larger_than_the_table_keeps_its_newest() -> None:
    table = NoteTable(10_000)
    table.add("/q", "id", packed(*range(500)))
    kept = batches(table, "/q")
    assert kept == list(range(500 - len(kept), 500))
    assert 0 < len(kept) < 100
    assert table.bytes_used <= 10_000


def test_two_tables_that_exchange_rows_agree_whatever_each_had_heard() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(50):
        one, other = NoteTable(ROOMY), NoteTable(ROOMY)
        heard: dict[str, set[int]] = {"/a": set(), "/b": set(), "/c": set()}
        for path in heard:
            for batch in range(rng.randrange(20)):
                for table in rng.sample((one, other), rng.randrange(3)):
                    table.add(path, "id", packed(batch))
                    heard[path].add(batch)
        for here, there in ((one, other), (other, one)):
            for entry in there.index(""):
                if here.lacks(entry):
                    row = there.row(entry.path)
                    assert row is not None
                    here.merge(row)
        for path in heard:
            assert batches(one, path) == batches(other, path) == sorted(heard[path])


def test_merging_keeps_the_order_of_the_drivers_clock_and_the_newer_query() -> None:
    table = NoteTable(ROOMY)
    table.add("/q", "id", packed(4, 5))
    table.merge(Row("/q", "id", packed(2, 3, 5, 6)))
    assert batches(table, "/q") == [2, 3, 4, 5, 6]
    table.merge(Row("/q", "older", [pack(note(9, time_ms=5))]))
    assert table.of("/q").query == "id"
    table.merge(Row("/q", "newer", [pack(note(1, time_ms=2_000_000_000_000))]))
    assert (table.of("/q").query, batches(table, "/q")) == ("newer", [1])


def test_the_index_is_told_in_pages() -> None:
    table = NoteTable(ROOMY)
    for number in range(INDEX_ENTRIES_MAX + 7):
        table.add(f"/{number:04}", "id", packed(1, 2))
    first = table.index("")
    rest = table.index(first[-1].path)
    assert (len(first), len(rest), table.index(rest[-1].path)) == (INDEX_ENTRIES_MAX, 7, [])
    assert [entry.path for entry in (*first, *rest)] == sorted(table)
    assert not any(table.lacks(entry) for entry in first)
    assert all(NoteTable(ROOMY).lacks(entry) for entry in first)


def test_the_table_weighs_what_it_takes() -> None:
    table = NoteTable(ROOMY)
    large = [pack(BatchNote(n, 1_800_000_000_000 + n, *[10_000 + n] * 13)) for n in range(300)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(100):
        table.add(f"/checkpoints/{number}", f"id-{number}", large)
    gc.collect()
    took = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.7 * table.bytes_used < took <= table.bytes_used
