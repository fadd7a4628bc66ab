"""Everything is lost under queries, again and again: all agents and the JVM, and Ray where
there is one. With `barrier` their sinks have seen each row once; with `async` this shows what can
happen instead.

Before each loss the tier falls silent, so that what comes then is in memory alone: a batch is
planned, and more rows arrive before it is planned again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from diskless.client import connect
from tests.spark.exactly import CONFS, Arrivals, Jvm, Sink, newest_plan
from tests.spark.fleets import Fleet, in_a_process, on_ray
from tests.support import eventually

BATCH_S_MAX = 600.0
"""For a JVM to start, and all queries to do a batch, on a busy machine."""
POLL_S = 0.2
"""Whoever looks more often takes the time of those that it waits for."""
EXECUTORS = "local-cluster[2,1,1024]"
Begin = Callable[[Path], AbstractContextManager[Fleet]]


class Life:
    """Of some queries on one cluster, through the losses of everything."""

    def __init__(
        self, fleet: Fleet, root: Path, work: Path, names: Sequence[str], master: str
    ) -> None:
        self.fleet = fleet
        self.root = root
        self.work = work
        self.names = names
        self.master = master
        self.cluster = f"diskless://{fleet.name}/"
        self.arrivals = Arrivals(work / "arrivals")
        self.sinks = {name: Sink(work / "sinks" / name) for name in names}

    def jvm(self, *, to_the_end: bool = False) -> Jvm:
        return Jvm(self.cluster, self.work, self.names, master=self.master, to_the_end=to_the_end)

    def seen(self) -> dict[str, int]:
        return {name: sink.newest() for name, sink in self.sinks.items()}

    def planned(self) -> dict[str, int]:
        with connect(self.fleet.name) as client:
            return {name: newest_plan(client, f"/c/{name}") for name in self.names}

    def run_a_batch(self, jvm: Jvm) -> None:
        """Rows arrive, and all sinks have a batch more."""
        before = self.seen()
        self.arrivals.arrive()

        def done() -> bool:
            jvm.check()
            return all(seen > before[name] for name, seen in self.seen().items())

        eventually(done, BATCH_S_MAX, every_s=POLL_S)

    def come_further(self, jvm: Jvm) -> None:
        """Rows arrive with each plan until all sinks have a batch more than ever: those that skip
        batches which they had seen before are behind for a while."""
        before = self.seen()
        known: dict[str, int] = {}

        def done() -> bool:
            jvm.check()
            planned = self.planned()
            if planned != known:
                known.update(planned)
                self.arrivals.arrive()
            return all(seen > before[name] for name, seen in self.seen().items())

        eventually(done, BATCH_S_MAX, every_s=POLL_S)

    def plan_a_batch(self, jvm: Jvm) -> None:
        """Rows arrive, and all queries have planned a batch, which no sink has seen."""
        before = self.seen()
        self.arrivals.arrive()

        def done() -> bool:
            jvm.check()
            return all(plan > before[name] for name, plan in self.planned().items())

        eventually(done, BATCH_S_MAX, every_s=POLL_S)
        assert self.seen() == before

    def wait_to_open(self, jvm: Jvm) -> None:
        """A JVM has begun, and its queries wait to read what they had planned."""

        def done() -> bool:
            jvm.check()
            with connect(self.fleet.name) as client:
                tier = client.status().tier
            return tier is not None and tier.held > 0

        eventually(done, BATCH_S_MAX, every_s=POLL_S)

    def silence(self) -> None:
        self.root.rename(self.root.with_name("away"))
        self.root.write_text("in the way")

    def lose_everything(self) -> None:
        """With the tier as it was when it fell silent, if it did."""
        self.fleet.kill()
        if self.root.is_file():
            self.root.unlink()
            self.root.with_name("away").rename(self.root)
        self.fleet.restore()

    def lose_at_a_plan(self) -> None:
        """The loss comes while a batch is planned that is nowhere but in memory."""
        with self.jvm() as jvm:
            self.run_a_batch(jvm)
            self.silence()
            self.plan_a_batch(jvm)
            jvm.kill()
            self.lose_everything()
        self.arrivals.arrive()

    def lose_after_a_restart(self) -> None:
        """The same, and in between the queries were started again at that plan."""
        with self.jvm() as jvm:
            self.run_a_batch(jvm)
            self.silence()
            self.plan_a_batch(jvm)
        before = self.seen()
        eventually(self._nobody_waits, BATCH_S_MAX, every_s=POLL_S)
        with self.jvm() as jvm:
            self.wait_to_open(jvm)
            self.arrivals.arrive()
            assert self.seen() == before, "a plan was run that could still be lost"
            jvm.kill()
            self.lose_everything()

    def lose_at_any_moment(self) -> None:
        with self.jvm() as jvm:
            self.run_a_batch(jvm)
            self.arrivals.arrive()
            jvm.kill()
            self.lose_everything()

    def _nobody_waits(self) -> bool:
        with connect(self.fleet.name) as client:
            tier = client.status().tier
        return tier is not None and tier.held == 0

    def finish(self) -> None:
        with self.jvm(to_the_end=True) as jvm:
            jvm.process.wait(BATCH_S_MAX)
            assert jvm.process.returncode == 0

    def wrong(self) -> dict[str, tuple[int, int]]:
        """By query, how many rows its sink lacks and has more than once."""
        found = {}
        for name, sink in self.sinks.items():
            counts = sink.counts()
            lacks = sum(counts[id_] == 0 for id_ in self.arrivals.ids)
            doubled = sum(count - 1 for count in counts.values())
            if lacks or doubled:
                found[name] = lacks, doubled
        return found


@contextmanager
def life(
    tmp_path: Path,
    begin: Begin,
    names: Sequence[str],
    *,
    durability: str,
    master: str = "local[2]",
) -> Iterator[Life]:
    root = tmp_path / "tier"
    with begin(root) as fleet:
        with connect(fleet.name) as client:
            client.policies.set("/c", "durability", durability)
            client.tier.flush()
        yield Life(fleet, root, tmp_path, names, master)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("begin", [in_a_process, pytest.param(on_ray, marks=pytest.mark.slow)])
def test_a_query_that_was_started_again_at_a_plan_and_then_lost_with_everything_is_exactly_once(
    tmp_path: Path, begin: Begin
) -> None:
    with life(tmp_path, begin, ("stateless", "hdfs"), durability="barrier") as one:
        one.lose_after_a_restart()
        one.finish()
        assert one.wrong() == {}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("begin", "names", "master"),
    [(in_a_process, tuple(CONFS), EXECUTORS), (on_ray, ("stateless", "hdfs"), "local[2]")],
    ids=["all queries, in a process", "two queries, on Ray"],
)
def test_with_barrier_queries_are_exactly_once_through_five_losses_of_everything(
    tmp_path: Path, begin: Begin, names: Sequence[str], master: str
) -> None:
    with life(tmp_path, begin, names, durability="barrier", master=master) as one:
        one.lose_at_a_plan()
        one.lose_after_a_restart()
        one.lose_at_any_moment()
        one.lose_after_a_restart()
        one.lose_at_a_plan()
        one.finish()
        assert one.wrong() == {}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_with_async_batches_that_a_sink_has_seen_are_planned_anew_and_their_rows_dropped(
    tmp_path: Path,
) -> None:
    """Not a promise: what the documentation says can happen."""
    with life(tmp_path, in_a_process, tuple(CONFS), durability="async", master=EXECUTORS) as one:
        for _ in range(5):
            with one.jvm() as jvm:
                one.come_further(jvm)
                one.silence()
                one.come_further(jvm)
                jvm.kill()
                one.lose_everything()
            one.arrivals.arrive(2)
        one.finish()
        wrong = one.wrong()
        print(f"of {len(one.arrivals.ids)} rows are lacking, and there twice: {wrong}")
    assert set(wrong) == set(CONFS)
    assert all(lacks > 0 for lacks, _ in wrong.values()), wrong
