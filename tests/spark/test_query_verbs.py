"""The verbs of queries that start a Spark of their own, as programs."""

import json
import subprocess
import sys
from typing import Any

import pytest

from diskless.cli import exits
from diskless.client import Client
from diskless.launch.local import LocalCluster
from diskless.spark import queries
from tests.spark.streams import QUERY_S_MAX, Feed, Said
from tests.spark.test_queries import FORMATS, expected, run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("end_all"), pytest.mark.timeout(600)]


def test_the_state_is_compared_and_repartitioned(
    spark: Any, client: Client, cluster: LocalCluster, feed: Feed, path: str
) -> None:
    said = Said()
    feed.arrive(4)
    run(spark, client, feed, path, said, FORMATS["changelog"])

    def query(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "diskless.cli", "--cluster", cluster.uri, "query"]
        return subprocess.run(
            [*command, *arguments], check=False, capture_output=True, text=True, timeout=QUERY_S_MAX
        )

    between = ["diff", path, "--from", "1", "--to", "3"]
    found = query(*between, "--json")
    assert found.returncode == exits.OK, found.stderr
    rows = {row["key"]["key"]: row for row in json.loads(found.stdout)}
    before = {row[0]: row for n in (0, 1) for row in said.batches[n]}
    changed = {row[0]: row for n in (2, 3) for row in said.batches[n]}
    assert {key: row["new"] for key, row in rows.items()} == {
        key: {"count": row[1], "sum": row[2]}
        for key, row in changed.items()
        if before.get(key) != row
    }
    assert {row["change"] for row in rows.values()} <= {"added", "changed"}
    lines = query(*between, "--as", "corrections").stdout.splitlines()
    assert len(lines) == sum(1 + (row["old"] is not None) for row in rows.values())
    assert {line[:2] for line in lines} <= {"+1", "-1"}
    gone = query("diff", path, "--from", "1", "--to", "30")
    assert gone.returncode == exits.NO_RETURN
    assert "batch 30 is not known" in gone.stderr

    done = query("repartition", path, "-n", "3", "--json")
    assert done.returncode == exits.OK, done.stderr
    told = json.loads(done.stdout)
    assert (told["before"], told["after"], told["dry_run"]) == (2, 3, False)
    assert queries.show(client, path).query.partitions == 3
    feed.arrive(2)
    run(spark, client, feed, path, said, FORMATS["changelog"])
    assert said.latest == expected(spark, feed)
