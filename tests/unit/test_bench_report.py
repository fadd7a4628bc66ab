"""The report of a recorded run: every system in its table, every bound met or missed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from diskless.bench import works
from diskless.bench.bounds import MAIN, all_bounds, judge
from diskless.bench.figures import Result, Series, decode
from diskless.bench.plots import draw
from diskless.bench.report import SYSTEMS, as_text, number, systems_table, table
from diskless.cli import exits
from diskless.cli.edge import cli
from diskless.cli.verb import Context

RECORDED = Path(__file__).parent / "data" / "bench-result.json"
"""Made by real runs with tiny sizes, of some parts each: `--set` of its sizes repeats them."""


@pytest.fixture(scope="module")
def result() -> Result:
    return decode(RECORDED.read_bytes())


def with_samples(result: Result, work: str, system: str, samples: list[float]) -> Result:
    """The same result with another outcome of one series, wherever it was measured."""
    assert any((e.work, e.system) == (work, system) for e in result.series)
    changed = [
        replace(entry, samples=samples) if (entry.work, entry.system) == (work, system) else entry
        for entry in result.series
    ]
    return replace(result, series=changed)


def judged_of(result: Result, title: str) -> tuple[float, bool]:
    (entry,) = [entry for entry in judge(result) if entry.bound.title == title]
    return entry.value, entry.met


# Bounds.


def test_all_bounds_are_judged_but_those_of_parts_that_did_not_run(result: Result) -> None:
    judged = judge(result)
    missing = {b.figure.work for b in all_bounds(result)} - {e.bound.figure.work for e in judged}
    assert missing == _not_measured(result)
    assert {"bulk", "namespace", "healing", "others"} <= {entry.bound.topic for entry in judged}


def _not_measured(result: Result) -> set[str]:
    setups = ("hdfs-8", "rocksdb-8", "hdfs-50")
    measured = result.sizes["spark_setups"] if "spark" in result.seconds else ()
    absent = {works.checkpoint(setup) for setup in setups if setup not in measured}
    if "spark" not in result.seconds:
        absent |= {works.trigger("hdfs-8"), works.SPARK_FILE_COMMANDS, works.SPARK_COMMIT}
    if "repair" not in result.seconds:
        absent |= {works.REPAIR_RATE, works.REPAIR_COMMIT}
    if "history" not in result.seconds:
        absent |= {works.HISTORY_READ_PAST, works.HISTORY_CPU_BESIDE}
    if "barrier" not in result.seconds:
        absent |= {works.BARRIER_TRIGGER}
    if "rollback" not in result.seconds:
        absent |= {works.ROLLBACK_S, works.ROLLBACK_BYTES, works.ROLLBACK_LEASED}
        absent |= {works.ROLLBACK_RESTART}
    if "identity" not in result.seconds:
        absent |= {works.IDENTITY_COMMIT_TLS, works.IDENTITY_WRITE_MORE, works.IDENTITY_READ_MORE}
        absent |= {works.IDENTITY_OPEN, works.IDENTITY_OPEN_TLS}
    if "tier" not in result.seconds:
        absent |= {works.tier_drain(place) for place in ("file", "s3")}
        absent |= {works.tier_written(place) for place in ("file", "s3")}
        absent |= {works.TIER_RESTART_COLD, works.TIER_FIRST_BYTE}
    if "eviction" not in result.seconds:
        absent |= {works.EVICTION_MEMORY_KEPT, works.EVICTION_RESTART_KEPT, works.EVICTION_READ}
        absent |= {works.EVICTION_BULK}
    if "seen" not in result.seconds:
        absent |= {works.SEEN_COMMIT_SHOWN, works.SEEN_IDLE_MORE, works.SEEN_SCRAPE}
        absent |= {works.SEEN_KILL, works.SEEN_WATCHERS, works.SEEN_FIRST_VIEW, works.SEEN_NOTE}
        absent |= {works.SEEN_KILL_SHOWN, works.SEEN_BATCH_NOTED}
    return absent


def test_a_bound_from_above_is_met_at_its_limit_and_missed_beyond(result: Result) -> None:
    title = "serial tiny commit of Redis WAIT 2"
    result = with_samples(result, works.TINY_SERIAL, works.REDIS, [1.0, 1.0])
    for took_ms, met in ((3.0, True), (3.01, False)):
        changed = with_samples(result, works.TINY_SERIAL, MAIN, [took_ms, took_ms])
        assert judged_of(changed, title) == (took_ms, met)


def test_a_bound_from_below_is_met_at_its_limit_and_missed_under_it(result: Result) -> None:
    title = "64 MiB write of Redis with two replicas"
    result = with_samples(result, works.BULK_WRITE, works.REDIS, [100.0, 100.0])
    for rate, met in ((100.0, True), (99.0, False)):
        changed = with_samples(result, works.BULK_WRITE, MAIN, [rate, rate])
        assert judged_of(changed, title) == (rate / 100, met)


def test_the_worst_kill_decides_and_not_the_median(result: Result) -> None:
    title = "worst gap of leader kills, in failure timeouts"
    assert judged_of(with_samples(result, works.GAP, MAIN, [0.5, 0.6, 2.5]), title) == (2.5, False)


def test_one_lost_put_misses_its_bound(result: Result) -> None:
    assert not judged_of(with_samples(result, works.LOST, MAIN, [1.0]), works.LOST)[1]


def test_what_a_run_did_not_measure_is_not_judged(result: Result) -> None:
    limits = replace(result, series=list(result.of_part("limits")))
    assert [entry.bound.title for entry in judge(limits)] == [
        "codec of PyECLib alone, 1 MiB at 4+2"
    ]


def test_a_restart_is_judged_at_every_size(result: Result) -> None:
    work = works.restart("hdfs")
    more = [
        Series(part="recovery", work=work, system=system, unit="s", samples=[value], size=600.0)
        for system, value in ((works.DISK, 10.0), (MAIN, 12.0))
    ]
    grown = replace(result, series=[*result.series, *more])
    assert judged_of(grown, "query restarted, of file://, 600 MB of hdfs state") == (1.2, False)


@pytest.mark.parametrize(
    ("work", "system", "most"),
    [
        (works.AGENTS_COMMIT_CPU, MAIN, 1.15),
        (works.AGENTS_WRITE_CPU, MAIN, 1.15),
        (works.GROWN_COMMIT_CPU, MAIN, 1.25),
        (works.SCALE_IDLE_EACH, works.SIMULATED, 1.25),
        (works.SCALE_COMMIT_MESSAGES, works.SIMULATED, 1.25),
    ],
)
def test_what_grows_is_judged_at_its_largest_size_beside_the_smallest(
    result: Result, work: str, system: str, most: float
) -> None:
    for largest, met in ((most, True), (most + 0.01, False)):
        values = {6.0: 1.0, 12.0: 9.0, 24.0: largest}
        more = [
            Series(part="growth", work=work, system=system, unit="ms", samples=[value], size=size)
            for size, value in values.items()
        ]
        grown = replace(result, series=[*result.series, *more])
        assert judged_of(grown, f"{work}: 24 of 6") == (largest, met)


# Text.


def test_the_table_has_every_system_and_every_work(result: Result) -> None:
    shown = systems_table(result)
    heading = shown.splitlines()[0]
    assert all(system in heading for system in SYSTEMS)
    for work in (works.TINY_SERIAL, works.BURST, works.MEMORY, works.SURVIVED):
        assert work in shown
    assert len({line.count("|") for line in shown.splitlines()}) == 1


def test_the_report_names_machine_command_and_spread(result: Result) -> None:
    text = as_text(result)
    for part in (result.command, result.machine["cpu"], result.machine["kernel"], "quartiles"):
        assert part in text
    assert f"redis-server {result.machine['versions']['redis-server']}" in text
    for entry in judge(result):
        assert entry.bound.title in text
    assert ("**missed**" in text) == (not all(entry.met for entry in judge(result)))


def test_what_could_not_be_measured_is_said(result: Result) -> None:
    text = as_text(replace(result, notes=["Redis was left out"]))
    assert text.endswith("Note: Redis was left out")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.0, "2"),
        (1234.5, "1,234"),
        (99.94, "99.9"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.1234, "0.123"),
        (0.00012, "0.00012"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text


def test_a_table_without_rows_is_nothing() -> None:
    assert table(["a"], []) == ""


# Pictures and the verb.


def test_every_part_with_a_picture_gets_one(result: Result, tmp_path: Path) -> None:
    written = draw(result, tmp_path)
    names = {path.name for path in written}
    pictures = {"store": "stores", "spark": "spark", "recovery": "recovery", "growth": "growth"}
    parts = {entry.part for entry in result.series}
    assert names == {f"bench-{name}.png" for part, name in pictures.items() if part in parts}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    (tmp_path / "some").mkdir()
    only = replace(result, series=list(result.of_part("store")))
    assert [path.name for path in draw(only, tmp_path / "some")] == ["bench-stores.png"]


def test_the_verb_reports_a_file(result: Result) -> None:
    outcome = CliRunner().invoke(cli, ["bench", "report", str(RECORDED), "--json"], obj=Context(),
                                 standalone_mode=False)  # fmt: skip
    said = json.loads(outcome.stdout)
    assert [bound["met"] for bound in said["bounds"]] == [entry.met for entry in judge(result)]
    all_met = all(bound["met"] for bound in said["bounds"])
    assert outcome.return_value == (exits.OK if all_met else exits.BOUND_MISSED)
