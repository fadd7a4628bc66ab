"""What operators ask: events, certificates, faults to plant, agents to empty."""

from typing import Annotated

from msgspec import Meta, Struct

from diskless.model import Event
from diskless.protocol.messages import Natural

KINDS_MAX = 32
"""Of events that one request names."""


class Events(Struct, omit_defaults=True):
    """The newest after an op, that `who` asked for and that concern `path`, of some kinds, since
    a time; what is empty or 0 does not matter. `before` is where an earlier page said to
    continue."""

    after: Natural = 0
    limit: int = 1000
    who: str = ""
    path: str = ""
    since_ms: Natural = 0
    before: str = ""
    kinds: Annotated[list[str], Meta(max_length=KINDS_MAX)] = []


class EventPage(Struct):
    events: list[Event]
    before: str = ""
    """Where to continue, further back; empty at the end."""
    oldest_ms: int = 0
    """How far back this page has looked, whatever it found; 0 if nothing was there."""


class Faults(Struct, omit_defaults=True):
    """Faults to plant in the very agent that is asked; what is None stays as it is.

    `heal` comes before everything else; `mend` is the part of it that concerns shards.
    """

    heal: bool = False
    mend: bool = False
    cut: list[int] | None = None
    delays_ms: dict[int, int] | None = None
    ballast_bytes: int | None = None
    corrupt: int = 0
    seed: int = 0


class Planted(Struct):
    """The faults that an agent has now, and what `corrupt` and `heal` did to shards."""

    cut: list[int]
    delays_ms: dict[int, int]
    ballast_bytes: int
    damaged: int
    flipped: int
    mended: int


class Renew(Struct, omit_defaults=True):
    """Has the very agent that is asked show a new certificate from now on, or only say what it
    shows."""

    show: bool = False


class Certificate(Struct):
    """What an agent shows of itself at its TCP doors; without TLS there is no fingerprint."""

    fingerprint: str = ""
    """SHA-256, in hex."""
    begins_s: int = 0
    ends_s: int = 0
    """Unix times."""
    renewed: bool = False


class Drain(Struct):
    """Moves everything off an agent, or, with `undo`, lets it take shards again."""

    slot: Natural
    undo: bool = False


class Drained(Struct):
    changed: bool
