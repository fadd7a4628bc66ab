"""The namespace on this agent: a replica of it, and the way to the one that leads.

Until the namespace is replicated, slot 0 leads for ever and keeps the only copy.
`Router` is what the rest of the agent uses: it finds the leader and repeats what
got no answer, which is safe for every command (client commands carry their session
and sequence, the others change nothing the second time).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from diskless.agent.ports import LeaderPeers
from diskless.agent.roster import Roster
from diskless.errors import (
    DeadlineExceeded,
    DisklessError,
    NamespaceLost,
    NotLeader,
    SessionExpired,
    Unavailable,
)
from diskless.model import StripeId, slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.ledger import Verdict
from diskless.namespace.state import NamespaceState

LEADER_SLOT = 0
RETRY_PAUSE_S = 0.05


class Replica:
    """The state, and the order in which commands reach it."""

    def __init__(self, *, slot: int, now_ms: Callable[[], int]) -> None:
        self._slot = slot
        self._now_ms = now_ms
        self._formed = False
        self.state = NamespaceState()
        self.commands = 0
        self.report: Callable[[], bytes] | None = None
        self.on_roster: Callable[[], None] | None = None
        self.undecided_since: dict[tuple[int, int], float] = {}

    @property
    def leads(self) -> bool:
        return self.is_here and self._formed

    @property
    def is_here(self) -> bool:
        """Whether this agent is the one to ask, even if it has forgotten everything."""
        return self._slot == LEADER_SLOT

    def form(self) -> None:
        """Begins an empty namespace. Only `diskless up` may ask for it, once: an agent
        that lost its memory must never take emptiness for the truth."""
        self._formed = True

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        """Orders and applies a command. Raises NotLeader, NamespaceLost."""
        self._check_leads()
        self.commands += 1
        before = self.state.roster_version
        results = self.state.apply(command, now_ms=self._now_ms())
        if self.state.roster_version != before and self.on_roster is not None:
            self.on_roster()
        return results

    async def query(self, query: q.Query) -> Any:
        return self.answer(query)

    def answer(self, query: q.Query) -> Any:
        """Answers from the current state. Raises as `execute`, and what the query does."""
        self._check_leads()
        if isinstance(query, q.Report):
            assert self.report is not None
            return self.report()
        answer = q.answer(self.state, query)
        if isinstance(query, q.Review):
            self._note_undecided(query.stripes, answer)
        return answer

    def _note_undecided(self, stripes: Sequence[str], verdicts: list[Verdict]) -> None:
        """Remembers whose unfinished stripes lie about, for the janitor to fence."""
        for stripe, verdict in zip(stripes, verdicts, strict=True):
            if verdict is Verdict.UNDECIDED:
                who = StripeId.parse(stripe)
                self.undecided_since.setdefault((who.slot, who.incarnation), self._now_ms() / 1000)

    def _check_leads(self) -> None:
        if not self.is_here:
            raise NotLeader(f"{slot_name(self._slot)} does not lead: ask {slot_name(LEADER_SLOT)}")
        if not self._formed:
            raise NamespaceLost(
                f"{slot_name(self._slot)} restarted and lost the namespace, which only it had: "
                "run `diskless down --discard`, then `diskless up`"
            )


class Router:
    """The namespace, wherever it is led."""

    def __init__(
        self, *, replica: Replica, roster: Roster, peers: LeaderPeers, timeout_s: float
    ) -> None:
        self._replica = replica
        self._roster = roster
        self._peers = peers
        self._timeout_s = timeout_s

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        """Raises Unavailable when no leader answered within the deadline."""
        if self._replica.is_here:
            return await self._replica.execute(command)
        tries = 0

        async def ask(address: str) -> tuple[c.Result, ...]:
            nonlocal tries
            tries += 1
            return await self._peers.execute(LEADER_SLOT, address, command)

        results: tuple[c.Result, ...] = await self._retry(ask)
        return results if tries == 1 else tuple(_after_repeat(result) for result in results)

    async def run(self, command: c.Command) -> c.Done:
        """A command with one result; a refusal is raised as its error."""
        (result,) = await self.execute(command)
        if isinstance(result, c.Refused):
            raise result.error()
        return result

    async def query(self, query: q.Query) -> Any:
        if self._replica.is_here:
            return self._replica.answer(query)
        return await self._retry(lambda address: self._peers.query(LEADER_SLOT, address, query))

    async def _retry(self, ask: Callable[[str], Coroutine[Any, Any, Any]]) -> Any:
        last: DisklessError = Unavailable(f"{slot_name(LEADER_SLOT)} has not been found yet")
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    address = self._roster.address_of(LEADER_SLOT)
                    if address is not None:
                        try:
                            return await ask(address)
                        except (Unavailable, NotLeader) as error:
                            last = error
                    await asyncio.sleep(RETRY_PAUSE_S)
        except TimeoutError:
            raise Unavailable(f"no leader answered within {self._timeout_s:g} s: {last}") from None


def _after_repeat(result: c.Result) -> c.Result:
    """An expired session refuses a repeat although the first try may have run.

    A client that sent its command once would take SessionExpired for proof that it did
    not, and run it again.
    """
    if isinstance(result, c.Refused) and result.reason == SessionExpired.__name__:
        return c.Refused(DeadlineExceeded.__name__, f"the outcome cannot be told: {result.message}")
    return result
