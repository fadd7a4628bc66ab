"""Which agents are slow, judged by how long the leader's beats to them took. Pure.

An agent is slow if its beats take much longer than those of the others, all of them for a
while, and is well again when they have been quick for longer. It is compared with the others
because a busy leader, or a slow network, makes everybody look slow: that says nothing about
any of them. What one leader has measured ends with its view; its verdicts are commands.
"""

from dataclasses import dataclass
from statistics import median

LATE_S = 0.05
"""No beat that took less is late: a busy machine delays single ones by as much."""
LATE_FACTOR = 4.0
"""In medians of the others' latest beats."""
SLOW_AFTER_S = 0.75
"""For how long, and in how many beats, every beat must be late."""
LATE_BEATS_MIN = 2
WELL_FACTOR = 0.5
"""What is quicker than this part of what is late counts as quick."""
WELL_AFTER_S = 3.0
WELL_AFTER_S_MAX = 24.0
"""For how long every beat must be quick: twice as long each time it was slow again soon."""
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
        """`judge` is the slot that beats; at most `slow_max` agents are found slow at once."""
        self._judge = judge
        self._slow_max = slow_max
        self._records: dict[int, _Record] = {}

    def forget(self, slot: int) -> None:
        """It did not answer, or is another process now: what was measured says nothing."""
        self._records.pop(slot, None)

    def suspects(self, slot: int) -> bool:
        """Whether its last beat was late: the next one should not wait."""
        record = self._records.get(slot)
        return record is not None and record.late_beats > 0

    def note(
        self, slot: int, *, began_s: float, ended_s: float, slow: bool, slow_others: int
    ) -> bool | None:
        """Takes a beat of an agent that counts as slow or not, beside so many others that do.
        Says what it is to count as from now on; None if nothing changes."""
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
