"""The table of tokens: those that were registered, and the names that were revoked.

A token is proved by its key alone (`identity.claims`): no table lets anybody in. What is here
serves people, who want to know what they have issued, and keeps people out: a revoked name is
good for nothing until its token has expired anyway. One that was never registered may never
expire, so its name stays for good. Keys are never here.

Revocations are numbered: `version` is the number of the newest, so that agents, which all must
know them, are told only of those that they have not heard of.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from diskless.errors import AlreadyExists
from diskless.namespace.weights import token_bytes

FORGET_SLACK_S = 24 * 3600
"""A token is forgotten so long after it has expired: by then it has by all agents' clocks."""
FORGET_AT_ONCE_MAX = 8
"""Tokens that a command may forget, so that none takes long."""


class Token(Struct, frozen=True, gc=False):
    name: str
    paths: tuple[str, ...]
    """Empty if it was revoked and never registered."""
    writes: bool
    expires_s: int
    """Unix time; 0 is never."""
    issued_ms: int
    revoked_ms: int = 0
    """0 if it is not revoked."""
    number: int = 0
    """Of its revocation."""

    @property
    def bytes_used(self) -> int:
        return token_bytes(self.name, self.paths)


class Tokens:
    def __init__(self) -> None:
        self.by_name: dict[str, Token] = {}
        self.bytes_used = 0
        self.version = 0
        """The number of the newest revocation that there ever was."""
        self.watcher: Callable[[str, Token | None], None] | None = None
        """Is told of every row that changes, before: its name, and what it was."""
        self._names: list[str] = []  # sorted
        self._revoked: dict[int, str] = {}
        self._numbers: list[int] = []  # of `_revoked`, sorted
        self._by_expiry: list[tuple[int, str]] = []  # a heap

    def __len__(self) -> int:
        return len(self.by_name)

    def has(self, token: Token) -> bool:
        """Whether the same claims are known under that name. Raises AlreadyExists if others
        are, or if it was revoked."""
        known = self.by_name.get(token.name)
        if known is None:
            return False
        if known.revoked_ms:
            raise AlreadyExists(f"the token {token.name!r} was revoked: choose another name")
        if (known.paths, known.writes, known.expires_s) != (
            token.paths, token.writes, token.expires_s
        ):  # fmt: skip
            raise AlreadyExists(
                f"there is a token {token.name!r} for other paths or rights, or until another "
                "time: choose another name"
            )
        return True

    def is_registered(self, name: str) -> bool:
        known = self.by_name.get(name)
        return known is not None and bool(known.paths)

    def add(self, token: Token) -> None:
        """The name must be new; also how a copy of the table is made, in its order."""
        if self.watcher is not None:
            self.watcher(token.name, None)
        self.by_name[token.name] = token
        insort(self._names, token.name)
        self.bytes_used += token.bytes_used
        if token.expires_s:
            heapq.heappush(self._by_expiry, (token.expires_s, token.name))
        if token.revoked_ms:
            self._note_revoked(token)

    def revoke(self, name: str, *, now_ms: int) -> bool:
        """Whether it was not revoked before. Any name will do."""
        known = self.by_name.get(name)
        if known is not None and known.revoked_ms:
            return False
        self.version += 1
        now_ms = max(now_ms, 1)
        if known is None:
            self.add(Token(name, (), False, 0, 0, revoked_ms=now_ms, number=self.version))
        else:
            if self.watcher is not None:
                self.watcher(name, known)
            token = replace(known, revoked_ms=now_ms, number=self.version)
            self.by_name[name] = token
            self._note_revoked(token)
        return True

    def forget(self, *, now_ms: int) -> int:
        """Drops tokens that expired long ago, a few; how many."""
        forgotten = 0
        for _ in range(FORGET_AT_ONCE_MAX):
            if not self._by_expiry:
                break
            expires_s, name = self._by_expiry[0]
            if now_ms < 1000 * (expires_s + FORGET_SLACK_S):
                break
            heapq.heappop(self._by_expiry)
            token = self.by_name.pop(name)
            if self.watcher is not None:
                self.watcher(name, token)
            forgotten += 1
            del self._names[bisect_left(self._names, name)]
            self.bytes_used -= token.bytes_used
            if token.number:
                del self._revoked[token.number]
                del self._numbers[bisect_left(self._numbers, token.number)]
        return forgotten

    def revoked_after(self, number: int, *, limit: int) -> tuple[list[tuple[str, int]], int]:
        """The names revoked after that one, and when their tokens expire, the oldest first;
        and the number up to which these are all."""
        at = bisect_right(self._numbers, number)
        numbers = self._numbers[at : at + limit]
        found = [self.by_name[self._revoked[n]] for n in numbers]
        upto = numbers[-1] if at + limit < len(self._numbers) else self.version
        return [(token.name, token.expires_s) for token in found], upto

    def page(self, *, after: str, limit: int) -> tuple[list[Token], bool]:
        """Up to `limit` tokens named beyond `after`, by name, and whether more follow."""
        at = bisect_right(self._names, after)
        found = self._names[at : at + limit]
        return [self.by_name[name] for name in found], at + limit < len(self._names)

    def _note_revoked(self, token: Token) -> None:
        self._revoked[token.number] = token.name
        insort(self._numbers, token.number)
