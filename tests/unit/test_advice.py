"""Advice on synthetic records with known answers: what notes and events tell, what is to be set."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.advice.choose import (
    BATCHES_MIN,
    MTBF_S,
    RESTART_S,
    TOLERANCE,
    IntervalAdvice,
    Wishes,
    advise_interval,
    round_up,
    too_little,
)
from diskless.advice.intervals import utilisation
from diskless.advice.records import Batches, Failures, read_events, read_notes
from diskless.advice.settings import (
    DELTAS,
    MAINTENANCE,
    RETAINED,
    Cluster,
    StateFiles,
    TierCosts,
    agent_rate,
    code_setting,
    spark_time,
    state_settings,
    tier_settings,
    trigger_settings,
)
from diskless.model import Event
from diskless.notes import BatchNote

BEGIN_MS = 1_800_000_000_000
DAY_MS = 86_400_000
CLUSTER = Cluster(
    data_shards=4, parity_shards=2, agents=6, agents_per_host=0, memory_bytes=512 << 20
)


def run(
    first: int, batches: int, *, at_ms: int, every_ms: int = 1000, trigger_ms: int = 400,
    slow_ms: int = 0, **more: Any,
) -> list[BatchNote]:  # fmt: skip
    """A run that begins 3 s before its first batch, which takes `slow_ms` longer."""
    return [
        BatchNote(
            first + n, at_ms + n * every_ms, rows=100,
            trigger_ms=trigger_ms + (slow_ms if n == 0 else 0), started_ms=at_ms - 3000,
            **({"wal_commit_ms": 10, "commit_offsets_ms": 10, "add_batch_ms": 300,
                "state_commit_ms": 120, "tasks": 4, "planning_ms": 30} | more),
        )
        for n in range(batches)
    ]  # fmt: skip


def test_a_run_tells_its_costs_its_interval_and_nothing_of_failures() -> None:
    found = read_notes(run(0, 21, at_ms=BEGIN_MS, slow_ms=2000))
    assert (found.noted, found.runs, found.restarts_s) == (20, 1, ())
    assert found.interval_s == 1.0
    assert set(found.checkpoints_s) == {0.05}, "10 + 10 + 120 by four at once"
    assert set(found.costs_s) == {0.08}, "and planning"
    assert set(found.triggers_s) == {0.4}, "the first batch is another matter"
    assert found.running_s == pytest.approx(3 + 20 + 0.4)
    assert found.starts_s == (pytest.approx(5.0),)
    assert not found.serial


def test_commits_of_the_state_count_as_one_after_the_other_where_nobody_tells_how_many_at_once(
) -> None:  # fmt: skip
    found = read_notes(run(0, 5, at_ms=BEGIN_MS, tasks=None))
    assert found.serial
    assert set(found.checkpoints_s) == {0.14}
    longer = read_notes(run(0, 5, at_ms=BEGIN_MS, tasks=None, state_commit_ms=9000))
    assert set(longer.checkpoints_s) == {0.32}, "never longer than the job that they are part of"


def test_a_restart_is_the_gap_without_half_a_batch_and_with_the_state_to_load() -> None:
    first = run(0, 11, at_ms=BEGIN_MS)
    ended_ms = BEGIN_MS + 10_000 + 400
    again = run(11, 11, at_ms=ended_ms + 20_500, slow_ms=1500)
    found = read_notes([*first, *again])
    assert found.runs == 2
    assert found.restarts_s == (pytest.approx(20.0 + 1.5),)
    assert found.running_s == pytest.approx(2 * (3 + 10 + 0.4) + 1.5, abs=1.6)


def test_a_query_that_was_away_for_long_was_stopped() -> None:
    first = run(0, 11, at_ms=BEGIN_MS)
    again = run(11, 11, at_ms=BEGIN_MS + 2 * 3_600_000)
    found = read_notes([*first, *again])
    assert (found.runs, found.restarts_s) == (2, ())
    assert found.running_s < 60, "nor did it run meanwhile"


def test_a_batch_again_is_another_run_also_where_no_start_is_told() -> None:
    notes = [
        msgspec.structs.replace(note, started_ms=None)
        for note in (*run(0, 5, at_ms=BEGIN_MS), *run(4, 5, at_ms=BEGIN_MS + 30_000))
    ]
    found = read_notes(notes)
    assert (found.runs, len(found.restarts_s), found.starts_s) == (2, 1, ())


def test_batches_that_are_missing_between_make_no_interval() -> None:
    notes = run(0, 30, at_ms=BEGIN_MS)
    found = read_notes([notes[0], *notes[25:]])
    assert found.interval_s == 1.0
    assert found.running_s == pytest.approx(3 + 29 + 0.4)


def test_nothing_or_too_little_is_said_in_a_line() -> None:
    assert "no batch of /q is known: set the listener" in too_little("/q", read_notes([]))
    few = read_notes(run(0, 4, at_ms=BEGIN_MS))
    assert f"/q are known: 3, of {BATCHES_MIN} that are needed" in too_little("/q", few)
    apart = read_notes([note for note in run(0, 50, at_ms=BEGIN_MS) if note.batch % 2])
    assert "too few" in too_little("/q", apart), "their distance is not known"
    assert too_little("/q", read_notes(run(0, BATCHES_MIN + 1, at_ms=BEGIN_MS))) == ""


# -- events ------------------------------------------------------------------------------


def event(kind: str, slot: int, at_s: float, life: int = 1) -> Event:
    text = "moved 3 shards" if kind == "repair" else f"agent-{slot} {kind} incarnation {life}"
    return Event(1, BEGIN_MS + int(1000 * at_s), kind, text)


HOSTS = {f"agent-{slot}": f"host-{slot // 2}" for slot in range(6)}


def read(events: list[Event], hosts: dict[str, str] = HOSTS, days: int = 2) -> Failures:
    now_ms = BEGIN_MS + days * DAY_MS
    return read_events(events, hosts, since_ms=BEGIN_MS, now_ms=now_ms)


def test_the_log_tells_how_often_agents_failed_and_how_long_repair_took() -> None:
    begin = [event("up", slot, 0) for slot in range(6)]
    found = read(
        [*begin, event("down", 3, 100), event("repair", 0, 112), event("repair", 0, 145),
         event("up", 3, 300, 2), event("repair", 0, 4000), event("down", 4, 5000)],
    )  # fmt: skip
    assert (found.agents, found.hosts) == (2, 0)
    assert (found.agents_s, found.hosts_s) == (2 * 86400 * 6, 2 * 86400 * 3)
    assert found.rebuilds_s == (45.0,), "what moves an hour later moves for another reason"


def test_an_agent_that_began_anew_before_it_was_missed_failed_too() -> None:
    assert read([event("up", 1, 0), event("up", 1, 50, 2)]).agents == 1
    assert read([event("down", 1, 50), event("down", 1, 51)]).agents == 1
    assert read([event("down", 1, 50), event("up", 1, 60, 2)]).agents == 1
    assert read([event("up", 1, 60, 2)]).agents == 0, "it was there before the log"
    assert read([event("down", 9, 50)]).agents == 0, "there is no such agent any more"


def test_a_host_failed_if_all_its_agents_went_together() -> None:
    together = [event("down", 2, 100), event("down", 3, 104)]
    assert read(together).hosts == 1
    assert read([event("down", 2, 100), event("down", 3, 200)]).hosts == 0
    assert read([event("down", 1, 100), event("down", 2, 101)]).hosts == 0
    back = [event("up", 2, 150, 2), event("up", 3, 150, 2)]
    again = [event("down", 3, 160), event("down", 2, 161)]
    assert read([*together, *back, *again]).hosts == 2
    one_host = dict.fromkeys(HOSTS, "here")
    assert (read(together, one_host).hosts, read(together, one_host).hosts_s) == (0, 0)


# -- the interval --------------------------------------------------------------------------


def batches(**changed: Any) -> Batches:
    """One a second, with 20 ms of checkpoint, for ten days with ten restarts of 30 s."""
    known: dict[str, Any] = {
        "noted": 500, "costs_s": (0.02,) * 500, "checkpoints_s": (0.015,) * 500,
        "triggers_s": (0.3,) * 500, "interval_s": 1.0, "updated": 100.0, "runs": 11,
        "running_s": 10.5 * 86400, "restarts_s": (30.0,) * 10, "starts_s": (25.0,) * 11,
        "serial": False,
    }  # fmt: skip
    return Batches(**(known | changed))


def test_a_query_with_a_failure_a_day_and_20_ms_has_its_best_interval_at_a_minute() -> None:
    found = advise_interval(batches(), None)
    assert found.failures.mean_s == pytest.approx(86400)
    assert (found.failures.seen, found.restart.value) == (10, 30.0)
    assert found.best_s == pytest.approx((2 * 0.02 * 86400) ** 0.5 + 0.02, rel=1e-3)
    assert found.best_low_s < 46 < found.best_s < 80 < found.best_high_s < 100
    assert found.utilisation_now == pytest.approx(0.98 * (1 - 30 / 86400), abs=1e-4)
    assert found.needed == pytest.approx(0.28)
    assert found.chosen_s == 1.9
    assert found.gain == pytest.approx(0.01, abs=1e-3)
    assert found.utilisation_chosen >= found.utilisation_best - TOLERANCE


def test_an_interval_that_is_as_good_stays() -> None:
    found = advise_interval(batches(interval_s=7.3), None)
    assert found.keeps
    assert found.chosen_s == 7.3
    assert trigger_settings(found)[0].why.startswith("as it is")


def test_an_interval_that_is_far_too_long_gets_shorter() -> None:
    found = advise_interval(batches(interval_s=20_000.0, triggers_s=(6000.0,) * 500), None)
    assert found.chosen_s < found.best_s < 20_000
    assert found.gain > 0.08


def test_latency_bounds_the_interval_and_is_said_to() -> None:
    slow = batches(costs_s=(0.2,) * 500)
    free = advise_interval(slow, None)
    assert free.chosen_s > 10
    bound = advise_interval(slow, None, Wishes(latency_s=5.0))
    assert bound.chosen_s == pytest.approx((5 - 0.2) / (1 + 0.1))
    assert bound.limit == "as --latency asks for"
    none = advise_interval(slow, None, Wishes(latency_s=0.1))
    assert none.limit == "a checkpoint takes longer than --latency"
    assert none.chosen_s == pytest.approx(0.4)


def test_wishes_come_before_what_was_seen() -> None:
    found = advise_interval(batches(), None, Wishes(mtbf_s=3600.0, restart_s=7.0))
    assert (found.failures.mean_s, found.restart.value) == (3600.0, 7.0)
    assert "--mtbf" in found.failures.source
    assert "--restart" in found.restart.source
    assert found.best_low_s == found.best_s == found.best_high_s


def failures(**changed: Any) -> Failures:
    known: dict[str, Any] = {
        "agents": 0, "hosts": 0, "agents_s": 0.0, "hosts_s": 0.0, "rebuilds_s": (),
    }  # fmt: skip
    return Failures(**(known | changed))


def test_a_query_that_never_failed_is_taken_to_fail_as_its_host_does_or_else_as_assumed() -> None:
    calm = batches(restarts_s=(), runs=1, running_s=1000.0)
    by_host = advise_interval(calm, failures(hosts=4, hosts_s=9e6, agents=9, agents_s=18e6))
    assert by_host.failures.mean_s == pytest.approx(2e6)
    assert "of a host" in by_host.failures.source
    by_agent = advise_interval(calm, failures(agents=9, agents_s=19e6))
    assert by_agent.failures.mean_s == pytest.approx(2e6)
    nothing = advise_interval(calm, failures(agents_s=5e5))
    assert nothing.failures.mean_s == MTBF_S
    assert nothing.failures.source.startswith("assumed")
    assert nothing.best_high_s == float("inf")
    assert nothing.restart.value == 25.0
    assert advise_interval(replace(calm, starts_s=()), None).restart.value == RESTART_S


@given(
    cost_ms=st.integers(1, 5000), more=st.floats(1.5, 20), restarts=st.integers(1, 50),
    now_s=st.floats(0.1, 1000),
)  # fmt: skip
def test_more_failures_advise_a_shorter_interval_and_costlier_checkpoints_a_longer_one(
    cost_ms: int, more: float, restarts: int, now_s: float
) -> None:
    def at(cost_s: float, count: int) -> IntervalAdvice:
        return advise_interval(
            batches(costs_s=(cost_s,) * 20, noted=20, restarts_s=(10.0,) * count, interval_s=now_s),
            None,
        )

    one = at(cost_ms / 1000, restarts)
    assert at(cost_ms / 1000, 2 * restarts + 1).best_s < one.best_s
    assert at(more * cost_ms / 1000, restarts).best_s > one.best_s
    assert one.best_low_s <= one.best_s <= one.best_high_s
    assert one.utilisation_chosen >= one.utilisation_best - TOLERANCE - 1e-6
    assert utilisation(one.costs, one.chosen_s) == one.utilisation_chosen


@pytest.mark.parametrize(
    ("seconds", "rounded"),
    [(0.0004, 0.001), (0.1231, 0.13), (1.0, 1.0), (5.91, 6.0), (12.3, 13.0), (99.2, 100.0),
     (123.4, 130.0)],
)  # fmt: skip
def test_intervals_are_rounded_up_to_what_one_would_type(seconds: float, rounded: float) -> None:
    assert round_up(seconds) == pytest.approx(rounded)


def test_times_are_written_as_spark_reads_them() -> None:
    assert spark_time(1.0) == "1 second"
    assert spark_time(13.0) == "13 seconds"
    assert spark_time(1.4) == "1400 milliseconds"
    assert spark_time(0.05) == "50 milliseconds"


# -- what follows from it ------------------------------------------------------------------

MIB = 1 << 20


def values(state: StateFiles | None, cluster: Cluster = CLUSTER, **changed: Any) -> dict[str, str]:
    found = advise_interval(batches(**changed), None)
    return {setting.name: setting.value for setting in state_settings(found, state, cluster)}


def test_snapshots_of_the_state_are_as_far_apart_as_deltas_weigh_as_much() -> None:
    state = StateFiles(whole_bytes=40 * MIB, changed_bytes=2 * MIB, batches=30)
    assert values(state)[DELTAS] == "20"
    small = StateFiles(whole_bytes=40 * MIB, changed_bytes=1000, batches=30)
    assert values(small)[DELTAS] == "50"
    rewritten = StateFiles(whole_bytes=2 * MIB, changed_bytes=2 * MIB, batches=30)
    assert values(rewritten)[DELTAS] == "2"


def test_many_failures_bring_snapshots_closer_together() -> None:
    state = StateFiles(whole_bytes=40 * MIB, changed_bytes=1 * MIB, batches=30)
    slow = {"costs_s": (1.0,) * 500, "triggers_s": (2.0,) * 500, "running_s": 54_000.0}
    often = values(state, **slow, restarts_s=(5.0,) * 900, interval_s=100.0)
    assert 10 < int(often[DELTAS]) < int(values(state)[DELTAS]) == 40


def test_what_is_retained_is_bounded_by_memory() -> None:
    state = StateFiles(whole_bytes=400 * MIB, changed_bytes=20 * MIB, batches=30)
    tight = values(state)
    assert tight[RETAINED] == "10", "a tenth of 2 GiB"
    assert tight[DELTAS] == "5", "and deltas are no more than half of that"
    roomy = values(state, replace(CLUSTER, memory_bytes=64 << 30))
    assert roomy[RETAINED] == "100"


def test_maintenance_comes_often_enough_to_make_the_snapshots() -> None:
    state = StateFiles(whole_bytes=40 * MIB, changed_bytes=2 * MIB, batches=30)
    assert values(state)[MAINTENANCE] == "19s", "of 20 deltas, one every 1.9 s"
    assert values(state, interval_s=30.0)[MAINTENANCE] == "60s"


def test_a_query_without_state_or_deltas_has_nothing_to_set_for_them() -> None:
    assert values(None) == {}
    assert values(StateFiles(whole_bytes=5 * MIB, changed_bytes=0.0, batches=0)) == {}


def test_a_lag_shorter_than_an_interval_gains_nothing() -> None:
    tier = TierCosts(lag_s=0.4, lag_max_s=5.0, rounds=10, requests=20, bytes_put=MIB)
    assert tier_settings(13.0, tier)[0].value == "13s"
    assert tier_settings(0.2, tier)[0].value == "1s"
    assert tier_settings(0.2, replace(tier, lag_s=30.0))[0].value == "60s"
    assert tier_settings(0.2, None) == []


def test_agents_that_never_failed_are_assumed_to_as_plan_does() -> None:
    assert agent_rate(None) is None
    assert agent_rate(failures()) is None
    calm = agent_rate(failures(agents_s=3.0))
    assert calm is not None
    assert calm.mean_s == MTBF_S
    seen = agent_rate(failures(agents=4, agents_s=9e6))
    assert seen is not None
    assert seen.mean_s == pytest.approx(2e6)


def test_a_code_changes_only_for_good_reasons() -> None:
    assert "too few" in code_setting(CLUSTER, None).why
    assert "too few" in code_setting(CLUSTER, failures(agents=2, agents_s=1e6)).why
    calm = failures(agents=5, agents_s=6 * 30 * 86400.0, rebuilds_s=(30.0, 45.0))
    assert code_setting(CLUSTER, calm).value == "4+2"
    assert "as it is" in code_setting(CLUSTER, calm).why
    wild = failures(agents=400, agents_s=6 * 86400.0, rebuilds_s=(300.0,))
    safer = code_setting(replace(CLUSTER, agents=9), wild)
    assert int(safer.value.partition("+")[2]) > 2
    assert "safer" in safer.why
    mirrored = replace(CLUSTER, data_shards=1, parity_shards=2, agents=12)
    wide = code_setting(mirrored, calm)
    assert wide.value.endswith("+2"), "no fewer losses than were asked for"
    assert int(wide.value.partition("+")[0]) > 4
    assert "less memory" in wide.why


def test_no_code_is_advised_while_no_agent_has_reported_its_memory() -> None:
    """As just after a change of leaders, in a cluster whose agents have failed."""
    often = failures(agents=400, agents_s=6 * 86400.0, rebuilds_s=(300.0,))
    unknown = code_setting(replace(CLUSTER, memory_bytes=0), often)
    assert unknown.value == "4+2"
    assert "no agent has reported" in unknown.why


def test_real_time_mode_takes_the_best_interval_and_no_less_than_spark_does() -> None:
    _, real_time = trigger_settings(advise_interval(batches(), None))
    assert real_time.value == "59 seconds"
    quick = advise_interval(batches(costs_s=(0.001,) * 9), None, Wishes(mtbf_s=60.0))
    assert trigger_settings(quick)[1].value == "5 seconds"
