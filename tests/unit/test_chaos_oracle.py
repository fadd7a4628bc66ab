"""The oracle explains what a correct store did, and nothing else."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.chaos.oracle import Operation, Result, State, apply, check


def op(kind: str, began_s: float, ended_s: float, result: object = True, **more: object):
    fields = {"family": 0, "key": "a", "kind": kind, "began_s": began_s, "ended_s": ended_s}
    return Operation(**(fields | {"result": result} | more))  # type: ignore[arg-type]


@dataclass
class Store:
    """One family of keys, on which operations take effect at one moment each."""

    state: State = ()
    applied: list[Operation] = field(default_factory=list)

    def do(self, operation: Operation) -> Result:
        self.state, answer = apply(self.state, operation)
        self.applied.append(operation)
        return answer


class LosesAWrite(Store):
    """Acknowledges every fifth put and forgets it."""

    def do(self, operation: Operation) -> Result:
        puts = sum(done.kind == "put" for done in self.applied)
        before = self.state
        answer = super().do(operation)
        if operation.kind == "put" and puts % 5 == 4:
            self.state = before
        return answer


class DoesAWriteTwice(Store):
    """Repeats every fourth put, late: as a retry without a table of answers would."""

    def do(self, operation: Operation) -> Result:
        answer = super().do(operation)
        puts = [done for done in self.applied if done.kind == "put"]
        if operation.kind == "put" and len(puts) % 4 == 2 and len(puts) > 4:
            self.state, _ = apply(self.state, puts[-3])
        return answer


class AnswersFromThePast(Store):
    """A read of a leader that was replaced: what was true a few operations ago."""

    def do(self, operation: Operation) -> Result:
        if operation.kind == "read" and len(self.applied) > 15:
            old: State = ()
            for done in self.applied[:-8]:
                old, _ = apply(old, done)
            return apply(old, operation)[1]
        return super().do(operation)


def history(store: Store, random: Random, *, length: int, clients: int, lost: float) -> list:
    """Clients on one family; each operation takes effect at some moment of its own.

    With probability `lost` a client hears nothing; then the operation took effect, or not.
    """
    free_at = [0.0] * clients
    planned = []
    for value in range(1, length + 1):
        client = min(range(clients), key=lambda number: free_at[number])
        began = free_at[client] + random.random()
        ended = began + random.random() * 3
        free_at[client] = ended
        kind = random.choices(["put", "create", "read", "delete", "rename"], [4, 1, 4, 1, 1])[0]
        key, target = random.sample("ab", 2)
        options = {"target": target} if kind == "rename" else {}
        options |= {"value": value} if kind in ("put", "create") else {}
        planned.append((random.uniform(began, ended), op(kind, began, ended, key=key, **options)))
    answers: dict[int, Operation] = {}
    for _, operation in sorted(planned, key=lambda plan: plan[0]):
        fields = {name: getattr(operation, name) for name in operation.__struct_fields__}
        if random.random() < lost:
            if random.random() < 0.5:
                store.do(operation)
            answers[id(operation)] = Operation(**(fields | {"result": "unknown"}))
        else:
            answers[id(operation)] = Operation(**(fields | {"result": store.do(operation)}))
    end = max(free_at) + 1
    final = [op("read", end, end + 1, store.do(op("read", end, end, key=k)), key=k) for k in "ab"]
    return [*answers.values(), *final]


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([0.0, 0.05, 0.2]))
@settings(max_examples=150, deadline=None)
def test_whatever_a_correct_store_answers_is_explained(seed: int, clients: int, lost: float):
    found = check(history(Store(), Random(seed), length=40, clients=clients, lost=lost))
    assert [violation for violation in found if not violation.undecided] == []
    # With so many operations of unknown outcome a long history can have too many explanations
    # to look at; a shorter one never has.
    assert not found or lost == 0.2
    assert check(history(Store(), Random(seed), length=24, clients=clients, lost=lost)) == []


@pytest.mark.parametrize("mutant", [LosesAWrite, DoesAWriteTwice, AnswersFromThePast])
def test_a_broken_store_is_caught_within_a_few_runs(mutant: type[Store]):
    caught = sum(
        bool(check(history(mutant(), Random(seed), length=200, clients=2, lost=0.02)))
        for seed in range(10)
    )
    assert caught >= 8, f"{mutant.__name__} was caught in {caught} of 10 histories only"


def test_an_acknowledged_put_that_nobody_finds_is_named():
    lost = [op("put", 0, 1, value=1), op("put", 2, 3, value=2), op("read", 4, 5, 1)]
    (violation,) = check(lost)
    assert violation.operation is lost[2]
    assert "read a -> 1" in str(violation)
    assert "put a = #2" in str(violation)


@pytest.mark.parametrize(
    "rejected",
    [
        pytest.param([op("put", 0, 1, value=1), op("read", 2, 3, None)], id="lost"),
        pytest.param([op("read", 0, 1, 7)], id="never written"),
        pytest.param(
            [op("put", 0, 1, value=1), op("delete", 2, 3), op("read", 4, 5, 1)], id="undeleted"
        ),
        pytest.param(
            [op("create", 0, 1, value=1), op("create", 2, 3, value=2)], id="two creations"
        ),
        pytest.param([op("delete", 0, 1)], id="nothing to delete"),
        pytest.param(
            [
                op("put", 0, 1, value=1),
                op("rename", 2, 3, target="b"),
                op("read", 4, 5, 1, key="a"),
            ],
            id="renamed and still there",
        ),
        pytest.param(
            [
                op("put", 0, 1, value=1),
                op("put", 2, 9, value=2),
                op("read", 3, 4, 2),
                op("read", 5, 6, 1),
            ],
            id="new, then old",
        ),
        pytest.param(
            [op("put", 0, 1, "unknown", value=1), op("read", 2, 3, 1), op("read", 4, 5, None)],
            id="an unknown write that was seen cannot vanish",
        ),
    ],
)
def test_a_history_without_an_explanation_is_rejected(rejected: list[Operation]):
    assert len(check(rejected)) == 1


@pytest.mark.parametrize(
    "accepted",
    [
        pytest.param([op("put", 0, 1, "unknown", value=1), op("read", 2, 3, None)], id="never"),
        pytest.param(
            [
                op("put", 0, 1, "unknown", value=1),
                op("read", 2, 3, None),
                op("read", 4, 5, 1),
            ],
            id="an unknown write may take effect late",
        ),
        pytest.param(
            [op("put", 0, 9, value=1), op("read", 1, 2, 1), op("put", 0, 9, value=2)],
            id="two at once, in either order",
        ),
        pytest.param(
            [
                op("rename", 0, 1, False, target="b"),
                op("create", 2, 3, False, value=3),
                op("put", 0.5, 1.5, value=1),
                op("read", 4, 5, 1),
            ],
            id="refusals are answers",
        ),
    ],
)
def test_a_history_with_an_explanation_is_accepted(accepted: list[Operation]):
    assert check(accepted) == []


def test_families_are_judged_apart():
    sound = op("put", 0, 1, value=1, family=1)
    assert [v.family for v in check([sound, op("read", 0, 1, 5, family=2)])] == [2]


def test_a_long_history_takes_little_time():
    assert check(history(Store(), Random(1), length=1500, clients=4, lost=0.002)) == []


@pytest.mark.parametrize("unclear", [3, 6])
def test_a_loss_after_many_unclear_answers_is_still_found(unclear: int):
    """They may take effect at any later moment, so that all of them are always in question."""
    early = [
        op(kind, n / 100, n / 100, "unknown", key=key, value=9000 + n)
        for n, (kind, key) in enumerate(zip(["put", "delete", "put"] * 2, "abcabc", strict=True))
    ][:unclear]
    sound = history(Store(), Random(unclear), length=300, clients=1, lost=0.0)
    later = [
        op(
            o.kind,
            o.began_s + 1,
            o.ended_s + 1,
            o.result,
            key=o.key,
            value=o.value,
            target=o.target,
        )
        for o in sound
    ]
    end_s = max(o.ended_s for o in later)
    lost = op("read", end_s + 1, end_s + 2, 77_777)
    assert check([*early, *later]) == []
    (violation,) = check([*early, *later, lost])
    assert (violation.operation, violation.undecided) == (lost, False)
