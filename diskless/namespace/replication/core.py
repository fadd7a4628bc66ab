"""What every part of a replica shares: its state, crash vectors, and applying.

The parts are a chain of classes, one per sub-protocol, because they are one state
machine: Core, Normal, Transfer, Views, Recovering, Paced, VoterMachine. Each adds the handlers of
its messages. Nothing here reads a clock or keeps time other than what its methods are given.
"""

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any

from diskless.namespace.replication import messages as m
from diskless.namespace.replication.clocks import ClockWatch, ElapsedClock, WallClocks
from diskless.namespace.replication.effects import (
    Effect,
    Rejected,
    RejectReason,
    Reply,
    RequestId,
    RoleChanged,
    Send,
)
from diskless.namespace.replication.log import Log
from diskless.namespace.replication.machine import StateMachine
from diskless.namespace.replication.settings import Limits, Timing
from diskless.namespace.replication.staging import NEVER, Catchup, OutgoingSnapshot

NONCE_BITS = 63
NO_LIFE: m.Life = (0, 0)
FOUNDING: m.Life = (1, 0)
"""The first life of every slot, which all founders know of each other."""
Handler = Callable[[int, Any, int], None]


class Status(Enum):
    BLANK = "blank"
    """Neither formed nor told to recover: takes no part."""
    RECOVERING = "recovering"
    NORMAL = "normal"
    VIEW_CHANGE = "view change"
    SUPERSEDED = "superseded"
    """A later life of this slot exists: this one is over."""


OPERATIONAL = (Status.NORMAL, Status.VIEW_CHANGE)


class Core:
    def __init__(
        self,
        *,
        slot: int,
        voters: int,
        machine: Callable[[], StateMachine],
        random: Random,
        timing: Timing | None = None,
        limits: Limits | None = None,
    ) -> None:
        assert voters % 2 == 1
        assert 0 <= slot < voters
        self.slot = slot
        self.voters = voters
        self.quorum = voters // 2 + 1
        self.others = tuple(other for other in range(voters) if other != slot)
        self.timing = timing or Timing()
        self.limits = limits or Limits()
        self.cluster_id: str | None = None
        self.status = Status.BLANK
        self.view = 0
        self.last_normal = 0
        self.vector = (NO_LIFE,) * voters
        self.nonce = random.getrandbits(NONCE_BITS)
        """Of all lives that this process may begin; no other process has it."""
        self.log = Log()
        self.commit = 0
        self.applied = 0
        self.machine = machine()
        self._new_machine = machine
        self._random = random
        self._out: list[Effect] = []
        self._handlers: dict[type, Handler] = {}
        self._promise_ms = self.timing.promise_ms
        self._promise_until = NEVER  # no view change is joined before
        self._wall_ms = 0  # by this voter's own clock, at the latest event
        self._wall = WallClocks(voters=voters, quorum=self.quorum)
        self._elapsed = ElapsedClock(step_ms_max=self.timing.failure_timeout_ms)
        self._watch = ClockWatch(tolerance_ms=self.timing.skew_ms)
        self._heard = [NEVER] * voters
        self._down: set[int] = set()  # refused a connection, or are without memory
        self._last_tick = NEVER
        self._forgiven_until = NEVER  # it stood still itself: silence is no loss of quorum
        # Of the leader:
        self._match = [0] * voters  # how much of this view's log each voter has
        self._echo = [NEVER] * voters  # the newest of our send times that each answered
        self._lease_until = NEVER
        self._waiting: dict[int, list[RequestId]] = {}
        self._holders: dict[int, tuple[int, ...]] = {}  # of what is committed and still waits
        self._pending: list[tuple[RequestId, bytes]] = []
        self._pending_bytes = 0
        # Of view changes and recovery:
        self._wants = [(0, NEVER)] * voters  # the view each voter asked for, and when
        self._stranded: dict[int, int] = {}  # voters that left this view for good, and since when
        self._changes: dict[int, m.DoViewChange] = {}
        self._answers: dict[int, m.HelloReply | m.RecoveryReply] = {}
        # Of transfers:
        self._catchup: Catchup | None = None
        self._outgoing: dict[int, OutgoingSnapshot] = {}
        self._frozen = False  # nothing is applied while others copy the machine

    # -- who ---------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        return self.vector[self.slot][0]

    def leader_of(self, view: int) -> int:
        return view % self.voters

    @property
    def leads(self) -> bool:
        return self.status is Status.NORMAL and self.view % self.voters == self.slot

    @property
    def leader(self) -> int | None:
        """Who leads, as far as this voter knows."""
        return self.view % self.voters if self.status is Status.NORMAL else None

    # -- crash vectors -----------------------------------------------------------

    def _join(self, sender: int, message: m.Message) -> bool:
        """Learns what a message's vector knows; False if its sender's life is over.

        Because votes of older lives are forgotten here and nowhere counted later, all
        votes that are held at any moment are crash-consistent: no voter among them
        knew, when it voted, a later life of another.
        """
        mine, theirs = self.vector, message.vector
        if len(theirs) != self.voters:
            return False
        joined = tuple(map(max, mine, theirs))
        if joined != mine:
            if joined[self.slot] > mine[self.slot] and self.status in OPERATIONAL:
                self._set_status(Status.SUPERSEDED)
                return False
            self.vector = joined
            for slot in range(self.voters):
                if joined[slot] != mine[slot]:
                    self._forget_votes(slot)
        if theirs[sender] == joined[sender]:
            return True
        if type(message) is m.Recovery and self.status in OPERATIONAL:
            # Refused alone, it would wait forever for one that may have died meanwhile.
            self._tell_lives(sender, theirs[sender][1])
        # A voter without memory does not know its own number: it may only ask for it.
        return type(message) is m.Hello

    def _tell_lives(self, slot: int, nonce: int) -> None:
        assert self.cluster_id is not None
        self._send(slot, m.HelloReply(self.cluster_id, self.vector, nonce))

    def _forget_votes(self, slot: int) -> None:
        """That voter has begun a new life and has forgotten what it said, and promised."""
        self._match[slot] = 0
        self._echo[slot] = NEVER
        self._lease_until = NEVER  # found again, without that promise
        self._wants[slot] = (0, NEVER)
        self._stranded.pop(slot, None)
        self._changes.pop(slot, None)
        self._answers.pop(slot, None)

    # -- effects -----------------------------------------------------------------

    def _send(self, to: int, message: m.Message) -> None:
        self._out.append(Send((to,), message))

    def _broadcast(self, message: m.Message) -> None:
        self._out.append(Send(self.others, message))

    def _set_status(self, status: Status) -> None:
        """Enters a status (of `self.view`), and lets go of a leader's clients."""
        self.status = status
        leads = self.leads
        if not leads:
            self._let_clients_go()
        self._out.append(RoleChanged(self.view, leads, self.leader))

    def _let_clients_go(self) -> None:
        for requests in self._waiting.values():
            self._out.extend(Rejected(id_, RejectReason.UNKNOWN) for id_ in requests)
        self._waiting.clear()
        self._holders.clear()
        self._out.extend(Rejected(id_, RejectReason.NOT_LEADER) for id_, _ in self._pending)
        self._pending.clear()
        self._pending_bytes = 0

    # -- applying ----------------------------------------------------------------

    def _apply(self) -> None:
        """Applies what is committed, a bounded number of commands at a time."""
        if self._frozen:
            return
        room = self.limits.apply_commands_max
        apply, get, waiting = self.machine.apply, self.log.get, self._waiting
        while self.applied < self.commit and room > 0:
            op = self.applied + 1
            entry = get(op)
            time_ms, elapsed_ms = entry.time_ms, entry.elapsed_ms
            results = [apply(op, time_ms, elapsed_ms, command) for command in entry.commands]
            self.applied = op
            room -= len(results)
            if waiting:
                requests = waiting.pop(op, ())
                holders = self._holders.pop(op, ())
                for id_, result in zip(requests, results, strict=False):
                    self._out.append(Reply(id_, result, op, holders))
