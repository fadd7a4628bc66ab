"""What the gateway serves: the interface between connections and what requests mean."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from diskless.errors import DisklessError
from diskless.gateway.visitor import Visitor
from diskless.protocol.messages import Kind, Roster, Welcome

Buffer = bytes | bytearray | memoryview
ConnectionId = int
Answer = tuple[Struct | bytes, Sequence[Buffer]]
"""A reply's meta (a struct, or JSON ready to send) and the parts of its payload. The
parts must not change until they are sent."""
Handlers = dict[Kind, Callable[[Any, Buffer], Answer | Awaitable[Answer]]]
"""What requests mean, by their meta and payload."""
PersonalHandlers = dict[Kind, Callable[[Visitor, Any, Buffer], Answer | Awaitable[Answer]]]
"""The same where it depends on who asks."""


class Backend(Protocol):
    """What the gateway serves. All of it is called on the gateway's event loop."""

    def leader(self) -> int | None:
        """The slot of the leader as far as this agent knows. Called for every reply."""

    def roster_version(self) -> int:
        """Changes whenever an agent's address or state does. Called for every reply."""

    def welcome(self) -> Welcome: ...

    def roster(self) -> Roster: ...

    def handle(
        self, visitor: Visitor, kind: Kind, meta: Struct, payload: bytes | memoryview
    ) -> Answer | Awaitable[Answer]:
        """The answer to a request, at once or awaited: an `async def` will do. The visitor has
        the right to ask it, as far as the request itself tells.

        An answer that is ready need not be awaited, which saves the cost of a task.
        Requests of one connection are started in the order in which they came. The
        payload belongs to the handler. Raises DisklessError for a refusal; anything
        else is a bug. It is cancelled when it takes longer than `request_timeout_s` or
        its client's patience, and when the gateway stops, but not when its client goes
        away.
        """

    def hindrance(self) -> DisklessError | None:
        """What keeps this agent from answering for now, if that is known."""

    def disconnected(self, connection: ConnectionId) -> None:
        """That client is gone; requests of it may still be running."""
