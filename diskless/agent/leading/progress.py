"""How far a repair is: what `status` tells of it."""

from collections.abc import Callable, Collection, Iterable

from diskless.model import RepairStatus


class Progress:
    """Counts stripes and their payload; begins anew when there is something to do again."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._left: dict[str, int] = {}
        self._began_s: float | None = None
        self.bytes_done = 0
        self.lost = 0
        self.stuck = 0
        self.waiting = 0
        self.reshaping = False

    def plan(self, left: dict[str, int], *, reshaping: bool) -> None:
        """`left` are the stripes to be done, with their bytes of payload."""
        if left and not self._left:
            self._began_s, self.bytes_done = self._now_s(), 0
        self._left, self.reshaping = left, reshaping

    def done(self, stripes: Iterable[str]) -> None:
        for stripe in stripes:
            self.bytes_done += self._left.pop(stripe, 0)

    def no_room(self, stripes: Collection[str]) -> None:
        """Nothing can be done about these for now."""
        for stripe in stripes:
            self._left.pop(stripe, None)
        self.stuck += len(stripes)

    def report(self) -> RepairStatus:
        bytes_left = sum(self._left.values())
        took_s = self._now_s() - self._began_s if self._began_s is not None else 0.0
        rate = self.bytes_done / took_s if self._left and took_s > 0 else 0.0
        return RepairStatus(
            state=self._state(),
            stripes_left=len(self._left),
            bytes_left=bytes_left,
            bytes_done=self.bytes_done,
            bytes_per_s=round(rate),
            eta_s=round(bytes_left / rate, 1) if rate else None,
            waiting=self.waiting,
            unprotectable=self.stuck,
            lost=self.lost,
        )

    def _state(self) -> str:
        if self._left:
            return "reshaping" if self.reshaping else "rebuilding"
        return "waiting" if self.waiting else "idle"
