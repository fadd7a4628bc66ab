"""The protocol, broken on purpose: the simulator must notice each of these."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from diskless.agent.leading.backlog import Backlog
from diskless.namespace import btree, forest, marked, past, swaps
from diskless.namespace.doomed import Doomed
from diskless.namespace.leases import Leases
from diskless.namespace.plans import Plans
from diskless.namespace.replication import Effect, Status, VoterMachine, machine
from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import NO_LIFE
from diskless.namespace.replication.pace import BETTER_BEATS
from diskless.namespace.replication.staging import NEVER, Catchup, Purpose
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Tier
from tests.sim import sharing
from tests.sim.sharing import Part


class NoCrashVector(VoterMachine):
    """Counts messages of lives that are over, as Viewstamped Replication Revisited does."""

    def _join(self, sender: int, message: m.Message) -> bool:
        self.vector = tuple(map(max, self.vector, message.vector))
        return True

    def _tell(self, now_ms: int) -> None:
        if not self._outnumbered:
            super()._tell(now_ms)


class NoRecoveryQuorum(VoterMachine):
    """Believes the first leader that answers."""

    def _consider_answers(self, now_ms: int) -> None:
        for slot, answer in self._answers.items():
            if isinstance(answer, m.RecoveryReply) and answer.leads:
                catchup = Catchup(Purpose.RECOVER, answer.view, slot, 0, answer.op)
                self._begin_catchup(catchup, now_ms)
                return

    def _on_hello_reply(self, sender: int, message: m.HelloReply, now_ms: int) -> None:
        if self.status is Status.RECOVERING and self._life == NO_LIFE:
            self._number_life(now_ms)


class DuplicateVotes(VoterMachine):
    """Counts acknowledgements, not those who gave them."""

    _acks: dict[int, int]

    def _begin_view(self, now_ms: int) -> None:
        self._acks = {}
        super()._begin_view(now_ms)

    def _on_prepare_ok(self, sender: int, message: m.PrepareOk, now_ms: int) -> None:
        super()._on_prepare_ok(sender, message, now_ms)
        if message.view == self.view and self.leads and message.op > self.commit:
            self._acks[message.op] = self._acks.get(message.op, 1) + 1
            self._advance_commit(now_ms)

    def _quorum_op(self) -> int:
        counted = [op for op, acks in self._acks.items() if acks >= self.quorum]
        return max([super()._quorum_op(), *counted])


class NoLease(VoterMachine):
    """Serves reads whenever it believes that it leads."""

    def read_allowed(self, now_ms: int, *, wall_ms: int) -> bool:
        return self.leads and self.applied >= self._start_op


class KeptPromise(VoterMachine):
    """A leader counts on what a former life promised, until that would have run out."""

    def _forget_votes(self, slot: int) -> None:
        lease_until, echo = self._lease_until, self._echo[slot]
        super()._forget_votes(slot)
        self._lease_until, self._echo[slot] = lease_until, echo


class CountedPause(VoterMachine):
    """Takes its monotonic clock's word for how long it stood still."""

    def _watch_clocks(self, now_ms: int, wall_ms: int) -> None:
        self._wall_ms = wall_ms


class NoPromise(VoterMachine):
    """A voter joins view changes although it has just answered a heartbeat."""

    def _acknowledge(self, leader: int, sent_ms: int, now_ms: int) -> None:
        super()._acknowledge(leader, sent_ms, now_ms)
        self._promise_until = NEVER


class EarlyReads(VoterMachine):
    """A new leader reads before it has applied what its predecessor may have answered."""

    def read_allowed(self, now_ms: int, *, wall_ms: int) -> bool:
        start, self._start_op = self._start_op, 0
        allowed = super().read_allowed(now_ms, wall_ms=wall_ms)
        self._start_op = start
        return allowed


class LongestLog(VoterMachine):
    """A new leader takes the longest log, of whatever view."""

    def _choose(self, votes: list[tuple[int, m.DoViewChange]]) -> tuple[int, m.DoViewChange]:
        return max(votes, key=lambda vote: (vote[1].op, vote[0] == self.slot))


class SmallQuorum(VoterMachine):
    """Commits with one voter less than a quorum."""

    def _quorum_op(self) -> int:
        return sorted(self._match)[self.voters - self.quorum + 1]


class SentIsAnswered(VoterMachine):
    """Counts a voter as soon as it was told."""

    def _send_round(self, now_ms: int) -> None:
        super()._send_round(now_ms)
        self._match[self.others[0]] = self.log.last


class EagerEntry(VoterMachine):
    """Enters a view before it has the log that the view began with."""

    def _begin_catchup(self, catchup: Catchup, now_ms: int) -> None:
        if catchup.purpose is Purpose.FOLLOW:
            catchup.target = catchup.kept
        super()._begin_catchup(catchup, now_ms)


class EmptyRecovery(VoterMachine):
    """A restarted voter votes with the view it learnt, but without its log."""

    def _begin_catchup(self, catchup: Catchup, now_ms: int) -> None:
        if catchup.purpose is Purpose.RECOVER:
            catchup.target = 0
        super()._begin_catchup(catchup, now_ms)


class ThawedSnapshot(VoterMachine):
    """Goes on applying while its state is being copied."""

    def _begin_outgoing(self, sender: int, nonce: int, now_ms: int):  # type: ignore[no-untyped-def]
        outgoing = super()._begin_outgoing(sender, nonce, now_ms)
        self._frozen = False
        return outgoing

    def _update_frozen(self) -> None:
        self._frozen = False


class KeptVotes(VoterMachine):
    """Ignores what a former life says, but not what it said."""

    def _forget_votes(self, slot: int) -> None:
        pass


class SameLife(VoterMachine):
    """A restarted voter goes on as what it was."""

    def _number_life(self, now_ms: int) -> None:
        self._life = self.vector[self.slot]
        self._restart_recovery(now_ms)


class AnyNonce(VoterMachine):
    """Tells lives by their numbers alone: a second process may take the same one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.nonce = 0


class MereRefusal(VoterMachine):
    """The first process that takes a number has it; another one is refused, and waits."""

    def _join(self, sender: int, message: m.Message) -> bool:
        mine, theirs = self.vector[sender], message.vector[sender]
        if type(message) is m.Recovery and mine[0] == theirs[0] and mine != theirs:
            return False
        accepted = super()._join(sender, message)
        if self._life[0] == self.vector[self.slot][0]:
            vector = list(self.vector)
            vector[self.slot] = self._life
            self.vector = tuple(vector)
        return accepted


class LeadersWallTime(VoterMachine):
    """Stamps commands with the leader's clock alone."""

    def _send_round(self, now_ms: int) -> None:
        for slot in range(self.voters):
            self._wall.heard(slot, self._wall_ms, now_ms)
        super()._send_round(now_ms)


class WallDurations(VoterMachine):
    """Measures waits by wall time."""

    _born_ms: int | None = None

    def tick(self, now_ms: int, *, wall_ms: int) -> list[Effect]:
        if self._born_ms is None:
            self._born_ms = wall_ms
        if self.leads:
            self._elapsed.hear(wall_ms - self._born_ms)
        return super().tick(now_ms, wall_ms=wall_ms)


class AnewWithEachView(VoterMachine):
    """A new leader counts from the last entry on: whatever waits begins to wait anew."""

    def _begin_view(self, now_ms: int) -> None:
        self._elapsed.ms = 0
        super()._begin_view(now_ms)


class LeaseFromReceipt(VoterMachine):
    """Counts the lease from when the answer came, not from when the question left."""

    def _on_prepare_ok(self, sender: int, message: m.PrepareOk, now_ms: int) -> None:
        super()._on_prepare_ok(sender, message, now_ms)
        if message.view == self.view and self.leads:
            self._echo[sender] = now_ms


class SlowForever(VoterMachine):
    """A leader that is slow goes on leading."""

    def _compare(self, trip_ms: int, now_ms: int) -> None:
        pass


class AtFirstSight(VoterMachine):
    """Hands over as soon as one measurement speaks for it."""

    def _compare(self, trip_ms: int, now_ms: int) -> None:
        self._better_beats = BETTER_BEATS
        super()._compare(trip_ms, now_ms)


class NoPause(VoterMachine):
    """Hands over again as soon as that seems good."""

    def _pause_ms(self, handovers: int) -> int:
        return 0


class OwnPause(VoterMachine):
    """Knows only of its own hand-overs."""

    def _note_handover(self, number: int, view: int, now_ms: int) -> None:
        if self.leads:
            super()._note_handover(number, view, now_ms)


class AnyHeir(VoterMachine):
    """A leader that is about to end hands over to one that is, too."""

    def _leave_for_another(self, unfit: Collection[int], now_ms: int) -> int | None:
        return super()._leave_for_another((), now_ms)


class LeadsOn(VoterMachine):
    """Says that it has left, and goes on until it hears of the next leader."""

    def _leave_for_another(self, unfit: Collection[int], now_ms: int) -> int | None:
        view = self.view
        heir = super()._leave_for_another(unfit, now_ms)
        if heir is not None:
            self.view = view
            self._set_status(Status.NORMAL)
        return heir


@dataclass(frozen=True)
class Mutant:
    """`seeds` of `story` (None: any schedules) hold one that catches it, early on now and
    with room for changes that shift the dice."""

    replica: type[VoterMachine]
    seeds: range
    story: str | None = None
    ignore_sessions: bool = False
    part: Part | None = None
    """Of the namespace, if that is what is broken."""
    says: str = ""
    """What the violation must be, where there are several kinds: a pattern."""


ANOTHER_STATE = "that is another state"
OTHER_ANSWER = r"read of .*, not |op \d+\.\d+ .*, not |end with other paths"
TOO_EARLY = "before change .* was durable"

MUTANTS = {
    "no-crash-vector": Mutant(NoCrashVector, range(200), "amnesia"),
    "kept-votes": Mutant(KeptVotes, range(200), "third vote"),
    "same-life": Mutant(SameLife, range(200), "amnesia"),
    "no-recovery-quorum": Mutant(NoRecoveryQuorum, range(200), "stale leader"),
    "empty-recovery": Mutant(EmptyRecovery, range(300)),
    "duplicate-votes": Mutant(DuplicateVotes, range(200), "minority"),
    "small-quorum": Mutant(SmallQuorum, range(200), "minority"),
    "sent-is-answered": Mutant(SentIsAnswered, range(20)),
    "no-lease": Mutant(NoLease, range(200), "minority"),
    "no-promise": Mutant(NoPromise, range(200), "hasty"),
    "kept-promise": Mutant(KeptPromise, range(500), "double promise"),
    "counted-pause": Mutant(CountedPause, range(200), "stopped"),
    "any-nonce": Mutant(AnyNonce, range(400), "two lives", says="applied at .* another"),
    "mere-refusal": Mutant(
        MereRefusal, range(200), "late life", says="no convergence .* recovering"
    ),
    "leaders-wall-time": Mutant(LeadersWallTime, range(200), says="wall time is .* ahead"),
    "wall-durations": Mutant(WallDurations, range(200), says="have elapsed after .* in truth"),
    "anew-with-each-view": Mutant(AnewWithEachView, range(200), says="elapsed in .* came and went"),
    "lease-from-receipt": Mutant(LeaseFromReceipt, range(500)),
    "early-reads": Mutant(EarlyReads, range(1140, 1940)),
    "longest-log": Mutant(LongestLog, range(300), "stale leader"),
    "eager-entry": Mutant(EagerEntry, range(1000), "rotate"),
    "thawed-snapshot": Mutant(ThawedSnapshot, range(100)),
    "slow-forever": Mutant(SlowForever, range(20), "slow leader"),
    "at-first-sight": Mutant(AtFirstSight, range(20), "slow leader"),
    "no-pause": Mutant(NoPause, range(50), "busy leader"),
    "own-pause": Mutant(OwnPause, range(50), "busy leader"),
    "any-heir": Mutant(AnyHeir, range(20), "announced end", says="one leads that stays"),
    "leads-on": Mutant(LeadsOn, range(50), "announced end", says="stale read"),
    "no-sessions": Mutant(VoterMachine, range(100), ignore_sessions=True, says=OTHER_ANSWER),
    "transfer-without-snapshots": Mutant(
        VoterMachine,
        range(100),
        part=Part(machine, "Restorer", sharing.ForgetsSnapshots),
        says=ANOTHER_STATE,
    ),
    "transfer-without-the-swept": Mutant(
        VoterMachine,
        range(200),
        part=Part(machine, "Restorer", sharing.ForgetsTheSwept),
        says=ANOTHER_STATE,
    ),
    "shared-twice": Mutant(
        VoterMachine,
        range(100),
        part=Part(forest, "Feller", sharing.SendsTwice),
        says=ANOTHER_STATE,
    ),
    "one-reference": Mutant(
        VoterMachine,
        range(100),
        part=Part(forest, "Planter", sharing.OneReference),
        says=ANOTHER_STATE,
    ),
    "write-in-place": Mutant(
        VoterMachine, range(50), part=Part(btree, "copy", sharing.write_in_place), says=OTHER_ANSWER
    ),
    "copy-uncounted": Mutant(
        VoterMachine, range(50), part=Part(btree, "copy", sharing.copy_uncounted)
    ),
    "snapshot-uncounted": Mutant(
        VoterMachine,
        range(50),
        part=Part(past, "create", sharing.create_uncounted),
        says=OTHER_ANSWER,
    ),
    "clone-uncounted": Mutant(
        VoterMachine, range(100), part=Part(past, "clone", sharing.clone_uncounted)
    ),
    "sweep-of-the-shared": Mutant(
        VoterMachine, range(50), part=Part(Doomed, "add", sharing.own_and_forget), says=OTHER_ANSWER
    ),
    "transfer-without-places": Mutant(
        VoterMachine,
        range(300),
        part=Part(machine, "Restorer", sharing.ForgetsPlaces),
        says=ANOTHER_STATE,
    ),
    "transfer-without-what-a-mark-holds": Mutant(
        VoterMachine,
        range(240, 1240),
        part=Part(machine, "Restorer", sharing.ForgetsWhatAMarkHolds),
        says=ANOTHER_STATE,
    ),
    "mark-uncounted": Mutant(
        VoterMachine, range(100), part=Part(marked, "mark", sharing.mark_uncounted)
    ),
    "repeats-written-down": Mutant(
        VoterMachine,
        range(100),
        part=Part(NamespaceState, "_once", sharing.note_repeats),
        says=r"Horizon\(|other policies",  # there is a change that the model does not know
    ),
    "transfer-without-leases": Mutant(
        VoterMachine,
        range(300),
        part=Part(machine, "Restorer", sharing.ForgetsLeases),
        says=ANOTHER_STATE,
    ),
    "two-writers": Mutant(
        VoterMachine,
        range(100),
        part=Part(Leases, "check", sharing.let_everybody_write),
        says="not .*CheckpointInUse",
    ),
    "nobody-barred": Mutant(
        VoterMachine,
        range(300),
        part=Part(Leases, "bar", sharing.bar_nobody),
        says="other leases|not .*CheckpointInUse",
    ),
    "transfer-without-plans": Mutant(
        VoterMachine,
        range(300),
        part=Part(machine, "Restorer", sharing.ForgetsPlans),
        says=ANOTHER_STATE,
    ),
    "state-before-its-plan": Mutant(
        VoterMachine,
        range(200),
        part=Part(Plans, "_outside", sharing.wait_for_no_plan),
        says=f"was acknowledged {TOO_EARLY}",
    ),
    "opened-before-it-is-durable": Mutant(
        VoterMachine,
        range(100),
        part=Part(Backlog, "_before_opening", sharing.open_at_once),
        says=f"was opened .*{TOO_EARLY}",
    ),
    "evicted-beyond-the-horizon": Mutant(
        VoterMachine,
        range(85, 285),
        part=Part(Tier, "is_safe", sharing.evict_beyond),
        says="none in the tier",
    ),
    "replaced-whatever-was-written": Mutant(
        VoterMachine,
        range(100),
        part=Part(swaps, "_check", sharing.swap_whatever),
        says=OTHER_ANSWER,
    ),
}
