"""Keys for agents that have none: offered anew as long as it makes sense, and not forever."""

import asyncio

import pytest

from diskless.config import ClusterSettings
from diskless.errors import LaunchFailed
from diskless.identity.keyfile import Keys
from diskless.identity.tickets import Ticket
from diskless.launch.model import AgentState, Identity
from diskless.launch.supply import OFFERS_MAX, Supply
from diskless.launch.tickets import redeem

KEYS = Keys(cluster="c", name="n", root="ab" * 32)
IDENTITY = Identity(ClusterSettings(), KEYS, one_host=True)


def state(slot: int = 2, *, wants_keys: bool = True, cluster_id: str = "c") -> AgentState:
    return AgentState(
        slot=slot, cluster_id=cluster_id, pid=1, error="why", wants_keys=wants_keys
    )  # fmt: skip


class Supplied(Supply):
    """What Ray would hand over."""

    handed: list[tuple[int, Ticket]]

    def _hand_over(self, slot: int, ticket: Ticket) -> None:
        self.handed = [*getattr(self, "handed", []), (slot, ticket)]


def test_an_agent_without_keys_gets_a_ticket_that_is_good() -> None:
    with Supplied(IDENTITY) as supply:
        supply.tend([state(1, wants_keys=False), state(2)])
        ((slot, ticket),) = supply.handed
        assert slot == 2
        assert ticket.office.startswith("127.0.0.1:")
        assert asyncio.run(redeem(ticket)) == KEYS


def test_a_ticket_is_worth_nothing_when_whoever_issued_it_is_done() -> None:
    with Supplied(IDENTITY) as supply:
        supply.tend([state()])
    with pytest.raises(LaunchFailed):
        asyncio.run(redeem(supply.handed[0][1]))


def test_one_that_gets_nowhere_is_given_up_with_its_own_words() -> None:
    with Supplied(IDENTITY) as supply:
        for _ in range(OFFERS_MAX):
            supply.tend([state()])
        with pytest.raises(LaunchFailed, match="agent-2 does not start: why"):
            supply.tend([state()])
        assert len(supply.handed) == OFFERS_MAX


def test_an_agent_of_another_cluster_gets_nothing() -> None:
    with Supplied(IDENTITY) as supply:
        supply.tend([state(cluster_id="other")])
        assert not hasattr(supply, "handed")
