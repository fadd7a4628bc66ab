"""How much of the time repair may take, so that clients hardly notice it.

Repair works in waves. While no client asks for anything the next wave follows at once.
Otherwise repair pauses after each wave, longer the more it slows the clients' commands
down: all commands since repair began are compared with those that met no wave.
"""

SLOWER_MAX = 4.0
"""How much longer than without repair a command may take on average; then it gives way.
Few meet a wave, so that the median is far below."""
SLOWER_OK = 3.0
SHARE_MIN = 0.1
SHARE_MAX = 0.9
GIVE_WAY = 0.9
CATCH_UP = 1.05
WEIGHT = 0.05
"""Of the newest command in the averages."""
PAUSE_S_MIN = 0.002
PAUSE_S_MAX = 1.0


class Pacer:
    def __init__(self, *, share: float) -> None:
        """`share` is the part of the time to begin with while clients are at work."""
        self.share = share
        self._working = False
        self._all_s: float | None = None
        self._calm_s: float | None = None
        self._commands = 0

    def note_command(self, took_s: float) -> None:
        """A client's command was committed."""
        self._commands += 1
        self._all_s = _average(self._all_s, took_s)
        if not self._working:
            self._calm_s = _average(self._calm_s, took_s)

    def wave_begins(self) -> None:
        self._working = True

    def wave_ends(self, took_s: float, *, clients_at_work: bool) -> float:
        """How long to pause now. Commands are clients at work, whatever else is."""
        self._working = False
        busy = clients_at_work or self._commands > 0
        self._commands = 0
        if not busy:
            return 0.0
        self._adapt()
        return min(max(took_s * (1 / self.share - 1), PAUSE_S_MIN), PAUSE_S_MAX)

    def _adapt(self) -> None:
        if self._all_s is None or self._calm_s is None:
            return
        slower = self._all_s / max(self._calm_s, 1e-6)
        if slower > SLOWER_MAX:
            self.share = max(self.share * GIVE_WAY, SHARE_MIN)
        elif slower < SLOWER_OK:
            self.share = min(self.share * CATCH_UP, SHARE_MAX)


def _average(known: float | None, latest: float) -> float:
    return latest if known is None else known + WEIGHT * (latest - known)
