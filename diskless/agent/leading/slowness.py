"""Which agents are slow, measured by the duration of the leader's beats to them. Pure.

An agent is slow if, for a while, all its beats take much longer than those of the others. It is
healthy again when its beats have been quick for a longer time. It is compared with the others
because a busy leader or a slow network makes all agents look slow, which says nothing about any
of them. A leader's measurements end with its view; its decisions are commands.
"""

from dataclasses import dataclass
from statistics import median

LATE_S = 0.05
"""A shorter beat is never late: a busy machine delays single beats by as much."""
LATE_FACTOR = 4.0
"""A late beat takes longer than this multiple of the median of the others' latest beats."""
SLOW_AFTER_S = 0.75
"""For how long, and for at least how many beats, every beat must be late."""
LATE_BEATS_MIN = 2
WELL_FACTOR = 0.5
"""A beat is quick if it takes less than this fraction of the threshold for late."""
WELL_AFTER_S = 3.0
WELL_AFTER_S_MAX = 24.0
"""For how long every beat must be quick. Doubled each time the agent soon became slow again."""
SOON_S = 60.0


@dataclass(slots=True)
class _Record:
    took_s: float = 0.0
    late_beats: int = 0
    late_since_s: float = 0.0
    quick_since_s: float | None = None
    wait_s: float = WELL_AFTER_S
    acquitted_s: float = float("-inf")


class Slowness:
    def __init__(self, *, judge: int, slow_max: int) -> None:
        """`judge` is the slot that sends the beats. At most `slow_max` agents are slow at once."""
        self._judge = judge
        self._slow_max = slow_max
        self._records: dict[int, _Record] = {}

    def forget(self, slot: int) -> None:
        """It did not answer, or is another process now: the measurements no longer apply."""
        self._records.pop(slot, None)

    def suspects(self, slot: int) -> bool:
        """Whether its last beat was late. The next beat should follow at once."""
        record = self._records.get(slot)
        return record is not None and record.late_beats > 0

    def note_prompt(self, slot: int, *, took_s: float) -> None:
        """Notes a beat of at most LATE_S from an agent that is not marked slow. It is not late,
        whatever the others took. As `note`, but without the comparison."""
        record = self._records.setdefault(slot, _Record())
        record.took_s = took_s
        record.late_beats = 0

    def note(
        self, slot: int, *, began_s: float, ended_s: float, slow: bool, slow_others: int
    ) -> bool | None:
        """Notes a beat of an agent that is marked slow or not; `slow_others` other agents are.
        Returns whether it is slow from now on; None if nothing changes."""
        record = self._records.setdefault(slot, _Record())
        record.took_s = ended_s - began_s
        late_s = self._late_s(slot)
        if slow:
            return self._acquit(record, late_s * WELL_FACTOR, began_s, ended_s)
        return self._convict(record, late_s, began_s, ended_s, slow_others)

    def _late_s(self, slot: int) -> float:
        others = [
            record.took_s
            for other, record in self._records.items()
            if other not in (slot, self._judge)
        ]
        return max(LATE_S, LATE_FACTOR * median(others)) if others else LATE_S

    def _convict(
        self, record: _Record, late_s: float, began_s: float, ended_s: float, slow_others: int
    ) -> bool | None:
        if record.took_s <= late_s:
            record.late_beats = 0
            return None
        if not record.late_beats:
            record.late_since_s = began_s
        record.late_beats += 1
        if (
            record.late_beats < LATE_BEATS_MIN
            or ended_s - record.late_since_s < SLOW_AFTER_S
            or slow_others >= self._slow_max
        ):
            return None
        again = ended_s - record.acquitted_s < SOON_S
        record.wait_s = min(2 * record.wait_s, WELL_AFTER_S_MAX) if again else WELL_AFTER_S
        record.late_beats, record.quick_since_s = 0, None
        return True

    def _acquit(
        self, record: _Record, quick_s: float, began_s: float, ended_s: float
    ) -> bool | None:
        record.late_beats = 0
        if record.took_s > quick_s:
            record.quick_since_s = None
            return None
        if record.quick_since_s is None:
            record.quick_since_s = began_s
        if ended_s - record.quick_since_s < record.wait_s:
            return None
        record.acquitted_s, record.quick_since_s = ended_s, None
        return False
