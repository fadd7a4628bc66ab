"""Everything is lost under a running query: agents and Ray. It goes on from the tier."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from diskless.client import connect, descriptor
from diskless.launch import sessions
from diskless.launch.record import record_of
from diskless.spark.checkpoints import find_checkpoints
from tests.spark import streams
from tests.spark.streams import Numbers, OtherJvm, Said, rows_of, totals
from tests.support import Program, eventually, ray_program

NUMBERS = Numbers(rows=600, keys=500)
ROCKSDB = {streams.PROVIDER: streams.ROCKSDB, streams.CHANGELOG: True}
PATIENT = {streams.TIMEOUT: "120s"}
QUERY_ENDS_S = 150.0

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('tier')}"


@pytest.fixture(scope="module")
def program(uri: str) -> Iterator[Program]:
    settings = ("--agents", "3", "-m", "2", "-k", "1", "--memory", "128MiB")
    with ray_program(*settings, "--tier", uri) as (program, _):
        yield program


def await_said(jvm: OtherJvm, said: Said, batches: int) -> None:
    def has_said() -> bool:
        active, error = jvm.report("q", said)
        assert active, error
        return len(said.batches) >= batches

    eventually(has_said, streams.QUERY_S_MAX)


def test_a_stateful_query_started_again_after_the_loss_of_everything_equals_the_batch_answer(
    spark: SparkSession, program: Program, uri: str
) -> None:
    checkpoint = f"diskless://{program.name}/q"
    first, second = Said(), Said()
    with OtherJvm(f"diskless://{program.name}/", master="local[2]") as witness:
        witness.start("q", checkpoint, numbers=NUMBERS, conf=ROCKSDB | PATIENT)
        await_said(witness, first, 4)
        program.ok("tier", "flush", "--wait")
        sessions.kill(record_of(descriptor.load(program.name)).holder)
        restored = program.ok("up", "--restore", uri)["restored"]
        (found,) = restored["checkpoints"]
        assert found["path"] == "/q"
        assert found["batch"] >= 2

        eventually(lambda: not witness.report("q", first)[0], QUERY_ENDS_S)
        _, error = witness.report("q", first)
        assert error is not None
        assert "restart the query" in error
    with connect(program.name) as client:
        (checkpointed,) = find_checkpoints(client)
        assert checkpointed.batch == found["batch"], "who outlived the restore committed nothing"

    with OtherJvm(f"diskless://{program.name}/", master="local[2]") as jvm:
        jvm.start("q", checkpoint, numbers=NUMBERS, conf=ROCKSDB)
        await_said(jvm, second, 3)
        jvm.stop("q")
        jvm.report("q", second)
    assert min(second.batches) <= found["batch"] + 1
    both = Said()
    both.batches = first.batches | second.batches
    assert sorted(both.batches) == list(range(len(both.batches)))
    expected = rows_of(totals(NUMBERS.batch(spark, max(second.batches) + 1)))
    both.batches = {n: rows for n, rows in both.batches.items() if n <= max(second.batches)}
    assert both.latest == expected
