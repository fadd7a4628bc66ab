"""Attempts that were refused at an agent's doors, counted by reason."""

from collections.abc import Callable

from diskless.errors import DisklessError

Tell = Callable[[str, DisklessError, str], None]


class Refusals:
    """Counts for `status`; whoever listens hears of each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """By the class names of errors, since the agent started."""
        self._heard: list[Tell] = []

    def on_refusal(self, tell: Tell) -> None:
        """`tell` gets the door, the error and the peer. It must not wait."""
        self._heard.append(tell)

    def note(self, door: str, error: DisklessError, peer: str) -> None:
        self.counts[error.reason] = self.counts.get(error.reason, 0) + 1
        for tell in self._heard:
            tell(door, error, peer)
