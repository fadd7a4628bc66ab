"""This agent's access to the durable tier, if the cluster has one.

The namespace says which tier that is. The leader's heartbeats tell agents, and voters know it
themselves. It is opened on first use, and again when it changes.
"""

from collections.abc import Callable

from diskless.agent.ports import Tier, TierCounts
from diskless.errors import BadSettings, StoreDenied, Unavailable
from diskless.model import TierOptions

OpenTier = Callable[[str, TierOptions], Tier]
"""Opens the tier at an address; asks nothing of it. Raises BadSettings."""
Named = tuple[str, TierOptions]
NO_TIER: Named = ("", TierOptions())


class Tiers:
    def __init__(self, *, open_tier: OpenTier, look: Callable[[], Named | None]) -> None:
        """`look` tells which tier the namespace has, where it is known; None elsewhere."""
        self._open = open_tier
        self._look = look
        self._told = NO_TIER
        self._opened: tuple[Named, Tier] | None = None

    def learn(self, uri: str, options: TierOptions) -> None:
        """What the leader says; an empty address is none."""
        self._told = (uri, options)

    @property
    def known(self) -> bool:
        """Whether there is one, as far as is known here."""
        return bool((self._look() or self._told)[0])

    def get(self) -> Tier:
        """Raises Unavailable if there is none, StoreDenied if it cannot be opened here."""
        named = self._look() or self._told
        if not named[0]:
            raise Unavailable("this agent knows of no tier")
        if self._opened is None or self._opened[0] != named:
            self._opened = (named, self.open(*named))
        return self._opened[1]

    def open(self, uri: str, options: TierOptions) -> Tier:
        """A tier that the namespace need not have. Raises StoreDenied."""
        try:
            return self._open(uri, options)
        except (BadSettings, ModuleNotFoundError) as error:
            raise StoreDenied(f"{uri} cannot be used here: {error}") from None

    def counts(self) -> TierCounts:
        return self._opened[1].counts() if self._opened is not None else TierCounts()
