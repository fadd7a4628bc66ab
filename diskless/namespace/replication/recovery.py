"""Recovery: a voter that lost its memory gets its place back from a quorum.

First it learns from a quorum which life it lived last, and numbers this one after it.
Then it makes a quorum remember the new number, and learns from the same answers
which view is the latest that any of them took part in. It votes again only when it
has the log of that view's leader: then it knows everything that any message of its
former lives may have helped to decide, or every quorum that such a message could
complete contains a voter that knows of the new life and so excludes the message.
"""

from diskless.model import slot_name
from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import NONCE_BITS, OPERATIONAL, Status
from diskless.namespace.replication.staging import NEVER, Catchup, Purpose
from diskless.namespace.replication.views import Views


class Recovering(Views):
    _nonce = 0
    _life = 0  # the number of this life, or 0 while it has none
    _told_ms = NEVER
    _recover_since = NEVER

    def _begin_recovery(self, now_ms: int) -> None:
        self._boot_until = now_ms + self._promise_ms
        self._set_status(Status.RECOVERING)
        self._restart_recovery(now_ms)

    def _restart_recovery(self, now_ms: int) -> None:
        self._answers.clear()
        self._catchup = None
        self._nonce = self._random.getrandbits(NONCE_BITS)
        self._recover_since = now_ms
        self._tell(now_ms)

    def _tell(self, now_ms: int) -> None:
        self._told_ms = now_ms
        assert self.cluster_id is not None
        kind = m.Recovery if self._life else m.Hello
        self._broadcast(kind(self.cluster_id, self.vector, self._nonce))

    # -- answering ---------------------------------------------------------------

    def _on_hello(self, sender: int, message: m.Hello, now_ms: int) -> None:
        self._down.add(sender)
        if self.status in OPERATIONAL:
            assert self.cluster_id is not None
            self._send(sender, m.HelloReply(self.cluster_id, self.vector, message.nonce))

    def _on_recovery(self, sender: int, message: m.Recovery, now_ms: int) -> None:
        self._down.add(sender)
        if self.status in OPERATIONAL:
            assert self.cluster_id is not None
            self._send(
                sender,
                m.RecoveryReply(
                    self.cluster_id,
                    self.vector,
                    message.nonce,
                    self.view,
                    self.leads,
                    self.log.last,
                ),
            )

    # -- asking ------------------------------------------------------------------

    def _on_hello_reply(self, sender: int, message: m.HelloReply, now_ms: int) -> None:
        if not self._expects(message.nonce) or self._life:
            return
        self._answers[sender] = message
        if len(self._answers) >= self.quorum:
            self._number_life(now_ms)

    def _number_life(self, now_ms: int) -> None:
        self._life = self.vector[self.slot] + 1
        vector = list(self.vector)
        vector[self.slot] = self._life
        self.vector = tuple(vector)
        self._restart_recovery(now_ms)

    def _on_recovery_reply(self, sender: int, message: m.RecoveryReply, now_ms: int) -> None:
        if not self._expects(message.nonce) or self._catchup is not None:
            return
        if self._outnumbered:
            self._number_life(now_ms)
            return
        if message.vector[self.slot] != self._life:
            return
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

    def _expects(self, nonce: int) -> bool:
        return self.status is Status.RECOVERING and nonce == self._nonce

    # -- time --------------------------------------------------------------------

    def _tick_recovery(self, now_ms: int) -> None:
        if self._outnumbered:
            self._number_life(now_ms)
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
        """Somebody knows a higher number, of a life that never finished its recovery."""
        return 0 < self._life < self.vector[self.slot]

    def _enter_view(self, view: int, now_ms: int) -> None:
        if self._outnumbered:
            self._number_life(now_ms)
        else:
            super()._enter_view(view, now_ms)

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
