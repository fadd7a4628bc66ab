"""View changes: leaving a leader, and beginning the next view without losing anything.

StartViewChange is a wish and binds nobody. A voter *joins* a view change once a quorum
wishes it and its own promise to the old leader has run out; from then on it takes part
in no earlier view, and tells the new leader so by DoViewChange. With a quorum of
those the new leader takes the log of the latest view among them, the longest of these.
A voter enters the new view only when it has all of the log that the view begins with.
"""

from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import NO_LIFE, OPERATIONAL, Status
from diskless.namespace.replication.staging import NEVER, Catchup, Purpose
from diskless.namespace.replication.transfer import Transfer


class Views(Transfer):
    _base_view = 0  # whose log this view began with
    _progress_ms = NEVER
    _wished_ms = NEVER
    _asked_view_ms = NEVER
    _leader_life = NO_LIFE

    # -- wishing -----------------------------------------------------------------

    def _suspect_leader(self, now_ms: int) -> None:
        """Wishes for the next view whose leader is not known to be down."""
        view = self.view + 1
        for candidate in range(view, view + self.voters):
            if self.leader_of(candidate) not in self._down:
                view = candidate
                break
        self._wanted = max(self._wanted, view)
        self._wish(now_ms)
        self._consider_joining(now_ms)

    def _wish(self, now_ms: int) -> None:
        self._wished_ms = now_ms
        assert self.cluster_id is not None
        self._broadcast(
            m.StartViewChange(
                self.cluster_id,
                self.vector,
                self.view,
                self._wanted,
                self._handover_to(self._wanted),
            )
        )

    def _on_start_view_change(self, sender: int, message: m.StartViewChange, now_ms: int) -> None:
        if self.status not in OPERATIONAL:
            return
        self._note_wish(sender, message.wanted, now_ms)
        led = sender == self.leader_of(self.view)
        if message.view > self.view:
            self._stranded.setdefault(sender, now_ms)
            if led:
                # The leader itself has left this view: it serves no more reads in it.
                self._promise_until = NEVER
                self._share_wish(message.wanted, now_ms)
        elif led and message.view == self.view and self.status is Status.VIEW_CHANGE:
            self._share_wish(message.wanted, now_ms)
        self._consider_joining(now_ms)

    def _share_wish(self, wanted: int, now_ms: int) -> None:
        if wanted > max(self._wanted, self.view):
            self._wanted = wanted
            self._wish(now_ms)

    def _note_wish(self, sender: int, wanted: int, now_ms: int) -> None:
        self._wants[sender] = (max(wanted, self._wants[sender][0]), now_ms)

    def _consider_joining(self, now_ms: int) -> None:
        """Joins the latest view that a quorum wishes, unless a promise forbids it yet."""
        if now_ms < self._promise_until and not self.leads:
            return
        fresh = now_ms - self.timing.failure_timeout_ms
        wishes = [wanted if at > fresh else 0 for wanted, at in self._wants]
        wishes[self.slot] = max(self._wanted, self.view)
        view = sorted(wishes)[self.voters - self.quorum]
        if view > self.view:
            self._join_view_change(view, now_ms)

    def _handover_to(self, view: int) -> int:
        raise NotImplementedError

    # -- joining -----------------------------------------------------------------

    def _join_view_change(self, view: int, now_ms: int) -> None:
        assert view > self.view
        self.view = view
        self._wanted = max(self._wanted, view)
        self._catchup = None
        self._stranded.clear()
        self._progress_ms = now_ms
        self._set_status(Status.VIEW_CHANGE)
        self._wish(now_ms)
        self._vote(now_ms)

    def _vote(self, now_ms: int) -> None:
        assert self.cluster_id is not None
        self._elapsed.hear(self.log.last_elapsed_ms)
        vote = m.DoViewChange(
            self.cluster_id,
            self.vector,
            self.view,
            self.last_normal,
            self.log.last,
            self.commit,
            self._elapsed.ms,
            self._wall_ms,
        )
        leader = self.leader_of(self.view)
        if leader == self.slot:
            self._take_vote(self.slot, vote, now_ms)
            self._count_votes(now_ms)
        else:
            self._send(leader, vote)

    def _on_do_view_change(self, sender: int, message: m.DoViewChange, now_ms: int) -> None:
        if self.status not in OPERATIONAL or message.view < self.view:
            return
        if message.view == self.view and self.status is Status.NORMAL:
            self._send_start_view(sender, now_ms)
            return
        known = self._changes.get(sender)
        if known is None or known.view <= message.view:
            self._take_vote(sender, message, now_ms)
        self._note_wish(sender, message.view, now_ms)
        self._consider_joining(now_ms)
        self._count_votes(now_ms)

    def _take_vote(self, slot: int, vote: m.DoViewChange, now_ms: int) -> None:
        """With the time that it tells: the new leader begins with a quorum of clocks."""
        self._changes[slot] = vote
        self._wall.heard(slot, vote.wall_ms, now_ms)
        self._elapsed.hear(vote.elapsed_ms)

    def _votes(self) -> list[tuple[int, m.DoViewChange]]:
        return [(slot, vote) for slot, vote in self._changes.items() if vote.view == self.view]

    def _count_votes(self, now_ms: int) -> None:
        """Leader of the new view: with a quorum of votes, gets the log and begins."""
        if (
            self.status is not Status.VIEW_CHANGE
            or self._catchup is not None
            or self.leader_of(self.view) != self.slot
        ):
            return
        votes = self._votes()
        if len(votes) < self.quorum:
            return
        best_slot, best = self._choose(votes)
        self._base_view = best.last_normal
        commit = max(vote.commit for _, vote in votes)
        if best_slot == self.slot:
            self.commit = max(self.commit, min(commit, self.log.last))
            self._begin_view(now_ms)
            return
        kept = self._common(best.last_normal, best.op)
        catchup = Catchup(Purpose.LEAD, self.view, best_slot, kept, best.op, commit=commit)
        self._begin_catchup(catchup, now_ms)

    def _choose(self, votes: list[tuple[int, m.DoViewChange]]) -> tuple[int, m.DoViewChange]:
        """The log of the latest view, the longest of these; our own if it is as good."""
        return max(votes, key=lambda vote: (vote[1].last_normal, vote[1].op, vote[0] == self.slot))

    def _common(self, base_view: int, op: int) -> int:
        """How much of our log is surely also in the log of `base_view`, `op` long.

        The logs of voters that last worked in the same view are prefixes of one log.
        """
        return min(self.log.last, op) if self.last_normal == base_view else self.commit

    def _give_view_up(self, now_ms: int) -> None:
        """The leader of a view that cannot begin asks for the next one."""
        self._catchup = None
        self._suspect_leader(now_ms)

    # -- beginning ---------------------------------------------------------------

    def _begin_view(self, now_ms: int) -> None:
        self.last_normal = self.view
        self._start_op = self.log.last
        self._match = [0] * self.voters
        self._match[self.slot] = self.log.last
        self._echo = [NEVER] * self.voters
        self._lease_until = NEVER
        self._led_since = now_ms
        self._wall.latest_ms = max(self._wall.latest_ms, self.log.last_time_ms)
        self._elapsed.hear(self.log.last_elapsed_ms)
        self._elapsed.begin(now_ms)
        self._next_heartbeat = now_ms + self.timing.heartbeat_ms
        if self.applied < self._start_op:
            self._stop_giving()  # nobody is answered before all of that is applied
        self._settle(now_ms)
        for other in self.others:
            self._send_start_view(other, now_ms)
        if self.quorum == 1:
            self._advance_commit(now_ms)

    def _settle(self, now_ms: int) -> None:
        """Normal operation of `self.view` begins here."""
        self._wanted = 0
        self._changes.clear()
        self._stranded.clear()
        self._catchup = None
        self._leader_heard = now_ms
        self._leader_life = self.vector[self.leader_of(self.view)]
        self._set_status(Status.NORMAL)

    def _send_start_view(self, to: int, now_ms: int) -> None:
        if self.leads:
            assert self.cluster_id is not None
            self._send(
                to,
                m.StartView(
                    self.cluster_id,
                    self.vector,
                    self.view,
                    self._base_view,
                    self._start_op,
                    self.commit,
                    now_ms,
                ),
            )

    def _on_start_view(self, sender: int, message: m.StartView, now_ms: int) -> None:
        if self.status not in OPERATIONAL or message.view < self.view:
            return
        if message.view == self.view:
            if self.status is Status.NORMAL:
                self._acknowledge(sender, message.sent_ms, now_ms)  # it may be a founder's first
                return
            if self._catchup is not None:
                return
        else:
            # The view has begun without us, so a quorum has left the ones before it.
            self.view = message.view
            self._catchup = None
            self._stranded.clear()
            self._set_status(Status.VIEW_CHANGE)
        self._wanted = 0
        self._progress_ms = now_ms
        kept = self._common(message.base_view, message.op)
        catchup = Catchup(
            Purpose.FOLLOW, self.view, sender, kept, message.op, commit=message.commit
        )
        self._begin_catchup(catchup, now_ms)
        if self.status is Status.NORMAL:
            self._acknowledge(sender, message.sent_ms, now_ms)

    def _enter_view(self, view: int, now_ms: int) -> None:
        self.view = self.last_normal = view
        self._settle(now_ms)

    def _on_get_view(self, sender: int, message: m.GetView, now_ms: int) -> None:
        if message.view == self.view:
            self._send_start_view(sender, now_ms)

    def _heard_of_view(self, sender: int, view: int, now_ms: int) -> None:
        """A leader works in a view that we have not entered: asks it how that began."""
        if self.status not in OPERATIONAL or view < self.view:
            return
        self._progress_ms = now_ms
        if self._catchup is not None and self._catchup.view == view:
            return
        if now_ms - self._asked_view_ms >= self.timing.resend_ms // 4:
            self._asked_view_ms = now_ms
            assert self.cluster_id is not None
            self._send(sender, m.GetView(self.cluster_id, self.vector, view))

    # -- time --------------------------------------------------------------------

    def _tick_follower(self, now_ms: int) -> None:
        leader = self.leader_of(self.view)
        lost = self.vector[leader] != self._leader_life or leader in self._down
        if self._wanted or lost or now_ms - self._leader_heard > self._patience_ms:
            if now_ms - self._wished_ms >= self.timing.resend_ms or not self._wanted:
                self._suspect_leader(now_ms)
            else:
                self._consider_joining(now_ms)

    def _tick_leader(self, now_ms: int) -> None:
        if now_ms >= self._next_heartbeat:
            self._beat(now_ms)
        if self._pending:
            self._flush(now_ms)
        if self._stranded:
            since = min(self._stranded.values())
            if now_ms - since >= self.timing.retry_ms:
                # A voter cannot come back to this view: meet it in a later one.
                self._wanted = max(wanted for wanted, _ in self._wants)
                if self._wanted > self.view:
                    self._join_view_change(self._wanted, now_ms)
                self._stranded.clear()

    def _tick_view_change(self, now_ms: int) -> None:
        following = self._catchup is not None and self._catchup.purpose is Purpose.FOLLOW
        patience = self._patience_ms if following else self.timing.retry_ms
        stuck = now_ms - self._progress_ms > patience
        if stuck and self._wanted <= self.view:
            self._suspect_leader(now_ms)
        if now_ms - self._wished_ms >= self.timing.resend_ms:
            self._wanted = max(self._wanted, self.view)
            self._wish(now_ms)
            self._vote(now_ms)
        self._consider_joining(now_ms)

    @property
    def _patience_ms(self) -> int:
        return self.timing.failure_timeout_ms
