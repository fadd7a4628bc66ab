"""The namespace on this agent: its voter, if it has one.

`Replica` drives the pure protocol of `namespace.replication`: it owns the clock, the waiting
requests and the messages to other voters, but none of the protocol's rules. Slots 0 to 2k vote; on
other agents it only answers that they do not lead. The rest of the agent uses `agent.router`, which
finds the leader. What a leader does besides serving commands and queries is in `Leadership`, which
is created when this voter starts to lead a view, and ended with the view.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from diskless.agent.audit import AuditFile
from diskless.agent.lookback import LookBack, page_of
from diskless.agent.ports import Leadership, VoterPeers
from diskless.agent.roster import Roster
from diskless.agent.ticking import Steps
from diskless.agent.voting import VoterWeight, make_voter, namespace_of
from diskless.agent.waiting import Waiting
from diskless.agent.whereabouts import Break, Breaks, Whereabouts
from diskless.config import ClusterSettings
from diskless.errors import (
    BadRequest,
    DisklessError,
    NoQuorum,
    NotDurable,
    NotLeader,
    Unavailable,
)
from diskless.model import slot_name
from diskless.namespace import answers
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace import replication as vr
from diskless.namespace.events import EventLog
from diskless.namespace.journal import Journal
from diskless.namespace.lookback import Events, EventsFound, Look
from diskless.namespace.replication import messages
from diskless.namespace.state import NamespaceState
from diskless.notes import Noted
from diskless.policy import NEED_A_TIER

log = logging.getLogger(__name__)

TICKS_PER_HEARTBEAT = 2
COMMAND_BYTES_MAX = 12 << 20
"""It must fit in one message between voters."""
ASK_AGAIN_S = 0.002
"""After this a leader without a lease asks for one, if it may: messages of the millisecond in which
it found its clocks inconsistent do not count."""

_WITH_MEMORY = (vr.Status.NORMAL, vr.Status.VIEW_CHANGE)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_MONOTONIC that also counts while the machine sleeps, so that a lease ends then too."""


def read_clock_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def _nothing_noted(path: str, limit: int) -> Noted:
    return Noted()


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
        noted: Callable[[str, int], Noted] = _nothing_noted,
        clock_ms: Callable[[], int] = read_clock_ms,
    ) -> None:
        """`lead` begins what a leader does; `audit` is told of every event. `noted` gives Spark's
        last notes of the query whose checkpoint is at a path. `clock_ms` also counts
        while the machine sleeps."""
        self.slot = slot
        self.voters = settings.voters
        self._roster = roster
        self._peers = peers
        self._wall_ms = wall_ms
        self._clock_ms = clock_ms
        self._noted = noted
        self._past = LookBack(audit, slot=slot)
        self._voter: vr.VoterMachine | None = None
        if slot < self.voters:
            self._voter = make_voter(slot, settings, audit)
        self.weight = VoterWeight(self._voter, audit)
        self._waiting = Waiting()
        self._breaks = Breaks()
        self._whereabouts = Whereabouts(roster)
        self._lead = lead
        self.leading: Leadership | None = None
        """This agent's work as leader, while it leads."""
        self._closed = False
        self._ticks: Steps | None = None
        self._rests = False  # its next tick is too late if something waits
        self._published = (-1, -1)
        self._told_op = -1  # changes up to here were reported to the leader's work

    # -- what it is ---------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._voter is not None and self._voter.leads and not self._closed

    @property
    def leads_majority(self) -> bool:
        """Whether it leads and a majority follows, so that nobody else can have been elected."""
        return self.leads and self._voter is not None and self._read_allowed(self._voter)

    @property
    def is_outpaced(self) -> bool:
        """Whether it leads although another voter is known to be much faster."""
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
        """The replica's state. It is a new object after a restore from a snapshot."""
        return self._machine.state

    @property
    def events(self) -> EventLog:
        """What the replica applied recently; starts again after a restore, like `state`."""
        return self._machine.events

    @property
    def _machine(self) -> vr.NamespaceMachine:
        return namespace_of(self._voter) if self._voter is not None else _NOT_HERE

    @property
    def journal(self) -> Journal:
        return self._machine.journal

    @property
    def recovered(self) -> bool:
        """Whether this agent's voter, if it has one, takes part."""
        return self._voter is None or self._voter.status is vr.Status.NORMAL

    def elapsed_ms(self) -> int:
        """The log's elapsed time by now: what waits are measured by, on the leader."""
        return self._voter.elapsed_ms(self._clock_ms()) if self._voter is not None else 0

    def status(self) -> vr.ReplicaStatus | None:
        return self._voter.report(self._clock_ms()) if self._voter is not None else None

    def needs(self) -> str | None:
        """One line on what keeps the namespace from serving here, if anything does."""
        return self._voter.needs(self._clock_ms()) if self._voter is not None else None

    def cut_off(self) -> NoQuorum | None:
        """What this voter needs, if it has recovered and reaches too few of the others.

        A voter that is still recovering says nothing about the namespace.
        """
        if self._voter is None or self._voter.status not in _WITH_MEMORY:
            return None
        return self._no_quorum()

    # -- its life -----------------------------------------------------------------

    def form(self, cluster_id: str) -> None:
        """Starts an empty namespace. Only `diskless up` may ask for it, once: a restarted agent
        must never take its empty state for the cluster's."""
        if self._voter is not None:
            self._do(self._voter.form(cluster_id, self._clock_ms()))

    def recover(self, cluster_id: str) -> None:
        """Restarts this voter: it recovers its state from the others."""
        if self._voter is not None:
            self._do(self._voter.recover(cluster_id, self._clock_ms()))

    async def run(self) -> None:
        """Drives the protocol's timers until cancelled."""
        if self._voter is None:
            return
        self._ticks = Steps(self._tick, first_s=self._tick_s)
        try:
            await self._ticks.run()
        finally:
            self._ticks = None

    @property
    def _tick_s(self) -> float:
        assert self._voter is not None
        return self._voter.timing.heartbeat_ms / 1000 / TICKS_PER_HEARTBEAT

    def _tick(self) -> float:
        """How long it has until the next tick."""
        assert self._voter is not None
        now_ms = self._clock_ms()
        self._do(self._voter.tick(now_ms, wall_ms=self._wall_ms()))
        pause_s = self._voter.rest_ms(now_ms) / 1000 or self._tick_s
        self._rests = pause_s > self._tick_s
        return pause_s

    def _rest_no_longer(self, voter: vr.VoterMachine, now_ms: int, pause_s: float) -> None:
        """Called after an event: ticks sooner if the event requires it."""
        if voter.is_due(now_ms) and self._ticks is not None:
            self._rests = False
            self._ticks.hasten(pause_s)

    def _tick_now(self) -> None:
        """Ticks now, because of an event."""
        if self._ticks is not None:
            self._ticks.take()

    def close(self) -> None:
        """Stops taking part, as if the process had ended. Waiting requests fail."""
        self._closed = True
        self._change_role(leads=False)
        self._waiting.refuse_all(Unavailable(f"{slot_name(self.slot)} ended meanwhile"))

    def hand_over(self, *, unfit: Collection[int]) -> None:
        """Hands leadership to a voter that is not in `unfit`, if there is one."""
        if self._voter is None or not self.leads:
            return
        heir, effects = self._voter.hand_over(unfit, self._clock_ms())
        if heir is not None:
            log.warning("about to end: handing over to=%s", slot_name(heir))
        self._do(effects)
        self._tick_now()

    # -- messages of other voters ---------------------------------------------------

    def receive(self, sender: int, address: str, message: bytes) -> None:
        """Receives a message; an empty one only opens a stream. Raises BadRequest if it is
        malformed."""
        if self._voter is None or not 0 <= sender < self.voters:
            raise BadRequest(f"{slot_name(self.slot)} and {sender} are not both voters")
        if not message:
            return
        try:
            decoded = messages.decode(message)
        except msgspec.DecodeError as error:
            raise BadRequest(f"malformed message of {slot_name(sender)}: {error}") from None
        now_ms = self._clock_ms()
        effects = self._voter.receive(sender, decoded, now_ms, wall_ms=self._wall_ms())
        if self._roster.addresses_by_slot.get(sender) != address:
            if self._voter.is_over(sender, decoded):
                self._peers.post(sender, address, messages.encode(self._voter.obituary()))
            else:
                life = self._voter.life_of(sender, decoded)
                self._whereabouts.meet(sender, address, life)
        self._whereabouts.forget_the_dead(self._voter.vector)
        self._do(effects)
        if type(decoded) not in _OF_ROUNDS:
            self._tick_now()
        elif self._rests:
            self._rest_no_longer(self._voter, now_ms, self._tick_s)

    def stream_broke(self, slot: int, address: str) -> None:
        """A stream to a voter ended. If the next one ends at once, the voter is gone."""
        if self._voter is None or self._roster.address_of(slot) != address:
            return
        match self._breaks.note(slot, time.monotonic()):
            case Break.UNCLEAR:
                self._peers.post(slot, address, b"")  # opens a stream, or is refused
            case Break.GONE:
                self._do(self._voter.suspect(slot, self._clock_ms()))
                self._tick_now()
            case Break.SAID:
                pass  # messages about it would break another stream to it

    # -- commands and queries ---------------------------------------------------------

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        """Commits and applies a command, and makes it durable where its path requires it. Raises
        NotLeader, NoQuorum; Unavailable if the outcome is unknown because the leader changed
        meanwhile; NotDurable, Superseded."""
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
            if self._closed:
                raise self._not_leader()
        request, outcome = self._waiting.begin()
        try:
            started_s = time.monotonic()
            now_ms = self._clock_ms()
            self._do(self._voter.submit(request, encoded, now_ms, wall_ms=self._wall_ms()))
            if self._rests:
                self._rest_no_longer(self._voter, now_ms, self._tick_s)
            results = await outcome
        finally:
            self._waiting.forget(request)
        if self.leading and isinstance(command, c.Commit | c.Mkdirs | c.Rename | c.Delete):
            self.leading.command_took(time.monotonic() - started_s)
        return await self._hold(command, results)

    async def _hold(
        self, command: c.Command, results: tuple[c.Result, ...]
    ) -> tuple[c.Result, ...]:
        """Waits until an answer may be given, which the current leader decides. Returns the
        answer."""
        if c.Done not in map(type, results):
            return results
        leading = self.leading
        if leading is None:
            tier = self.state.tier
            asked = self.state.policies.table or tier.default_durability in NEED_A_TIER
            if tier.attached and asked:
                raise Unavailable("the leader changed before the answer was durable")
            return results
        if (held := leading.after(command)) is None:
            return results
        try:
            await held
        except DisklessError as error:
            if not isinstance(command, c.Commit):
                raise
            concerned = [leading.concerns(put) for put in command.puts]
            if all(concerned) and not isinstance(error, NotDurable):
                raise
            # Each client gets its own error: a retry here would delay the others.
            return _refused(error, results, concerned)
        return results

    async def query(self, query: q.Query) -> Any:
        """As `answer`; older events come from the audit file, and what must be durable first is
        waited for."""
        if isinstance(query, Events):
            return await self._look_back(query)
        if change := self._awaited(query):
            assert self.leading is not None
            await self.leading.until_durable(change)
        return self.answer(query)

    def _awaited(self, query: q.Query) -> int:
        return self.leading.before_answer(query) if self.leading is not None else 0

    async def _look_back(self, query: Events) -> EventsFound:
        look = Look(query)
        if look.begin.slot != self.slot:
            look.take(self.events.newest_first())
        self.answer(_LEADS)  # after reading: raises if another voter may lead by now
        return await self._past.complete(look)

    def answer(self, query: q.Query) -> Any:
        """Answers from the current state. Raises NotLeader, NoQuorum, and what the query
        does; NotDurable if that must be waited for first."""
        if not self.leads:
            raise self._not_leader()
        if (type(query) is q.Open or type(query) is q.OpenMany) and self._awaited(query):
            what = query.path if type(query) is q.Open else "a plan among many files"
            raise NotDurable(f"{what} is beyond what the tier holds")
        refusal: DisklessError | None = None
        answer: Any = None
        try:
            answer = self._answer(query)
        except DisklessError as error:
            refusal = error  # that something does not exist is an answer too
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
        if isinstance(query, q.NotesOf):
            return self._noted(query.path, query.limit)
        if isinstance(query, Events):
            look = Look(query)
            look.take(self.events.newest_first())
            return page_of(look)
        return answers.answer(self.state, query)

    def _read_allowed(self, voter: vr.VoterMachine) -> bool:
        # The monotonic clock first: a pause between the two readings costs the lease.
        now_ms = self._clock_ms()
        allowed = voter.read_allowed(now_ms, wall_ms=self._wall_ms())
        if not allowed and self._rests:
            self._rest_no_longer(voter, now_ms, ASK_AGAIN_S)
        return allowed

    def _not_leader(self) -> DisklessError:
        leader = self.leader
        if self._closed:
            return NotLeader(f"{slot_name(self.slot)} has ended")
        if leader is not None:
            # A voter that reaches too few others may name a leader that nobody follows.
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
            if type(effect) is vr.Send:  # the usual case
                data = messages.encode(effect.message)
                for slot in effect.to:
                    address = self._roster.addresses_by_slot.get(slot)
                    if address is not None:
                        self._peers.post(slot, address, data)
                continue
            match effect:
                case vr.Reply(request, results, op, voters):
                    log.debug("acknowledged op=%d view=%d voters=%s", op, self.view, voters)
                    self._waiting.settle(request, results)
                case vr.Rejected(request, reason, _):
                    self._waiting.settle(request, self._rejection(reason))
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
        if self.leading and self._voter is not None and self._voter.applied != self._told_op:
            self._told_op = self._voter.applied
            state = self.state
            versions = (state.roster_version, state.tokens.version)
            if versions != self._published:
                self._published = versions
                self.leading.roster_changed()

    def _change_role(self, *, leads: bool) -> None:
        if self.leading is not None:
            self.leading.end()
        self._told_op = -1
        self.leading = self._lead() if leads else None

    def _rejection(self, reason: vr.RejectReason) -> DisklessError:
        if reason is vr.RejectReason.NOT_LEADER:
            return NotLeader("the leader changed")
        no_quorum = self._no_quorum() if reason is vr.RejectReason.NO_QUORUM else None
        return no_quorum or Unavailable(f"not committed: {reason.value}")


_OF_ROUNDS = (messages.Prepare, messages.PrepareOk)
"""Messages that come with every command. All others make a voter check its timers."""
_LEADS = q.Locate(())
"""A cheap query that only a leader answers."""
_NOT_HERE = vr.NamespaceMachine()
"""The namespace of an agent without a voter: empty."""


def _refused(
    error: DisklessError, results: tuple[c.Result, ...], concerned: list[bool]
) -> tuple[c.Result, ...]:
    """The answers to puts that were packed together, some of which are not durable yet."""
    refused = c.Refused.of(error)
    return tuple(
        refused if waits and isinstance(result, c.Done) else result
        for result, waits in zip(results, concerned, strict=True)
    )
