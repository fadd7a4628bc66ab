"""Normal operation: rounds of commands, heartbeats, and the leader's lease.

All commands that come while a round is in flight go in the next one. A round is
committed when a quorum, the leader included, has it in its log of this view. Every
message of the leader carries its send time; a voter that answers it promises to join
no view change for one lease from then on, by its own clock.
"""

from diskless.namespace.replication import messages as m
from diskless.namespace.replication.clocks import answered_by
from diskless.namespace.replication.core import Core, Status
from diskless.namespace.replication.effects import Effect, Rejected, RejectReason, RequestId, Send
from diskless.namespace.replication.staging import NEVER

NORMAL = Status.NORMAL


class Normal(Core):
    _start_op = 0  # the leader's log when its view began
    _led_since = NEVER
    _next_heartbeat = NEVER
    _round_sent = NEVER
    _leader_heard = NEVER
    _wanted = 0  # the view this voter would change to, or 0

    def submit(
        self, request_id: RequestId, command: bytes, now_ms: int, *, wall_ms: int
    ) -> list[Effect]:
        """Orders a command. Exactly one Reply or Rejected with this id follows, if this
        process lives on; `wall_ms` is one of the clocks that the command's time is made of."""
        out = self._out = []
        self._wall_ms = wall_ms
        if not self.leads:
            out.append(Rejected(request_id, RejectReason.NOT_LEADER, self.leader))
            return out
        limits = self.limits
        if (
            self._pending_bytes >= limits.pending_bytes_max
            or len(self._pending) >= limits.pending_commands_max
        ):
            out.append(Rejected(request_id, RejectReason.OVERLOADED))
            return out
        self._notice_pause(now_ms)
        if self._lost_quorum(now_ms):
            out.append(Rejected(request_id, RejectReason.NO_QUORUM))
            return out
        self._pending.append((request_id, command))
        self._pending_bytes += len(command)
        self._flush(now_ms)
        return out

    def _flush(self, now_ms: int) -> None:
        """Starts rounds: at once if none is in flight, else only full ones."""
        limits = self.limits
        while self._pending:
            flying = self.log.last - self.commit
            if flying and (
                flying >= limits.rounds_in_flight_max
                or (
                    self._pending_bytes < limits.batch_bytes_max
                    and now_ms - self._round_sent < limits.gather_ms_max
                )
            ):
                return
            self._wall.heard(self.slot, self._wall_ms, now_ms)
            if not self._wall.are_enough:
                return  # a founder's first: those who must answer have yet to say the time
            self._send_round(now_ms)

    def _send_round(self, now_ms: int) -> None:
        pending = self._pending
        if self._pending_bytes <= self.limits.batch_bytes_max:
            taken, self._pending, self._pending_bytes = pending, [], 0
        else:
            count, size = 1, len(pending[0][1])
            while count < len(pending):
                size += len(pending[count][1])
                if size > self.limits.batch_bytes_max:
                    size -= len(pending[count][1])
                    break
                count += 1
            taken, self._pending = pending[:count], pending[count:]
            self._pending_bytes -= size
        entry = m.Entry(
            self._wall.read(now_ms),
            self._elapsed.count(now_ms, led_until=self._led_until),
            tuple([command for _, command in taken]),
        )
        log = self.log
        log.append(entry)
        op = log.last
        self._match[self.slot] = op
        self._waiting[op] = [id_ for id_, _ in taken]
        self._round_sent = now_ms
        assert self.cluster_id is not None
        self._out.append(
            Send(
                self.others,
                m.Prepare(self.cluster_id, self.vector, self.view, op, self.commit, now_ms, entry),
            )
        )
        if self.quorum == 1:
            self._advance_commit(now_ms)

    # -- followers ---------------------------------------------------------------

    def _on_prepare(self, sender: int, message: m.Prepare, now_ms: int) -> None:
        if message.view != self.view or self.status is not NORMAL:
            self._heard_of_view(sender, message.view, now_ms)
            return
        if message.op == self.log.last + 1:
            self.log.append(message.entry)
        self._elapsed.hear(message.entry.elapsed_ms)
        self._follow(sender, message, now_ms)

    def _on_heartbeat(self, sender: int, message: m.Heartbeat, now_ms: int) -> None:
        if message.view != self.view or self.status is not NORMAL:
            self._heard_of_view(sender, message.view, now_ms)
            return
        self._elapsed.hear(message.elapsed_ms)
        self._follow(sender, message, now_ms)
        self._drop_log(message.floor)

    def _follow(self, sender: int, message: m.Prepare | m.Heartbeat, now_ms: int) -> None:
        self._leader_heard = now_ms
        self._wanted = 0
        last = self.log.last
        if message.op > last:
            self._fetch_missing(now_ms)
        if message.commit > self.commit:
            self.commit = message.commit if message.commit < last else last
        self._acknowledge(sender, message.sent_ms, now_ms)

    def _acknowledge(self, leader: int, sent_ms: int, now_ms: int) -> None:
        self._promise_until = now_ms + self._promise_ms
        assert self.cluster_id is not None
        self._out.append(
            Send(
                (leader,),
                m.PrepareOk(
                    self.cluster_id,
                    self.vector,
                    self.view,
                    self.log.last,
                    sent_ms,
                    self._wall_ms,
                ),
            )
        )

    def _drop_log(self, floor: int) -> None:
        floor = min(floor, self.applied)
        if floor > self.log.base:
            self.log.drop_through(floor)

    # -- leader ------------------------------------------------------------------

    def _on_prepare_ok(self, sender: int, message: m.PrepareOk, now_ms: int) -> None:
        if message.view != self.view or not self.leads:
            return
        sent_ms = message.sent_ms
        if sent_ms > self._echo[sender]:
            self._echo[sender] = sent_ms
            self._wall.heard(sender, message.wall_ms, now_ms)
            self._note_trip(sender, now_ms - sent_ms)
        if message.op > self._match[sender]:
            self._match[sender] = message.op
            if message.op > self.commit:
                self._advance_commit(now_ms)

    def _quorum_op(self) -> int:
        """The newest op that a quorum has in its log of this view."""
        return sorted(self._match)[self.voters - self.quorum]

    def _who_has(self, op: int) -> tuple[int, ...]:
        return tuple([slot for slot, match in enumerate(self._match) if match >= op])

    def _advance_commit(self, now_ms: int) -> None:
        op = self._quorum_op()
        if op > self.commit:
            assert op <= self.log.last
            for waiting in self._waiting:
                if waiting <= op and waiting not in self._holders:
                    self._holders[waiting] = self._who_has(waiting)
            self.commit = op
            if self._frozen:
                self._stop_giving()  # clients wait for the leader's answers
            self._apply()
            if self._pending:
                self._flush(now_ms)

    def _beat(self, now_ms: int) -> None:
        # One of the millisecond in which its clocks disagreed gives no lease: the next one does.
        agree_since = self._watch.agree_since
        next_ms = now_ms + self.timing.heartbeat_ms
        self._next_heartbeat = agree_since if agree_since > now_ms else next_ms
        floor = self._floor(now_ms)
        self._drop_log(floor)
        assert self.cluster_id is not None
        self._broadcast(
            m.Heartbeat(
                self.cluster_id,
                self.vector,
                self.view,
                self.log.last,
                self.commit,
                now_ms,
                self._elapsed.count(now_ms, led_until=self._led_until),
                floor,
            )
        )

    def _floor(self, now_ms: int) -> int:
        """How much of the log nobody needs any more."""
        limits, log = self.limits, self.log
        excess = max(len(log) / limits.log_entries_max, log.bytes / limits.log_bytes_max)
        if excess <= 1:
            return min(self._match)
        if excess > 2:
            return self.commit
        silent = now_ms - self.timing.failure_timeout_ms
        live = [self._match[other] for other in self.others if self._heard[other] > silent]
        return min(live, default=self.commit)

    # -- lease -------------------------------------------------------------------

    def read_allowed(self, now_ms: int, *, wall_ms: int) -> bool:
        """Whether what was read from `machine` before `now_ms` was read is the truth.

        Ask after reading, with fresh times: a process that was stopped in between
        must not answer from a state that others have left behind. No other event of
        this replica may come in between, so the driver must not await there.
        """
        if not self.leads or self.applied < self._start_op:
            return False
        self._watch_clocks(now_ms, wall_ms)
        if now_ms >= self._lease_until:
            self._lease_until = self._find_lease()
        return now_ms < self._lease_until

    def _find_lease(self) -> int:
        """A quorum, this leader included, promised to wait until then."""
        if self.quorum == 1:
            return -NEVER
        answered = answered_by(self._echo, self.quorum)
        return answered + self.timing.read_ms if answered >= self._watch.agree_since else NEVER

    def _watch_clocks(self, now_ms: int, wall_ms: int) -> None:
        """Gives the lease up if this machine may have stood still longer than it knows."""
        self._wall_ms = wall_ms
        if not self._watch.look(now_ms, wall_ms):
            self._lease_until = NEVER
            self._next_heartbeat = now_ms  # if it still leads, others will say so at once

    # -- time --------------------------------------------------------------------

    def elapsed_ms(self, now_ms: int) -> int:
        """The log's elapsed time by now, as far as this voter knows; only grows."""
        if not self.leads:
            return self._elapsed.ms
        return self._elapsed.at(now_ms, led_until=self._led_until)

    @property
    def _led_until(self) -> int:
        """Up to when this leader may believe that a quorum follows it."""
        if self.quorum == 1:
            return -NEVER
        answered = answered_by(self._echo, self.quorum)
        return max(answered, self._led_since) + self.timing.failure_timeout_ms

    def _lost_quorum(self, now_ms: int) -> bool:
        return max(self._led_until + self.timing.lease_ms, self._forgiven_until) < now_ms

    def _forgive_silence(self, now_ms: int) -> None:
        """Silence is no loss of quorum for one lease; not twice, if no quorum answered since."""
        forgiven_ms = self._forgiven_until - self.timing.lease_ms
        if self._led_until - self.timing.failure_timeout_ms >= forgiven_ms:
            self._forgiven_until = now_ms + self.timing.lease_ms

    # -- other parts -------------------------------------------------------------

    def _notice_pause(self, now_ms: int) -> None:
        raise NotImplementedError

    def _note_trip(self, slot: int, trip_ms: int) -> None:
        raise NotImplementedError

    def _heard_of_view(self, sender: int, view: int, now_ms: int) -> None:
        raise NotImplementedError

    def _fetch_missing(self, now_ms: int) -> None:
        raise NotImplementedError

    def _stop_giving(self) -> None:
        raise NotImplementedError
