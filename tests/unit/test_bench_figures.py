"""The statistics of samples, the sizes of a run, the machine, and stores that need no cluster."""

import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from diskless.bench import machine, sizes, works
from diskless.bench.figures import Result, Series, UnknownFormat, decode, encode, ratios, spread_of
from diskless.bench.processes import cost_of
from diskless.bench.query import cached_share, committed_s
from diskless.bench.recorder import Recorder, in_turn
from diskless.bench.spark import counted, parse_setup
from diskless.bench.stores import FilesAt
from diskless.errors import BadRequest
from diskless.model import Event

# Turns.


def test_what_is_compared_takes_turns_and_the_first_turn_only_warms_up() -> None:
    record, orders = Recorder("part"), []
    for turn, into in record.turns(3):
        orders.append(list(in_turn(["a", "b"], turn)))
        into.add("work", "a", turn, "s")
    assert orders == [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
    assert [series.samples for series in record.series] == [[0, 1, 2]]


# Statistics.


def test_the_spread_is_the_middle_half_of_the_samples() -> None:
    spread = spread_of([5, 1, 3, 2, 4])
    assert (spread.low, spread.median, spread.high, spread.count) == (2, 3, 4, 5)
    assert spread_of([7.0]).low == spread_of([7.0]).high == 7.0


def test_an_outlier_moves_neither_median_nor_quartiles() -> None:
    assert spread_of([1, 2, 3, 4, 5]) == spread_of([1, 2, 3, 4, 500])


def test_no_samples_have_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        spread_of([])


def test_ratios_are_taken_within_a_repetition() -> None:
    # The machine was half as fast in the second one: that is no difference of the systems.
    assert ratios([2, 4], [1, 2]) == [2, 2]


def test_ratios_of_unequal_series_are_those_of_their_medians() -> None:
    assert ratios([2, 4, 6], [2]) == [2]


# The document.


def series(work: str, system: str, *samples: float, beside: str = "") -> Series:
    return Series(
        part="store", work=work, system=system, unit="ms", samples=list(samples), beside=beside
    )


def result(*entries: Series) -> Result:
    return Result(
        started="2026-11-16 10:00:00",
        command="diskless bench run",
        profile="short",
        sizes=sizes.to_dict(sizes.SHORT),
        machine=machine.describe(),
        seconds={"store": 1.0},
        series=list(entries),
    )


def test_a_document_comes_back_as_it_was() -> None:
    made = result(series("write", "disk", 1.0, 2.0))
    assert decode(encode(made)) == made


@pytest.mark.parametrize("data", [b"", b"{}", b'{"machine": 3}'])
def test_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode(data)


def test_a_document_of_another_format_is_refused() -> None:
    data = encode(result()).replace(b'"format": 2', b'"format": 1')
    with pytest.raises(UnknownFormat, match="format 1, not 2"):
        decode(data)


def test_a_series_beside_several_clusters_is_found_whole_or_beside_one() -> None:
    made = result(
        series("write", "redis", 1.0, beside="2+1"), series("write", "redis", 2.0, beside="4+2")
    )
    whole, one = made.find("write", "redis"), made.find("write", "redis", beside="4+2")
    assert whole is not None
    assert one is not None
    assert (whole.samples, one.samples) == ([1.0, 2.0], [2.0])
    assert made.find("read", "redis") is None


# Sizes.


def test_sizes_can_be_changed_by_name() -> None:
    changed = sizes.changed(
        sizes.SHORT, ("tiny_puts=7", "shapes=2+1,4+2", "restart_mb=0.5,10", "growth_agents=")
    )
    assert (changed.tiny_puts, changed.shapes) == (7, ("2+1", "4+2"))
    assert (changed.restart_mb, changed.growth_agents) == ((0.5, 10), ())
    assert changed.bursts == sizes.SHORT.bursts


@pytest.mark.parametrize("setting", ["tiny_puts", "unknown=1", "tiny_puts=many", "=3"])
def test_a_size_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(BadRequest, match="--set"):
        sizes.changed(sizes.SHORT, (setting,))


# The machine.

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC
processor\t: 1
model name\t: AMD EPYC
"""


def test_the_processor_is_named() -> None:
    assert machine.cpu_model(CPUINFO) == "AMD EPYC"
    assert machine.cpu_model("Processor\t: ARMv7") == "ARMv7"
    assert machine.cpu_model("nothing") == "unknown"


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount() -> None:
    mounts = [("/", "ext4"), ("/var", "xfs"), ("/variable", "tmpfs")]
    assert machine.filesystem_of("/var/tmp", mounts) == "/var/tmp (xfs)"
    assert machine.filesystem_of("/home", mounts) == "/home (ext4)"
    assert machine.filesystem_of("/home", []) == "/home (unknown)"


def test_this_machine_is_described() -> None:
    about = machine.describe()
    assert about["cores"] == os.cpu_count()
    assert about["kernel"] == os.uname().release
    assert about["memory_gib"] > 0
    assert len(about["load"]) == 3
    assert about["cpu"] not in ("", "unknown")
    assert {"python", "ray", "grpcio", "pyspark", "java", "redis-server"} <= set(about["versions"])
    assert about["versions"]["ray"] != "missing"


# Spark.


def test_a_batch_was_committed_when_its_trigger_ended() -> None:
    progress = {
        "timestamp": "2026-11-16T10:00:00.250Z",
        "durationMs": {"triggerExecution": 1500},
    }
    assert committed_s(progress) == datetime(2026, 11, 16, 10, 0, 1, 750_000, UTC).timestamp()


def test_commands_are_counted_for_each_file_and_each_batch() -> None:
    texts = {
        "put": [
            "put /q/offsets/0 512 B",
            "put /q/state/0/0/1.delta 1.5 KiB",
            "put /q/commits/0 0 B",
            "put /q/offsets/1 512 B",
            "put /q/state/0/0/.2.delta.tmp 1.5 KiB",
            "put /q/commits/1 0 B",
        ],
        "rename": ["rename /q/state/0/0/.2.delta.tmp to /q/state/0/0/2.delta"],
        "delete": ["delete /q/offsets/0"],
    }
    events = [Event(0, 0, kind, text) for kind, lines in texts.items() for text in lines]
    found = {work: value for work, value, _ in counted(events, "hdfs-8")}
    assert found == {
        works.SPARK_FILE_COMMANDS: 7 / 6,
        works.batch_commands("hdfs-8"): 3.5,
        works.batch_bytes("hdfs-8"): 2.0,
    }


def test_a_set_up_names_its_state_provider_and_its_partitions() -> None:
    assert parse_setup("rocksdb-50") == ("rocksdb", 50)
    with pytest.raises(ValueError, match="one of rocksdb, hdfs"):
        parse_setup("redis-8")


# Files as a store.


@pytest.mark.parametrize("fsync", [False, True])
def test_local_files_are_a_store(tmp_path: Path, fsync: bool) -> None:
    store = FilesAt(str(tmp_path), fsync).open()
    store.write_many({"a/1": b"one", "a/2": b"two"})
    store.write("a/1", b"new")
    assert (store.read("a/1"), store.read("a/2")) == (b"new", b"two")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["1", "2"]
    store.clear()
    assert list(tmp_path.iterdir()) == []
    store.write("a/1", b"again")
    assert store.read("a/1") == b"again"


def test_what_was_just_read_is_in_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(300_000))
    (tmp_path / "file").read_bytes()
    assert cached_share(tmp_path) == 1.0


def test_an_empty_directory_has_nothing_in_the_page_cache(tmp_path: Path) -> None:
    assert cached_share(tmp_path) == 0.0


def test_the_cpu_of_work_is_that_of_this_process_and_of_others_that_live() -> None:
    def work() -> None:
        end_s = time.process_time() + 0.05
        while time.process_time() < end_s:
            pass

    gone = subprocess.Popen(["true"])
    gone.wait()
    cost = cost_of(work, [gone.pid])
    assert round(cost.cpu_ms) >= 40  # it is told in ticks of 10 ms
    assert cost.took_s > 0
