"""Where the other voters are, and whether they are gone, as far as this one can tell."""

from enum import Enum

from diskless.agent.roster import Roster
from diskless.namespace.replication.messages import Life

REFUSED_WITHIN_S = 0.5
"""Two broken streams to a voter within this time mean that it is gone."""
SUSPECT_PAUSE_S = 0.05
"""Between two hints to the protocol that the same voter is gone."""


class Whereabouts:
    """Addresses that voters have told themselves. They count more than any other source."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._met: dict[int, Life | None] = {}  # the source of the known address
        self._vector: tuple[Life, ...] = ()

    def meet(self, slot: int, address: str, life: Life | None) -> None:
        self._roster.meet({slot: address})
        self._met[slot] = life

    def forget_the_dead(self, vector: tuple[Life, ...]) -> None:
        """Forgets the addresses of voters that were restarted, by their lives in `vector`: a life
        that was cut off may have sent messages here before this voter knew of its successor."""
        if vector is self._vector:
            return
        self._vector = vector
        for slot, life in list(self._met.items()):
            if life is not None and life < vector[slot]:
                del self._met[slot]
                self._roster.unmeet(slot)


class Break(Enum):
    """What a stream that ended says about the voter at its other end."""

    UNCLEAR = "unclear"
    """The next stream shows whether it is there."""
    GONE = "gone"
    SAID = "said"
    """It is gone, and the protocol has been told only now."""


class Breaks:
    """When streams to voters broke."""

    def __init__(self) -> None:
        self._broke_s: dict[int, float] = {}
        self._suspected_s: dict[int, float] = {}

    def note(self, slot: int, now_s: float) -> Break:
        again = now_s - self._broke_s.get(slot, -REFUSED_WITHIN_S) < REFUSED_WITHIN_S
        self._broke_s[slot] = now_s
        if not again:
            return Break.UNCLEAR
        if now_s - self._suspected_s.get(slot, -SUSPECT_PAUSE_S) < SUSPECT_PAUSE_S:
            return Break.SAID
        self._suspected_s[slot] = now_s
        return Break.GONE
