"""Who is at the other end of a connection, once both sides have proved themselves."""

from diskless.gateway.rights import Rights
from diskless.identity.handshake import Principal


class Visitor:
    """A principal on one connection."""

    __slots__ = ("number", "principal", "rights", "session", "session_count", "unwelcome")

    def __init__(self, number: int, principal: Principal) -> None:
        self.number = number
        """Of the connection."""
        self.principal = principal
        self.rights = Rights(principal.claims)
        self.unwelcome = False
        """Whether the connection is to end with the request that is refused now."""
        self.session = -1
        self.session_count = -1
        """The session that it used last, as it names it and as the namespace counts it."""
