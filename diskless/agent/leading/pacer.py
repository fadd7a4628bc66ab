"""How much of the time repair may take, so that clients hardly notice it.

Repair works in waves. While no client sends requests the next wave follows at once. Otherwise
repair pauses after each wave. The more it slows clients' commands down, the longer it pauses: the
latest commands are compared with the latest ones outside of waves. When clients are slowed down
little, first the pauses get shorter, then the waves larger.
"""

from collections import deque
from statistics import fmean, median

SLOWER_MAX = 2.8
"""How many times as long as without repair commands may take on average. Above this, repair slows
down. A command that meets a wave waits for its end, and few others are slower at all, so the median
hardly changes. The mean is the cost of repair, whatever the size of its waves: a client that
commits sequentially needs 1 / (1 - s) times as long while repair takes a share s of the time.
Clients measured 2.4 to 2.8 with this value and 3.5 to 3.9 with 3.5. With 2.5 they measured 2.0, and
repair was hardly faster than half the speed of writes."""
SLOWER_OK = 2.3
SHARE_MIN = 0.1
SHARE_MAX = 0.9
GIVE_WAY = 0.9
CATCH_UP = 1.05
COMMANDS = 64
"""The latest commands, which are compared."""
COMMANDS_ENOUGH = 8
WAVE_STRIPES = 32
"""The size of a wave while no client is active."""
WAVE_STRIPES_BUSY_MIN = 4
WAVE_STRIPES_BUSY_MAX = 16
"""The size of a wave otherwise. A command that meets a wave waits about as long as it takes."""
PAUSE_S_MIN = 0.002
PAUSE_S_MAX = 1.0


class Pacer:
    def __init__(self, *, share: float) -> None:
        """`share` is the initial share of the time while clients are active."""
        self.share = share
        self._busy_stripes = WAVE_STRIPES_BUSY_MIN
        self._working = False
        self._commands = 0
        self._all_s: deque[float] = deque(maxlen=COMMANDS)
        self._calm_s: deque[float] = deque(maxlen=COMMANDS)

    def note_command(self, took_s: float) -> None:
        """A client's command was committed."""
        self._commands += 1
        self._all_s.append(took_s)
        if not self._working:
            self._calm_s.append(took_s)

    def wave_stripes(self, *, clients_at_work: bool) -> int:
        """How many stripes the next wave may have."""
        return self._busy_stripes if clients_at_work else WAVE_STRIPES

    def wave_begins(self) -> None:
        self._working = True

    def wave_ends(self, took_s: float, *, clients_at_work: bool) -> float:
        """How long to pause now. Commands since the last wave also count as active clients."""
        self._working = False
        busy = clients_at_work or self._commands > 0
        self._commands = 0
        if not busy:
            return 0.0
        self._adapt()
        return min(max(took_s * (1 / self.share - 1), PAUSE_S_MIN), PAUSE_S_MAX)

    @property
    def slower(self) -> float | None:
        """How many times as long as without repair the latest commands took; None if there were
        too few."""
        if min(len(self._all_s), len(self._calm_s)) < COMMANDS_ENOUGH:
            return None
        return fmean(self._all_s) / max(median(self._calm_s), 1e-6)

    def _adapt(self) -> None:
        slower = self.slower
        if slower is None:
            return
        if slower > SLOWER_MAX and self._busy_stripes > WAVE_STRIPES_BUSY_MIN:
            self._busy_stripes -= 1
        elif slower > SLOWER_MAX:
            self.share = max(self.share * GIVE_WAY, SHARE_MIN)
        elif slower < SLOWER_OK and self.share < SHARE_MAX:
            self.share = min(self.share * CATCH_UP, SHARE_MAX)
        elif slower < SLOWER_OK:
            self._busy_stripes = min(self._busy_stripes + 1, WAVE_STRIPES_BUSY_MAX)
