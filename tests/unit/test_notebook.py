"""How notes are passed on: to the leader at once, to other voters some together."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from diskless.agent import notebook
from diskless.agent.memory import Memory
from diskless.agent.notebook import Notebook
from diskless.agent.noted import IndexEntry, Row
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.config import MIB
from diskless.namespace import queries as q
from diskless.namespace.views import PathStatus, Summary
from diskless.notes import BatchNote, unpack
from tests.unit.agents import at

LEADER, OTHER = 1, 2


class Checkpoint(Router):
    """A namespace in which every path is a checkpoint."""

    def __init__(self) -> None:
        pass

    async def query(self, query: q.Query) -> Any:
        return Summary(1, 1, 5) if isinstance(query, q.Summarize) else PathStatus("", 0, None)


class Peers:
    def __init__(self) -> None:
        self.told: dict[int, list[list[int]]] = {LEADER: [], OTHER: []}

    async def tell_notes(
        self, slot: int, address: str, rows: Sequence[Row], *, timeout_s: float
    ) -> None:
        self.told[slot].append([unpack(note).batch for row in rows for note in row.notes])

    async def notes_index(self, *_: Any, **__: Any) -> list[IndexEntry]:
        return []

    async def notes_of(self, *_: Any, **__: Any) -> Row | None:
        return None


async def told_by(peers: Peers) -> Notebook:
    seeds = {slot: f"127.0.0.1:{slot + 1}" for slot in range(3)}
    roster = Roster(slot=0, seeds=seeds, now_s=time.monotonic, suspect_s=1.0)
    roster.agents = {slot: at(seeds[slot], slot) for slot in seeds}
    roster.leader = LEADER
    return Notebook(
        slot=0,
        voters=3,
        roster=roster,
        namespace=Checkpoint(),
        peers=peers,
        memory=Memory(64 * MIB),
        timeout_s=5.0,
    )


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.001)


def test_the_leader_is_told_of_each_at_once_and_others_of_all_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notebook, "PASS_ON_S", 0.1)

    async def run() -> None:
        peers = Peers()
        book = await told_by(peers)
        for batch in range(3):
            await book.tell("/q", "id", [BatchNote(batch, batch)])
            await until(lambda batch=batch: peers.told[LEADER] == [[n] for n in range(batch + 1)])
        await until(lambda: sum(map(len, peers.told[OTHER])) == 3)
        book.close()

    asyncio.run(run())


def test_an_outbox_that_fills_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "PASS_ON_S", 3600.0)

    async def run() -> None:
        peers = Peers()
        book = await told_by(peers)
        await book.tell("/q", "id", [BatchNote(0, 0)])
        await until(lambda: peers.told[LEADER] == [[0]])
        assert peers.told[OTHER] == []
        sent = 0
        while not peers.told[OTHER]:
            sent += 100
            await book.tell("/q", "id", [BatchNote(sent + n, 0) for n in range(100)])
            await asyncio.sleep(0)
        assert len(peers.told[OTHER][0]) > 100, "what was there went together"
        assert book.dropped == 0
        await book.tell("/q", "id", [BatchNote(10**6, 0)])
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(peers.told[OTHER]) == 1, "the next ones wait again"
        book.close()

    asyncio.run(run())
