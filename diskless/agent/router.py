"""Routes commands and queries to the leader of the namespace.

It finds the leader, follows when the leader changes, and retries what got no answer. Retrying is
safe for every command: those of clients carry their session and sequence, the others are
idempotent. It never decides anything about the namespace itself.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from diskless.agent.ports import LeaderPeers
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.errors import (
    DeadlineExceeded,
    DisklessError,
    NoQuorum,
    NotDurable,
    NotLeader,
    SessionExpired,
    Unavailable,
)
from diskless.model import slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q

RETRY_PAUSE_S_MIN = 0.02
RETRY_PAUSE_S_MAX = 0.16
"""Between two searches for the leader. News of a leader ends the pause."""
LEADER_PATIENCE = 2.0
PROBE_PATIENCE = 0.25
"""In failure timeouts: for an answer of the leader, and of a voter that may lead."""

T = TypeVar("T")
_Ask = Callable[[int, str, float], Awaitable[Any]]
"""Asks the voter of a slot, at an address, for so many seconds."""


class Router:
    """The namespace, whoever leads it."""

    def __init__(
        self,
        *,
        replica: Replica,
        roster: Roster,
        peers: LeaderPeers,
        timeout_s: float,
        failure_timeout_s: float,
    ) -> None:
        self._replica = replica
        self._roster = roster
        self._peers = peers
        self._timeout_s = timeout_s
        self._failure_timeout_s = failure_timeout_s
        self._turn = 0
        self._no_quorum: NoQuorum | None = None

    def hindrance(self) -> NoQuorum | None:
        """Why the namespace does not answer, as its voters last reported."""
        known = self._no_quorum
        return self._replica.cut_off() or (NoQuorum(str(known)) if known is not None else None)

    async def execute(
        self, command: c.Command, behind: Callable[[NotDurable], None] | None = None
    ) -> tuple[c.Result, ...]:
        """Raises Unavailable if no leader answered within the timeout; NoQuorum; NotDurable, also
        if it is cancelled while the answer waits only for durability. `behind` is called with it
        each time."""
        tries = 0

        async def ask(slot: int, address: str, timeout_s: float) -> tuple[c.Result, ...]:
            nonlocal tries
            tries += 1
            if slot != self._replica.slot:
                return await self._peers.execute(slot, address, command, timeout_s=timeout_s)
            try:
                return await self._replica.execute(command)
            except NotLeader:
                tries -= 1  # it was certainly not executed
                raise

        results: tuple[c.Result, ...] = await self._retry(ask, behind)
        for result in results:
            if behind and isinstance(result, c.Refused) and result.reason == NotDurable.__name__:
                behind(NotDurable(result.message))
        return results if tries == 1 else tuple(_after_repeat(result) for result in results)

    async def run(self, command: c.Command) -> c.Done:
        """A command with one result; a refusal is raised as its error."""
        (result,) = await self.execute(command)
        if isinstance(result, c.Refused):
            raise result.error()
        return result

    def ask(self, query: q.Query, reply: Callable[[Any], T]) -> T | Awaitable[T]:
        """`reply` of the answer, without a turn of the event loop if this agent leads. Raises what
        the query raises."""
        if self._replica.leads:
            try:
                return reply(self._replica.answer(query))
            except (Unavailable, NotLeader):
                pass  # there may be another leader by now

        async def afar() -> T:
            return reply(await self.query(query))

        return afar()

    async def query(self, query: q.Query) -> Any:
        async def ask(slot: int, address: str, timeout_s: float) -> Any:
            if slot == self._replica.slot:
                return await self._replica.query(query)
            return await self._peers.query(slot, address, query, timeout_s=timeout_s)

        return await self._retry(ask)

    async def _retry(self, ask: _Ask, behind: Callable[[NotDurable], None] | None = None) -> Any:
        failed: int | None = None
        pause_s = RETRY_PAUSE_S_MIN
        last: DisklessError = Unavailable("no voter has been found yet")
        # A caller must learn that there is no quorum before its own timeout expires, and
        # may retry then.
        patient_until = asyncio.get_running_loop().time() + self._failure_timeout_s / 2
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                while True:
                    if failed is None and self._replica.leads:
                        self._no_quorum = None
                    else:
                        self._no_quorum = self._replica.cut_off() or self._no_quorum
                    if self._no_quorum is not None:
                        limit.reschedule(patient_until)
                    leader, slot = self._roster.leader, self._whom_to_ask(failed)
                    address = self._roster.address_of(slot)
                    if address is not None:
                        try:
                            answer = await self._ask(ask, slot, address)
                        except (Unavailable, NotLeader) as error:
                            last = error
                            if isinstance(error, NoQuorum):
                                self._no_quorum = NoQuorum(str(error))
                            if isinstance(error, NotDurable):
                                # Done, but not durable: the leader delays the answer.
                                if behind is not None:
                                    behind(error)
                                continue
                        except DisklessError:
                            self._no_quorum = None  # a refusal is an answer too
                            raise
                        else:
                            self._no_quorum = None
                            return answer
                    failed = slot
                    if self._roster.leader == leader:
                        await self._pause(pause_s)
                        pause_s = min(2 * pause_s, RETRY_PAUSE_S_MAX)
        except TimeoutError:
            if self._no_quorum is not None:
                # A new one: what is raised again and again holds every caller's frames.
                raise NoQuorum(str(self._no_quorum)) from None
            if isinstance(last, NotDurable):
                raise last from None
            raise Unavailable(f"no leader answered within {self._timeout_s:g} s: {last}") from None
        except asyncio.CancelledError:
            if isinstance(last, NotDurable):
                raise last from None  # a caller that cannot wait any longer must learn why
            raise

    async def _ask(self, ask: _Ask, slot: int, address: str) -> Any:
        """One attempt. It does not wait for a hanging leader once another one is known."""
        if slot == self._replica.slot:
            return await ask(slot, address, self._timeout_s)
        leads = slot == self._roster.leader
        timeout_s = self._failure_timeout_s * (LEADER_PATIENCE if leads else PROBE_PATIENCE)
        try:
            async with self._roster.until_leader_moves():
                return await ask(slot, address, timeout_s)
        except TimeoutError:
            raise Unavailable(f"the leader changed while {slot_name(slot)} was asked") from None

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with self._roster.until_leader_moves():
                await asyncio.sleep(pause_s)

    def _whom_to_ask(self, failed: int | None) -> int:
        """The leader, as far as is known here, unless it just failed; otherwise the voters in
        turn."""
        if self._replica.leads:
            return self._replica.slot
        for known in (self._replica.leader, self._roster.leader):
            if known is not None and known != failed:
                return known
        self._turn = (self._turn + 1) % self._replica.voters
        return self._turn


def _after_repeat(result: c.Result) -> c.Result:
    """An expired session refuses a retry although the first attempt may have been executed.

    A client that sent its command once would take SessionExpired as proof that it was not executed,
    and send it again.
    """
    if isinstance(result, c.Refused) and result.reason == SessionExpired.__name__:
        return c.Refused(DeadlineExceeded.__name__, f"the outcome is unknown: {result.message}")
    return result
