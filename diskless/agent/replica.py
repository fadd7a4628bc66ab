"""The namespace on this agent: its voter, if it has one.

`Replica` drives the pure protocol of `namespace.replication`: it owns the clock, the
waiting requests and the messages to other voters, and nothing of the protocol's rules.
Slots 0 to 2k vote; on other agents it only says that they do not lead. The rest of the
agent asks through `agent.router`, wherever the leader is. What a leader does beside serving
commands and queries is somebody else's (`Leadership`): it is made when a view begins that
this voter leads, and ended with it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from diskless.agent.audit import AuditFile
from diskless.agent.ports import Leadership, VoterPeers
from diskless.agent.roster import Roster
from diskless.config import ClusterSettings
from diskless.errors import (
    BadRequest,
    DisklessError,
    NoQuorum,
    NotLeader,
    Unavailable,
)
from diskless.model import slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace import replication as vr
from diskless.namespace import weights
from diskless.namespace.events import EventLog
from diskless.namespace.journal import Journal
from diskless.namespace.lookback import Events, EventsFound, Look
from diskless.namespace.replication import messages
from diskless.namespace.state import NamespaceState
from diskless.policy import SYNC

log = logging.getLogger(__name__)

TICKS_PER_HEARTBEAT = 2
COMMAND_BYTES_MAX = 12 << 20
"""It must fit in one message between voters."""
REFUSED_WITHIN_S = 0.5
"""Two broken streams to a voter in this time mean that nobody listens there."""
SUSPECT_PAUSE_S = 0.05
"""Between two hints to the protocol that the same voter is gone."""

READERS_MAX = 2
"""Threads that look through audit files at once."""

LOG_SHARE = 1 / 8
PENDING_SHARE = 1 / 16
"""The parts of an agent's memory that the log may take for a voter that is silent, and
commands that wait for a round, if those are less than the protocol's own limits."""

_WITH_MEMORY = (vr.Status.NORMAL, vr.Status.VIEW_CHANGE)


class Replica:
    """This agent's voter, driven."""

    def __init__(
        self,
        *,
        slot: int,
        settings: ClusterSettings,
        roster: Roster,
        peers: VoterPeers,
        lead: Callable[[], Leadership],
        wall_ms: Callable[[], int],
        audit: AuditFile | None = None,
    ) -> None:
        """`lead` begins what a leader does; `audit` is told of every event."""
        self.slot = slot
        self.voters = settings.voters
        self._roster = roster
        self._peers = peers
        self._wall_ms = wall_ms
        self._audit = audit
        self._readers = asyncio.Semaphore(READERS_MAX)
        self._voter: vr.Replica | None = None
        if slot < self.voters:
            self._voter = vr.Replica(
                slot=slot,
                voters=self.voters,
                machine=lambda: vr.NamespaceMachine(audit),
                random=random.Random(),
                timing=_timing(settings.tuning.failure_timeout_s),
                limits=_limits(settings.memory_bytes),
            )
        self._requests: dict[int, asyncio.Future[tuple[c.Result, ...]]] = {}
        self._last_request = 0
        self._broke_s: dict[int, float] = {}
        self._suspected_s: dict[int, float] = {}
        self._lead = lead
        self.leading: Leadership | None = None
        """What this agent does because it leads, while it does."""
        self._closed = False
        self._published = (-1, -1)

    # -- what it is ---------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._voter is not None and self._voter.leads and not self._closed

    @property
    def rules(self) -> bool:
        """Whether it leads, and a majority follows: nobody else can have been elected yet."""
        return self.leads and self._voter is not None and self._read_allowed(self._voter)

    @property
    def is_outpaced(self) -> bool:
        """Whether it leads, and another voter is known to be much better at it."""
        return self._voter is not None and self._voter.is_outpaced

    @property
    def leader(self) -> int | None:
        """Who leads, as far as this voter knows."""
        return self._voter.leader if self._voter is not None else None

    @property
    def view(self) -> int:
        return self._voter.view if self._voter is not None else 0

    @property
    def state(self) -> NamespaceState:
        """The replica's state. Another object after it was restored from a snapshot."""
        return self._machine.state

    @property
    def events(self) -> EventLog:
        """What the replica applied lately; begins anew after a restore, as `state`."""
        return self._machine.events

    @property
    def _machine(self) -> vr.NamespaceMachine:
        if self._voter is None:
            return _NOT_HERE
        machine = self._voter.machine
        assert isinstance(machine, vr.NamespaceMachine)
        return machine

    @property
    def journal(self) -> Journal:
        return self._machine.journal

    @property
    def recovered(self) -> bool:
        """Whether this agent's voter, if it has one, takes part."""
        return self._voter is None or self._voter.status is vr.Status.NORMAL

    def elapsed_ms(self) -> int:
        """The log's elapsed time by now: what waits are measured by, on the leader."""
        return self._voter.elapsed_ms(_clock_ms()) if self._voter is not None else 0

    def weigh(self) -> dict[str, int]:
        """What this voter's part of the namespace takes in memory, by kind."""
        if self._voter is None:
            return {}
        found = weights.by_kind(self.state)
        found["log"] = self._voter.bytes_held()
        found["events"] = self._events_bytes()
        found["journal"] = self.journal.bytes_used
        staged = self._voter.staged()
        if isinstance(staged, vr.NamespaceMachine):
            found["log"] += staged.state.bytes_used
        return found

    def weights(self) -> tuple[int, int]:
        """What `weigh` tells in two numbers: what lasts, and what passes."""
        if self._voter is None:
            return 0, 0
        passing = self._voter.bytes_held() + self._events_bytes() + self.journal.bytes_used
        staged = self._voter.staged()
        if isinstance(staged, vr.NamespaceMachine):
            passing += staged.state.bytes_used
        return self.state.bytes_used, passing

    def _events_bytes(self) -> int:
        waiting = self._audit.bytes_used if self._audit is not None else 0
        return self.events.bytes_used + waiting

    def status(self) -> vr.ReplicaStatus | None:
        return self._voter.report(_clock_ms()) if self._voter is not None else None

    def needs(self) -> str | None:
        """One line on what keeps the namespace from serving here, if anything does."""
        return self._voter.needs(_clock_ms()) if self._voter is not None else None

    def cut_off(self) -> NoQuorum | None:
        """What this voter needs, if it has its memory and hears too few of the others.

        One that only waits for its memory tells nothing about the namespace.
        """
        if self._voter is None or self._voter.status not in _WITH_MEMORY:
            return None
        return self._no_quorum()

    # -- its life -----------------------------------------------------------------

    def form(self, cluster_id: str) -> None:
        """Begins an empty namespace. Only `diskless up` may ask for it, once: an agent
        that lost its memory must never take emptiness for the truth."""
        if self._voter is not None:
            self._do(self._voter.form(cluster_id, _clock_ms()))

    def recover(self, cluster_id: str) -> None:
        """Begins a later life of this voter: its memory comes from the others."""
        if self._voter is not None:
            self._do(self._voter.recover(cluster_id, _clock_ms()))

    async def run(self) -> None:
        """Keeps the protocol's time until cancelled."""
        if self._voter is None:
            return
        tick_s = self._voter.timing.heartbeat_ms / 1000 / TICKS_PER_HEARTBEAT
        while True:
            await asyncio.sleep(tick_s)
            self._do(self._voter.tick(_clock_ms(), wall_ms=self._wall_ms()))

    def close(self) -> None:
        """Takes no part any more, as if the process had ended. Who waits is told so."""
        self._closed = True
        self._change_role(leads=False)
        for request in list(self._requests):
            self._settle(request, Unavailable(f"{slot_name(self.slot)} ended meanwhile"))

    # -- messages of other voters ---------------------------------------------------

    def receive(self, sender: int, address: str, message: bytes) -> None:
        """Takes a message; an empty one only opens a stream. Raises BadRequest when it is
        none."""
        if self._voter is None or not 0 <= sender < self.voters:
            raise BadRequest(f"{slot_name(self.slot)} and {sender} are not both voters")
        if not message:
            return
        try:
            decoded = messages.decode(message)
        except msgspec.DecodeError as error:
            raise BadRequest(f"malformed message of {slot_name(sender)}: {error}") from None
        now_ms = _clock_ms()
        effects = self._voter.receive(sender, decoded, now_ms, wall_ms=self._wall_ms())
        if self._roster.addresses_by_slot.get(sender) != address:
            if self._voter.is_over(sender, decoded):
                self._peers.post(sender, address, messages.encode(self._voter.obituary()))
            else:  # whatever was heard of it elsewhere, it lives there now
                self._roster.meet({sender: address})
        self._do(effects)

    def stream_broke(self, slot: int, address: str) -> None:
        """A stream to a voter ended: if the next one does at once, nobody is there."""
        if self._voter is None or self._roster.address_of(slot) != address:
            return
        now_s = time.monotonic()
        again = now_s - self._broke_s.get(slot, -REFUSED_WITHIN_S) < REFUSED_WITHIN_S
        self._broke_s[slot] = now_s
        if again:
            if now_s - self._suspected_s.get(slot, -SUSPECT_PAUSE_S) < SUSPECT_PAUSE_S:
                return  # what the voter sends about it breaks another stream to it
            self._suspected_s[slot] = now_s
            self._do(self._voter.suspect(slot, _clock_ms()))
        else:
            self._peers.post(slot, address, b"")  # opens a stream, or is refused

    # -- commands and queries ---------------------------------------------------------

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        """Has a command committed and applied, and, where its path asks for it, durable. Raises
        NotLeader, NoQuorum; Unavailable if the outcome cannot be told because the leader
        changed meanwhile; NotDurable, Superseded."""
        if self._voter is None or self._closed:
            raise self._not_leader()
        encoded = c.encode(command)
        if len(encoded) > COMMAND_BYTES_MAX:
            raise BadRequest(
                f"a command of {len(encoded)} bytes: {COMMAND_BYTES_MAX} are the most that "
                "can be replicated; write fewer files at once, or smaller ones"
            )
        if self.leading is not None and (pause := self.leading.before(command)) is not None:
            await pause
        self._last_request += 1
        request = self._last_request
        future: asyncio.Future[tuple[c.Result, ...]] = asyncio.get_running_loop().create_future()
        self._requests[request] = future
        try:
            started_s = time.monotonic()
            self._do(self._voter.submit(request, encoded, _clock_ms(), wall_ms=self._wall_ms()))
            results = await future
        finally:
            self._requests.pop(request, None)
        if self.leading and isinstance(command, c.Commit | c.Mkdirs | c.Rename | c.Delete):
            self.leading.command_took(time.monotonic() - started_s)
        return await self._hold(command, results)

    async def _hold(
        self, command: c.Command, results: tuple[c.Result, ...]
    ) -> tuple[c.Result, ...]:
        """Waits until an answer may be given: whoever leads by then must say so. What it is."""
        if not any(isinstance(result, c.Done) for result in results):
            return results
        leading = self.leading
        if leading is None:
            tier = self.state.tier
            if tier.attached and (self.state.policies.table or tier.default_durability == SYNC):
                raise Unavailable("the leader changed before the answer was durable")
            return results
        if (held := leading.after(command)) is None:
            return results
        try:
            await held
        except DisklessError as error:
            if not isinstance(command, c.Commit) or all(map(leading.concerns, command.puts)):
                raise
            return _refused(error, results, [leading.concerns(put) for put in command.puts])
        return results

    async def query(self, query: q.Query) -> Any:
        """As `answer`; older events come from the audit file."""
        return await self._look_back(query) if isinstance(query, Events) else self.answer(query)

    async def _look_back(self, query: Events) -> EventsFound:
        look = Look(query)
        if look.begin.slot != self.slot:
            look.take(self.events.newest_first())
        self.answer(_LEADS)  # after reading: raises if another may lead by now
        if look.ended or self._audit is None:
            return look.result(place=look.place() if look.ended else None)
        async with self._readers:
            return await asyncio.to_thread(self._audit.look_back, look)

    def answer(self, query: q.Query) -> Any:
        """Answers from the current state. Raises NotLeader, NoQuorum, and what the query
        does."""
        if not self.leads:
            raise self._not_leader()
        refusal: DisklessError | None = None
        answer: Any = None
        try:
            answer = self._answer(query)
        except DisklessError as error:
            refusal = error  # that something is not there is an answer too
        assert self._voter is not None
        # After reading, so that a pause in between cannot make the answer stale.
        if not self._read_allowed(self._voter):
            raise self._no_quorum() or NotLeader(
                f"{slot_name(self.slot)} has lost touch with the other voters"
            )
        if refusal is not None:
            raise refusal
        return answer

    def _answer(self, query: q.Query) -> Any:
        if isinstance(query, q.Report):
            assert self.leading is not None
            return self.leading.report()
        if isinstance(query, Events):
            look = Look(query)
            look.take(self.events.newest_first())
            return look.result(place=look.place() if look.ended else None)
        return q.answer(self.state, query)

    def _read_allowed(self, voter: vr.Replica) -> bool:
        # The monotonic clock first: a pause between the two readings costs the lease.
        return voter.read_allowed(_clock_ms(), wall_ms=self._wall_ms())

    def _not_leader(self) -> DisklessError:
        leader = self.leader
        if self._closed:
            return NotLeader(f"{slot_name(self.slot)} has ended")
        if leader is not None:
            # One that hears too few of the others names a leader whom nobody may follow.
            return self.cut_off() or NotLeader(
                f"{slot_name(self.slot)} does not lead: ask {slot_name(leader)}"
            )
        return self._no_quorum() or NotLeader(
            f"{slot_name(self.slot)} does not lead, and knows no leader"
        )

    def _no_quorum(self) -> NoQuorum | None:
        needs = self.needs()
        return NoQuorum(needs) if needs is not None else None

    # -- effects ------------------------------------------------------------------------

    def _do(self, effects: list[vr.Effect]) -> None:
        if self._closed:
            return
        for effect in effects:
            if type(effect) is vr.Send:  # as nearly always
                data = messages.encode(effect.message)
                for slot in effect.to:
                    address = self._roster.addresses_by_slot.get(slot)
                    if address is not None:
                        self._peers.post(slot, address, data)
                continue
            match effect:
                case vr.Reply(request, results, op, voters):
                    log.debug("acknowledged op=%d view=%d voters=%s", op, self.view, voters)
                    self._settle(request, results)
                case vr.Rejected(request, reason, _):
                    self._settle(request, self._rejection(reason))
                case vr.RoleChanged(view, leads, leader):
                    log.info("role view=%d leader=%s leads=%s", view, leader, leads)
                    self._roster.leader = leader
                    self._roster.changed.set()
                    self._change_role(leads=leads)
                case vr.HandedOver(heir, trip_ms, heir_trip_ms):
                    log.warning(
                        "too slow to lead: handing over to=%s round_ms=%d its_round_ms=%d",
                        slot_name(heir),
                        trip_ms,
                        heir_trip_ms,
                    )
                case vr.Restored(op):
                    log.info("namespace restored op=%d", op)
        if self.leading:
            state = self.state
            versions = (state.roster_version, state.tokens.version)
            if versions != self._published:
                self._published = versions
                self.leading.roster_changed()

    def _change_role(self, *, leads: bool) -> None:
        if self.leading is not None:
            self.leading.end()
        self.leading = self._lead() if leads else None

    def _rejection(self, reason: vr.RejectReason) -> DisklessError:
        if reason is vr.RejectReason.NOT_LEADER:
            return NotLeader("the leader changed")
        no_quorum = self._no_quorum() if reason is vr.RejectReason.NO_QUORUM else None
        return no_quorum or Unavailable(f"not committed: {reason.value}")

    def _settle(self, request: Any, outcome: tuple[c.Result, ...] | DisklessError) -> None:
        future = self._requests.get(request)
        if future is None or future.done():
            return
        if isinstance(outcome, DisklessError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


_LEADS = q.Locate(())
"""A question that only a leader answers, and that costs nothing."""
_NOT_HERE = vr.NamespaceMachine()
"""What an agent without a voter has of the namespace: nothing."""


def _timing(failure_timeout_s: float) -> vr.Timing:
    """The protocol's times, in proportion to the failure timeout."""
    timeout_ms = max(int(failure_timeout_s * 1000), 40)
    return vr.Timing(
        failure_timeout_ms=timeout_ms,
        lease_ms=timeout_ms // 2,
        heartbeat_ms=max(timeout_ms // 10, 10),
        slow_ms=min(timeout_ms // 8, vr.Timing.slow_ms),
    )


def _limits(memory_bytes: int) -> vr.Limits:
    usual = vr.Limits()
    return vr.Limits(
        log_bytes_max=min(int(LOG_SHARE * memory_bytes), usual.log_bytes_max),
        pending_bytes_max=min(int(PENDING_SHARE * memory_bytes), usual.pending_bytes_max),
    )


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_MONOTONIC, and it goes on while the machine sleeps, so that a lease ends then too."""


def _refused(
    error: DisklessError, results: tuple[c.Result, ...], concerned: list[bool]
) -> tuple[c.Result, ...]:
    """The answers to puts that were packed together, of which some are not durable."""
    refused = c.Refused.of(error)
    return tuple(
        refused if waits and isinstance(result, c.Done) else result
        for result, waits in zip(results, concerned, strict=True)
    )


def _clock_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
