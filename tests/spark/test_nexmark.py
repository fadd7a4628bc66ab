"""Nexmark's queries as streams give what a batch job gives, also across a restart."""

from typing import Any

import pytest

from diskless.launch.local import LocalCluster
from diskless.workloads.nexmark import BUSY_BIDS, Nexmark, Rows
from diskless.workloads.progress import follow

pytestmark = pytest.mark.usefixtures("end_all")

TIMEOUT_S = 120.0


def run(work: Nexmark, spark: Any, root: str, batches: int) -> list[int]:
    queries = work.start(spark, root)
    return [follow(q, more=batches, timeout_s=TIMEOUT_S, each=lambda _: None) for q in queries]


def test_both_queries_equal_the_batch_answer_and_go_on_after_a_restart(
    spark: Any, cluster: LocalCluster
):
    work, root = Nexmark(), f"{cluster.uri}nexmark"
    first = run(work, spark, root, 7)
    assert work.problems(spark, root, first) == []
    before = work.results(spark, root, "q4")
    last = run(work, spark, root, 2)
    assert min(last) > min(first)
    assert work.problems(spark, root, last) == []

    q4, busy = work.results(spark, root, "q4"), work.results(spark, root, "busy")
    assert set(before) < set(q4)
    assert {row[1] for row in q4} == set(range(10, 15)), "all categories"
    assert busy
    assert all(bids > BUSY_BIDS for _, _, bids in busy)


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (lambda rows: rows[1:], "1 rows lost, 0 too many"),
        (lambda rows: sorted([*rows, rows[0]]), "0 rows lost, 1 too many"),
        (lambda rows: [(*rows[0][:-1], rows[0][-1] + 1), *rows[1:]], "1 rows lost, 1 too many"),
        (lambda rows: [], "were given"),
    ],
    ids=["lost", "twice", "wrong", "nothing"],
)
def test_results_that_differ_are_found_out(spark: Any, tamper: Any, says: str):
    class Tampered(Nexmark):
        def results(self, spark: Any, root: str, name: str) -> Rows:
            from diskless.workloads.nexmark import QUERIES

            rows = self.answer(spark, QUERIES[name], 60)
            return tamper(rows) if name == "q4" else rows

    (problem,) = Tampered().problems(spark, "", [9, 9])
    assert problem.startswith("q4: ")
    assert says in problem
