"""Catching up: entries of the log, or a snapshot where the log is truncated.

The one that lacks something asks for it, a bounded piece at a time. What it gets is
staged beside its own log and state and put in place in one step, when it is complete:
until then it can still answer for what it had.
"""

from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import OPERATIONAL, Status
from diskless.namespace.replication.effects import Restored
from diskless.namespace.replication.log import entry_bytes
from diskless.namespace.replication.normal import Normal
from diskless.namespace.replication.staging import NEVER, Catchup, OutgoingSnapshot, Purpose

DONOR_TRIES_MAX = 5
"""Requests to one donor without an answer, before another one is asked."""


class Transfer(Normal):
    _fetched_ms = NEVER

    # -- asking ------------------------------------------------------------------

    def _fetch_missing(self, now_ms: int) -> None:
        """A follower's log has a gap: asks the leader, but not for every message."""
        if self._catchup is None and now_ms - self._fetched_ms >= self.timing.resend_ms // 4:
            self._fetched_ms = now_ms
            self._send_fetch(self.leader_of(self.view), self.view, self.log.last + 1, 0)

    def _send_fetch(self, to: int, view: int, first: int, attempt: int) -> None:
        assert self.cluster_id is not None
        self._send(to, m.Fetch(self.cluster_id, self.vector, view, first, attempt))

    def _begin_catchup(self, catchup: Catchup, now_ms: int) -> None:
        self._catchup = catchup
        if catchup.last >= catchup.target:
            self._finish_catchup(catchup, now_ms)
        else:
            self._ask(catchup, now_ms)

    def _ask(self, catchup: Catchup, now_ms: int) -> None:
        catchup.asked_ms = now_ms
        catchup.tries += 1
        assert self.cluster_id is not None
        if catchup.donor is not None:
            self._send(
                catchup.donor,
                m.GetSnapshot(self.cluster_id, self.vector, catchup.nonce, catchup.index),
            )
        else:
            self._send_fetch(catchup.source, catchup.view, catchup.last + 1, catchup.attempt)

    def _tick_catchup(self, catchup: Catchup, now_ms: int) -> None:
        if now_ms - catchup.asked_ms < self.timing.resend_ms:
            return
        if catchup.donor is not None and catchup.tries >= DONOR_TRIES_MAX:
            self._give_up_donor(catchup)
        self._ask(catchup, now_ms)

    def _give_up_donor(self, catchup: Catchup) -> None:
        catchup.donor = catchup.machine = None
        catchup.attempt += 1
        catchup.tries = 0

    def _on_entries(self, sender: int, message: m.Entries, now_ms: int) -> None:
        catchup = self._catchup
        if catchup is None:
            if self.status is Status.NORMAL and message.view == self.view:
                self._take_entries(sender, message, now_ms)
            return
        if message.view != catchup.view or sender != catchup.source or catchup.donor is not None:
            return
        skip = catchup.last + 1 - message.first
        if skip < 0 or (message.entries and skip >= len(message.entries)):
            return
        catchup.entries.extend(message.entries[skip:])
        catchup.entries_bytes += sum(map(entry_bytes, message.entries[skip:]))
        catchup.commit = max(catchup.commit, message.commit)
        catchup.tries = 0
        if catchup.last >= catchup.target:
            self._finish_catchup(catchup, now_ms)
        elif message.entries:
            self._ask(catchup, now_ms)

    def _take_entries(self, sender: int, message: m.Entries, now_ms: int) -> None:
        """A follower's own view: its log is a prefix of the leader's, so it just grows."""
        log = self.log
        skip = log.last + 1 - message.first
        if skip < 0 or skip >= len(message.entries):
            return
        log.extend(message.entries[skip:])
        self.commit = max(self.commit, min(message.commit, log.last))
        self._leader_heard = now_ms
        self._acknowledge(sender, NEVER, now_ms)
        if log.last < message.last:
            self._fetched_ms = NEVER
            self._fetch_missing(now_ms)

    def _on_truncated(self, sender: int, message: m.Truncated, now_ms: int) -> None:
        catchup = self._catchup
        if catchup is None:
            if self.status is not Status.NORMAL or message.view != self.view:
                return
            last = self.log.last
            catchup = Catchup(Purpose.LAG, self.view, sender, last, last + 1)
            self._catchup = catchup
        elif message.view != catchup.view or sender != catchup.source or catchup.donor is not None:
            return
        if message.floor <= catchup.last:
            return
        if catchup.purpose is Purpose.LEAD:
            # Somebody has the log: let a voter lead that need not copy the whole state.
            self._give_view_up(now_ms)
            return
        if catchup.machine is not None:
            # The snapshot that was complete is too old by now: without it there is only
            # what this voter had itself, and nothing to put late entries behind.
            catchup.kept, catchup.entries, catchup.entries_bytes = catchup.own, [], 0
        catchup.donor, catchup.floor = message.donor, message.floor
        catchup.machine, catchup.index, catchup.tries = self._new_machine(), 0, 0
        catchup.nonce = self._random.getrandbits(63)
        self._ask(catchup, now_ms)

    def _on_snapshot_chunk(self, sender: int, message: m.SnapshotChunk, now_ms: int) -> None:
        catchup = self._catchup
        if (
            catchup is None
            or sender != catchup.donor
            or (message.nonce, message.index) != (catchup.nonce, catchup.index)
        ):
            return
        # What was committed in our view or before is in our view's log; what was
        # committed in a later one need not be.
        if message.index == 0:
            catchup.snapshot_op = message.op
        if (
            message.view > catchup.view
            or message.op < catchup.floor
            or message.op != catchup.snapshot_op  # a late repeat began it anew
        ):
            self._give_up_donor(catchup)
            return
        assert catchup.machine is not None
        if message.last:
            catchup.donor = None
            catchup.own = catchup.kept
            catchup.kept, catchup.entries, catchup.entries_bytes = message.op, [], 0
            catchup.base_time_ms = message.time_ms
            catchup.base_elapsed_ms = message.elapsed_ms
            catchup.commit = max(catchup.commit, message.op)
            if catchup.last >= catchup.target:
                self._finish_catchup(catchup, now_ms)
                return
        else:
            catchup.machine.restore(message.data)
            catchup.index += 1
        catchup.tries = 0
        self._ask(catchup, now_ms)

    def _on_snapshot_gone(self, sender: int, message: m.SnapshotGone, now_ms: int) -> None:
        catchup = self._catchup
        if catchup is not None and sender == catchup.donor and message.nonce == catchup.nonce:
            self._give_up_donor(catchup)

    def _install(self, catchup: Catchup) -> None:
        """Puts what was staged in place of this voter's own, in one step."""
        log = self.log
        if catchup.machine is not None:
            if catchup.kept <= self.applied:
                catchup.entries = catchup.entries[self.applied - catchup.kept :]
                log.cut_after(self.applied)
            else:
                self._outgoing.clear()
                self._frozen = False
                self.machine = catchup.machine
                log.reset(
                    catchup.kept,
                    time_ms=catchup.base_time_ms,
                    elapsed_ms=catchup.base_elapsed_ms,
                )
                self.applied = catchup.kept
                self._out.append(Restored(self.applied))
        else:
            assert catchup.kept >= self.commit
            log.cut_after(catchup.kept)
        log.extend(catchup.entries)
        self.commit = max(self.commit, self.applied, min(catchup.commit, log.last))

    def _finish_catchup(self, catchup: Catchup, now_ms: int) -> None:
        self._catchup = None
        if catchup.purpose is Purpose.LAG:
            # It went on following meanwhile, so its log may have grown.
            if catchup.last > self.log.last:
                if catchup.machine is not None:
                    self._install(catchup)
                else:
                    self.log.extend(catchup.entries[self.log.last - catchup.kept :])
            self._fetch_missing(now_ms)
            return
        self._install(catchup)
        if catchup.purpose is Purpose.LEAD:
            self._begin_view(now_ms)
        else:
            self._enter_view(catchup.view, now_ms)

    # -- giving ------------------------------------------------------------------

    def _on_fetch(self, sender: int, message: m.Fetch, now_ms: int) -> None:
        """Answered by the leader of a view, and by any voter whose log a new leader
        chose: that is frozen as long as the voter stays in that view change."""
        if message.view != self.view or not (self.leads or self.status is Status.VIEW_CHANGE):
            return
        assert self.cluster_id is not None
        head = (self.cluster_id, self.vector, self.view)
        log = self.log
        if message.first <= log.base:
            donor = self._pick_donor(sender, message.attempt, now_ms)
            self._send(sender, m.Truncated(*head, log.base, donor))
            return
        entries = log.since(message.first, bytes_max=self.limits.batch_bytes_max)
        self._send(sender, m.Entries(*head, message.first, entries, log.last, self.commit))

    def _pick_donor(self, asker: int, attempt: int, now_ms: int) -> int:
        """Followers first: a leader that gives its state away answers nobody meanwhile."""
        silent = now_ms - self.timing.failure_timeout_ms
        donors = [
            other
            for other in self.others
            if other != asker
            and self._heard[other] > silent
            and self._match[other] >= self.log.base
        ]
        donors.append(self.slot)
        return donors[attempt % len(donors)]

    def _on_get_snapshot(self, sender: int, message: m.GetSnapshot, now_ms: int) -> None:
        if self.status not in OPERATIONAL:
            return
        outgoing = self._outgoing.get(sender)
        if message.index == 0 and (outgoing is None or outgoing.nonce != message.nonce):
            outgoing = self._begin_outgoing(sender, message.nonce, now_ms)
        assert self.cluster_id is not None
        if (
            outgoing is None
            or outgoing.nonce != message.nonce
            or not outgoing.index <= message.index <= outgoing.index + 1
        ):
            self._send(sender, m.SnapshotGone(self.cluster_id, self.vector, message.nonce))
            return
        outgoing.used_ms = now_ms
        if message.index > outgoing.index and not outgoing.done:
            data = next(outgoing.chunks, None)
            outgoing.index, outgoing.data = message.index, data or b""
            outgoing.done = data is None
            self._update_frozen()
        self._send(
            sender,
            m.SnapshotChunk(
                self.cluster_id,
                self.vector,
                outgoing.nonce,
                outgoing.index,
                outgoing.view,
                outgoing.op,
                outgoing.time_ms,
                outgoing.elapsed_ms,
                outgoing.data,
                outgoing.done,
            ),
        )

    def _begin_outgoing(self, sender: int, nonce: int, now_ms: int) -> OutgoingSnapshot:
        time_ms, elapsed_ms = self.log.clocks_at(self.applied)
        outgoing = OutgoingSnapshot(
            nonce, self.last_normal, self.applied, time_ms, elapsed_ms, self.machine.snapshot(),
            -1, b"", False, now_ms,
        )  # fmt: skip
        self._outgoing[sender] = outgoing
        self._frozen = True
        return outgoing

    def _stop_giving(self) -> None:
        self._outgoing.clear()
        self._frozen = False

    def _update_frozen(self) -> None:
        self._frozen = any(not outgoing.done for outgoing in self._outgoing.values())

    def _tick_outgoing(self, now_ms: int) -> None:
        if self._lags_too_much():
            self._stop_giving()
            return
        old = now_ms - self.timing.failure_timeout_ms
        for slot in [slot for slot, outgoing in self._outgoing.items() if outgoing.used_ms < old]:
            del self._outgoing[slot]
        self._update_frozen()

    def _lags_too_much(self) -> bool:
        """Whether it has left more unapplied than its log may hold."""
        limits = self.limits
        bytes_max = 2 * limits.log_bytes_max
        return self.commit - self.applied > limits.backlog_entries_max or (
            self.log.bytes > bytes_max and self.log.bytes_after(self.applied) > bytes_max
        )

    # -- other parts -------------------------------------------------------------

    def _begin_view(self, now_ms: int) -> None:
        raise NotImplementedError

    def _enter_view(self, view: int, now_ms: int) -> None:
        raise NotImplementedError

    def _give_view_up(self, now_ms: int) -> None:
        raise NotImplementedError
