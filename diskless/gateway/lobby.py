"""Who comes in: connections that have not proved themselves yet, and how many may stay.

Strangers are few, whatever they do: one more ends the oldest of them, which had the most time,
and each has a deadline for its whole handshake. Those that have proved themselves count apart,
so that strangers take no client's place.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from diskless.errors import DeadlineExceeded, Unauthorized, Unavailable
from diskless.identity.arrivals import Arrivals
from diskless.identity.handshake import Doorkeeper, Knock, Pending
from diskless.protocol.messages import Hello

if TYPE_CHECKING:
    from diskless.gateway.connection import Connection

STRANGERS_MAX = 256
DOOR = "gateway"
"""In handshakes and in what is counted."""


class Lobby:
    def __init__(
        self, doorkeeper: Doorkeeper, *, strangers_max: int, visitors_max: int, timeout_s: float
    ) -> None:
        self.doorkeeper = doorkeeper
        self.strangers: dict[Connection, None] = {}
        """The oldest first."""
        self.visitors = 0
        self.arrivals: Arrivals | None = None
        """Of the TCP door, once that is open."""
        self._strangers_max = strangers_max
        self._visitors_max = visitors_max
        self._timeout_s = timeout_s

    def opened(self, connection: "Connection") -> None:
        self.strangers[connection] = None
        if len(self.strangers) > self._strangers_max:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.refuse_and_close(
                Unavailable(
                    f"{self._strangers_max} connections to this agent have not proved who they "
                    "are, and this is the oldest of them: try again"
                )
            )

    def challenge(self, hello: Hello) -> Pending:
        """Raises Unauthorized."""
        pending = self.doorkeeper.challenge(Knock(hello.claims, hello.nonce), door=DOOR)
        if pending.principal.is_agent:
            raise Unauthorized(
                "this door is for clients and admins, not for agents", why="wrong role"
            )
        return pending

    def admit(self, connection: "Connection") -> None:
        """A stranger has proved itself. Raises Unavailable if there are too many already."""
        if self.visitors >= self._visitors_max:
            raise Unavailable(
                f"the agent has {self._visitors_max} connections, as many as its memory and "
                "open files allow: start the cluster with more --memory or --agents"
            )
        self.visitors += 1
        self.strangers.pop(connection, None)
        if self.arrivals is not None and (address := connection.address):
            self.arrivals.give_back(address)

    def lost(self, connection: "Connection") -> None:
        self.strangers.pop(connection, None)
        if connection.visitor is not None:
            self.visitors -= 1

    def end_late(self, now: float) -> None:
        """Closes those that had their time."""
        while self.strangers:
            oldest = next(iter(self.strangers))
            if now - oldest.opened_at <= self._timeout_s:
                return
            del self.strangers[oldest]
            oldest.refuse_and_close(DeadlineExceeded(f"no handshake within {self._timeout_s:g} s"))

    def recheck(self, connections: Iterable["Connection"]) -> None:
        """Ends the connections of those whose token has expired or was revoked."""
        for connection in list(connections):
            if connection.visitor is not None:
                try:
                    self.doorkeeper.check(connection.visitor.principal.claims)
                except Unauthorized as error:
                    connection.refuse_and_close(error)
