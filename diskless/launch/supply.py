"""Keys for agents that say that they have none: a ticket for each, handed over by Ray."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

import ray

from diskless.errors import LaunchFailed
from diskless.identity.tickets import Ticket
from diskless.launch import actors
from diskless.launch.model import AgentState, Identity
from diskless.launch.tickets import OfficeThread
from diskless.model import slot_name

OFFERS_MAX = 3
HAND_OVER_S = 5.0


class Supply:
    """Use it in a `with` block: tickets that are out when it ends are worth nothing."""

    def __init__(
        self, identity: Identity, *, offers_max: int = OFFERS_MAX, pause_s: float = 0.0
    ) -> None:
        """`offers_max` is how often one agent is offered a ticket, `pause_s` at least so far
        apart."""
        self._identity = identity
        self._offers_max = offers_max
        self._pause_s = pause_s
        self._offers: Counter[int] = Counter()
        self._offered_s: dict[int, float] = {}
        self._office: OfficeThread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._office is not None:
            self._office.close()

    def tend(self, states: Iterable[AgentState]) -> None:
        """Raises LaunchFailed if an agent does not get the keys, however often it was offered."""
        for state in states:
            if state.wants_keys and state.cluster_id == self._identity.cluster_id:
                self._offer(state)

    def _offer(self, state: AgentState) -> None:
        slot, now_s = state.slot, time.monotonic()
        if self._offers[slot] >= self._offers_max:
            raise LaunchFailed(f"{slot_name(slot)} does not start: {state.error}")
        if slot in self._offered_s and now_s - self._offered_s[slot] < self._pause_s:
            return
        self._offers[slot] += 1
        self._offered_s[slot] = now_s
        self._hand_over(slot, self._issue())

    def _issue(self) -> Ticket:
        if self._office is None:
            host = "127.0.0.1" if self._identity.one_host else ray.util.get_node_ip_address()
            self._office = OfficeThread(self._identity.keys, host=host)
        return self._office.issue()

    def _hand_over(self, slot: int, ticket: Ticket) -> None:
        """One that has died meanwhile asks again in its next life."""
        agent: Any = actors.find(self._identity.settings.name, slot)
        if agent is None:
            return
        try:
            ray.get(agent.redeem.remote(ticket), timeout=HAND_OVER_S)
        except (ray.exceptions.RayError, TimeoutError):
            return
