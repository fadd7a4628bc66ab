"""Recovery: a voter that lost its memory gets its place back from a quorum.

First it learns from a quorum which life its slot lived last, and numbers its own after it.
Then it makes a quorum remember the new life, and learns from the same answers which view
is the latest that any of them took part in. It votes again only when it has the log of
that view's leader: then it knows everything that any message of former lives may have
helped to decide, or every quorum that such a message could complete contains a voter
that knows of the new life and so excludes the message.

Another process of the slot may do the same at the same time, or may have died while it
did. Their lives differ by their nonces: one that is told of a later one than its own
begins again with the next number, after a pause that gives the other time to finish.
"""

from diskless.model import slot_name
from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import NO_LIFE, OPERATIONAL, Status
from diskless.namespace.replication.staging import NEVER, Catchup, Purpose
from diskless.namespace.replication.views import Views

YIELDS_MAX = 10
"""How often a process that is outnumbered doubles its pause: up to 50 s by default, for what
the other one has to copy may be large."""


class Recovering(Views):
    _life = NO_LIFE  # this process's own, once it has one
    _told_ms = NEVER
    _yields = 0
    _yield_until = NEVER  # while it is outnumbered

    def _begin_recovery(self, now_ms: int) -> None:
        self._set_status(Status.RECOVERING)
        self._restart_recovery(now_ms)

    def _restart_recovery(self, now_ms: int) -> None:
        self._answers.clear()
        self._catchup = None
        self._tell(now_ms)

    def _tell(self, now_ms: int) -> None:
        self._told_ms = now_ms
        assert self.cluster_id is not None
        if self._life == NO_LIFE:
            self._broadcast(m.Hello(self.cluster_id, self.vector, self.nonce))
        else:
            assert self.vector[self.slot] == self._life
            self._broadcast(m.Recovery(self.cluster_id, self.vector))

    # -- answering ---------------------------------------------------------------

    def _on_hello(self, sender: int, message: m.Hello, now_ms: int) -> None:
        self._down.add(sender)
        if self.status in OPERATIONAL:
            self._tell_lives(sender, message.nonce)

    def _on_recovery(self, sender: int, message: m.Recovery, now_ms: int) -> None:
        self._down.add(sender)
        if self.status in OPERATIONAL:
            assert self.cluster_id is not None
            self._send(
                sender,
                m.RecoveryReply(
                    self.cluster_id,
                    self.vector,
                    self.view,
                    self.leads,
                    self.log.last,
                ),
            )

    # -- asking ------------------------------------------------------------------

    def _on_hello_reply(self, sender: int, message: m.HelloReply, now_ms: int) -> None:
        if self.status is not Status.RECOVERING or message.nonce != self.nonce:
            return
        if self._life != NO_LIFE:
            return  # it told of a later one, which `_tick_recovery` sees
        self._answers[sender] = message
        if len(self._answers) >= self.quorum:
            self._number_life(now_ms)

    def _number_life(self, now_ms: int) -> None:
        number, _ = self.vector[self.slot]
        self._life = (number + 1, self.nonce)
        vector = list(self.vector)
        vector[self.slot] = self._life
        self.vector = tuple(vector)
        self._restart_recovery(now_ms)

    def _on_recovery_reply(self, sender: int, message: m.RecoveryReply, now_ms: int) -> None:
        if self.status is not Status.RECOVERING or self._catchup is not None:
            return
        if message.vector[self.slot] != self._life:
            return  # to another process of this slot, or to what this one was before
        known = self._answers.get(sender)
        if isinstance(known, m.RecoveryReply) and known.view > message.view:
            return
        self._answers[sender] = message
        self._consider_answers(now_ms)

    def _consider_answers(self, now_ms: int) -> None:
        answers = {
            slot: answer
            for slot, answer in self._answers.items()
            if isinstance(answer, m.RecoveryReply)
        }
        if len(answers) < self.quorum:
            return
        view = max(answer.view for answer in answers.values())
        leader = self.leader_of(view)
        answer = answers.get(leader)
        if answer is None or answer.view != view or not answer.leads:
            return  # that view has not begun, or its leader is silent: ask again later
        catchup = Catchup(Purpose.RECOVER, view, leader, 0, answer.op)
        self._begin_catchup(catchup, now_ms)

    # -- time --------------------------------------------------------------------

    def _tick_recovery(self, now_ms: int) -> None:
        if self._outnumbered:
            self._yield(now_ms)
            return
        catchup = self._catchup
        if catchup is not None:
            # Its leader no longer answers: the view may be over.
            silent = self._heard[catchup.source] <= now_ms - self.timing.failure_timeout_ms
            refused = catchup.donor is None and catchup.tries > self.voters
            if silent or refused or catchup.attempt > self.voters:
                self._restart_recovery(now_ms)
        elif now_ms - self._told_ms >= self.timing.resend_ms // 2:
            self._tell(now_ms)

    @property
    def _outnumbered(self) -> bool:
        """Somebody knows a later life of this slot: of a process that recovers too, has
        recovered, or died before it had."""
        return NO_LIFE < self._life < self.vector[self.slot]

    def _yield(self, now_ms: int) -> None:
        """Begins again with the next number, but not at once each time: two that always
        did would keep each other from ever finishing."""
        self._catchup = None
        if self._yield_until == NEVER:
            most_ms = self.timing.resend_ms << min(self._yields, YIELDS_MAX)
            self._yield_until = now_ms + self._random.randrange(most_ms) // 2
            self._yields += 1
        if now_ms >= self._yield_until:
            self._yield_until = NEVER
            self._number_life(now_ms)

    def _finish_catchup(self, catchup: Catchup, now_ms: int) -> None:
        if self._outnumbered and self.status is Status.RECOVERING:
            self._catchup = None
        else:
            super()._finish_catchup(catchup, now_ms)

    def _recovery_needs(self) -> str:
        heard = sorted(self._answers)
        missing = [slot_name(slot) for slot in self.others if slot not in self._answers]
        blank = [slot_name(slot) for slot in sorted(self._down)]
        line = (
            f"{slot_name(self.slot)} lost its memory and needs the namespace from "
            f"{self.quorum} of the other {self.voters - 1} voters: {len(heard)} answered; "
            f"no answer from {', '.join(missing)}"
        )
        return f"{line}; also without memory: {', '.join(blank)}" if blank else line
