"""The replication protocol, step by step: what goes in, what comes out.

The simulator (tests/sim) looks for what nobody thought of; here are the rules that
somebody did. A message takes one step of 1 ms unless its link is cut.
"""

import itertools
from collections.abc import Callable, Iterator
from random import Random

import msgspec
import pytest

from diskless.namespace.replication import (
    Effect,
    Limits,
    Rejected,
    RejectReason,
    Reply,
    Send,
    Status,
    Timing,
    VoterMachine,
)
from diskless.namespace.replication import messages as m

TIMING = Timing(failure_timeout_ms=1000, lease_ms=500, heartbeat_ms=100)


class Journal:
    """A state machine that remembers what it was told."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, bytes]] = []
        self.elapsed: list[int] = []

    def apply(self, op: int, time_ms: int, elapsed_ms: int, command: bytes) -> int:
        self.rows.append((op, time_ms, command))
        self.elapsed.append(elapsed_ms)
        return len(self.rows)

    def snapshot(self) -> Iterator[bytes]:
        for row in self.rows:
            yield msgspec.msgpack.encode(row)

    def restore(self, chunk: bytes) -> None:
        self.rows.append(msgspec.msgpack.decode(chunk, type=tuple[int, int, bytes]))


class Cluster:
    def __init__(self, voters: int, limits: Limits | None = None) -> None:
        self.now = 1000
        self.wall_ahead = [0] * voters  # of each voter's wall clock, before its monotonic one
        self.limits = limits
        self.voters: list[VoterMachine | None] = [
            self.blank(slot, voters) for slot in range(voters)
        ]
        self.cut: set[int] = set()
        self.effects: list[Effect] = []
        self.mail: list[tuple[int, int, m.Message]] = []
        for slot in range(voters):
            self.do(slot, self[slot].form("c", self.now))
        self.run(5)

    def blank(self, slot: int, voters: int) -> VoterMachine:
        return VoterMachine(
            slot=slot,
            voters=voters,
            machine=Journal,
            random=Random(slot * 100_000 + self.now),
            timing=TIMING,
            limits=self.limits,
        )

    def __getitem__(self, slot: int) -> VoterMachine:
        replica = self.voters[slot]
        assert replica is not None
        return replica

    def do(self, slot: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.mail.extend((slot, to, effect.message) for to in effect.to)
            else:
                self.effects.append(effect)

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms):
            self.now += 1
            mail, self.mail = self.mail, []
            for sender, to, message in mail:
                receiver = self.voters[to]
                if receiver is not None and not {sender, to} & self.cut:
                    self.do(to, self.receive(to, sender, message))
            if self.now % 10 == 0:
                for slot, replica in enumerate(self.voters):
                    if replica is not None:
                        self.do(slot, replica.tick(self.now, wall_ms=self.wall(slot)))

    def wall(self, slot: int) -> int:
        return self.now + self.wall_ahead[slot]

    def receive(self, slot: int, sender: int, message: m.Message) -> list[Effect]:
        return self[slot].receive(sender, message, self.now, wall_ms=self.wall(slot))

    def may_read(self, slot: int) -> bool:
        return self[slot].read_allowed(self.now, wall_ms=self.wall(slot))

    def elapsed(self) -> int:
        return self[self.leader()].elapsed_ms(self.now)

    def submit(self, slot: int, request: object, command: bytes = b"x") -> None:
        self.do(slot, self[slot].submit(request, command, self.now, wall_ms=self.wall(slot)))

    def kill(self, *slots: int) -> None:
        for slot in slots:
            self.voters[slot] = None

    def restart(self, *slots: int) -> None:
        for slot in slots:
            replica = self.voters[slot] = self.blank(slot, len(self.voters))
            self.do(slot, replica.recover("c", self.now))

    def leader(self) -> int:
        views = {r.view: r.slot for r in self.voters if r is not None and r.leads}
        return views[max(views)]

    def replied(self, request: object) -> bool:
        return any(isinstance(e, Reply) and e.request_id == request for e in self.effects)

    def rejections(self) -> dict[object, RejectReason]:
        return {e.request_id: e.reason for e in self.effects if isinstance(e, Rejected)}

    def rows(self, slot: int) -> list[tuple[int, int, bytes]]:
        machine = self[slot].machine
        assert isinstance(machine, Journal)
        return machine.rows


# -- rounds ----------------------------------------------------------------------


def test_a_lone_command_goes_out_at_once_and_is_answered_after_a_quorum() -> None:
    cluster = Cluster(5)
    (send,) = cluster[0].submit("a", b"x", cluster.now, wall_ms=7)
    assert isinstance(send, Send)
    assert isinstance(send.message, m.Prepare)
    assert send.to == (1, 2, 3, 4)
    acks = [cluster.receive(slot, 0, send.message)[0] for slot in (1, 2)]
    assert all(isinstance(ack, Send) for ack in acks)
    assert cluster.receive(0, 1, acks[0].message) == []
    assert cluster.receive(0, 1, acks[0].message) == [], "the same vote again"
    assert cluster.receive(0, 2, acks[1].message) == [Reply("a", 1, 1, (0, 1, 2))]


def test_commands_that_come_during_a_round_share_the_next() -> None:
    cluster = Cluster(3)
    for number in range(50):
        cluster.submit(0, number)
    cluster.run(10)
    assert all(cluster.replied(number) for number in range(50))
    assert cluster[0].log.last == 2


def test_full_batches_do_not_wait_but_rounds_in_flight_are_limited() -> None:
    limits = Limits(batch_bytes_max=1000, rounds_in_flight_max=3, gather_ms_max=10_000)
    cluster = Cluster(3, limits)
    cluster.cut = {1, 2}
    for number in range(40):
        cluster.submit(0, number, b"x" * 400)
    assert cluster[0].log.last == 3
    assert [len(cluster[0].log.get(op).commands) for op in (1, 2, 3)] == [1, 2, 2]
    cluster.submit(0, "large", b"x" * 5000)
    cluster.cut = set()
    cluster.run(300)
    assert cluster.replied("large")
    sizes: dict[int, int] = {}
    for op, _, command in cluster.rows(0):
        sizes[op] = sizes.get(op, 0) + len(command)
    assert sizes.pop(max(sizes)) == 5000, "a larger command goes alone"
    assert max(sizes.values()) <= 1000


def _hand(cluster: Cluster, command: bytes, slot: int) -> None:
    """Has a command committed by a follower, with no time passing."""
    effects = cluster[0].submit(object(), command, cluster.now, wall_ms=7)
    (send,) = [effect for effect in effects if isinstance(effect, Send)]
    (ack,) = cluster.receive(slot, 0, send.message)
    assert isinstance(ack, Send)
    cluster.receive(0, slot, ack.message)


def test_a_follower_gathers_small_commands_and_applies_a_bounded_number_at_once() -> None:
    cluster = Cluster(3, Limits(unapplied_entries_max=12))
    left = set()
    for _ in range(100):
        _hand(cluster, b"x", slot=1)
        assert cluster[0].applied == cluster[0].commit, "a leader answers from its state"
        left.add(cluster[1].commit - cluster[1].applied)
    assert 0 in left
    assert 4 <= max(left) < 12


def test_what_is_not_small_is_applied_at_once_and_so_is_what_waits_for_it() -> None:
    cluster = Cluster(3, Limits(unapplied_bytes_max=10))
    for command in (b"x", b"x", b"x" * 11):
        _hand(cluster, command, slot=1)
    assert (cluster[1].commit, cluster[1].applied) == (2, 2)


def test_what_a_follower_gathered_is_applied_by_the_next_tick_or_heartbeat() -> None:
    cluster = Cluster(3)
    for _ in range(3):
        _hand(cluster, b"x", slot=1)
    assert (cluster[1].commit, cluster[1].applied) == (2, 0)
    cluster[1].tick(cluster.now, wall_ms=7)
    assert cluster[1].applied == 2
    _hand(cluster, b"x", slot=1)
    (beat,) = [e.message for e in cluster[0].tick(cluster.now + 150, wall_ms=7) if type(e) is Send]
    cluster.receive(1, 0, beat)
    assert cluster[1].applied == cluster[1].commit == 4


def test_a_leader_has_applied_what_it_gathered_as_a_follower_before_it_serves() -> None:
    cluster = Cluster(3)
    for _ in range(5):
        _hand(cluster, b"x", slot=1)
    assert cluster[1].applied < cluster[1].commit
    cluster.kill(0)
    cluster.run(3000)
    assert cluster.leader() == 1
    assert cluster.may_read(1)
    assert [command for _, _, command in cluster.rows(1)] == [b"x"] * 5


def _run_rested(cluster: Cluster, duration_ms: int, tick_ms: int = 50) -> list[int]:
    """As `run`, with ticks only when they are due, or a heartbeat came; how many each had."""
    due, ticks = [0] * len(cluster.voters), [0] * len(cluster.voters)
    for _ in range(duration_ms):
        cluster.now += 1
        mail, cluster.mail = cluster.mail, []
        for sender, to, message in mail:
            if cluster.voters[to] is not None and not {sender, to} & cluster.cut:
                cluster.do(to, cluster.receive(to, sender, message))
                if not isinstance(message, m.Prepare | m.PrepareOk):
                    due[to] = 0
        for slot, replica in enumerate(cluster.voters):
            if replica is not None and cluster.now >= due[slot]:
                cluster.do(slot, replica.tick(cluster.now, wall_ms=cluster.wall(slot)))
                due[slot] = cluster.now + max(replica.rest_ms(cluster.now), tick_ms)
                ticks[slot] += 1
    return ticks


def test_voters_that_rest_have_one_tick_for_each_heartbeat() -> None:
    cluster = Cluster(5)
    ticks = _run_rested(cluster, 10_000)
    assert all(95 <= count <= 105 for count in ticks), ticks
    assert cluster.leader() == 0
    assert cluster.may_read(0)


@pytest.mark.parametrize("tick_ms", [5, 50])
def test_voters_that_rest_miss_their_leader_as_soon_as_those_that_tick(tick_ms: int) -> None:
    cluster = Cluster(5)
    _run_rested(cluster, 1030)
    cluster.kill(0)
    _run_rested(cluster, TIMING.failure_timeout_ms + 2 * tick_ms, tick_ms)
    assert all(cluster[slot].status is not Status.NORMAL or cluster[slot].view for slot in (1, 2))
    _run_rested(cluster, 500, tick_ms)
    assert cluster.may_read(cluster.leader())


def test_who_has_something_to_wait_for_does_not_rest() -> None:
    cluster = Cluster(3, Limits(gather_ms_max=10_000))
    assert cluster[0].rest_ms(cluster.now) > 50
    assert cluster[1].rest_ms(cluster.now) > 50
    cluster.cut = {1, 2}
    for number in range(3):
        cluster.submit(0, number)
    assert cluster[0].rest_ms(cluster.now) == 0, "commands wait for a round"
    cluster.do(1, cluster[1].suspect(0, cluster.now))
    assert cluster[1].rest_ms(cluster.now) == 0, "it wants another leader"
    assert cluster[2].rest_ms(cluster.now + 200) == 0, "its leader is late"


@pytest.mark.parametrize(
    ("slot", "sender", "message"),
    [
        (0, 2, lambda head: m.StartViewChange(*head, 1, 1)),
        (1, 2, lambda head: m.GetSnapshot(*head, 5, 0)),
        (1, 0, lambda head: m.Truncated(*head, 0, 5, 2)),
    ],
    ids=["a voter has left the view", "another copies its state", "it lacks a part of the log"],
)
def test_a_message_that_leaves_work_for_ticks_ends_the_rest(
    slot: int, sender: int, message: Callable[[tuple[str, tuple[m.Life, ...]]], m.Message]
) -> None:
    cluster = Cluster(3)
    voter = cluster[slot]
    assert voter.rest_ms(cluster.now) > 50
    assert not voter.is_due(cluster.now)
    cluster.receive(slot, sender, message(("c", voter.vector)))
    assert voter.status is Status.NORMAL
    assert voter.rest_ms(cluster.now) == 0
    assert voter.is_due(cluster.now)


def test_what_is_to_be_applied_lets_nobody_rest_anew_and_ends_no_rest() -> None:
    cluster = Cluster(3)
    for _ in range(2):
        _hand(cluster, b"x", slot=1)
    assert cluster[1].applied < cluster[1].commit
    assert cluster[1].rest_ms(cluster.now) == 0
    assert not cluster[1].is_due(cluster.now), "the next heartbeat applies it"


def test_a_leader_that_may_have_stood_still_is_due_at_once() -> None:
    """It has no lease before others have answered it."""
    cluster = Cluster(3)
    cluster.run(250)
    assert cluster.may_read(0)
    assert not cluster[0].is_due(cluster.now)
    cluster.wall_ahead[0] = 10_000
    assert not cluster.may_read(0)
    assert cluster[0].is_due(cluster.now)


def test_a_follower_names_the_leader() -> None:
    cluster = Cluster(3)
    assert cluster[2].submit("a", b"", cluster.now, wall_ms=0) == [
        Rejected("a", RejectReason.NOT_LEADER, 0)
    ]


def test_a_leader_that_steps_down_lets_its_clients_go() -> None:
    cluster = Cluster(3, Limits(gather_ms_max=10_000))
    cluster.cut = {0}
    cluster.submit(0, "logged")
    cluster.submit(0, "waiting")
    cluster.run(2000)
    cluster.cut = set()
    cluster.run(500)
    assert cluster.rejections() == {
        "logged": RejectReason.UNKNOWN,
        "waiting": RejectReason.NOT_LEADER,
    }


def test_too_many_waiting_commands_are_rejected() -> None:
    cluster = Cluster(3, Limits(pending_commands_max=2, gather_ms_max=10_000))
    cluster.cut = {1, 2}
    for number in range(5):
        cluster.submit(0, number)
    assert cluster.rejections() == dict.fromkeys((3, 4), RejectReason.OVERLOADED)


# -- time ------------------------------------------------------------------------

DAY_MS = 86_400_000


def stamps(cluster: Cluster, slot: int) -> list[int]:
    return [time_ms for _, time_ms, _ in cluster.rows(slot)]


@pytest.mark.parametrize("ahead", [DAY_MS, -DAY_MS])
@pytest.mark.parametrize("wrong", range(3))
def test_one_wrong_wall_clock_cannot_push_the_time_of_the_log(wrong: int, ahead: int) -> None:
    """Nor the leader's own, nor for one command, nor in the first moment of a view."""
    cluster = Cluster(3)
    cluster.run(250)
    for number in range(4):
        cluster.wall_ahead[wrong] = ahead if number % 2 else 0
        leader = cluster.leader()
        cluster.submit(leader, number)
        cluster.run(10)
        assert cluster.replied(number)
        cluster.run(250)
        if number == 1:
            cluster.kill(0)
            cluster.run(1500)
            cluster.restart(0)
            cluster.run(500)
    leader = cluster.leader()
    times = stamps(cluster, leader)
    assert times == sorted(times)
    assert max(times) <= cluster.now
    assert cluster.now - times[-1] < 500, "and it does not hold it back"


def test_nothing_is_logged_before_a_quorum_has_said_what_time_it_is() -> None:
    """A founder's own clock alone could be a day ahead."""
    cluster = Cluster(3)
    alone = cluster.blank(0, 3)
    alone.form("c", cluster.now)
    assert alone.submit("a", b"x", cluster.now, wall_ms=DAY_MS) == []
    ok = m.PrepareOk("c", alone.vector, 0, 0, cluster.now, cluster.now)
    alone.receive(1, ok, cluster.now + 1, wall_ms=DAY_MS + 1)
    (send,) = [
        effect
        for effect in alone.tick(cluster.now + 2, wall_ms=DAY_MS + 2)
        if isinstance(effect, Send) and isinstance(effect.message, m.Prepare)
    ]
    assert isinstance(send.message, m.Prepare)
    assert send.message.entry.time_ms <= cluster.now + 2


def test_time_in_the_log_never_goes_back() -> None:
    cluster = Cluster(3)
    cluster.wall_ahead = [9_000_000] * 3
    cluster.run(200)
    cluster.submit(0, "a")
    cluster.run(200)
    cluster.wall_ahead = [5] * 3
    cluster.kill(0)
    cluster.run(1500)
    leader = cluster.leader()
    cluster.submit(leader, "b")
    cluster.run(50)
    first, second = stamps(cluster, leader)
    assert first == second > 9_000_000


def test_time_elapses_whether_or_not_anything_is_logged() -> None:
    cluster = Cluster(3)
    cluster.run(300)
    before = cluster.elapsed()
    cluster.run(5000)
    assert cluster.elapsed() - before == 5000
    cluster.submit(0, "a")
    logged = cluster.elapsed()
    cluster.run(TIMING.heartbeat_ms)  # then it has applied it too
    machine = cluster[1].machine
    assert isinstance(machine, Journal)
    assert machine.elapsed == [logged]


@pytest.mark.parametrize("ahead", [DAY_MS, -DAY_MS])
def test_elapsed_time_does_not_know_the_wall_clocks(ahead: int) -> None:
    cluster = Cluster(3)
    cluster.run(300)
    before = cluster.elapsed()
    cluster.wall_ahead = [ahead] * 3
    cluster.submit(0, "a")
    cluster.run(1000)
    assert cluster.elapsed() - before == 1000


def test_a_new_leader_goes_on_with_the_elapsed_time_of_an_idle_one() -> None:
    cluster = Cluster(3)
    cluster.run(10_000)
    before = cluster.elapsed()
    cluster.kill(0)
    cluster.run(1500)
    assert 0 <= cluster.elapsed() - before <= 1500


def test_leaders_that_change_every_few_seconds_do_not_hold_elapsed_time_up() -> None:
    cluster = Cluster(3)
    cluster.run(300)
    before, began = cluster.elapsed(), cluster.now
    for _ in range(10):
        gone = cluster.leader()
        cluster.kill(gone)
        cluster.run(1500)
        cluster.restart(gone)
        cluster.run(1500)
    passed = cluster.now - began
    assert 0.5 * passed < cluster.elapsed() - before <= passed


def test_time_in_which_nobody_could_lead_does_not_count() -> None:
    """Those who were waited for could not have come back in it."""
    cluster = Cluster(3)
    cluster.run(300)
    before = cluster.elapsed()
    cluster.cut = {1, 2}
    cluster.run(60_000)
    cluster.cut = set()
    cluster.run(1000)
    assert cluster.elapsed() - before < 4000


def test_a_leader_that_stood_still_counts_little_of_it() -> None:
    cluster = Cluster(3)
    cluster.run(300)
    before = cluster.elapsed()
    cluster.now += 3_600_000
    assert cluster.elapsed() - before <= TIMING.failure_timeout_ms
    cluster.run(3000)
    assert cluster.elapsed() - before <= 3000 + TIMING.failure_timeout_ms


def test_a_snapshot_carries_both_clocks() -> None:
    cluster = Cluster(3, Limits(log_entries_max=10))
    cluster.kill(2)
    for number in range(60):
        cluster.submit(0, number)
        cluster.run(30)
    cluster.restart(2)
    cluster.run(1500)
    assert len(cluster[2].log) == 0
    assert cluster[2].log.base_time_ms == cluster[0].log.base_time_ms > 0
    assert cluster[2].log.base_elapsed_ms == cluster[0].log.base_elapsed_ms > 0


# -- losses ----------------------------------------------------------------------


@pytest.mark.parametrize("lost", list(itertools.combinations(range(5), 2)))
def test_any_two_of_five_may_be_lost(lost: tuple[int, ...]) -> None:
    cluster = Cluster(5)
    cluster.submit(0, "before", b"before")
    cluster.run(5)
    assert cluster.replied("before")
    cluster.kill(*lost)
    cluster.run(2 * TIMING.failure_timeout_ms)
    cluster.submit(cluster.leader(), "after", b"after")
    cluster.run(20)
    assert cluster.replied("after")
    cluster.restart(*lost)
    cluster.run(1000)
    for slot in range(5):
        assert [command for *_, command in cluster.rows(slot)] == [b"before", b"after"]


@pytest.mark.parametrize("away", list(itertools.combinations(range(3), 2)))
def test_without_a_quorum_it_refuses_loudly_and_goes_on_when_they_are_back(
    away: tuple[int, ...],
) -> None:
    cluster = Cluster(3)
    cluster.cut = set(away)
    cluster.run(3000)
    left = next(slot for slot in range(3) if slot not in away)
    assert not cluster.may_read(left)
    line = cluster[left].needs(cluster.now)
    assert line is not None
    assert "needs 2 of 3 voters and has 1" in line
    assert all(f"agent-{slot}" in line for slot in away)
    cluster.submit(left, "a")
    reason = RejectReason.NO_QUORUM if left == 0 else RejectReason.NOT_LEADER
    assert cluster.rejections() == {"a": reason}
    cluster.cut = set()
    cluster.run(2000)
    leader = cluster.leader()
    cluster.submit(leader, "b")
    cluster.run(20)
    assert cluster.replied("b")
    assert cluster[leader].needs(cluster.now) is None


def test_a_leader_that_stood_still_takes_commands_before_it_hears_others_again() -> None:
    cluster = Cluster(3)
    cluster.run(300)
    cluster.now += 3 * TIMING.failure_timeout_ms  # the machine stood still, and all with it
    cluster.submit(0, "first")
    assert not cluster.rejections()
    cluster.run(20)
    assert cluster.replied("first")
    cluster.cut = {1, 2}
    cluster.now += 3 * TIMING.failure_timeout_ms
    cluster.submit(0, "second")
    assert not cluster.rejections()
    cluster.run(TIMING.lease_ms + 1)  # now their silence counts
    cluster.submit(0, "third")
    assert cluster.rejections() == {"third": RejectReason.NO_QUORUM}
    assert not cluster.replied("second")


def test_what_a_voter_heard_just_after_it_stood_still_counts_no_longer_than_usual() -> None:
    cluster = Cluster(3)
    cluster.run(300)
    while not any(isinstance(message, m.Heartbeat) for _, _, message in cluster.mail):
        cluster.run(1)
    cluster.now += 60_000  # the machine stood still, and the leader's last words are read first
    mail, cluster.mail = cluster.mail, []
    for sender, to, message in mail:
        cluster.do(to, cluster.receive(to, sender, message))
    cluster.cut = {0}
    cluster.run(3 * TIMING.failure_timeout_ms)
    assert cluster[1].leads


def test_a_leader_that_stands_still_again_and_again_says_that_nobody_follows() -> None:
    cluster = Cluster(3)
    cluster.run(300)
    cluster.cut = {1, 2}
    for number in range(10):
        cluster.now += TIMING.stall_ms + 10
        cluster.submit(0, number)
        cluster.do(0, cluster[0].tick(cluster.now, wall_ms=cluster.wall(0)))
    assert cluster.rejections()[9] is RejectReason.NO_QUORUM
    cluster.run(5 * TIMING.heartbeat_ms)
    assert cluster[0].needs(cluster.now) is not None


def test_followers_that_stand_still_again_and_again_give_up_a_leader_that_is_gone() -> None:
    cluster = Cluster(3)
    cluster.run(300)
    cluster.kill(0)
    until = cluster.now + 10 * TIMING.failure_timeout_ms
    while cluster.now < until:
        cluster.now = (cluster.now + TIMING.stall_ms + 19) // 10 * 10 - 1
        cluster.run(1)  # what came meanwhile, and a tick
    assert cluster.leader() in (1, 2)


def test_voters_that_all_lost_their_memory_never_start_empty() -> None:
    cluster = Cluster(3)
    cluster.submit(0, "a")
    cluster.run(50)
    cluster.kill(0, 1)
    cluster.run(100)
    cluster.restart(0, 1)
    cluster.run(10_000)
    assert [replica.status for replica in cluster.voters if replica is not None] == [
        Status.RECOVERING,
        Status.RECOVERING,
        Status.NORMAL,
    ]
    line = cluster[0].needs(cluster.now)
    assert line is not None
    assert "2 of the other 2 voters: 1 answered; no answer from agent-1" in line
    assert "also without memory: agent-1" in line


def test_two_dead_leaders_in_a_row_cost_one_retry() -> None:
    cluster = Cluster(5)
    cluster.run(300)
    cluster.kill(0, 1)
    died = cluster.now
    while not any(replica is not None and replica.leads for replica in cluster.voters):
        cluster.run(1)
    assert cluster.leader() == 2
    assert cluster.now - died <= TIMING.failure_timeout_ms + TIMING.retry_ms + 50


def test_a_refused_connection_makes_the_change_as_soon_as_the_lease_allows() -> None:
    cluster = Cluster(5)
    cluster.run(300)
    cluster.kill(0, 1)
    died = cluster.now
    for slot, dead in itertools.product((2, 3, 4), (1, 0)):
        cluster.do(slot, cluster[slot].suspect(dead, cluster.now))
    while not any(replica is not None and replica.leads for replica in cluster.voters):
        cluster.run(1)
    assert cluster.now - died <= TIMING.promise_ms + 50


# -- leases ----------------------------------------------------------------------


def test_a_leader_reads_only_within_its_lease() -> None:
    cluster = Cluster(3)
    cluster.run(250)
    assert cluster.may_read(0)
    assert not cluster.may_read(1)
    cluster.now += TIMING.lease_ms
    assert not cluster.may_read(0), "it slept and woke up"


def test_a_lease_does_not_outlive_a_pause_that_only_the_wall_clock_counted() -> None:
    cluster = Cluster(3)
    cluster.run(250)
    assert cluster.may_read(0)
    cluster.wall_ahead[0] += 10_000
    assert not cluster.may_read(0), "its machine stood still, or somebody set its clock"
    cluster.run(1)
    assert not cluster.may_read(0), "what was answered before proves nothing"


@pytest.mark.parametrize("step", [DAY_MS, 2 * TIMING.skew_ms, -2 * TIMING.skew_ms, -DAY_MS])
def test_a_wall_clock_that_is_set_costs_the_lease_for_a_moment_and_nothing_else(
    step: int,
) -> None:
    cluster = Cluster(3)
    cluster.run(250)
    cluster.wall_ahead[0] += step
    assert not cluster.may_read(0)
    cluster.submit(0, "a")
    cluster.run(15)
    assert cluster.may_read(0), "the next tick asked the others"
    assert cluster.replied("a")
    assert cluster[0].view == 0


def test_clocks_that_differ_by_the_time_it_takes_to_read_them_agree() -> None:
    cluster = Cluster(3)
    cluster.run(250)
    cluster.wall_ahead[0] += TIMING.skew_ms
    assert cluster.may_read(0)
    assert TIMING.read_ms + 2 * TIMING.skew_ms <= TIMING.lease_ms


def test_a_voter_that_answered_a_heartbeat_joins_no_view_change_within_the_lease() -> None:
    cluster = Cluster(3)
    cluster.run(250)
    cluster.cut = {0}
    answered = cluster.now
    for slot in (1, 2):
        cluster.do(slot, cluster[slot].suspect(0, cluster.now))
    while cluster[1].status is Status.NORMAL:
        assert cluster[2].view == 0
        cluster.run(1)
    assert cluster.now - answered >= TIMING.lease_ms - TIMING.heartbeat_ms
    assert not cluster.may_read(0)


def test_a_leader_that_hears_of_a_new_life_forgets_what_the_former_one_promised() -> None:
    """The new life does not know of it, and may have begun long before it was heard of."""
    cluster = Cluster(3)
    cluster.run(250)
    cluster.cut = {2}
    cluster.run(TIMING.lease_ms)
    assert cluster.may_read(0), "the promise of 1 is enough"
    founder, _, other = cluster[0].vector
    cluster.receive(0, 1, m.Recovery("c", (founder, (2, 5), other)))
    assert not cluster.may_read(0)


# -- recovery and transfer -------------------------------------------------------


def test_a_restarted_voter_begins_the_next_incarnation_with_all_that_was_committed() -> None:
    cluster = Cluster(3)
    for number in range(20):
        cluster.submit(0, number, b"%d" % number)
        cluster.run(3)
    for life in (2, 3):
        cluster.kill(1)
        cluster.restart(1)
        cluster.run(300)
        assert cluster[1].status is Status.NORMAL
        assert cluster[1].incarnation == life
        assert cluster.rows(1) == cluster.rows(0)
        assert cluster[0].vector[1] == cluster[2].vector[1] == (life, cluster[1].nonce)


def test_a_process_keeps_its_nonce_whatever_number_it_takes() -> None:
    cluster = Cluster(3)
    cluster.kill(1)
    cluster.restart(1)
    nonce = cluster[1].nonce
    cluster.run(3)
    later = (7, nonce + 1)
    cluster.receive(1, 0, m.HelloReply("c", (cluster[0].vector[0], later, (1, 0)), nonce))
    cluster.receive(0, 2, m.Heartbeat("c", (cluster[0].vector[0], later, (1, 0)), 0, 0, 0, 0, 0, 0))
    cluster.run(500)
    assert cluster[1].status is Status.NORMAL
    assert cluster[1].vector[1] == cluster[0].vector[1] == (8, nonce)


class Twins:
    """Two processes of slot 1 that began to recover at the same time."""

    def __init__(self, voters: int) -> None:
        self.cluster = Cluster(voters)
        self.cluster.kill(1)
        self.twins = [self.cluster.blank(1, voters) for _ in range(2)]
        self.twins[1].nonce = self.twins[0].nonce + 1
        self.others = [slot for slot in range(voters) if slot != 1]
        self.mail: list[tuple[int, int, m.Message]] = []
        for which in range(2):
            self.do(which, self.twins[which].recover("c", self.cluster.now))

    def do(self, which: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.mail += [(which, to, effect.message) for to in effect.to]

    def step(self, duration_ms: int) -> None:
        """Everybody answers everybody; whatever is for slot 1 reaches both."""
        cluster = self.cluster
        for _ in range(duration_ms):
            mail, self.mail = self.mail, []
            for _, to, message in mail:
                cluster.do(to, cluster.receive(to, 1, message))
            answers = [row for row in cluster.mail if row[1] == 1]
            cluster.mail = [row for row in cluster.mail if row[1] != 1]
            cluster.run(1)
            for which, twin in enumerate(self.twins):
                for sender, _, message in answers:
                    now = cluster.now
                    self.do(which, twin.receive(sender, message, now, wall_ms=now))
                if cluster.now % 10 == 0:
                    self.do(which, twin.tick(cluster.now, wall_ms=cluster.now))


@pytest.mark.parametrize("voters", [3, 5])
def test_of_two_processes_of_a_slot_that_recover_at_once_one_is_left(voters: int) -> None:
    world = Twins(voters)
    operational = 0
    for _ in range(600):
        world.step(10)
        normal = [twin for twin in world.twins if twin.status is Status.NORMAL]
        lives = {replica.vector[1] for replica in world.cluster.voters if replica is not None}
        if len(normal) == 2:
            assert len({twin.vector[1] for twin in normal}) == 2
        operational += len(normal) == 1 and lives == {normal[0].vector[1]}
    assert sorted(twin.status.value for twin in world.twins) == ["normal", "superseded"]
    assert operational > 100


@pytest.mark.parametrize("voters", [3, 5])
def test_a_process_that_died_while_it_recovered_does_not_keep_its_successor_from_it(
    voters: int,
) -> None:
    cluster = Cluster(voters)
    for _ in range(3):
        cluster.kill(1)
        cluster.restart(1)
        cluster.run(3)
        assert cluster[1].status is Status.RECOVERING
        assert cluster[0].vector[1] == (cluster[1].incarnation, cluster[1].nonce)
    cluster.kill(1)
    cluster.restart(1)
    cluster.run(500)
    assert (cluster[1].status, cluster[1].incarnation) == (Status.NORMAL, 5)


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("voters", [3, 5])
def test_nor_does_one_that_is_heard_of_late_with_the_same_number(voters: int, higher: bool) -> None:
    cluster = Cluster(voters)
    cluster.kill(1)
    cluster.restart(1)
    cluster.run(2)
    nonce = cluster[1].nonce
    assert cluster[1].vector[1] == (2, nonce)
    late = (2, nonce + 1 if higher else nonce - 1)
    for slot in range(voters):
        if slot != 1:
            known = cluster[slot].vector
            cluster.receive(slot, 1, m.Recovery("c", (known[0], late, *known[2:])))
    cluster.run(500)
    assert cluster[1].status is Status.NORMAL
    assert cluster[0].vector[1] == (3 if higher else 2, nonce)


def test_a_recovery_of_a_lower_life_is_answered_with_the_lives() -> None:
    cluster = Cluster(3)
    higher, lower = (2, 9), (2, 5)
    known = cluster[0].vector
    cluster.receive(0, 1, m.Recovery("c", (known[0], higher, known[2])))
    (answer,) = cluster.receive(0, 1, m.Recovery("c", (known[0], lower, known[2])))
    assert answer == Send((1,), m.HelloReply("c", (known[0], higher, known[2]), 5))
    assert cluster[0].vector[1] == higher


def test_the_log_is_bounded_though_a_voter_is_down_which_then_gets_a_snapshot() -> None:
    cluster = Cluster(3, Limits(log_entries_max=10))
    cluster.cut = {2}
    for number in range(60):
        cluster.submit(0, number)
        cluster.run(30)
    assert len(cluster[0].log) <= 21
    assert cluster[0].report(cluster.now).lags[2] is None
    cluster.cut = set()
    cluster.run(1500)
    assert cluster.rows(2) == cluster.rows(0) == cluster.rows(1)
    assert len(cluster[0].log) == 0
    assert cluster[0].log.bytes == 0


def test_a_voter_that_gives_its_state_away_still_votes_but_applies_nothing() -> None:
    cluster = Cluster(3, Limits(log_entries_max=4))
    for number in range(40):
        cluster.submit(0, number)
        cluster.run(20)
    cluster.kill(2)
    cluster.run(10)
    cluster.restart(2)
    frozen = 0
    for number in range(100, 140):
        cluster.submit(0, number)
        cluster.run(3)
        frozen += cluster[1]._frozen and cluster[1].applied < cluster[1].commit
    assert frozen > 0
    cluster.run(500)
    assert all(cluster.replied(number) for number in range(100, 140))
    assert cluster.rows(2) == cluster.rows(1) == cluster.rows(0)


def _begin_copy(limits: Limits) -> Cluster:
    """A cluster in which voter 2 has begun to copy the state of voter 1."""
    cluster = Cluster(3, limits)
    cluster.kill(2)
    for number in range(200):
        cluster.submit(0, number)
        cluster.run(5)
    cluster.restart(2)
    while not cluster[1]._frozen:
        cluster.run(1)
    return cluster


def test_a_voter_that_begins_to_lead_gives_no_state_away_before_it_answers() -> None:
    cluster = _begin_copy(Limits(log_entries_max=4))
    for number in range(200, 210):
        cluster.submit(0, number)
        cluster.run(3)
    cluster.run(TIMING.heartbeat_ms)
    assert cluster[1]._frozen
    assert cluster[1].applied < cluster[1].commit == cluster[1].log.last
    heir, effects = cluster[0].hand_over((), cluster.now)
    assert heir == 1
    cluster.do(0, effects)
    cluster.run(2 * TIMING.heartbeat_ms)
    assert cluster.may_read(1)


def test_a_voter_whose_state_is_copied_slowly_keeps_a_bounded_log() -> None:
    limits = Limits(log_entries_max=4, log_bytes_max=100_000)
    cluster = _begin_copy(limits)
    late: list[tuple[int, int, m.Message]] = []
    most = 0
    for number in range(200, 500):
        late += [mail for mail in cluster.mail if mail[1] == 2]
        cluster.mail = [mail for mail in cluster.mail if mail[1] != 2]
        if number % 50 == 0:  # its link is slow, and not so slow that it is given up
            cluster.mail, late = cluster.mail + late, []
        cluster.submit(0, number, bytes(5_000))
        cluster.run(10)
        most = max(most, cluster[1].log.bytes)
    assert most < 3 * limits.log_bytes_max
    cluster.mail += late
    cluster.run(3 * TIMING.failure_timeout_ms)
    assert cluster.rows(2) == cluster.rows(1) == cluster.rows(0)


def test_a_snapshot_that_became_too_old_leaves_no_trace() -> None:
    """Entries that come late are not put behind a state that has been dropped."""
    cluster = Cluster(3)
    voter, founder = cluster.blank(2, 3), (1, 0)
    voter.recover("c", cluster.now)
    lives = (founder, founder, (2, voter.nonce))

    def hear(sender: int, message: m.Message) -> m.Message | None:
        effects = voter.receive(sender, message, cluster.now, wall_ms=cluster.now)
        return next((e.message for e in reversed(effects) if isinstance(e, Send)), None)

    for sender in (0, 1):
        hear(sender, m.HelloReply("c", (founder,) * 3, voter.nonce))
    hear(1, m.RecoveryReply("c", lives, 0, False, 50))
    assert isinstance(hear(0, m.RecoveryReply("c", lives, 0, True, 50)), m.Fetch)
    first = hear(0, m.Truncated("c", lives, 0, 40, 1))
    assert isinstance(first, m.GetSnapshot)
    asked = hear(1, m.SnapshotChunk("c", lives, first.nonce, 0, 0, 40, 9, 9, b"", True))
    assert isinstance(asked, m.Fetch)
    assert asked.first == 41
    second = hear(0, m.Truncated("c", lives, 0, 46, 1))
    assert isinstance(second, m.GetSnapshot)
    hear(1, m.SnapshotGone("c", lives, second.nonce))
    entries = tuple(m.Entry(9, 9, (b"late",)) for _ in range(41, 51))
    hear(0, m.Entries("c", lives, 0, 41, entries, 50, 50))
    assert voter.status is Status.RECOVERING
    assert (voter.log.last, voter.commit) == (0, 0)


def test_a_message_of_a_former_life_is_no_vote() -> None:
    cluster = Cluster(3)
    cluster.cut = {2}
    (send,) = cluster[0].submit("a", b"x", cluster.now, wall_ms=0)
    assert isinstance(send, Send)
    (late,) = cluster.receive(1, 0, send.message)
    assert isinstance(late, Send)
    cluster.kill(1)
    cluster.cut = set()
    cluster.restart(1)
    cluster.run(4)
    assert cluster[0].vector[1] > (2, 0), "the new life has been heard of"
    before = cluster[0].commit
    assert cluster.receive(0, 1, late.message) == []
    assert cluster[0].commit == before


def test_messages_of_another_cluster_are_ignored() -> None:
    cluster = Cluster(3)
    stranger = m.Heartbeat("other", ((9, 9),) * 3, 7, 0, 0, 0, 0, 0)
    assert cluster.receive(1, 0, stranger) == []
    assert cluster[1].vector == ((1, 0),) * 3


def test_a_replaced_incarnation_stops() -> None:
    cluster = Cluster(3)
    cluster.receive(1, 0, m.Heartbeat("c", ((1, 0), (1, 3), (1, 0)), 0, 0, 0, 0, 0, 0))
    assert cluster[1].status is Status.SUPERSEDED


def test_one_voter_alone_is_its_own_quorum() -> None:
    cluster = Cluster(1)
    cluster.submit(0, "a")
    assert cluster.replied("a")
    assert cluster.may_read(0)


# -- messages --------------------------------------------------------------------


def sample(kind: type) -> m.Message:
    values = {int: 3, bool: True, str: "c", bytes: b"data"}
    fields = []
    for field in msgspec.structs.fields(kind):
        if field.name == "vector":
            fields.append(((1, 0), (2, 1 << 62), (3, 7)))
        elif field.name == "trips":
            fields.append((1, m.UNKNOWN))
        elif field.name == "entry":
            fields.append(m.Entry(5, 4, (b"a", b"b")))
        elif field.name == "entries":
            fields.append((m.Entry(5, 4, (b"a",)), m.Entry(6, 5, ())))
        else:
            fields.append(values[field.type])
    return kind(*fields)


@pytest.mark.parametrize("kind", m.Message.__args__)
def test_every_message_survives_the_wire(kind: type) -> None:
    message = sample(kind)
    assert m.decode(m.encode(message)) == message
