"""The log's two clocks, and the watch over a voter's own.

*Wall time* is for people. It is the median of the voters' wall clocks as the leader heard
them (of an even number the lower one), so that one wrong clock cannot push it, and it
never goes back. Nothing is decided by it.

*Elapsed time* is what waits are measured by: how long the cluster has had a leader that a
majority follows, by the monotonic clocks of these leaders. It continues from view to view,
whether or not anything is logged, and stands still while nobody can lead.
"""

from collections.abc import Sequence

from diskless.namespace.replication.staging import NEVER


class WallClocks:
    """What the voters' wall clocks say, each as its distance from this voter's own
    monotonic clock: so that what was heard a while ago still tells the time."""

    __slots__ = ("_offsets", "_quorum", "latest_ms")

    def __init__(self, *, voters: int, quorum: int) -> None:
        self._offsets = [NEVER] * voters
        self._quorum = quorum
        self.latest_ms = 0

    def heard(self, slot: int, wall_ms: int, now_ms: int) -> None:
        """One that was long under way seems to be slow, and so can never push the time."""
        self._offsets[slot] = wall_ms - now_ms

    @property
    def are_enough(self) -> bool:
        """Fewer than a quorum of clocks may all be wrong, though most are right."""
        return len(self._offsets) - self._offsets.count(NEVER) >= self._quorum

    def skews(self) -> tuple[int | None, ...]:
        """How far each voter's clock is from the median, in milliseconds; None of one that was
        not heard. What its answer took on the way counts as slow."""
        median = self._median()
        return tuple(None if offset == NEVER else offset - median for offset in self._offsets)

    def tell(self, now_ms: int) -> int:
        """What the median of the clocks says, which may be behind `read`; 0 if none was heard."""
        median = self._median()
        return median + now_ms if median != NEVER else 0

    def read(self, now_ms: int) -> int:
        """The time for the next entry; asked only when they are enough."""
        self.latest_ms = max(self.latest_ms, self._median() + now_ms)
        return self.latest_ms

    def _median(self) -> int:
        unheard = self._offsets.count(NEVER)
        middle = unheard + (len(self._offsets) - unheard - 1) // 2
        return sorted(self._offsets)[min(middle, len(self._offsets) - 1)]


class ElapsedClock:
    """The log's elapsed time as this voter knows it, and keeps counting while it leads."""

    __slots__ = ("_counted_to", "_step_ms_max", "ms")

    def __init__(self, *, step_ms_max: int) -> None:
        """A leader counts often; one that did not for `step_ms_max` stood still itself."""
        self.ms = 0
        self._step_ms_max = step_ms_max
        self._counted_to = NEVER

    def hear(self, elapsed_ms: int) -> None:
        self.ms = max(self.ms, elapsed_ms)

    def begin(self, now_ms: int) -> None:
        """This voter leads from now on."""
        self._counted_to = now_ms

    def at(self, now_ms: int, *, led_until: int) -> int:
        """What it says now. The leader's time counts up to `led_until`: beyond it nobody
        knows that it still led, and others may have waited for it for nothing."""
        step_ms = min(now_ms, led_until) - self._counted_to
        return self.ms + min(max(step_ms, 0), self._step_ms_max)

    def count(self, now_ms: int, *, led_until: int) -> int:
        self.ms = self.at(now_ms, led_until=led_until)
        self._counted_to = max(self._counted_to, now_ms)
        return self.ms


class ClockWatch:
    """Notices when this machine's clocks disagree about how much time has passed.

    A machine that was stopped and continues, such as a virtual one, may not have counted
    that in its monotonic clock, while its wall clock shows it: then what others promised
    for a time may be over. A wall clock that somebody sets looks the same.
    """

    __slots__ = ("_skew_ms", "_tolerance_ms", "agree_since")

    def __init__(self, *, tolerance_ms: int) -> None:
        self._tolerance_ms = tolerance_ms
        self._skew_ms = NEVER
        self.agree_since = NEVER

    def look(self, now_ms: int, wall_ms: int) -> bool:
        """False if what began before now may have lasted longer than it seems."""
        skew_ms = wall_ms - now_ms
        if -self._tolerance_ms <= skew_ms - self._skew_ms <= self._tolerance_ms:
            return True
        self._skew_ms = skew_ms
        self.agree_since = now_ms + 1
        return False


def answered_by(echoes: Sequence[int], quorum: int) -> int:
    """The newest send time that a quorum, the sender included, has answered; NEVER if
    none has been. The sender's own echo is NEVER."""
    return sorted(echoes)[len(echoes) - quorum + 1]
