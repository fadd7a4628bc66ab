"""Snapshots by policy: when one is due, which are thinned, and that a leader takes them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskless
from diskless import policy
from diskless.agent.leading.historian import STRETCH_PATHS, Historian, Kept, expired, is_due
from diskless.errors import BadRequest
from diskless.namespace.history import BY_POLICY
from diskless.retention import Rule, parse
from tests.support import eventually
from tests.unit.test_queries import checkpoint, commit, put

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@pytest.mark.parametrize(
    "value", ["none", "every 1m keep 1h", "every 1m keep 1h; every 1h keep 7d", "every 1s keep 1m"]
)
def test_good_rules_are_accepted(value: str) -> None:
    policy.check("history", value)


@pytest.mark.parametrize(
    "value", ["", "sometimes", "every 1m", "every 1s keep 1h", "every 0m keep 1h", ";" * 200]
)
def test_bad_rules_are_refused_with_an_example(value: str) -> None:
    with pytest.raises(BadRequest, match="every 1m keep 1h"):
        policy.check("history", value)


times = st.lists(st.integers(0, 40 * HOUR_MS), max_size=60)
rule = st.tuples(st.integers(1, 120), st.integers(1, 30)).map(
    lambda pair: Rule(pair[0] * MINUTE_MS, pair[0] * pair[1] * MINUTE_MS)
)
rules = st.lists(rule, min_size=1, max_size=3)


@given(times, rules, st.integers(0, 45 * HOUR_MS))
def test_thinning_keeps_the_last_of_each_span_and_nothing_else(
    at: list[int], chosen: list[Rule], now_ms: int
) -> None:
    kept = [Kept(number, time_ms, f"n{number}") for number, time_ms in enumerate(sorted(at))]
    model = set()
    for one in chosen:
        for point in kept:
            later = [p for p in kept if p.number > point.number]
            same = [p for p in later if p.time_ms // one.every_ms == point.time_ms // one.every_ms]
            ends_ms = (point.time_ms // one.every_ms + 1) * one.every_ms
            if ends_ms > now_ms - one.keep_ms and not same:
                model.add(point.name)
    assert {point.name for point in kept} - set(expired(kept, chosen, now_ms=now_ms)) == model


@given(times, rules)
def test_as_time_goes_by_there_is_at_most_one_in_a_span_and_what_is_kept_was_kept(
    at: list[int], chosen: list[Rule]
) -> None:
    kept: list[Kept] = []
    for number, now_ms in enumerate(sorted(at)):
        if is_due(kept, chosen, now_ms=now_ms):
            kept.append(Kept(number, now_ms, f"n{number}"))
        gone = set(expired(kept, chosen, now_ms=now_ms))
        kept = [one for one in kept if one.name not in gone]
        finest_ms = min(one.every_ms for one in chosen)
        spans = [one.time_ms // finest_ms for one in kept]
        assert len(spans) == len(set(spans))
        assert len(kept) <= sum(one.keep_ms // one.every_ms + 1 for one in chosen)


def test_a_leader_keeps_a_checkpoint_after_a_commit_and_thins_its_own_alone() -> None:
    with (
        diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster,
        cluster.connect() as client,
    ):
        put(client, "/ck/q", checkpoint(2))
        by_hand = {"by-hand", f"{BY_POLICY}before-upgrade", f"{BY_POLICY}2026"}
        for name in by_hand:
            client.snapshot("/ck/q", name)
        client.policies.set("/ck", "history", "every 1s keep 2s")
        names: set[str] = set()

        def more() -> bool:
            """Another batch, until there has been a third snapshot."""
            batch = len(list(client.list("/ck/q/commits")))
            client.write(f"/ck/q/commits/{batch}", commit(batch))
            names.update(one.name for one in client.snapshots("/ck/q"))
            return len(names - by_hand) >= 3

        eventually(more)
        taken = sorted(names - by_hand)
        assert all(name.startswith(BY_POLICY) for name in taken)
        newest = taken[-1]
        batch = newest.rpartition("-")[2]
        assert client.exists(f"/ck/q/.snapshot/{newest}/commits/{batch}")

        def thinned() -> bool:
            more()
            there = {one.name for one in client.snapshots("/ck/q")}
            assert by_hand <= there
            return taken[0] not in there

        eventually(thinned)


class Counted:
    """A snapshot by policy that knows how often it was looked at."""

    looks = 0

    def __init__(self, number: int) -> None:
        self.id, self.time_ms, self.name = number, HOUR_MS + number, f"n{number}"

    @property
    def by_policy(self) -> bool:
        Counted.looks += 1
        return True


def test_a_look_at_what_is_not_due_is_short_and_takes_turns() -> None:
    """However many snapshots there are, and however many queries commit."""
    paths, kept = 500, {f"n{number}": Counted(number) for number in range(100)}
    state: Any = SimpleNamespace(
        clock_ms=HOUR_MS + 1000,
        bytes_used=0,
        bytes_max=1,
        policies=SimpleNamespace(
            table={}, effective=lambda *_, **__: SimpleNamespace(value="every 1h keep 7d")
        ),
        leases=SimpleNamespace(committed=dict.fromkeys(map(str, range(paths)), 7)),
        tree=SimpleNamespace(find=lambda _: object()),
        history=SimpleNamespace(at=lambda _: kept),
    )
    replica: Any = SimpleNamespace(state=state)
    turns = 0

    async def run() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await Historian(replica=replica)._keep_committed()
        task.cancel()

    asyncio.run(run())
    assert len(state.leases.committed) == Counted.looks == paths
    assert turns >= paths // STRETCH_PATHS


def test_rules_are_those_of_the_tier() -> None:
    assert parse("every 1m keep 1h") == (Rule(MINUTE_MS, HOUR_MS),)
