"""A voter of the namespace: the methods by which the protocol's state machine is driven.

Each takes the time by the caller's monotonic clock, read after the event that it reports, and
most of them its wall clock, read after that. They return effects. Nothing else changes a
voter. The driver (`agent/replica.py`) sends what is to be sent, in any order and as
unreliably as it likes, and calls `tick` often: twice in a heartbeat or more, unless `rest_ms`
says that it has time.
"""

from collections.abc import Callable, Collection
from random import Random

from msgspec import Struct

from diskless.model import slot_name
from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import FOUNDING, Status
from diskless.namespace.replication.effects import Effect
from diskless.namespace.replication.machine import StateMachine
from diskless.namespace.replication.pace import Paced
from diskless.namespace.replication.settings import Limits, Timing


class ReplicaStatus(Struct, frozen=True):
    slot: int
    incarnation: int
    status: str
    view: int
    leader: int | None
    op: int
    commit: int
    applied: int
    log_entries: int
    log_bytes: int
    pending: int
    lags: tuple[int | None, ...]
    """Leader only: entries that each voter lacks; None if it has been silent, or has no
    memory: only a voter in normal operation answers a leader's messages."""
    clock_skews_ms: tuple[int | None, ...] = ()
    """Leader only: how far each voter's wall clock is from their median; None if it was never
    heard."""
    time_ms: int = 0
    """Leader only: what that median says."""


class VoterMachine(Paced):
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
        super().__init__(
            slot=slot,
            voters=voters,
            machine=machine,
            random=random,
            timing=timing,
            limits=limits,
        )
        # Not all at the same op: those who still wait answer at once.
        self._unapplied_max = self.limits.unapplied_entries_max * (voters + slot) // (2 * voters)
        self._handlers = {
            m.Prepare: self._on_prepare,
            m.PrepareOk: self._on_prepare_ok,
            m.Heartbeat: self._on_heartbeat,
            m.GetView: self._on_get_view,
            m.StartViewChange: self._on_start_view_change,
            m.DoViewChange: self._on_do_view_change,
            m.StartView: self._on_start_view,
            m.Fetch: self._on_fetch,
            m.Entries: self._on_entries,
            m.Truncated: self._on_truncated,
            m.GetSnapshot: self._on_get_snapshot,
            m.SnapshotChunk: self._on_snapshot_chunk,
            m.SnapshotGone: self._on_snapshot_gone,
            m.Hello: self._on_hello,
            m.HelloReply: self._on_hello_reply,
            m.Recovery: self._on_recovery,
            m.RecoveryReply: self._on_recovery_reply,
            m.Probe: self._on_probe,
            m.Ping: self._on_ping,
            m.Pong: self._on_pong,
            m.Paces: self._on_paces,
        }

    # -- beginnings --------------------------------------------------------------

    def form(self, cluster_id: str, now_ms: int) -> list[Effect]:
        """Begins an empty namespace. Once in a cluster's life, on every voter, by `up`.

        The caller makes sure that this process is the one that `up` meant, and not a
        later life of it: a voter that lost its memory must `recover`.
        """
        assert self.status is Status.BLANK
        assert cluster_id
        out = self._out = []
        self.cluster_id = cluster_id
        self.vector = (FOUNDING,) * self.voters
        self._last_tick = now_ms
        if self.leader_of(0) == self.slot:
            self._begin_view(now_ms)
        else:
            self._enter_view(0, now_ms)
        return out

    def recover(self, cluster_id: str, now_ms: int) -> list[Effect]:
        """Begins a new life in a cluster that was formed: memory comes from a quorum."""
        assert self.status is Status.BLANK
        assert cluster_id
        out = self._out = []
        self.cluster_id = cluster_id
        self._last_tick = now_ms
        self._begin_recovery(now_ms)
        return out

    # -- events ------------------------------------------------------------------

    def receive(
        self, sender: int, message: m.Message, now_ms: int, *, wall_ms: int
    ) -> list[Effect]:
        out = self._out = []
        self._wall_ms = wall_ms
        if message.cluster != self.cluster_id or self.status is Status.SUPERSEDED:
            return out
        if message.vector != self.vector and not self._join(sender, message):
            return out
        self._heard[sender] = now_ms
        if self._down:
            self._down.discard(sender)
        self._handlers[type(message)](sender, message, now_ms)
        if self.applied < self.commit and not self._may_wait(message):
            self._apply()
        return out

    def _may_wait(self, message: m.Message) -> bool:
        """Whether a follower may apply later what is committed: small commands, one at a time,
        cost half of it together. Nobody reads from a follower, and what it has to catch up with
        as a leader is bounded. The next message of another kind, or tick, applies all."""
        if type(message) is not m.Prepare or self.leads:
            return False
        commands = message.entry.commands
        return (
            self.commit - self.applied < self._unapplied_max
            and len(commands) == 1
            and len(commands[0]) <= self.limits.unapplied_bytes_max
        )

    def tick(self, now_ms: int, *, wall_ms: int) -> list[Effect]:
        out = self._out = []
        if self.leads:  # nobody else has a lease; who begins to lead looks before it trusts one
            self._watch_clocks(now_ms, wall_ms)
        self._wall_ms = wall_ms
        self._notice_pause(now_ms)
        self._last_tick = now_ms
        status = self.status
        if status is Status.NORMAL:
            if self.view % self.voters == self.slot:
                self._tick_leader(now_ms)
            else:
                self._tick_follower(now_ms)
        elif status is Status.VIEW_CHANGE:
            self._tick_view_change(now_ms)
        elif status is Status.RECOVERING:
            self._tick_recovery(now_ms)
        if self._catchup is not None:
            self._tick_catchup(self._catchup, now_ms)
        if self._outgoing:
            self._tick_outgoing(now_ms)
        if self.applied < self.commit:
            self._apply()
        return out

    def rest_ms(self, now_ms: int) -> int:
        """For how long no tick is needed: until a leader's next heartbeat is due, or the one that
        a follower gets is late. 0 while anything else waits for one."""
        if self.is_due(now_ms) or self.applied < self.commit:
            return 0
        if self.leads:
            return max(self._next_heartbeat - now_ms, 0) + 1
        return max(self._leader_heard + self.timing.late_ms - now_ms, 0)

    def is_due(self, now_ms: int) -> bool:
        """Whether it must not rest any longer, whatever `rest_ms` said: something waits for
        ticks, other than what may be applied with the next heartbeat."""
        return bool(
            self.status is not Status.NORMAL
            or self._wanted
            or self._stranded
            or self._pending
            or self._outgoing
            or self._catchup is not None
            or (self._next_heartbeat <= now_ms and self.leads)
        )

    def suspect(self, slot: int, now_ms: int) -> list[Effect]:
        """A hint that a voter is gone, such as a refused connection."""
        out = self._out = []
        if slot != self.slot:
            self._down.add(slot)
            if self.status is Status.NORMAL and slot == self.leader_of(self.view):
                self._suspect_leader(now_ms)
        return out

    def hand_over(self, unfit: Collection[int], now_ms: int) -> tuple[int | None, list[Effect]]:
        """Has another voter lead, if this one does, and another can that is not in `unfit`: who
        that is."""
        out = self._out = []
        return self._leave_for_another(unfit, now_ms) if self.leads else None, out

    def _notice_pause(self, now_ms: int) -> None:
        """If this process stood still, what it did not hear meanwhile proves nothing. What it
        heard since counts from now on, and not from later. A heartbeat of it counts all the same:
        one that stands still again and again notices after some pauses that nobody is there."""
        pause_ms = now_ms - self._last_tick
        if pause_ms <= self.timing.stall_ms:
            return
        self._last_tick = now_ms
        self._forgive_silence(now_ms)
        stalled_ms = pause_ms - self.timing.heartbeat_ms
        self._slow_beats = self._better_beats = 0
        self._leader_heard = min(self._leader_heard + stalled_ms, now_ms)
        self._progress_ms = min(self._progress_ms + stalled_ms, now_ms)
        self._heard = [min(heard + stalled_ms, now_ms) for heard in self._heard]

    # -- questions ---------------------------------------------------------------

    def is_over(self, sender: int, message: m.Message) -> bool:
        """Whether a message is of a life that another has superseded."""
        life = self.life_of(sender, message)
        return life is not None and life < self.vector[sender]

    def life_of(self, sender: int, message: m.Message) -> m.Life | None:
        """Whose a message is; None of one that looks for its memory: it may not know its number
        yet."""
        if type(message) in (m.Hello, m.Recovery) or len(message.vector) != self.voters:
            return None
        return message.vector[sender]

    def obituary(self) -> m.Message:
        """What tells a life that is over that it is."""
        assert self.cluster_id is not None
        return m.HelloReply(self.cluster_id, self.vector, 0)

    def report(self, now_ms: int) -> ReplicaStatus:
        silent = now_ms - self.timing.failure_timeout_ms
        lags: tuple[int | None, ...] = ()
        if self.leads:
            lags = tuple(
                self.log.last - self._match[slot]
                if slot == self.slot or self._echo[slot] > silent
                else None
                for slot in range(self.voters)
            )
        return ReplicaStatus(
            slot=self.slot,
            incarnation=self.incarnation,
            status=self.status.value,
            view=self.view,
            leader=self.leader,
            op=self.log.last,
            commit=self.commit,
            applied=self.applied,
            log_entries=len(self.log),
            log_bytes=self.log.bytes,
            pending=len(self._pending),
            lags=lags,
            clock_skews_ms=self._wall.skews() if self.leads else (),
            time_ms=self._wall.tell(now_ms) if self.leads else 0,
        )

    def bytes_held(self) -> int:
        """By the log, commands that wait for a round, and entries that are being copied."""
        copied = self._catchup.entries_bytes if self._catchup is not None else 0
        return self.log.bytes + self._pending_bytes + copied

    def staged(self) -> StateMachine | None:
        """The machine that a snapshot is being copied into, beside `machine`."""
        return self._catchup.machine if self._catchup is not None else None

    def needs(self, now_ms: int) -> str | None:
        """One line on what keeps this voter from serving, or None if nothing does."""
        name = slot_name(self.slot)
        if self.status is Status.BLANK:
            return f"{name} belongs to no cluster yet"
        if self.status is Status.SUPERSEDED:
            return f"{name} has been replaced by a later life of itself"
        if self.status is Status.RECOVERING:
            return self._recovery_needs()
        silent = now_ms - self.timing.failure_timeout_ms
        heard = [slot for slot in self.others if self._heard[slot] > silent]
        live = [slot for slot in heard if slot not in self._down]
        if len(live) + 1 >= self.quorum:
            return None
        gone = ", ".join(slot_name(slot) for slot in self.others if slot not in live)
        return (
            f"the namespace needs {self.quorum} of {self.voters} voters and has "
            f"{len(live) + 1}: {gone} cannot be reached or lost their memory"
        )
