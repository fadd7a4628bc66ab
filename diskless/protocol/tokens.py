"""What admins ask about tokens."""

from msgspec import Struct

from diskless.protocol.messages import Natural


class IssueToken(Struct):
    """Registers a token; its key stays with its maker."""

    name: str
    paths: list[str]
    writes: bool = False
    expires_s: Natural = 0


class Issued(Struct):
    issued: bool
    """False if the same token was known already."""


class RevokeToken(Struct):
    name: str


class Revoked(Struct, frozen=True):
    revoked: bool
    """False if it was so already."""
    registered: bool
    """Whether a token of that name was."""


class Tokens(Struct):
    """Those named beyond `after`, by name."""

    after: str = ""
    limit: int = 1000


class TokenInfo(Struct, frozen=True):
    name: str
    paths: list[str]
    """Empty if it was revoked and never registered."""
    writes: bool
    expires_s: int
    issued_ms: int
    revoked_ms: int
    """0 if it is not revoked."""

    @property
    def rights(self) -> str:
        return "" if not self.paths else "rw" if self.writes else "r"

    def state(self, now_s: float) -> str:
        if self.revoked_ms:
            return "revoked"
        return "expired" if 0 < self.expires_s <= now_s else "valid"


class TokenList(Struct):
    tokens: list[TokenInfo]
    more: bool
