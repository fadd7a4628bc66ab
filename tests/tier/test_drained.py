"""The drain loses nothing that it announced: some schedules; `python -m tests.tier.drained` has
as many as one likes."""

import logging
from typing import Any

import msgspec
import pytest

from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.carrier import Carrier
from diskless.agent.leading.drainer import Drainer
from diskless.errors import DamagedTier
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.plans import BELOW_OFFSETS, Plans
from diskless.namespace.tier import Tier
from diskless.namespace.tree import Tree
from tests.tier.drained import Cluster, Violation, schedule
from tests.tier.loop import run


@pytest.mark.parametrize("seed", range(12))
def test_everything_dies_and_a_prefix_comes_back(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    print(f"seed {seed}: python -m tests.tier.drained --seed {seed}")
    assert run(schedule(seed))["restored"] == 3


class HorizonFirst(Drainer):
    """Announces a manifest before it is there."""

    async def _append(self, draft: Any, moment: Any) -> None:
        tier = self._state.tier
        await self._do(
            c.Horizon(
                tier.epoch, tier.number + 1, moment.change, moment.op, moment.time_ms,
                moment.last_file,
            )
        )  # fmt: skip
        await super()._append(draft, moment)


class RowsUnsaid(Drainer):
    """Moves the horizon, and tells nobody where the files lie."""

    async def _append(self, draft: Any, moment: Any) -> None:
        await super()._append(_Silent(draft), moment)


class _Silent:
    def __init__(self, draft: Any) -> None:
        self.round_id = draft.round_id
        self._draft = draft

    async def append(self, **moment: int) -> Any:
        return msgspec.structs.replace(await self._draft.append(**moment), rows=())


class MarksStay(Drainer):
    """Leaves the mark of an earlier leader where it is."""

    async def _do(self, command: c.Command) -> c.Done:
        if isinstance(command, c.Unmark) and self._followed is None:
            return c.Done()
        return await super()._do(command)


class NeverHeld(Backlog):
    """Acknowledges what is not durable."""

    async def reach(self, change: int, timeout_s: float) -> None:
        return


@pytest.mark.parametrize(
    ("part", "mutant", "says"),
    [
        ("drainer_type", HorizonFirst, "announced|nobody knows where"),
        ("drainer_type", RowsUnsaid, "nobody knows where"),
        ("drainer_type", MarksStay, "mark of an earlier leader"),
        ("backlog_type", NeverHeld, "acknowledged"),
    ],
)
def test_a_broken_drain_is_noticed(
    part: str,
    mutant: type,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(Cluster, part, mutant)
    with pytest.raises(Violation, match=says):
        run_all(20)


class EffectFirst(Backlog):
    """Acknowledges state before the plan is durable."""

    def _planned(self, path: str) -> int:
        return super()._planned(path) if BELOW_OFFSETS in path else 0


class PlanAtOnce(Backlog):
    """Acknowledges the plan of a query that has no state."""

    def _planned(self, path: str) -> int:
        return 0 if BELOW_OFFSETS in path else super()._planned(path)


class RunsWhatItFinds(Backlog):
    """Lets a query that starts again read a plan that could still be lost."""

    def before_answer(self, query: q.Query) -> int:
        return 0


@pytest.mark.parametrize("mutant", [EffectFirst, PlanAtOnce, RunsWhatItFinds])
def test_a_leader_that_does_not_wait_for_plans_is_noticed(
    mutant: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(Cluster, "backlog_type", mutant)
    with pytest.raises(Violation, match="planned"):
        run_all(60)


def _no_renames(self: Plans, tree: Tree, path: str, change: int) -> None:
    """Renamed files are no plans."""


def _files_alone(self: Plans, tree: Tree, path: str, change: int) -> None:
    """What comes as a whole brings no plans."""
    if BELOW_OFFSETS in path:
        self._add(self.arrived, path, change)
        self._plan(path, change)


def _forgotten(self: Plans, rows: Any) -> None:
    """A state by transfer has no plans."""


def _all_durable(self: Plans, horizon: int) -> None:
    """Any round makes all plans durable."""
    self.put, self.arrived, self.bytes_used = {}, {}, 0


def _no_floor(self: Plans, change: int) -> None:
    """What was planned before a policy was set does not count."""


@pytest.mark.parametrize(("part", "mutant"), [("_arrive", _no_renames), ("_arrive", _files_alone),
                                              ("restore", _forgotten), ("trim", _all_durable),
                                              ("raise_floor", _no_floor)])  # fmt: skip
def test_a_wrong_account_of_plans_is_noticed(
    part: str, mutant: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(Plans, part, mutant)
    with pytest.raises(Violation, match="planned"):
        run_all(100)


def run_all(schedules: int) -> None:
    for seed in range(schedules):
        run(schedule(seed))


def test_evicting_what_the_tier_has_not_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(Tier, "is_safe", lambda self, id_: self.attached)
    with pytest.raises((Violation, AssertionError), match="is nowhere"):
        run_all(20)


def test_schedules_do_evict(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert sum(run(schedule(seed))["only_there"] for seed in range(4)) > 10


def test_schedules_lose_files_beyond_k(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert sum(run(schedule(seed))["lost"] for seed in (0, 7, 10, 17)) > 5


async def _as_nothing(self: Carrier, record: FileRecord, work: Any) -> Any:
    """Brings what is lost as a file of no bytes, instead of leaving it out."""
    found = await _unless_lost(self, record, work)
    return b"" if found is None else found


def _gone_with_its_shards(self: Tier, record: FileRecord) -> None:
    """Forgets where a file lies in the tier when its shards are lost."""
    _chill(self, record)
    self.forget(record.id)


_unless_lost, _chill = Carrier._unless_lost, Tier.chill


@pytest.mark.parametrize(
    ("owner", "part", "mutant"),
    [(Carrier, "_unless_lost", _as_nothing), (Tier, "chill", _gone_with_its_shards)],
)
def test_a_wrong_answer_to_losses_beyond_k_is_noticed(
    owner: type,
    part: str,
    mutant: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(owner, part, mutant)
    with pytest.raises((Violation, AssertionError, DamagedTier)):
        run_all(20)
