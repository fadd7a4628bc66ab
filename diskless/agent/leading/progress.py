"""The progress of a repair, for `status`."""

from collections.abc import Callable, Iterable

from diskless.model import RepairStatus


class Progress:
    """Counts stripes and their payload. Restarts when there is new work after none was left."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.stripes_left = 0
        self.bytes_left = 0
        self._began_s: float | None = None
        self.bytes_done = 0
        self.lost = 0
        self.lost_protected = 0
        """The lost stripes that should survive k losses. The others have less parity by policy."""
        self.lost_files = 0
        self.stuck = 0
        self.waiting = 0
        self.at_stake = 0
        self.reshaping = False

    def plan(self, *, stripes: int, payload_bytes: int, reshaping: bool) -> None:
        """Sets how much is left to do."""
        if stripes and not self.stripes_left:
            self._began_s, self.bytes_done = self._now_s(), 0
        self.stripes_left, self.bytes_left = stripes, payload_bytes
        self.reshaping = reshaping

    def done(self, payload_bytes: Iterable[int]) -> None:
        """Stripes with these payload sizes are done."""
        for size in payload_bytes:
            self.bytes_done += size
            # A stripe may have been planned twice, or added since.
            self.stripes_left = max(self.stripes_left - 1, 0)
            self.bytes_left = max(self.bytes_left - size, 0)

    def no_room(self) -> None:
        """The remaining stripes cannot be repaired for now."""
        self.stuck += self.stripes_left
        self.stripes_left = self.bytes_left = 0

    def report(self) -> RepairStatus:
        took_s = self._now_s() - self._began_s if self._began_s is not None else 0.0
        rate = self.bytes_done / took_s if self.stripes_left and took_s > 0 else 0.0
        return RepairStatus(
            state=self._state(),
            stripes_left=self.stripes_left,
            bytes_left=self.bytes_left,
            bytes_done=self.bytes_done,
            bytes_per_s=round(rate),
            eta_s=round(self.bytes_left / rate, 1) if rate else None,
            waiting=self.waiting,
            unprotectable=self.stuck,
            lost=self.lost,
            lost_files=self.lost_files,
            at_stake=self.at_stake,
        )

    def _state(self) -> str:
        if self.stripes_left:
            return "reshaping" if self.reshaping else "rebuilding"
        return "waiting" if self.waiting else "idle"
