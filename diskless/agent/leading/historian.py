"""Snapshots of checkpoints by policy: `history="every 1m keep 1h; every 1h keep 7d"`.

Runs on the leader. After a batch is committed below a path with such a policy, its checkpoint is
kept as a snapshot, one per span of the finest rule. Snapshots that no rule keeps any more are
deleted. Spans are in wall time, by the log's clock; nothing waits by that clock. Only snapshots
with names given by this module are ever deleted. It uses its own session.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from diskless import policy
from diskless.agent.leading.own_session import OwnSession
from diskless.agent.replica import Replica
from diskless.agent.ticking import rest
from diskless.errors import DisklessError
from diskless.namespace import commands as c
from diskless.namespace.history import BY_POLICY, Snapshot, name_of
from diskless.retention import Rule, parse, thin
from diskless.upkeep import THIN_NEAR_S, Thinning, choose_thinning

log = logging.getLogger(__name__)

WHO = "history"
INTERVAL_S = 0.5
DELETED_AT_ONCE = 100
STRETCH_PATHS = 50
"""Checkpoints that are looked at before others have their turn."""


class Kept(NamedTuple):
    """A snapshot as the rules see it."""

    number: int
    time_ms: int
    name: str


def is_due(kept: Sequence[Kept], rules: Sequence[Rule], *, now_ms: int) -> bool:
    """Whether the finest rule's current span has no snapshot yet. Pure."""
    every_ms = min(rule.every_ms for rule in rules)
    newest_ms = max((one.time_ms for one in kept), default=None)
    return newest_ms is None or now_ms // every_ms > newest_ms // every_ms


def expired(kept: Sequence[Kept], rules: Sequence[Rule], *, now_ms: int) -> list[str]:
    """The names of the snapshots that no rule keeps. Pure."""
    numbers = thin(kept, rules, now_ms=now_ms)
    return [one.name for one in kept if one.number not in numbers]


class Historian:
    def __init__(self, *, replica: Replica) -> None:
        self._replica = replica
        self._session = OwnSession(replica, who=WHO)
        self.thinning = self._choose_thinning()
        """The interval between two scans of the whole table for snapshots that have expired."""

    async def run(self) -> None:
        """Runs until cancelled."""
        waited_s = chosen_s = 0.0
        while True:
            await rest(INTERVAL_S)
            waited_s, chosen_s = waited_s + INTERVAL_S, chosen_s + INTERVAL_S
            try:
                await self._keep_committed()
                if chosen_s >= THIN_NEAR_S:
                    self.thinning, chosen_s = self._choose_thinning(), 0.0
                if waited_s >= self.thinning.seconds:
                    waited_s = 0.0
                    await self._thin_all()
            except DisklessError as error:
                log.warning("history waits why=%s", error)
            except Exception:  # otherwise there would be no more history
                log.exception("history failed")

    def _choose_thinning(self) -> Thinning:
        state = self._replica.state
        asked = {own.get(policy.HISTORY, "") for own in state.policies.table.values()}
        spans_ms = [rule.every_ms for text in asked for rule in _parse(text)]
        return choose_thinning(
            span_s=min(spans_ms) / 1000 if spans_ms else None,
            crowded_share=state.bytes_used / state.bytes_max if state.bytes_max else 0.0,
        )

    async def _keep_committed(self) -> None:
        state = self._replica.state
        for number, path in enumerate(list(state.leases.committed), start=1):
            if number % STRETCH_PATHS == 0:
                await asyncio.sleep(0)  # let other tasks run
            batch, rules = state.leases.committed.get(path), self._rules(path)
            if not rules or batch is None or state.tree.find(path) is None:
                state.leases.committed.pop(path, None)
                continue
            newest = _own(reversed(state.history.at(path).values()), limit=1)
            if is_due(newest, rules, now_ms=state.clock_ms):
                state.leases.committed.pop(path, None)
                name = f"{BY_POLICY}{name_of(state.clock_ms)[1:]}-batch-{batch}"
                await self._session.do(partial(_snapshot, path, name))
                await self._thin(path, rules)

    async def _thin_all(self) -> None:
        found = {one.path for one in self._replica.state.history.by_id.values() if one.by_policy}
        for path in sorted(found):
            await asyncio.sleep(0)  # let other tasks run
            if rules := self._rules(path):
                await self._thin(path, rules)

    async def _thin(self, path: str, rules: Sequence[Rule]) -> None:
        state = self._replica.state
        kept = _own(state.history.at(path).values())
        gone = expired(kept, rules, now_ms=state.clock_ms)[:DELETED_AT_ONCE]
        if gone:
            await self._session.do(partial(_delete, path, tuple(gone)))

    def _rules(self, path: str) -> tuple[Rule, ...]:
        text = self._replica.state.policies.effective(path, policy.HISTORY, default="").value
        return _parse(text)


def _parse(text: str) -> tuple[Rule, ...]:
    return parse(text) if text != policy.NO_HISTORY else ()


def _snapshot(path: str, name: str, session: int, sequence: int) -> c.Command:
    return c.CreateSnapshot(session, sequence, (path,), name)


def _delete(path: str, names: tuple[str, ...], session: int, sequence: int) -> c.Command:
    return c.DeleteSnapshots(session, sequence, path, names)


def _own(snapshots: Iterable[Snapshot], *, limit: int | None = None) -> list[Kept]:
    own = (Kept(one.id, one.time_ms, one.name) for one in snapshots if one.by_policy)
    return list(islice(own, limit))
