"""The way to the leader where there is none."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.errors import NoQuorum
from diskless.namespace import queries as q

TIMEOUT_S = 0.05


class AloneReplica:
    """Of an agent without a vote."""

    slot, voters = 3, 3
    leads = False
    leader: int | None = None

    def cut_off(self) -> NoQuorum | None:
        return None


class QuietRoster:
    leader: int | None = None

    def address_of(self, slot: int) -> str:
        return f"127.0.0.1:{slot}"

    @asynccontextmanager
    async def until_leader_moves(self) -> AsyncIterator[None]:
        yield


class Refusing:
    async def query(self, slot: int, address: str, query: Any, *, timeout_s: float) -> Any:
        raise NoQuorum("2 of 3 voters are needed")


class Question:
    """One that is seen to be let go."""


def router() -> Router:
    return Router(
        replica=cast(Replica, AloneReplica()),
        roster=cast(Roster, QuietRoster()),
        peers=cast(Any, Refusing()),
        timeout_s=TIMEOUT_S,
        failure_timeout_s=TIMEOUT_S,
    )


def test_who_is_refused_for_want_of_a_quorum_is_not_held_by_the_error_that_is_kept() -> None:
    async def refused(way: Router) -> "weakref.ref[Question]":
        question = Question()
        with pytest.raises(NoQuorum, match="2 of 3"):
            await way.query(cast(q.Query, question))
        return weakref.ref(question)

    async def work() -> None:
        way = router()
        asked = [await refused(way) for _ in range(3)]
        hindrance = way.hindrance()
        assert hindrance is not None
        assert "2 of 3" in str(hindrance)
        await asyncio.sleep(0)  # the loop lets go of its last step
        gc.collect()
        assert [one() for one in asked] == [None] * 3

    asyncio.run(work())
