"""A leader that is much slower than its voters would be without it hands over to one of them.

A commit takes the leader's round trip to the k-th quickest other voter. While that is long
(`slow_ms`), and only then, the leader has its followers measure each other: with every
heartbeat it sends Probe, they Ping each other, and tell it by Paces what they found. If one of
them would need a small part of the leader's time, again and again, the leader leaves for the
next view which that one leads. A leader may always leave: nothing of this concerns safety, and
whatever a voter says here can at worst cost a view change.

A leader may also be slow *because* it leads. So a hand-over is followed by a pause, twice as
long each time if the next one comes soon, during which nobody hands over. The wish for the
view that it leads to says which in a row it is, and a voter that hears or shares it pauses.

A leader whose host is about to end hands over too, whichever voter is quicker.
"""

from collections.abc import Collection

from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import Status
from diskless.namespace.replication.effects import HandedOver
from diskless.namespace.replication.recovery import Recovering
from diskless.namespace.replication.staging import NEVER

BETTER_FACTOR = 4
"""An heir's round trip is at most this part of the leader's."""
BETTER_BEATS = 4
"""So often in a row somebody must be found that much better."""
PROBES_EAGER = 16
PROBE_RARELY = 16
"""After so many heartbeats that found nobody better, only two of so many ask again."""
PAUSE_TIMEOUTS = 3
PAUSE_DOUBLINGS_MAX = 4
"""The pause after a hand-over, in failure timeouts, and how often it is doubled at most."""


class Paced(Recovering):
    # Of the leader, since its view began:
    _trips: list[int | None]  # to each voter, the shortest since the last beat
    _paces: dict[int, tuple[int, ...]]  # what each follower told last
    _news = False
    _slow_beats = 0  # heartbeats in a row at which it was slow
    _better_beats = 0  # news in a row by which another voter is much better
    # Of followers:
    _pongs_view = -1
    _pongs: dict[int, tuple[int, int]]  # round trips in that view, and when they ended
    # Of all:
    _handovers = 0  # in a row, as far as this voter knows
    _handed_view = -1  # where the last of them led
    _pause_until = NEVER

    @property
    def is_outpaced(self) -> bool:
        """Whether this leader is known to be much slower than another one would be."""
        return self.leads and self._better_beats > 0

    # -- the leader's own round trips ----------------------------------------------

    def _begin_view(self, now_ms: int) -> None:
        self._trips = [None] * self.voters
        self._paces = {}
        self._slow_beats = self._better_beats = 0
        self._news = False
        super()._begin_view(now_ms)

    def _note_trip(self, slot: int, trip_ms: int) -> None:
        known = self._trips[slot]
        if known is None or trip_ms < known:
            self._trips[slot] = trip_ms

    def _forget_votes(self, slot: int) -> None:
        super()._forget_votes(slot)
        if self.leads:
            self._trips[slot] = None
            self._paces.pop(slot, None)

    def _beat(self, now_ms: int) -> None:
        trip_ms = self._quorum_trip(now_ms)
        self._trips = [None] * self.voters
        super()._beat(now_ms)
        if trip_ms <= self.timing.slow_ms:
            self._slow_beats = self._better_beats = 0
            self._paces.clear()
            return
        self._slow_beats += 1
        if self._wants_news():
            assert self.cluster_id is not None
            self._broadcast(m.Probe(self.cluster_id, self.vector, self.view))
        if self._news:
            self._news = False
            self._compare(trip_ms, now_ms)

    def _wants_news(self) -> bool:
        """Twice in a row: what one Probe has measured the next one brings."""
        return (
            self._slow_beats <= PROBES_EAGER
            or self._slow_beats % PROBE_RARELY < 2
            or 0 < self._better_beats < BETTER_BEATS
        )

    def _quorum_trip(self, now_ms: int) -> int:
        """How long a round takes that begins now, going by the latest answers. Who has not
        answered since the last beat needs at least as long as it has let us wait."""
        trips = [
            now_ms - max(self._echo[slot], self._led_since) - self.timing.heartbeat_ms
            if trip_ms is None
            else trip_ms
            for slot, trip_ms in enumerate(self._trips)
        ]
        trips[self.slot] = 0
        return sorted(trips)[self.quorum - 1]

    # -- followers measure each other ------------------------------------------------

    def _on_probe(self, sender: int, message: m.Probe, now_ms: int) -> None:
        if not self._works_in(message.view) or sender != self.leader:
            return
        if self._pongs_view != message.view:
            self._pongs_view, self._pongs = message.view, {}
        assert self.cluster_id is not None
        stale_ms = now_ms - self.timing.failure_timeout_ms
        trips = [
            trip_ms if heard_ms > stale_ms else m.UNKNOWN
            for trip_ms, heard_ms in (
                self._pongs.get(slot, (m.UNKNOWN, NEVER)) for slot in range(self.voters)
            )
        ]
        self._send(sender, m.Paces(self.cluster_id, self.vector, self.view, tuple(trips)))
        for other in self.others:
            if other != sender:
                self._send(other, m.Ping(self.cluster_id, self.vector, self.view, now_ms))

    def _on_ping(self, sender: int, message: m.Ping, now_ms: int) -> None:
        if self._works_in(message.view):
            assert self.cluster_id is not None
            self._send(sender, m.Pong(self.cluster_id, self.vector, self.view, message.sent_ms))

    def _on_pong(self, sender: int, message: m.Pong, now_ms: int) -> None:
        if self._works_in(message.view) and message.view == self._pongs_view:
            self._pongs[sender] = (max(now_ms - message.sent_ms, 0), now_ms)

    def _works_in(self, view: int) -> bool:
        return view == self.view and self.status is Status.NORMAL

    # -- handing over ------------------------------------------------------------------

    def _on_paces(self, sender: int, message: m.Paces, now_ms: int) -> None:
        if not self._works_in(message.view) or not self.leads:
            return
        if len(message.trips) == self.voters and max(message.trips) > m.UNKNOWN:
            self._paces[sender] = message.trips
            self._news = True

    def _compare(self, trip_ms: int, now_ms: int) -> None:
        found = self._find_heir()
        if found is None or found[0] * BETTER_FACTOR > trip_ms:
            self._better_beats = 0
            return
        self._better_beats += 1
        if self._better_beats >= BETTER_BEATS and now_ms >= self._pause_until:
            heir_ms, view = found
            self._out.append(HandedOver(self.leader_of(view), trip_ms, heir_ms))
            self._note_handover(self._handovers_by(now_ms) + 1, view, now_ms)
            self._join_view_change(view, now_ms)

    def _find_heir(self) -> tuple[int, int] | None:
        """The shortest round trip to a quorum that a voter would have, and the next view which
        that one leads. It must have all that is committed, so that nothing has to be fetched."""
        found: list[tuple[int, int]] = []
        for view in range(self.view + 1, self.view + self.voters):
            slot = self.leader_of(view)
            trips = [trip_ms for trip_ms in self._paces.get(slot, ()) if trip_ms != m.UNKNOWN]
            ready = slot not in self._down and self._match[slot] >= self.commit
            if ready and len(trips) >= self.quorum - 1:
                found.append((sorted(trips)[self.quorum - 2], view))
        return min(found, default=None)

    def _leave_for_another(self, unfit: Collection[int], now_ms: int) -> int | None:
        """Leaves for the next view that a voter leads which can at once: it was heard lately, and
        has all that is committed. Who that is; None if there is nobody but those in `unfit`."""
        silent = now_ms - self.timing.failure_timeout_ms
        for view in range(self.view + 1, self.view + self.voters):
            slot = self.leader_of(view)
            ready = slot not in self._down and self._match[slot] >= self.commit
            if ready and slot not in unfit and self._echo[slot] > silent:
                self._note_handover(self._handovers_by(now_ms) + 1, view, now_ms)
                self._join_view_change(view, now_ms)
                return slot
        return None

    # -- never twice in a row ------------------------------------------------------------

    def _pause_ms(self, handovers: int) -> int:
        doublings = min(handovers - 1, PAUSE_DOUBLINGS_MAX)
        return PAUSE_TIMEOUTS * self.timing.failure_timeout_ms << doublings

    def _handovers_by(self, now_ms: int) -> int:
        """How many there were in a row: none that is longer ago than two of its pauses."""
        if self._handovers and now_ms >= self._pause_until + self._pause_ms(self._handovers):
            self._handovers = 0
        return self._handovers

    def _note_handover(self, number: int, view: int, now_ms: int) -> None:
        """The `number`-th hand-over in a row leads to `view`."""
        if view > self._handed_view:
            self._handed_view = view
            self._handovers = max(number, self._handovers_by(now_ms))
            self._pause_until = now_ms + self._pause_ms(self._handovers)

    def _handover_to(self, view: int) -> int:
        return self._handovers if view == self._handed_view else 0

    def _on_start_view_change(self, sender: int, message: m.StartViewChange, now_ms: int) -> None:
        if message.handover:
            self._note_handover(message.handover, message.wanted, now_ms)
        super()._on_start_view_change(sender, message, now_ms)
