"""Schedules, the budget and the verdict: pure, so every rule has its own small case."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.chaos.budget import Active, affordable, count_down, lost_side, refuse_beyond
from diskless.chaos.faults import wanted
from diskless.chaos.record import Record
from diskless.chaos.schedule import KINDS, Step, plan
from diskless.chaos.verdict import Findings, judge
from diskless.cli import chaos_run
from diskless.cli.verb import Context
from diskless.client import descriptor
from diskless.config import MIB, ClusterSettings
from diskless.errors import OverBudget
from diskless.model import AgentStatus, ClusterStatus, VoterStatus

K, AGENTS, VOTERS = 2, 6, 5

plans = st.builds(
    plan,
    seed=st.integers(0, 2**32),
    duration_s=st.floats(1, 120),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, unique=True),
    agents=st.just(AGENTS),
    voters=st.just(VOTERS),
    max_down=st.integers(0, 4),
)


def a_plan(seed: int = 1, **more: Any) -> list[Step]:
    options = {
        "duration_s": 60.0,
        "kinds": KINDS,
        "agents": AGENTS,
        "voters": VOTERS,
        "max_down": K,
    }
    return plan(seed=seed, **(options | more))


# Schedules.


@given(st.integers(0, 2**32), st.integers(0, 4))
def test_a_plan_never_spends_more_than_its_budget(seed: int, max_down: int):
    steps = a_plan(seed, max_down=max_down)
    for now in steps:
        down = [
            slot
            for step in steps
            if step.spends and step.at_s <= now.at_s < step.ends_s
            for slot in step.victims
        ]
        assert len(down) <= max_down
        assert len(set(down)) == len(down), "nobody is hit twice at once"


@given(plans)
def test_steps_come_in_order_and_name_agents_that_exist(steps: list[Step]):
    assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
    assert all(0 <= slot < AGENTS for step in steps for slot in step.victims)


def test_the_same_seed_gives_the_same_plan_and_another_one_another():
    assert a_plan(7) == a_plan(7)
    assert a_plan(7) != a_plan(8)


def test_every_kind_has_its_turn():
    assert {step.kind for step in a_plan(3)} == set(KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_beyond_k_one_step_takes_so_many_at_once_and_spares_the_majority(seed: int):
    steps = a_plan(seed, max_down=K + 1, kinds=("kill", "corrupt"))
    bursts = [step for step in steps if len(step.victims) == K + 1 and step.kind == "kill"]
    assert bursts
    assert sum(slot < VOTERS for slot in bursts[0].victims) <= K


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("agents", [AGENTS, 9])
def test_no_cut_takes_more_away_than_the_budget_has(seed: int, agents: int):
    """A step that is never affordable would hold all later ones back."""
    steps = a_plan(seed, max_down=K + 1, agents=agents, kinds=("partition",))
    assert steps
    for step in steps:
        away = lost_side(step.victims, agents=agents, voters=VOTERS)
        assert sorted(away) == sorted(step.victims)
        assert len(away) <= K + 1


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("workload", ["kv", "nexmark"])
def test_the_line_that_replays_a_run_has_all_that_the_plan_depends_on(workload: str, local: bool):
    context = Context()
    context.cluster = "orders"
    given = chaos_run._kinds(" pause, kill,slow ")
    line = chaos_run._replay(context, 77, 12.5, given, workload, "4KiB", 3, 7.0, local)
    words = shlex.split(line)
    assert words[:3] == ["diskless", "chaos", "run"]
    told = chaos_run.run.make_context("run", words[3:], obj=Context()).params
    assert (told["seed"], told["duration_s"], told["workload"]) == (77, 12.5, workload)
    assert (told["max_down"], told["heal_timeout_s"], told["local"]) == (3, 7.0, local)
    assert chaos_run._kinds(told["faults"]) == given, "another order is another plan"
    assert local or "--cluster orders" in line


# The budget.


def status(*, margin: int = K, down: tuple[int, ...] = (), silent: tuple[int, ...] = (),
           lives: int = 1, damaged_shards: int = 0, slow: tuple[int, ...] = ()
           ) -> ClusterStatus:  # fmt: skip
    return ClusterStatus(
        parity_shards=K,
        margin=margin,
        margin_hosts=0,
        agents=[
            AgentStatus(
                slot=f"agent-{n}",
                state="down" if n in down else "slow" if n in slow else "up",
                incarnation=lives,
            )
            for n in range(AGENTS)
        ],
        voters=[
            VoterStatus(
                slot=f"agent-{n}",
                role="leader" if n == 0 else "follower",
                lag=None if n in silent else 0,
            )
            for n in range(VOTERS)
        ],
        damaged_shards=damaged_shards,
    )


def test_a_whole_cluster_has_nobody_down():
    assert count_down(status(), []).spent == 0


def test_a_frozen_agent_counts_before_anybody_notices_and_once_when_somebody_has():
    frozen = [Active(kind="pause", slots=(3,), pids={3: 17})]
    assert count_down(status(), frozen).spent == 1
    assert count_down(status(margin=1, down=(3,)), frozen).spent == 1


def test_a_slow_agent_counts_whoever_noticed_and_beside_what_the_margin_lacks():
    planted = [Active(kind="slow", slots=(3,), delay_ms=300)]
    for noticed in ((), (3,)):
        assert count_down(status(slow=noticed), planted).spent == 1
        assert count_down(status(margin=1, down=(4,), slow=noticed), planted).spent == 2
    assert count_down(status(slow=(3,)), []).why == {3: "slow"}
    killed = [Active(kind="kill", slots=(3,), incarnations={3: 1})]
    assert count_down(status(slow=(3,), lives=2), killed).why == {3: "slow"}


def test_what_is_not_re_protected_counts_though_everybody_is_up():
    down = count_down(status(margin=0), [])
    assert (down.why, down.spent) == ({}, 2)


def test_an_unnoticed_fault_counts_beside_what_is_not_re_protected():
    assert count_down(status(margin=1), [Active(kind="partition", slots=(4,))]).spent == 2


def test_a_killed_agent_counts_until_a_new_life_of_it_is_up():
    killed = [Active(kind="kill", slots=(2,), incarnations={2: 1})]
    assert count_down(status(), killed).why == {2: "killed"}
    assert count_down(status(margin=1, down=(2,)), killed).spent == 1
    assert count_down(status(margin=1, lives=2), killed).spent == 1
    assert count_down(status(lives=2), killed).spent == 0


def test_a_voter_without_its_memory_counts():
    assert count_down(status(margin=1, silent=(2,)), []).why == {2: "recovering"}


def test_corrupt_shards_count_and_taken_memory_does_not():
    assert count_down(status(), [Active(kind="fill", slots=(1, 2), share=0.9)]).spent == 0
    assert count_down(status(), [], damaged={1: 5, 2: 3}).spent == 2


def test_corrupt_shards_that_the_cluster_knows_of_are_in_its_margin_already():
    known = status(margin=1, damaged_shards=8)
    assert count_down(known, [], damaged={1: 5, 2: 3}).spent == 2
    assert count_down(known, [], damaged={1: 6, 2: 3}).spent == 3, "one is not noticed yet"


def test_a_refusal_says_why_and_how_to_go_on():
    down = count_down(status(margin=1, down=(3,)), [])
    assert affordable(down, [3, 4], max_down=K)
    assert not affordable(down, [4, 5], max_down=K)
    refuse_beyond(down, [4], max_down=K, k=K)
    with pytest.raises(OverBudget) as refusal:
        refuse_beyond(down, [4, 5], max_down=K, k=K)
    assert "3 agents down, at most 2" in str(refusal.value)
    assert "agent-3 dead" in str(refusal.value)
    assert "--max-down 3" in str(refusal.value)


def test_a_partition_loses_the_side_without_a_majority():
    assert lost_side([1, 5], agents=AGENTS, voters=VOTERS) == [1, 5]
    assert lost_side([0, 1, 2, 5], agents=AGENTS, voters=VOTERS) == [3, 4]


# What agents are told.


def test_a_cut_is_planted_on_both_sides_and_faults_add_up():
    settings = ClusterSettings(memory_bytes=100 * MIB)
    told = wanted(
        [
            Active(kind="partition", slots=(0, 1)),
            Active(kind="partition", slots=(5,)),
            Active(kind="slow", slots=(2,), delay_ms=30),
            Active(kind="fill", slots=(3,), share=0.5),
        ],
        settings,
    )
    assert told[0].cut == [2, 3, 4, 5]
    assert told[5].cut == [0, 1, 2, 3, 4]
    assert told[3].cut == [0, 1, 5]
    assert told[2].delays_ms == {0: 30, 1: 30, 3: 30, 4: 30, 5: 30}
    assert told[4].delays_ms == {2: 30}
    assert (told[3].ballast_bytes, told[4].ballast_bytes) == (50 * MIB, 0)


def test_nothing_planted_is_told_as_such():
    assert all(
        (told.cut, told.delays_ms, told.ballast_bytes) == ([], {}, 0)
        for told in wanted([], ClusterSettings()).values()
    )


# The verdict.


def findings(**more: Any) -> Findings:
    return Findings(operations=10, acknowledged=9, **more)


@pytest.mark.parametrize(
    ("seen", "healed", "max_down", "exit_status"),
    [
        (findings(), True, K, 0),
        (findings(), True, K + 1, 0),
        (findings(), False, K, 20),
        (findings(unreadable=["/a"]), True, K, 19),
        (findings(unreadable=["/a"]), True, K + 1, 21),
        (findings(), False, K + 1, 21),
        (findings(refusals={"TooFewShards": 1}), True, K, 19),
        (findings(refusals={"TooFewShards": 1}), True, K + 1, 21),
        (findings(refusals={"ShardsAway": 1}), True, K, 19),
        (findings(refusals={"ShardsAway": 1}), True, K + 1, 21),
        (findings(refusals={"Unavailable": 9}), True, K, 0),
        (findings(wrong=["x"]), True, K, 19),
        (findings(wrong=["x"], unreadable=["/a"]), False, K + 1, 19),
        (findings(undecided=["x"]), True, K, 1),
    ],
)
def test_wrong_is_wrong_and_loud_loss_is_one_within_the_promise(
    seen: Findings, healed: bool, max_down: int, exit_status: int
):
    verdict = judge(seen, healed=healed, max_down=max_down, k=K)
    assert (verdict.exit_status, verdict.passed) == (exit_status, exit_status == 0)


@pytest.mark.parametrize("max_down", [K, K + 1])
def test_a_run_in_which_nothing_happened_proves_nothing(max_down: int):
    idle = Findings(operations=3, acknowledged=0, refusals={"Unavailable": 3})
    for seen, planted, passed in ((idle, 4, False), (findings(), 0, False), (findings(), 1, True)):
        verdict = judge(seen, healed=True, max_down=max_down, k=K, planned=5, planted=planted)
        assert (verdict.passed, verdict.exit_status) == (passed, 0 if passed else 1)


# The record.


@pytest.fixture
def record() -> Iterator[Record]:
    descriptor.home().mkdir(parents=True, exist_ok=True)
    yield Record("recorded", "one")
    descriptor.remove("recorded")


FROZEN = Active(kind="pause", slots=(3,), pids={3: 17})


def test_a_fault_is_on_record_before_the_deed(record: Record):
    with record.changing() as active:
        active.append(FROZEN)
        active.keep()
        assert b"pause" in descriptor.faults_path("recorded").read_bytes()
    assert record.read() == [FROZEN]


def test_what_was_done_before_an_error_stays_on_record(record: Record):
    with suppress(OverBudget), record.changing() as active:
        active.append(FROZEN)
        raise OverBudget
    assert record.read() == [FROZEN]


def test_a_later_cluster_of_the_name_has_no_faults(record: Record):
    with record.changing() as active:
        active.append(FROZEN)
    assert Record("recorded", "another").read() == []


def test_the_record_goes_with_the_cluster(record: Record):
    with record.changing() as active:
        active.append(FROZEN)
    descriptor.remove("recorded")
    assert not descriptor.faults_path("recorded").exists()
