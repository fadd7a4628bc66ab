"""The leader's janitor over a state of its own."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from diskless.agent.leading.janitor import Janitor
from diskless.agent.roster import Roster
from diskless.config import Tuning
from diskless.model import AgentInfo, Extent, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace.ledger import Entry
from diskless.namespace.state import NamespaceState
from tests.unit.test_namespace_world import agent_up

HOUR_MS = 3_600_000


class Unlisted(dict[str, Entry]):
    """A table that can be asked for a key, and not gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all stripes are gone through")

    def keys(self) -> Any:
        return self.__iter__()


def reap(**with_parts: Any) -> tuple[NamespaceState, list[tuple[int, list[str]]]]:
    """One look of a janitor at a state with a dead stripe and a live one: what it dropped."""
    state = NamespaceState()
    dropped: list[tuple[int, list[str]]] = []

    def apply(command: c.Command) -> tuple[c.Result, ...]:
        return state.apply(command, now_ms=1, elapsed_ms=1)

    async def execute(command: c.Command) -> tuple[c.Result, ...]:
        return apply(command)

    async def drop(agent: AgentInfo, stripes: list[str]) -> None:
        dropped.append((agent.slot, stripes))

    for slot in range(3):
        apply(agent_up(slot))
    apply(c.OpenSession())
    for number in (1, 2):
        stripe = Stripe(f"0.1.{number}", 2, 1, 10, tuple(Place(slot, 1) for slot in range(3)))
        file = c.NewFile(f"/{number}", 10, 0, None, (Extent(stripe.id, 0, 10),))
        apply(c.Commit((stripe,), (c.Put(1, number, False, (file,)),)))
    apply(c.Delete(1, 3, "/1", False))
    state.ledger.entries = Unlisted(state.ledger.entries)
    roster = Roster(slot=0, seeds={}, now_s=time.monotonic, suspect_s=1.0)
    roster.update(version=1, agents=state.agents.values())
    parts: Any = {
        "replica": SimpleNamespace(state=state, execute=execute, elapsed_ms=lambda: HOUR_MS),
        "holders": SimpleNamespace(drop=drop),
        "rewriter": None,
    }
    parts |= {"pulses": {}} | with_parts
    janitor = Janitor(roster=roster, damaged=frozenset, tuning=Tuning(), **parts)
    asyncio.run(janitor.reap())
    return state, dropped


def test_reaping_looks_at_what_is_reaped_alone() -> None:
    state, dropped = reap()
    assert sorted(dropped) == [(slot, ["0.1.1"]) for slot in range(3)]
    assert state.ledger.live("0.1.2") is not None


def test_nothing_is_reaped_while_a_round_may_need_it_unless_memory_is_short() -> None:
    ended: list[bool] = []
    drainer = SimpleNamespace(collecting=True, end_round=lambda: ended.append(True))
    assert reap(drainer=drainer)[1] == []
    assert not ended
    full = {0: SimpleNamespace(bytes_used=95, bytes_max=100)}
    assert len(reap(drainer=drainer, pulses=full)[1]) == 3
    assert ended
    drainer.collecting = False
    assert len(reap(drainer=drainer)[1]) == 3
