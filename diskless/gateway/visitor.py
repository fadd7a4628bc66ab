"""Who is at the other end of a connection, once both sides have proved themselves."""

from collections.abc import Callable

from diskless.errors import DisklessError
from diskless.gateway.rights import Rights
from diskless.identity.handshake import Principal


class Visitor:
    """A principal on one connection."""

    __slots__ = ("hang_up", "number", "principal", "rights", "session", "session_count")

    def __init__(
        self,
        number: int,
        principal: Principal,
        hang_up: Callable[[DisklessError], None] = lambda error: None,
    ) -> None:
        self.number = number
        """Of the connection."""
        self.principal = principal
        self.rights = Rights(principal.claims)
        self.hang_up = hang_up
        """Ends the connection, with a reason."""
        self.session = -1
        self.session_count = -1
        """The session that it used last, as it names it and as the namespace counts it."""
