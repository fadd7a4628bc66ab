"""Quotas in schedules in which everything dies: they hold for whatever clients do, while files are
evicted and lost and leaders change, and a restored cluster has those of its position."""

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from diskless import policy
from diskless.namespace import commands as c
from diskless.namespace import quotas
from diskless.namespace.history import History
from diskless.namespace.policies import Policies
from tests.tier.drained import Cluster, Violation, files_of, schedule
from tests.tier.loop import run

LIMITED = ("/a", "/b", "/m", "/")
SIZES = ("200B", "900B", "4KiB", "64KiB")
SEEDS = 3


class Limited(Cluster):
    """One whose operator sets quotas and takes them back."""

    refused = 0
    """How often one was met, in all schedules of a test."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.quotas_at: dict[int, dict[str, int]] = {}

    def act(self) -> c.Command:
        if self.rng.random() < 0.08:
            return c.SetPolicy(self.rng.choice(LIMITED), policy.QUOTA, self.rng.choice(SIZES))
        return super().act()

    def commit(self, command: c.Command) -> list[tuple[c.Result, ...]]:
        before = {path: used(self, path) for path in self.state.policies.quotas}
        results = super().commit(command)
        for path, most in self.state.policies.quotas.items():
            holds = used(self, path)
            if path in before and holds > max(most, before[path]):
                self.violations.append(f"{command}: the quota of {path} is {most}, not {holds}")
        self.quotas_at[self.state.tier.change] = dict(self.state.policies.quotas)
        Limited.refused += sum(
            isinstance(one, c.Refused) and "quota of" in str(one.error()) for one in results[0]
        )
        return results

    def compare(self, before: Cluster, change: int) -> None:
        assert isinstance(before, Limited)
        found, was = self.state.policies.quotas, before.quotas_at.get(change, {})
        if found != was:
            raise Violation(f"change {change}: the quotas are {found}, and were {was}")
        self.quotas_at[change] = dict(found)


def used(cluster: Cluster, path: str) -> int:
    """Bytes of all files there, and of snapshots that were taken there, one by one."""
    top = path.rstrip("/") + "/"
    snapshots = cluster.state.history.by_id
    total = 0
    for shown, id_ in files_of(cluster.state)[0].items():
        number, slash, rest = shown.partition("/")
        inside = f"{slash}{rest}".startswith(top)
        if number and not f"{snapshots[int(number[1:])].path}/".startswith(top):
            continue  # it was taken above, and counts there
        total += cluster.state.files[id_].record.size if inside else 0
    return total


def run_all(schedules: int) -> None:
    for seed in range(schedules):
        print(f"seed {seed}")
        assert run(schedule(seed, cluster_type=Limited))["restored"] == 3


def test_quotas_hold_and_outlive_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    Limited.refused = 0
    run_all(SEEDS)
    assert Limited.refused > 10


def _without_quotas(self: Policies, rows: Iterable[tuple[str, str, str]]) -> None:
    _restore(self, [row for row in rows if row[1] != policy.QUOTA])


_restore = Policies.restore


@pytest.mark.parametrize(
    ("owner", "part", "mutant", "says"),
    [
        pytest.param(quotas, "check", lambda *_: None, "the quota of", id="nobody checks"),
        pytest.param(History, "bytes_held", lambda *_: 0, "the quota of", id="snapshots are free"),
        pytest.param(Policies, "restore", _without_quotas, "the quotas are|disagree",
                     id="none is restored"),
    ],
)  # fmt: skip
def test_quotas_that_do_not_hold_are_noticed(
    owner: Any, part: str, mutant: Any, says: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(owner, part, mutant)
    with pytest.raises(Violation, match=says):
        run_all(2 * SEEDS)
