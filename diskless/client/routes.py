"""Which agent a client should ask: pure bookkeeping of the roster, the leader and failures.

Metadata and small files go to the leader, bulk to an agent on this host that is not slow;
different clients prefer different local agents, each always the same one. An agent that failed
is passed over for a while, longer each time, and then asked last for some time more: else the
silent ones would have their turn again before an operation has asked all others. So is one that
answered that it cannot help: for as long as it takes to ask each of the others once. No I/O except
to see whether a socket file exists.
"""

import os
from collections.abc import Callable, Container, Sequence

from xxhash import xxh3_64_intdigest

from diskless.client.descriptor import UNKNOWN_SLOT
from diskless.protocol.frames import NO_LEADER
from diskless.protocol.messages import Peer

SKIP_S_MIN = 2.0
SKIP_S_MAX = 16.0
"""How long an agent that failed is passed over: twice as long each time until it works. A
frozen agent costs a whole attempt, and an agent behind it may name it as the leader."""
HINDERED_S = 0.5
ASK_S = 0.5
"""A quick answer of one agent, and the longest pause before the next is asked."""
DOUBT = 4
"""One that failed counts as well again after so many times as long as it is passed over."""
REFRESH_INTERVAL_S = 0.2
"""Agents may differ for a moment about the roster: ask again no more often than this."""


class Routes:
    def __init__(
        self,
        peers: Sequence[Peer],
        *,
        salt: str,
        is_local: Callable[[str], bool] = os.path.exists,
    ) -> None:
        self.leader: int | None = None
        self._salt = salt
        self._is_local = is_local
        self._failed_at: dict[str, float] = {}
        self._failed_until: dict[str, float] = {}
        self._doubted_until: dict[str, float] = {}
        self._skip_s: dict[str, float] = {}
        self._version: int | None = None
        self._seen_version: int | None = None
        self._refreshed_at = float("-inf")
        self._preferred: list[Peer] = []
        self._by_slot: dict[int, Peer] = {}
        self.replace(peers, version=None, now=float("-inf"))

    @property
    def peers(self) -> list[Peer]:
        """All known agents, best for bulk first."""
        return self._preferred

    def replace(self, peers: Sequence[Peer], *, version: int | None, now: float) -> None:
        """A new roster, with the version of the reply that brought it."""
        if not peers:
            return
        self._preferred = sorted(peers, key=self._preference)
        self._by_slot = {peer.slot: peer for peer in peers if peer.slot != UNKNOWN_SLOT}
        self._version = self._seen_version = version
        self._refreshed_at = now

    @property
    def has_roster(self) -> bool:
        """Whether an agent has told us of the others yet."""
        return self._version is not None

    def add(self, peers: Sequence[Peer]) -> None:
        """More addresses to try, beside those of the roster."""
        known = {address(peer) for peer in self._preferred}
        fresh = [peer for peer in peers if address(peer) not in known]
        self._preferred = self._preferred + sorted(fresh, key=self._preference)

    def learn(self, *, leader: int, version: int) -> None:
        """What every reply's header tells."""
        self.leader = None if leader == NO_LEADER else leader
        self._seen_version = version

    def is_outdated(self, now: float) -> bool:
        """Whether the roster should be asked for again."""
        return (
            self._seen_version != self._version and now - self._refreshed_at >= REFRESH_INTERVAL_S
        )

    def pick(self, *, bulk: bool, now: float) -> Peer:
        """The best agent that is not in doubt; else of those that may be asked again, or of all,
        the one whose failure is oldest."""
        if not bulk and self.leader is not None:
            peer = self._by_slot.get(self.leader)
            if peer is not None and not self._failed_lately(peer, now):
                return peer
        for peer in self._preferred:
            if not self._is_doubtful(peer, now):
                return peer
        return min(self._preferred, key=lambda peer: self._doubts(peer, now))

    def all_failed(self) -> bool:
        """Whether no agent has worked since it failed, however long ago that was."""
        return bool(self._failed_until) and all(
            address(peer) in self._failed_until for peer in self._preferred
        )

    def no_agent_left(self, strangers: Container[str]) -> bool:
        """Whether nobody may still prove to be an agent. Those at these addresses refused us, or
        proved nothing. Before we ever met an agent: all have failed. Later one such word is
        nothing, since a stranger may sit on a dead agent's port; the word of most of those that
        are up counts, if no other can be reached either: some may be dead that we have as up."""
        if not self.has_roster:
            return self.all_failed()
        expected = [address(peer) for peer in self._preferred if peer.up]
        refusing = sum(one in strangers for one in expected)
        return 2 * refusing > len(expected) and all(
            one in strangers or one in self._failed_until for one in expected
        )

    def failed(self, peer: Peer, now: float) -> None:
        self._forget_leader(peer)
        key = address(peer)
        self._failed_at[key] = now
        if not self._failed_lately(peer, now):  # else several requests to it were under way
            self._skip_s[key] = min(2 * self._skip_s.get(key, SKIP_S_MIN / 2), SKIP_S_MAX)
            self._failed_until[key] = now + self._skip_s[key]
        self._doubted_until[key] = now + DOUBT * self._skip_s.get(key, SKIP_S_MIN)

    def hindered(self, peer: Peer, now: float) -> None:
        """It answered that it cannot help for now: another may know more."""
        self._forget_leader(peer)
        key = address(peer)
        self._failed_at[key] = now
        self._failed_until[key] = now + HINDERED_S
        self._doubted_until[key] = now + HINDERED_S + ASK_S * len(self._preferred)
        self._skip_s.pop(key, None)

    def worked(self, peer: Peer) -> None:
        if self._failed_until:
            self._failed_at.pop(address(peer), None)
            self._failed_until.pop(address(peer), None)
            self._doubted_until.pop(address(peer), None)
            self._skip_s.pop(address(peer), None)

    def _forget_leader(self, peer: Peer) -> None:
        """That it led is as old as its last word. Whoever leads now is named by the next reply."""
        if peer.slot == self.leader:
            self.leader = None

    def _failed_lately(self, peer: Peer, now: float) -> bool:
        return bool(self._failed_until) and self._failed_until.get(address(peer), now) > now

    def _is_doubtful(self, peer: Peer, now: float) -> bool:
        if not self._failed_until:
            return False
        return now < self._doubted_until.get(address(peer), now)

    def _doubts(self, peer: Peer, now: float) -> tuple[bool, float]:
        return self._failed_lately(peer, now), self._failed_at.get(address(peer), now)

    def _preference(self, peer: Peer) -> tuple[bool, bool, bool, int]:
        local = bool(peer.socket) and self._is_local(peer.socket)
        turn = xxh3_64_intdigest(f"{self._salt}/{peer.slot}".encode())
        return not peer.up, peer.slow, not local, turn


def address(peer: Peer) -> str:
    """What failures are remembered by: a slot that came back elsewhere has not failed there."""
    return f"{peer.gateway} {peer.socket}"
