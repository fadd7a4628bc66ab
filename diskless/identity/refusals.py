"""Attempts that an agent's doors refused: counted, and told of in the log now and then.

Strangers decide how often they are refused, so neither a count nor a line of the log may
grow with it: counts are by door and by reason, of which there are few, and of each of these
there is one line in `LOG_INTERVAL_S`, which says how many it stands for.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable

from diskless.errors import DisklessError, Unauthorized

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 30.0
KEYS_MAX = 256
TEXT_CHARS_MAX = 300


Tell = Callable[[str, DisklessError, str], None]


class Seldom:
    """Says of each key, of which it knows so many, when it was last spoken of."""

    def __init__(self, interval_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._now_s = now_s
        self._spoken_s: dict[Hashable, float] = {}
        self._since: Counter[Hashable] = Counter()

    def due(self, key: Hashable, count: int = 1) -> int:
        """How many times it was asked about `key` since it said so last; 0 if it is too soon.
        `count` counts for so many times."""
        now_s = self._now_s()
        self._since[key] += count
        spoken_s = self._spoken_s.get(key)
        if spoken_s is not None and now_s - spoken_s < self._interval_s:
            return 0
        if len(self._spoken_s) >= KEYS_MAX and spoken_s is None:
            oldest = next(iter(self._spoken_s))
            del self._spoken_s[oldest], self._since[oldest]
        self._spoken_s.pop(key, None)  # so that the order is that of their times
        self._spoken_s[key] = now_s
        total, self._since[key] = self._since[key], 0
        return total


class Refusals:
    """The refusals of one agent, at all its doors."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By door and reason, since the agent started."""
        self._seldom = Seldom(LOG_INTERVAL_S, now_s)
        self._heard: list[Tell] = []

    def on_refusal(self, tell: Tell) -> None:
        """`tell` hears of each: the door, the error and the peer. It must neither wait nor
        write as much as strangers like."""
        self._heard.append(tell)

    def note(self, door: str, error: DisklessError, peer: object, *, count: int = 1) -> None:
        """`peer` describes the caller that was refused; of several, one of them."""
        why = (isinstance(error, Unauthorized) and error.why) or error.reason
        self.counts[door, why] += count
        if times := self._seldom.due((door, why), count):
            log.warning(
                "refused door=%s why=%r peer=%s error=%s times=%d",
                door, why, one_line(peer), one_line(error), times,
            )  # fmt: skip
        for tell in self._heard:
            tell(door, error, one_line(peer))

    def by_reason(self) -> dict[str, dict[str, int]]:
        """For each door that refused anybody, how many for which reason."""
        found: dict[str, dict[str, int]] = {}
        for (door, why), count in sorted(self.counts.items()):
            found.setdefault(door, {})[why] = count
        return found


def one_line(text: object) -> str:
    """What others say, for a log: on one line, of bounded length, and nothing invisible."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "?" for c in words[:TEXT_CHARS_MAX])
