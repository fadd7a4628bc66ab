"""Refused attempts: counted by door and reason, and logged with a limit.

Whoever knocks at a door a thousand times a second must not fill the log, and the operator must
still learn of it: each kind of refusal has a line at once, and later lines say how many came
meanwhile.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

from diskless.errors import DisklessError

QUIET_S = 10.0
"""Between two lines about refusals of one kind at one door."""
LOG_CHARS_MAX = 200

log = logging.getLogger(__name__)


class Refusals:
    """What the doors of one agent have refused since it began."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.counts: Counter[tuple[str, str]] = Counter()
        """By door and reason."""
        self._logged_at: dict[tuple[str, str], float] = {}
        self._silent: Counter[tuple[str, str]] = Counter()

    def note(self, door: str, error: DisklessError, peer: str) -> None:
        key = (door, error.reason)
        self.counts[key] += 1
        now = self._now_s()
        if now - self._logged_at.get(key, float("-inf")) < QUIET_S:
            self._silent[key] += 1
            return
        self._logged_at[key] = now
        log.warning(
            "refused door=%s peer=%s reason=%s message=%r unlogged=%d",
            door, peer, error.reason, str(error)[:LOG_CHARS_MAX], self._silent.pop(key, 0),
        )  # fmt: skip
