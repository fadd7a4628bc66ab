"""What Spark needs of a checkpoint to go on, and how it lays out state."""

import io
import json
import zipfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.checkpoint import logs, rollback_rules
from diskless.errors import UnknownFormat
from tests.unit.test_queries import ID, checkpoint, commit, picture_of, plan


def test_the_plan_before_the_batch_is_needed_too() -> None:
    """Spark reads two plans when it starts: `batch 4 doesn't exist` is how it fails otherwise."""
    files = checkpoint(9)
    purged = {path: data for path, data in files.items() if path not in before(5)}
    assert "offsets/4 is gone" in rollback_rules.why_not(picture_of(purged), 5)
    assert rollback_rules.why_not(picture_of(purged), 6) == ""
    assert rollback_rules.why_not(picture_of(purged), 5, only_reads=True) == ""  # as a diff
    hole = {path: data for path, data in files.items() if path != "offsets/4"}
    assert "offsets/4 is gone" in rollback_rules.why_not(picture_of(hole), 5)
    assert rollback_rules.why_not(picture_of(files), 0) == ""


def before(batch: int) -> set[str]:
    return {f"{log}/{n}" for log in ("offsets", "commits") for n in range(batch)}


def test_plans_that_are_not_written_for_every_batch_are_no_loss() -> None:
    """Asynchronous progress leaves gaps in both logs, and is only for queries without state."""
    files = {f"{log}/{n}": made(n) for n in (0, 7, 12) for log, made in LOGS.items()}
    picture = picture_of(files)
    assert [rollback_rules.why_not(picture, n) for n in (0, 7, 12)] == [""] * 3
    del files["offsets/0"]
    assert "offsets/6 is gone" in rollback_rules.why_not(picture_of(files), 7)


LOGS = {"offsets": lambda n: f'v1\n{{}}\n{{"topic":{{"0":{n}}}}}'.encode(), "commits": commit}


@pytest.mark.parametrize("how", ["hdfs", "changelog"])
def test_an_operator_may_have_one_partition_whatever_the_plan_says(how: str) -> None:
    """An aggregate of all rows, and a limit, are computed in one partition."""
    files = {
        path: data for path, data in checkpoint(6, how).items() if not path.startswith("state/0/1/")
    }
    for n in range(6):
        files[f"offsets/{n}"] = plan(n, partitions=8)
    assert rollback_rules.why_not(picture_of(files), 5, thorough=True) == ""
    lost = {path: data for path, data in files.items() if not path.startswith("state/0/0/6")}
    assert "operator 0, partition 0" in rollback_rules.why_not(picture_of(lost), 5)


def test_a_commit_says_how_many_partitions_there_were() -> None:
    files = checkpoint(6, "changelog-2")
    for n in range(6):
        files[f"offsets/{n}"] = plan(n, partitions=8)
    assert rollback_rules.why_not(picture_of(files), 5) == ""
    lost = {path: data for path, data in files.items() if not path.startswith("state/0/1/")}
    assert "operator 0, partition 1" in rollback_rules.why_not(picture_of(lost), 5)


def test_an_operator_or_a_store_without_any_file_is_missed() -> None:
    files = checkpoint(6)
    operator = json.loads(files["state/0/_metadata/metadata"].split(b"\n", 1)[1])
    operator["operatorInfo"] = {"operatorId": 1, "operatorName": "symmetricHashJoin"}
    sides = ("left-keyToNumValues", "right-keyToNumValues")
    operator["stateStoreInfo"] = [{"storeName": side, "numPartitions": 2} for side in sides]
    files["state/1/_metadata/metadata"] = f"v1\n{json.dumps(operator)}".encode()
    assert "operator 1, partition 0" in rollback_rules.why_not(picture_of(files), 5)
    for side in sides:
        for p in range(2):
            files |= {f"state/1/{p}/{side}/{n + 1}.delta": b"change" for n in range(6)}
    assert rollback_rules.why_not(picture_of(files), 5) == ""
    half = {path: data for path, data in files.items() if sides[1] not in path}
    assert "right-keyToNumValues" in rollback_rules.why_not(picture_of(half), 5)


def test_an_operator_of_no_store_makes_no_judgement_long() -> None:
    files = checkpoint(3)
    operator = {"operatorInfo": {"operatorId": 1, "operatorName": "x"}, "stateStoreInfo": []}
    files["state/1/_metadata/metadata"] = f"v1\n{json.dumps(operator)}".encode()
    files["offsets/2"] = plan(2, partitions=999_999_999_999_999_999)
    assert "operator 0, partition 2" in rollback_rules.why_not(picture_of(files), 2)
    stateless = {path: data for path, data in files.items() if not path.startswith("state/0/")}
    assert rollback_rules.why_not(picture_of(stateless), 2) == ""


def zipped(inside: bytes) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(logs.ZIP_METADATA, inside)
    return found.getvalue()


@given(st.dictionaries(st.integers(0, 200), st.integers(0, 255), min_size=1, max_size=3))
def test_a_damaged_version_of_rocksdb_is_an_unknown_format(damage: dict[int, int]) -> None:
    data = bytearray(zipped(b'v1\n{"sstFiles":[]}'))
    for at, byte in damage.items():
        data[at % len(data)] = byte
    with suppress(UnknownFormat):
        assert logs.parse_zip(bytes(data), "1.zip") == []


def test_a_version_of_rocksdb_that_unfolds_too_far_is_not_read() -> None:
    with pytest.raises(UnknownFormat, match="too large"):
        logs.parse_zip(zipped(b"v1\n" + b" " * logs.ZIP_METADATA_BYTES_MAX), "1.zip")


def test_what_later_batches_wrote_about_operators_goes_with_them() -> None:
    """Schemas and metadata of the second format are numbered by batch; a local file system keeps
    a checksum beside each file."""
    files = checkpoint(6)
    metadata = files.pop("state/0/_metadata/metadata")
    schema = "state/0/_stateSchema/default"
    kept = {"state/0/_metadata/v2/2": metadata, f"{schema}/2_{ID.format(1)}": b"v3"}
    kept |= {f"{schema}/.keep": b"", "offsets/.3.crc": b"1"}
    newer = {"state/0/_metadata/v2/4": metadata, f"{schema}/4_{ID.format(2)}": b"v3"}
    newer |= {"offsets/.4.crc": b"1", "state/0/1/.6.delta.crc": b"1"}
    picture = picture_of(files | kept | newer)
    assert rollback_rules.why_not(picture, 3) == ""
    gone = set(rollback_rules.gone_after(picture, 3))
    assert newer.keys() <= gone
    assert kept.keys().isdisjoint(gone)
    assert "begins with batch 2" in rollback_rules.why_not(picture, 1)


def test_the_ids_of_a_join_belong_to_its_stores_in_their_order() -> None:
    sides = ("left-keyToNumValues", "right-keyToNumValues")
    files = {"metadata": b"{}", "offsets/0": plan(0, partitions=1), "sources/0/0": b"v1"}
    operator = {"operatorInfo": {"operatorId": 0, "operatorName": "join"}}
    stores = {"stateStoreInfo": [{"storeName": side, "numPartitions": 1} for side in sides]}
    files["state/0/_metadata/metadata"] = f"v1\n{json.dumps(operator | stores)}".encode()
    ids = [ID.format(1), ID.format(2)]
    head = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [ids]}}
    files["commits/0"] = f"v2\n{json.dumps(head)}".encode()
    right = {f"state/0/0/{side}/1_{id_}.zip": b"" for side, id_ in zip(sides, ids, strict=True)}
    assert rollback_rules.why_not(picture_of(files | right), 0) == ""
    wrong = {f"state/0/0/{side}/1_{ids[0]}.zip": b"" for side in sides}
    assert "right-keyToNumValues" in rollback_rules.why_not(picture_of(files | wrong), 0)


def test_a_sink_whose_log_begins_later_cannot_go_back_before_it() -> None:
    assert "begins with batch 5" in rollback_rules.why_not_sink(["_spark_metadata/5"], 4)
    assert rollback_rules.why_not_sink(["_spark_metadata/5.compact"], 5) == ""
    assert rollback_rules.why_not_sink([], 4) == ""
