"""How far a repair is: what `status` tells of it."""

from collections.abc import Callable, Iterable

from diskless.model import RepairStatus


class Progress:
    """Counts stripes and their payload; begins anew when there is something to do again."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.stripes_left = 0
        self.bytes_left = 0
        self._began_s: float | None = None
        self.bytes_done = 0
        self.lost = 0
        self.stuck = 0
        self.waiting = 0
        self.reshaping = False

    def plan(self, *, stripes: int, payload_bytes: int, reshaping: bool) -> None:
        """So much is to be done."""
        if stripes and not self.stripes_left:
            self._began_s, self.bytes_done = self._now_s(), 0
        self.stripes_left, self.bytes_left = stripes, payload_bytes
        self.reshaping = reshaping

    def done(self, payload_bytes: Iterable[int]) -> None:
        """Stripes with so many bytes each are done."""
        for size in payload_bytes:
            self.bytes_done += size
            # One may have been planned twice, or have come since.
            self.stripes_left = max(self.stripes_left - 1, 0)
            self.bytes_left = max(self.bytes_left - size, 0)

    def no_room(self) -> None:
        """Nothing can be done for now about what is left."""
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
        )

    def _state(self) -> str:
        if self.stripes_left:
            return "reshaping" if self.reshaping else "rebuilding"
        return "waiting" if self.waiting else "idle"
