"""The names of revoked tokens that this agent knows.

The namespace has the list (`namespace.tokens`). The leader's heartbeats bring new names to every
agent, in bounded parts. Only names whose tokens have expired are removed. An agent must not accept
clients before it has received the whole list once: see `known`.
"""

from collections.abc import Callable, Container, Iterable

from diskless.namespace.tokens import FORGET_SLACK_S

PART_MAX = 1000
"""Names in one heartbeat."""
NAME_BYTES = 200
"""Bytes that one takes at most: names have up to 64 characters."""
SWEEP_EVERY = 1000
"""Expired names are removed after so many new ones."""


class Revoked(Container[str]):
    def __init__(self, *, wall_s: Callable[[], float]) -> None:
        self.version = 0
        """The number of the newest revocation that this agent knows, with all before it."""
        self.known = False
        self._expires_s: dict[str, int] = {}
        self._wall_s = wall_s
        self._until_sweep = SWEEP_EVERY
        self._heard: list[Callable[[], None]] = []

    def __contains__(self, name: object) -> bool:
        return name in self._expires_s

    def __len__(self) -> int:
        return len(self._expires_s)

    @property
    def bytes_used(self) -> int:
        return NAME_BYTES * len(self._expires_s)

    def on_change(self, tell: Callable[[], None]) -> None:
        """`tell` is called whenever a name was added: connections with that token must be
        closed."""
        self._heard.append(tell)

    def learn(self, names: Iterable[tuple[str, int]], *, upto: int, version: int) -> None:
        """Adds the names, and when their tokens expire, of all revocations after `self.version` up
        to `upto`; the leader's newest is `version`."""
        before = len(self._expires_s)
        self._expires_s.update(names)
        self.version = max(self.version, upto)
        self.known = self.known or self.version >= version
        added = len(self._expires_s) - before
        if added:
            self._until_sweep -= added
            if self._until_sweep <= 0:
                self._sweep()
            for tell in self._heard:
                tell()

    def _sweep(self) -> None:
        """Removes names whose tokens have expired: those are refused anyway."""
        self._until_sweep = SWEEP_EVERY
        late_s = self._wall_s() - FORGET_SLACK_S
        over = [name for name, expires_s in self._expires_s.items() if 0 < expires_s < late_s]
        for name in over:
            del self._expires_s[name]
