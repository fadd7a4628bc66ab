"""Spark's listener: what a real query's batches are told as, and that no query needs it."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskless.cli import run as cli_run
from diskless.client import Client
from diskless.launch.local import LocalCluster
from diskless.notes import BatchNote
from diskless.spark import queries
from diskless.spark.conf import LISTENERS, QUERY_LISTENER, configure, properties
from tests.spark import streams
from tests.spark.streams import Feed, Said, rows_of, totals
from tests.spark.test_jar import Builder
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("end_all")

MINE = "com.example.MyListener"


def sent(jvm: Any) -> int:
    return int(jvm.io.diskless.spark.Notes.sent())


def dropped(jvm: Any) -> int:
    return int(jvm.io.diskless.spark.Notes.dropped())


def run(spark: Any, feed: Feed, checkpoint: str, said: Said) -> list[dict[str, Any]]:
    """What Spark itself says of the batches of one run."""
    with streams.running(totals(feed.stream(spark)), checkpoint, said, availableNow=True) as query:
        assert query.awaitTermination(streams.QUERY_S_MAX)
        return [json.loads(progress.json) for progress in query.recentProgress]


def test_every_batch_is_told_as_spark_tells_it(
    spark: Any, client: Client, feed: Feed, path: str, capfd: pytest.CaptureFixture[str],
    cluster: LocalCluster,
) -> None:  # fmt: skip
    said = Said()
    feed.arrive(3)
    progress = run(spark, feed, f"diskless://{path}", said)
    feed.arrive(2)
    progress += run(spark, feed, f"diskless://{path}", said)  # another run of the same query
    eventually(lambda: len(client.batch_notes(path).notes) == len(progress) >= 5)
    noted = client.batch_notes(path)
    assert noted.query == progress[0]["id"] == progress[-1]["id"]
    for note, spoken in zip(noted.notes, progress, strict=True):
        check(note, spoken)
    first, second = dict.fromkeys(note.started_ms for note in noted.notes)
    assert first is not None
    assert second is not None
    assert first < noted.notes[0].time_ms < second <= noted.notes[-1].time_ms, "one for each run"
    assert [note.started_ms for note in noted.notes[-2:]] == [second] * 2
    shown = queries.show(client, path)
    assert [batch.note for batch in shown.batches] == list(noted.notes)
    assert cli_run(["--cluster", cluster.uri, "query", "show", path]) == 0
    told = capfd.readouterr().out
    assert f"{Feed.ROWS} rows; " in told
    assert "walCommit" in told
    assert "commitOffsets" in told
    assert cli_run(["--cluster", cluster.uri, "query", "show", path, "--json"]) == 0
    batches = json.loads(capfd.readouterr().out)["batches"]
    assert [batch["note"]["rows"] for batch in batches] == [Feed.ROWS] * 5


def check(note: BatchNote, spoken: dict[str, Any]) -> None:
    took, (state,) = spoken["durationMs"], spoken["stateOperators"]
    assert note.batch == spoken["batchId"]
    assert note.rows == spoken["numInputRows"] == Feed.ROWS
    assert note.trigger_ms == took["triggerExecution"]
    assert note.wal_commit_ms == took["walCommit"]
    assert note.add_batch_ms == took["addBatch"]
    assert note.commit_offsets_ms == took["commitOffsets"]
    assert note.state_commit_ms == state["commitTimeMs"]
    assert note.state_rows == state["numRowsTotal"] > 0
    assert note.state_updated == state["numRowsUpdated"]
    assert note.state_bytes == state["memoryUsedBytes"] > 0
    assert note.tasks is not None
    assert 0 < note.tasks <= state["numShufflePartitions"]
    assert note.checkpoint_bytes is None or note.checkpoint_bytes > 0


def test_a_checkpoint_elsewhere_is_told_to_nobody(
    spark: Any, jvm: Any, feed: Feed, tmp_path: Path
) -> None:
    before = (sent(jvm), dropped(jvm))
    feed.arrive(2)
    assert len(run(spark, feed, f"file://{tmp_path}/checkpoint", Said())) == 2
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert (sent(jvm), dropped(jvm)) == before


@contextmanager
def deaf(cluster: LocalCluster) -> Iterator[None]:
    """Agents that take notes and never answer."""

    async def silence(*_: object) -> None:
        await asyncio.Event().wait()

    for node in cluster.nodes.values():
        node.notebook.tell = silence  # type: ignore[method-assign]
    try:
        yield
    finally:
        for node in cluster.nodes.values():
            del node.notebook.tell  # type: ignore[attr-defined]


def test_a_query_goes_on_where_nobody_takes_its_notes(
    spark: Any, client: Client, cluster: LocalCluster, feed: Feed, path: str, jvm: Any
) -> None:
    said, before = Said(), dropped(jvm)
    feed.arrive(4)
    with deaf(cluster):
        assert len(run(spark, feed, f"diskless://{path}", said)) == 4
        eventually(lambda: dropped(jvm) > before)
    assert said.latest == rows_of(totals(feed.batch(spark)))
    feed.arrive(1)
    run(spark, feed, f"diskless://{path}", said)
    eventually(lambda: [note.batch for note in client.batch_notes(path).notes][-1:] == [4])
    assert 0 not in {note.batch for note in client.batch_notes(path).notes}, "it was dropped"


def test_a_query_that_went_back_has_the_notes_of_its_last_run(
    spark: Any, client: Client, feed: Feed, path: str
) -> None:
    feed.arrive(3)
    run(spark, feed, f"diskless://{path}", Said())
    eventually(lambda: len(client.batch_notes(path).notes) == 3)
    streams.end_all(spark)
    eventually(lambda: not client.leases(path))
    queries.rollback(client, {path: 0})
    (only,) = queries.show(client, path).batches
    assert only.note is not None
    progress = run(spark, feed, f"diskless://{path}", Said())
    eventually(lambda: len(client.batch_notes(path).notes) == 5)
    shown = queries.show(client, path).batches
    assert [batch.number for batch in shown] == [0, 1, 2]
    for batch, spoken in zip(shown[1:], progress, strict=True):
        assert batch.note is not None
        check(batch.note, spoken)
    before = queries.show(client, f"{path}/.snapshot/before-batch-0").batches
    assert [batch.note for batch in before] == [None] * 3, "they may have run again since"


def test_where_no_listener_told_anything_show_says_so(
    client: Client, cluster: LocalCluster, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    client.write(f"{path}/offsets/0", b'v1\n{"batchWatermarkMs":0}\n{"a":1}')
    client.write(f"{path}/commits/0", b"v1\n{}")
    assert cli_run(["--cluster", cluster.uri, "query", "show", path]) == 0
    assert "no rows and durations: no listener reported" in capfd.readouterr().out


def test_the_listeners_of_a_user_stay(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder().config(LISTENERS, f"{MINE}, com.example.Other")
    configure(builder, cluster.uri)
    expected = f"{MINE},com.example.Other,{QUERY_LISTENER}"
    assert builder._options[LISTENERS] == expected
    assert configure(builder, cluster.uri)._options[LISTENERS] == expected
    assert properties(cluster.uri)[LISTENERS] == QUERY_LISTENER
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert properties(cluster.uri)[LISTENERS] == QUERY_LISTENER
    (tmp_path / "spark-defaults.conf").write_text(
        f"# {LISTENERS} com.example.Not\nspark.a b\n{LISTENERS}   {MINE}\n"
    )
    assert properties(cluster.uri)[LISTENERS] == f"{MINE},{QUERY_LISTENER}"
    assert configure(Builder(), cluster.uri)._options[LISTENERS] == f"{MINE},{QUERY_LISTENER}"
