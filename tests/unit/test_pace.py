"""A leader that is slow: what it measures, whom it hands over to, and when it does not."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from diskless.namespace.replication import HandedOver, Status
from diskless.namespace.replication import messages as m
from diskless.namespace.replication.pace import PAUSE_DOUBLINGS_MAX, PAUSE_TIMEOUTS
from tests.unit.test_replication import TIMING, Cluster

ASKING = (m.Probe, m.Ping, m.Pong, m.Paces)
PAUSE_MS = PAUSE_TIMEOUTS * TIMING.failure_timeout_ms


class Laggy(Cluster):
    """A cluster with slow links: a message takes the longer lag of its two ends, or the lag
    of its link."""

    def __init__(self, voters: int) -> None:
        self.lags: dict[int, int] = {}
        self.links: dict[frozenset[int], int] = {}
        self.due: dict[int, list[tuple[int, int, m.Message]]] = defaultdict(list)
        self.sent: Counter[type] = Counter()
        super().__init__(voters)

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms):
            mail, self.mail = self.mail, []
            for sender, to, message in mail:
                self.sent[type(message)] += 1
                lag = max(self.lags.get(sender, 0), self.lags.get(to, 0))
                lag = max(lag, self.links.get(frozenset({sender, to}), 0))
                self.due[self.now + lag].append((sender, to, message))
            self.mail = self.due.pop(self.now, [])
            super().run(1)

    def handovers(self) -> list[HandedOver]:
        return [effect for effect in self.effects if isinstance(effect, HandedOver)]

    def asked(self) -> int:
        return sum(self.sent[kind] for kind in ASKING)


@pytest.mark.parametrize("voters", [3, 5, 7])
def test_a_slow_leader_hands_over_once_and_what_it_has_begun_is_not_lost(voters: int) -> None:
    cluster = Laggy(voters)
    cluster.run(1000)
    assert cluster.asked() == 0, "nothing is measured while all is well"
    cluster.lags[0] = 300
    cluster.submit(0, "a")
    cluster.run(2000)
    assert len(cluster.handovers()) == 1
    assert cluster.leader() == cluster.handovers()[0].heir != 0
    for replica in map(cluster.__getitem__, range(1, voters)):
        assert replica.status is Status.NORMAL
        assert replica.log.last == 1
    cluster.run(3 * PAUSE_MS)
    assert len(cluster.handovers()) == 1
    before = cluster.asked()
    cluster.run(1000)
    assert cluster.asked() == before, "the new leader has no reason to ask"


def test_the_heir_is_the_one_that_reaches_a_quorum_first() -> None:
    cluster = Laggy(5)
    for pair in ({1, 2}, {1, 3}, {1, 4}, {3, 4}):
        cluster.links[frozenset(pair)] = 15
    cluster.lags[0] = 200
    cluster.run(1500)
    assert [handover.heir for handover in cluster.handovers()] == [2]
    assert cluster.leader() == 2


@pytest.mark.parametrize(
    ("lag", "others"),
    [(200, 200), (200, 60), (20, 0)],
    ids=["all are as slow", "none is much better", "it takes a moment only"],
)
def test_a_leader_stays_if_nobody_is_much_better(lag: int, others: int) -> None:
    cluster = Laggy(5)
    for slot in range(1, 5):
        cluster.lags[slot] = others
    cluster.lags[0] = lag
    cluster.run(5000)
    assert cluster.handovers() == []
    assert cluster.leader() == 0


def test_a_leader_stays_if_those_that_are_left_are_too_few_without_it() -> None:
    cluster = Laggy(5)
    cluster.kill(3, 4)
    cluster.lags[0] = 200
    cluster.run(5000)
    assert cluster.handovers() == []
    assert cluster.leader() == 0


def test_one_slow_follower_is_no_reason() -> None:
    cluster = Laggy(5)
    cluster.lags[3] = 300
    cluster.run(5000)
    assert (cluster.handovers(), cluster.asked()) == ([], 0)


def test_a_voter_that_lacks_what_is_committed_is_no_heir() -> None:
    cluster = Laggy(5)
    leader = cluster[0]
    cluster.submit(0, "a")
    cluster.run(300)
    cluster.lags[0] = 200
    leader._match[2] = 0
    trips = (m.UNKNOWN, 1, m.UNKNOWN, 1, 1)
    leader._paces = dict.fromkeys((2,), trips)
    assert leader._find_heir() is None
    leader._paces = dict.fromkeys((2, 3), trips)
    assert leader._find_heir() == (1, 3)


def test_a_leader_that_looks_slow_for_nobody_better_asks_ever_more_rarely() -> None:
    cluster = Laggy(5)
    cluster.lags = dict.fromkeys(range(5), 60)
    cluster.run(3000)
    before = cluster.sent[m.Probe]
    cluster.run(16 * TIMING.heartbeat_ms)
    assert cluster.sent[m.Probe] - before == 2 * 4


def test_a_leader_that_is_slow_for_leading_does_not_pass_it_round() -> None:
    cluster = Laggy(5)
    when: list[int] = []
    for _ in range(16 * PAUSE_MS // 50):
        cluster.lags = {voter.slot: 100 for voter in cluster.voters if voter and voter.leads}
        cluster.run(50)
        if len(cluster.handovers()) > len(when):
            when.append(cluster.now)
    gaps = [after - before for before, after in pairwise(when)]
    assert len(gaps) >= 3
    for number, gap in enumerate(gaps):
        assert gap >= PAUSE_MS * 2**number


def test_the_pause_has_a_bound_and_the_count_an_end() -> None:
    cluster = Laggy(3)
    voter = cluster[1]
    longest = PAUSE_MS * 2**PAUSE_DOUBLINGS_MAX
    assert voter._pause_ms(1) == PAUSE_MS
    assert voter._pause_ms(1000) == longest
    voter._note_handover(3, 7, cluster.now)
    voter._note_handover(1, 6, cluster.now)
    assert voter._handovers_by(cluster.now) == 3, "an older one says nothing new"
    assert voter._handover_to(7) == 3
    assert voter._handover_to(8) == 0, "another view has its own reasons"
    assert voter._handovers_by(cluster.now + 9 * PAUSE_MS) == 0


def test_a_stranger_to_the_view_is_not_asked_and_tells_nothing() -> None:
    cluster = Laggy(3)
    leader, voter = cluster[0], cluster[1]
    probe = m.Probe("c", voter.vector, voter.view + 3)
    assert cluster.receive(1, 0, probe) == []
    assert cluster.receive(1, 2, m.Probe("c", voter.vector, voter.view)) == []
    assert cluster.receive(1, 2, m.Pong("c", voter.vector, voter.view, 7)) == []
    cluster.receive(0, 1, m.Paces("c", leader.vector, leader.view, (1, 2)))
    cluster.receive(0, 1, m.Paces("c", leader.vector, leader.view + 3, (1, 2, 3)))
    assert leader._paces == {}


@pytest.mark.parametrize("voters", [3, 5])
def test_a_leader_that_is_about_to_end_hands_over_to_one_that_stays(voters: int) -> None:
    cluster = Cluster(voters)
    cluster.run(1000)
    cluster.submit(0, "a")
    heir, effects = cluster[0].hand_over({0, 1}, cluster.now)
    assert heir == 2
    cluster.do(0, effects)
    cluster.run(TIMING.failure_timeout_ms // 2)
    assert cluster.leader() == 2, "sooner than anybody could miss the old one"
    assert all(cluster[slot].log.last == 1 for slot in range(voters))


def test_a_leader_stays_if_nobody_else_can_lead() -> None:
    cluster = Cluster(3)
    cluster.run(1000)
    assert cluster[0].hand_over({0, 1, 2}, cluster.now) == (None, [])
    assert cluster[1].hand_over({1}, cluster.now) == (None, []), "it does not lead"
    cluster.run(1000)
    assert cluster.leader() == 0
