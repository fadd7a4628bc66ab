"""The leader's janitor over a state of its own."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

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


def reap(
    *, deletes: bool = True, **with_parts: Any
) -> tuple[NamespaceState, list[tuple[int, list[str]]]]:
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
    if deletes:
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


def full_of(**by_kind: int) -> dict[int, Any]:
    """What an agent with room for 100 bytes tells."""
    return {0: SimpleNamespace(bytes_used=sum(by_kind.values()), bytes_max=100, memory=by_kind)}


def test_nothing_is_reaped_while_a_round_may_need_it_and_it_ends_if_memory_is_short() -> None:
    ended: list[bool] = []
    drainer = SimpleNamespace(collecting=True, needed=None, end_round=lambda: ended.append(True))
    assert reap(drainer=drainer)[1] == []
    assert not ended
    assert reap(drainer=drainer, pulses=full_of(shards=95))[1] == []
    assert ended
    drainer.collecting = False
    assert len(reap(drainer=drainer)[1]) == 3


@pytest.mark.parametrize("needed", [None, frozenset({"0.1.1"}), frozenset({"0.1.2"})])
def test_no_round_is_ended_that_holds_nothing_back(needed: frozenset[str] | None) -> None:
    """Memory would not be any less short, and the next round be ended as well."""
    drainer = SimpleNamespace(collecting=True, needed=needed, end_round=lambda: 1 / 0)
    assert reap(drainer=drainer, pulses=full_of(shards=95), deletes=False)[1] == []


def test_no_round_is_ended_because_of_what_agents_have_in_hand_for_it() -> None:
    """A large part and its packed copy are half of a small agent: no such round would ever end."""
    needed = frozenset({"0.1.1"})
    drainer = SimpleNamespace(collecting=True, needed=needed, end_round=lambda: 1 / 0)
    assert reap(drainer=drainer, pulses=full_of(shards=55, segments=50))[1] == []


def test_a_round_keeps_what_it_reads_from_being_reaped_and_nothing_else() -> None:
    ended: list[bool] = []
    drainer = SimpleNamespace(
        collecting=True, needed=frozenset({"0.1.1"}), end_round=lambda: ended.append(True)
    )
    assert reap(drainer=drainer)[1] == []
    assert not ended
    assert reap(drainer=drainer, pulses=full_of(shards=95))[1] == []
    assert ended, "it is all that there is, and memory is short"
    drainer.needed = frozenset({"0.1.2"})
    assert len(reap(drainer=drainer)[1]) == 3
