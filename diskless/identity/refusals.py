"""Attempts that were refused at an agent's doors, counted by door and reason."""

from collections import Counter
from collections.abc import Callable

from diskless.errors import DisklessError

Tell = Callable[[str, DisklessError, str], None]


class Refusals:
    """Counts for `status`; whoever listens hears of each."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By door and reason, since the agent started."""
        self._heard: list[Tell] = []

    def on_refusal(self, tell: Tell) -> None:
        """`tell` gets the door, the error and the peer. It must not wait."""
        self._heard.append(tell)

    def note(self, door: str, error: DisklessError, peer: str) -> None:
        self.counts[door, error.reason] += 1
        for tell in self._heard:
            tell(door, error, peer)
