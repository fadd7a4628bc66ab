"""What is kept, what is condemned, what is written anew."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diskless.errors import BadSettings
from diskless.tier.collect import REWRITE_BYTES_MAX, Ledger, plan, strays
from diskless.tier.manifest import Manifest, Point, SegmentRow, chain_name, segment_name
from diskless.tier.retention import Rule, parse, thin

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def manifest(number: int, *, whole: bool = False, **settings: object) -> Manifest:
    defaults = {
        "cluster": "c", "name": "c", "epoch": 1, "number": number, "round_id": f"r{number}",
        "op": 10 * number, "time_ms": 1000 * number, "last_file": number,
        "previous": number - 1, "whole": whole, "own": 100 + number, "own_bytes": 50,
    }  # fmt: skip
    return Manifest(**{**defaults, **settings})  # type: ignore[arg-type]


def ledger(*manifests: Manifest) -> Ledger:
    found = Ledger()
    for each in manifests:
        found.add(each)
    return found


def segment(number: int, size: int = 1000, intent: int = 1) -> SegmentRow:
    return SegmentRow(number, segment_name(intent, "r", number), size)


# --- retention ---


def test_rules_are_read() -> None:
    assert parse("every 1m keep 1h; every 1d keep 7d") == (
        Rule(MINUTE_MS, HOUR_MS),
        Rule(DAY_MS, 7 * DAY_MS),
    )
    assert parse("") == ()


@pytest.mark.parametrize(
    "text",
    ["1m 1h", "every 1m", "every 0s keep 1h", "every 1h keep 1m", "every 1s keep 1w", "x; y"],
)
def test_rules_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(BadSettings):
        parse(text)


def test_an_hour_by_the_minute_and_a_week_by_the_day_are_kept() -> None:
    rules = parse("every 1m keep 1h; every 1d keep 7d")
    points = [Point(n, n, n * 10_000) for n in range(1, 30 * 8640, 3)]
    kept = thin(points, rules, now_ms=points[-1].time_ms, whole=frozenset())
    assert 60 + 6 <= len(kept) <= 61 + 8
    assert points[-1].number in kept


points_ = st.lists(st.integers(0, 50), min_size=1, max_size=60).map(
    lambda steps: [Point(n, n, sum(steps[: n + 1]) * 1000) for n in range(len(steps))]
)


@given(points=points_, every=st.integers(1, 20), spans=st.integers(1, 5), whole=st.integers(1, 7))
@example(
    points=[Point(n, n, 1000 * s) for n, s in enumerate((0, 1, 11, 55))], every=11, spans=5, whole=2
)
def test_what_is_kept_now_was_kept_whenever_one_asked(
    points: list[Point], every: int, spans: int, whole: int
) -> None:
    """Thinning again and again, as points come, keeps what thinning once in the end keeps."""
    rules = (Rule(every * 1000, every * spans * 1000),)
    kept: list[Point] = []
    for point in points:
        kept.append(point)
        wholes = frozenset(p.number for p in points if p.number % whole == 0)
        now = thin(kept, rules, now_ms=point.time_ms, whole=wholes)
        kept = [p for p in kept if p.number in now]
    once = thin(points, rules, now_ms=points[-1].time_ms, whole=wholes)
    assert {p.number for p in kept} == once


# --- garbage ---


def test_the_newest_two_runs_are_kept_and_what_is_before_them_is_condemned() -> None:
    rows = {n: (segment(n, intent=n),) for n in range(1, 8)}
    chain = [
        manifest(n, whole=n in (1, 3, 6), points=() if n == 1 else None, segments=rows[n])
        for n in range(1, 8)
    ]
    told = plan(ledger(*chain))
    assert [point.number for point in told.points] == [3, 4, 5, 6, 7]
    assert set(told.doomed) == {
        chain_name(1), chain_name(2), rows[1][0].name, rows[2][0].name,
    }  # fmt: skip


def test_a_body_in_which_living_files_lie_is_kept_though_its_manifest_is_no_point() -> None:
    chain = [manifest(n, whole=n in (1, 2, 3), points=()) for n in range(1, 4)]
    named = SegmentRow(101, chain_name(1), 50)
    chain[2] = manifest(3, whole=True, points=(), segments=(named,))
    told = plan(ledger(*chain, manifest(4, whole=True, points=(), segments=(named,))))
    assert chain_name(1) not in told.doomed
    assert chain_name(2) in told.doomed


def test_a_manifest_that_began_an_epoch_and_the_one_before_are_kept_for_ever() -> None:
    chain = [
        manifest(n, whole=True, points=(), takeovers=(3,) if n >= 3 else ()) for n in range(1, 10)
    ]
    told = plan(ledger(*chain))
    assert {chain_name(n) for n in (2, 3)} & set(told.doomed) == set()
    assert {chain_name(n) for n in (1, 4, 5, 6, 7)} <= set(told.doomed)


def test_a_listing_condemns_what_failed_rounds_left_and_nothing_of_the_next() -> None:
    chain = [manifest(n, whole=True, points=None if n > 1 else ()) for n in (1, 2, 3)]
    failed, under_way = segment_name(3, "lost", 7), segment_name(4, "now", 8)
    told = plan(ledger(*chain), listed=[failed, under_way, "floors/000001", "elsewhere"])
    assert failed in told.doomed
    assert set(told.doomed) <= {failed, chain_name(1)}


def test_strays_are_what_no_manifest_named_or_ever_will_and_what_was_doomed() -> None:
    rows = {n: segment(n, intent=n) for n in (1, 2, 3)}
    chain = [manifest(n, whole=True, points=(), segments=(rows[n],)) for n in (1, 2)]
    chain.append(manifest(3, whole=True, points=(), segments=(rows[3],), doomed=(rows[1].name,)))
    past = ledger(*chain)
    failed, under_way = segment_name(3, "lost", 7), segment_name(4, "now", 8)
    listed = [row.name for row in rows.values()] + [failed, under_way, "floors/000001", "else"]
    listed += [chain_name(n) for n in (1, 2, 3, 4)]
    assert strays(past, listed=listed, floor=0) == [rows[1].name, failed]
    assert strays(past, listed=[], floor=0) == []
    past.manifests.pop(1)
    assert chain_name(1) in strays(past, listed=listed, floor=2)
    assert chain_name(1) not in strays(past, listed=listed, floor=0), "its number is not free"
    past.unreadable.add(2)
    assert strays(past, listed=listed, floor=2) == [], "what cannot be read may name anything"


def test_what_is_no_point_any_more_never_is_one_again() -> None:
    chain = [manifest(n, whole=True, points=(), time_ms=0) for n in range(1, 4)]
    told = plan(ledger(*chain), (Rule(1, 10**9),))
    assert 1 not in {point.number for point in told.points}


def test_a_ledger_survives_its_own_form() -> None:
    before = ledger(
        *(manifest(n, whole=n == 1, points=() if n == 1 else None) for n in range(1, 9))
    )
    after = Ledger()
    for piece in before.encode():
        after.load(piece)
    assert (after.manifests, after.newest, after.gone) == (
        before.manifests, before.newest, before.gone,
    )  # fmt: skip


# --- rewriting ---


def test_segments_that_are_mostly_dead_are_written_anew_the_emptiest_first() -> None:
    rows = tuple(segment(n) for n in (1, 2, 3, 4))
    base = manifest(1, whole=True, points=(), own=0, segments=rows)
    live = {1: 499, 2: 500, 3: 0, 4: 1000}
    told = plan(ledger(base), live_bytes=live)
    assert told.rewrite == (3, 1)


def test_one_round_rewrites_no_more_than_it_can() -> None:
    size = REWRITE_BYTES_MAX
    rows = tuple(segment(n, size) for n in range(1, 10))
    base = manifest(1, whole=True, points=(), own=0, segments=rows)
    told = plan(ledger(base), live_bytes={row.number: size // 3 for row in rows})
    assert 0 < sum(size // 3 for _ in told.rewrite) <= REWRITE_BYTES_MAX


def test_the_bodies_of_the_newest_run_are_left_alone_until_a_whole_manifest_ends_it() -> None:
    chain = [manifest(1, whole=True, points=()), manifest(2), manifest(3)]
    live = dict.fromkeys((101, 102, 103), 0)
    assert plan(ledger(*chain), live_bytes=live).rewrite == ()


def lives(rng: random.Random) -> Iterator[tuple[int, int]]:
    """What is stored and what lives, after each collection of a long life."""
    known = Ledger()
    files: dict[int, tuple[int, int]] = {}
    segments: dict[int, SegmentRow] = {}
    next_file = 0
    for number in range(1, 200):
        for id_ in rng.sample(sorted(files), k=len(files) // 4):
            del files[id_]
        live = dict.fromkeys(segments, 0)
        for place, size in files.values():
            live[place] += size
        told = plan(known, live_bytes=live) if number > 1 else None
        rewritten = set(told.rewrite) if told else set()
        moved = [id_ for id_, (place, _) in files.items() if place in rewritten]
        for id_ in moved:
            files[id_] = (number, files[id_][1])
        for _ in range(rng.randint(0, 10)):
            next_file += 1
            files[next_file] = (number, rng.randint(1, 1000))
        used = {place for place, _ in files.values()}
        size = sum(size for place, size in files.values() if place == number)
        if size:
            segments[number] = segment(number, size, intent=number)
        segments = {n: row for n, row in segments.items() if n in used}
        points, doomed = (told.points, told.doomed) if told else ((), ())
        rows = tuple(segments.values())
        known.add(manifest(number, whole=True, own=0, segments=rows, points=points, doomed=doomed))
        yield sum(row.bytes for row in segments.values()), sum(s for _, s in files.values())


@pytest.mark.parametrize("seed", range(5))
def test_what_is_stored_stays_within_twice_of_what_lives(seed: int) -> None:
    for stored, live in lives(random.Random(seed)):
        assert stored <= 2 * live + 4000
