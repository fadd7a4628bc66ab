"""The table of answers: what each client's recent mutations were answered.

A session is opened by a command and numbered by it, so an unknown number can only
be an expired one: it is refused, never run. Within a session the answers of the
last `ANSWERS_PER_SESSION` sequence numbers are kept; older ones are refused too.
"""

from diskless.errors import SessionExpired
from diskless.namespace.commands import Result

SESSIONS_MAX = 1024
ANSWERS_PER_SESSION = 512
"""More than a client has in flight. Together the answers take 100 MiB at most."""


class _Session:
    __slots__ = ("answers", "newest")

    def __init__(self) -> None:
        self.answers: dict[int, Result] = {}
        self.newest = 0


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self) -> int:
        """A new session's number; the least recently used one makes room if need be."""
        self._last += 1
        self._sessions[self._last] = _Session()
        if len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return self._last

    def answer(self, session: int, sequence: int) -> Result | None:
        """What this mutation was answered, or None if it has not run.

        Raises SessionExpired when that can no longer be told.
        """
        known = self._sessions.pop(session, None)
        if known is None:
            raise SessionExpired(f"session {session} has expired: reconnect")
        self._sessions[session] = known  # now the most recently used
        if sequence <= known.newest - ANSWERS_PER_SESSION:
            raise SessionExpired(f"session {session}: request {sequence} is too old to repeat")
        return known.answers.get(sequence)

    def record(self, session: int, sequence: int, result: Result) -> None:
        """Keeps an answer. The session must be known, as `answer` has just shown."""
        known = self._sessions[session]
        known.answers[sequence] = result
        known.newest = max(known.newest, sequence)
        if len(known.answers) >= 2 * ANSWERS_PER_SESSION:
            oldest = known.newest - ANSWERS_PER_SESSION
            known.answers = {n: kept for n, kept in known.answers.items() if n > oldest}
