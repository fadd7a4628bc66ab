"""The leader's own session, for mutations that it makes like a client: each is applied once."""

from collections.abc import Callable

from diskless.agent.replica import Replica
from diskless.errors import SessionExpired
from diskless.namespace import commands as c


class OwnSession:
    def __init__(self, replica: Replica, *, who: str) -> None:
        """`who` is the name in the event log."""
        self._replica = replica
        self._who = who
        self._session = 0
        self._sequence = 0

    async def do(self, make: Callable[[int, int], c.Command]) -> None:
        """Raises the reason if the command is refused. If the session has expired, the next call
        opens another."""
        if not self._session:
            (opened,) = await self._replica.execute(c.OpenSession(self._who))
            if isinstance(opened, c.Refused):
                raise opened.error()
            self._session, self._sequence = opened.number, 0
        self._sequence += 1
        (result,) = await self._replica.execute(make(self._session, self._sequence))
        if isinstance(result, c.Refused):
            if result.reason == SessionExpired.__name__:
                self._session = 0
            raise result.error()
