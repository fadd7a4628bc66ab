"""Looking back through events, page by page: which are wanted, and where a page ends.

Events come newest first, from a leader's memory and then from its audit files. A page that is
full names the place where the next one begins: the op of the last event that was looked at and
how many of that op were, which mean the same to every voter; and, for the voter that made the
page, where in which file it was, so that it need not look through the newer ones again.
"""

from collections.abc import Iterable

from msgspec import Struct

from diskless.errors import BadRequest
from diskless.model import Event

PAGE_EVENTS_MAX = 2000
PAGE_BYTES_MAX = 3 << 20
"""Of one page as JSON, where a character takes up to 6 bytes: a frame holds 4 MiB."""
EVENT_BYTES = 200
"""Of an event without its text and its paths."""
SKEW_MS = 10 * 60 * 1000
"""A new leader's clock may be behind: times go back by this much at most, it is assumed."""
LOCAL_KINDS = frozenset({"gap", "lost", "refused"})
"""What only one voter's file has."""
_LATEST_OP = 2**63 - 1


class Events(Struct, frozen=True, tag=True, array_like=True):
    """The newest commands after an op, in words, that `who` asked for and that concern `path`,
    of some kinds, since a time; from `before` on, where an earlier page ended. Answered by the
    leader's agent.

    What is empty or 0 does not matter. Refused attempts are no commands, and left out."""

    after_op: int
    limit: int
    who: str = ""
    path: str = ""
    since_ms: int = 0
    before: str = ""
    within: tuple[str, ...] = ()
    """If there are any, only events that are about these paths, or below them, and nothing
    else."""
    kinds: tuple[str, ...] = ()

    def wants(self, event: Event) -> bool:
        return (
            event.op > self.after_op
            and event.time_ms >= self.since_ms
            and (not self.who or event.who == self.who)
            and (not self.kinds or event.kind in self.kinds)
            and (not self.path or event.concerns(self.path))
            and event.kind != "refused"
            and (not self.within or self._is_within(event))
        )

    def _is_within(self, event: Event) -> bool:
        return bool(event.paths) and all(
            any(path == own or path.startswith(own.rstrip("/") + "/") for own in self.within)
            for path in event.paths
        )

    def ends_at(self, event: Event) -> bool:
        """Whether nothing that is older can be wanted."""
        return event.op <= self.after_op or event.time_ms < self.since_ms - SKEW_MS


class EventsFound(Struct, frozen=True, array_like=True):
    events: list[Event]
    """The oldest first."""
    before: str
    """Where to continue; "" if there is nothing more."""
    oldest_ms: int = 0
    """The time of the oldest that was looked at, wanted or not; 0 if there was none."""


class Place(Struct, frozen=True):
    """How far a look back has come: `count` events of `op` were seen, and all newer ones."""

    op: int = _LATEST_OP
    count: int = 0
    slot: int = -1
    """Whose file the rest means; -1 if it is none's."""
    file: int = 0
    offset: int = 0
    """Everything from there on was seen."""
    seen: int = 0
    """How many of those `count` events lie there."""

    def __str__(self) -> str:
        parts = (self.op, self.count, self.slot, self.file, self.offset, self.seen)
        return ".".join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Raises BadRequest: it comes back from clients."""
        if not text:
            return cls()
        try:
            numbers = [int(part) for part in text.split(".")]
            return cls(*numbers)
        except (ValueError, TypeError):
            raise BadRequest(f"{text[:80]!r} is no place in the log of events") from None


class Look:
    """One page in the making."""

    def __init__(self, query: Events) -> None:
        """Raises BadRequest if the query begins nowhere."""
        self.query = query
        self.begin = Place.parse(query.before)
        self.ended = False
        """Whether the page is done: it is full, or nothing older is wanted."""
        self._over = False
        self._found: list[Event] = []
        self._room = min(max(query.limit, 0), PAGE_EVENTS_MAX)
        self._bytes_left = PAGE_BYTES_MAX
        self._oldest_ms = 0
        self._op, self._count, self._seen = self.begin.op, self.begin.count, 0

    def place(self, *, slot: int = -1, file: int = 0, offset: int = 0) -> Place:
        """How far it has come."""
        return Place(self._op, self._count, slot, file, offset, self._seen)

    def take(self, events: Iterable[Event], *, seen: int = 0) -> None:
        """Goes through events, the newest first, without those that were seen before. Of the
        op where it begins, `seen` are not among them."""
        skip_op, skip_count, self._seen = self._op, self._count, seen
        for event in events:
            if event.op > skip_op:
                continue
            local = event.kind in LOCAL_KINDS
            if event.op == skip_op and self._seen < skip_count and not local:
                self._seen += 1
                continue
            self._offer(event)
            if self.ended:
                return

    def _offer(self, event: Event) -> None:
        """The next older event; it is not taken if that ends the page."""
        if self.query.ends_at(event):
            self.ended = self._over = True
            return
        if self.query.wants(event):
            size = 6 * (len(event.text) + sum(map(len, event.paths))) + EVENT_BYTES
            if not self._room or (self._found and size > self._bytes_left):
                self.ended = True
                return
            self._room -= 1
            self._bytes_left -= size
            self._found.append(event)
        self._oldest_ms = event.time_ms
        if event.kind not in LOCAL_KINDS:
            self._count = self._count + 1 if event.op == self._op else 1
            self._op, self._seen = event.op, self._count

    def result(self, *, place: Place | None) -> EventsFound:
        """The page; `place` is where to continue, if there may be more."""
        more = place is not None and not self._over
        return EventsFound(self._found[::-1], str(place) if more else "", self._oldest_ms)
