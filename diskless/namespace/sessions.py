"""The table of answers: what each client's recent mutations were answered.

A session is opened by a command and numbered by it, so an unknown number can only
be an expired one: it is refused, never run. Within a session the answers of the
last `ANSWERS_PER_SESSION` sequence numbers are kept; older ones are refused too.

Sessions are bounded by what they weigh, which the state counts, and not by their number: the
arrival of others ends none. One ends when it has not been used for `SESSION_IDLE_S` by the
log's clock, which is far longer than any client waits for an answer. Answers are small: of a
refusal only the reason is kept.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterator

from diskless.errors import RESTORED, Restored, SessionExpired
from diskless.namespace.commands import (
    Clone,
    CreateSnapshot,
    Delete,
    Done,
    KeepLeases,
    Mkdirs,
    Past,
    Put,
    Refused,
    Rename,
    Replace,
    Result,
    Rollback,
)
from diskless.namespace.weights import ANSWER_BYTES, REFUSAL_BYTES, SESSION_BYTES

ANSWERS_PER_SESSION = 512
"""More than a client has in flight."""
SESSION_IDLE_S = 3600
"""Its client, if it is still there, opens another one and continues."""
EXPIRE_AT_ONCE_MAX = 8
"""Sessions that the opening of one may end, so that no command takes long."""
EPOCH_SESSION_BITS = 48
"""Where the epoch is in the number of a session: a restore begins another one."""
EXPIRE_EVERY = 64
"""So many of a session's requests lie between two looks for others that have grown old."""

Mutation = Put | Mkdirs | Rename | Delete | Past | KeepLeases

_NOT_RUN = -1


class _Session:
    """A client's answers. Row `n` of `_row` is that of sequence `_first + n`: what the
    answer's number and `changed` make together, or _NOT_RUN; then its time."""

    __slots__ = ("_first", "_row", "application", "newest", "refusals", "used_ms", "who")

    def __init__(
        self,
        used_ms: int,
        newest: int = 0,
        first: int = 0,
        rows: int = 0,
        who: str = "",
        application: str = "",
    ) -> None:
        self.who = sys.intern(who)  # A principal has many sessions.
        self.application = sys.intern(application)
        self.newest = newest
        self.used_ms = used_ms
        self.refusals: dict[int, str] | None = None  # their reasons, by sequence
        self._first = first
        self._row = array("q", (_NOT_RUN, 0) * rows)

    @property
    def bytes_used(self) -> int:
        refusals = len(self.refusals) if self.refusals else 0
        rows = ANSWER_BYTES * (len(self._row) >> 1)
        own = len(self.who) + len(self.application)
        return SESSION_BYTES + own + rows + REFUSAL_BYTES * refusals

    @property
    def bare(self) -> tuple[int, int, int, int, str, str]:
        """The session without its answers, as it is made again: what it weighs is part of the
        state, so its rows must be as many, also those of numbers that never came."""
        rows = len(self._row) >> 1
        return self.used_ms, self.newest, self._first, rows, self.who, self.application

    def get(self, sequence: int) -> Result | None:
        """The answer; a refusal has its reason, and no message any more."""
        at = 2 * (sequence - self._first)
        if 0 <= at < len(self._row) and (number := self._row[at]) != _NOT_RUN:
            return Done(number >> 1, self._row[at + 1], bool(number & 1))
        reason = self.refusals.get(sequence) if self.refusals else None
        return None if reason is None else Refused(reason, "")

    def items(self) -> Iterator[tuple[int, Result]]:
        """All answers, in the order of their sequence numbers."""
        for sequence in range(self._first, self._first + len(self._row) // 2):
            answer = self.get(sequence)
            if answer is not None:
                yield sequence, answer

    def put(self, sequence: int, result: Result) -> int:
        """Keeps an answer; how much more the session weighs with it."""
        row, before = self._row, len(self._row)
        if (
            type(result) is Done
            and sequence == self.newest + 1 == self._first + (before >> 1)
            and before < 4 * ANSWERS_PER_SESSION
        ):
            row.append(result.number << 1 | result.changed)  # as nearly always
            row.append(result.time_ms)
            self.newest = sequence
            return ANSWER_BYTES
        weight = self.bytes_used
        at = self._row_of(sequence)
        if isinstance(result, Done):
            row[at] = result.number << 1 | result.changed
            row[at + 1] = result.time_ms
        else:
            if self.refusals is None:
                self.refusals = {}
            self.refusals[sequence] = sys.intern(result.reason)
        if sequence > self.newest:
            self.newest = sequence
        if len(row) > 4 * ANSWERS_PER_SESSION:
            self._forget_old()
        return self.bytes_used - weight

    def _row_of(self, sequence: int) -> int:
        """Where in `_row` a sequence lies, which is made long enough for it."""
        row = self._row
        if not row:
            self._first = sequence
        missing = sequence - self._first
        if missing < 0:  # It was overtaken, by less than a window.
            row[:0] = array("q", (_NOT_RUN, 0) * -missing)
            self._first = sequence
            return 0
        gap = missing - len(row) // 2
        if gap >= ANSWERS_PER_SESSION:  # Nothing before it is within the window any more.
            del row[:]
            self._first, self.refusals, missing, gap = sequence, None, 0, 0
        if gap >= 0:
            row.extend((_NOT_RUN, 0) * (gap + 1))
        return 2 * missing

    def _forget_old(self) -> None:
        oldest = self.newest - ANSWERS_PER_SESSION + 1
        del self._row[: 2 * (oldest - self._first)]
        self._first = oldest
        if self.refusals:
            self.refusals = {n: why for n, why in self.refusals.items() if n >= oldest} or None


class Sessions:
    def __init__(self) -> None:
        self.bytes_used = 0
        self._sessions: OrderedDict[int, _Session] = OrderedDict()  # the longest unused first
        self._last = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def who(self, session: int) -> str:
        """Whose a session is; "" if it has expired."""
        known = self._sessions.get(session)
        return "" if known is None else known.who

    def application(self, session: int) -> str:
        """To which application a session belongs; "" if to none."""
        known = self._sessions.get(session)
        return "" if known is None else known.application

    def is_over(self, session: int, *, elapsed_ms: int) -> bool:
        """Whether it has expired, or would if somebody looked."""
        known = self._sessions.get(session)
        return known is None or known.used_ms <= elapsed_ms - 1000 * SESSION_IDLE_S

    def begin(self, number: int) -> None:
        """Those to come have greater numbers than this one."""
        self._last = max(self._last, number)

    def open(self, who: str = "", application: str = "", *, elapsed_ms: int) -> int:
        """A new session's number; `who` is the principal's name."""
        self._expire(elapsed_ms, limit=EXPIRE_AT_ONCE_MAX)
        self._last += 1
        self.add(self._last, _Session(elapsed_ms, who=who, application=application))
        return self._last

    def add(self, number: int, session: _Session) -> None:
        self._sessions[number] = session
        self.bytes_used += session.bytes_used

    def answer(self, session: int, sequence: int, *, elapsed_ms: int) -> Result | None:
        """What this mutation was answered, or None if it has not run.

        Raises SessionExpired when that can no longer be told; Restored for a session of an
        earlier epoch.
        """
        if not sequence % EXPIRE_EVERY:
            self._expire(elapsed_ms, limit=EXPIRE_AT_ONCE_MAX)
        known = self._sessions.get(session)
        if known is None:
            if 0 <= session >> EPOCH_SESSION_BITS < self._last >> EPOCH_SESSION_BITS:
                raise Restored(RESTORED)
            raise SessionExpired(f"session {session} has expired: reconnect")
        self._sessions.move_to_end(session)
        known.used_ms = elapsed_ms
        if sequence <= known.newest - ANSWERS_PER_SESSION:
            raise SessionExpired(f"session {session}: request {sequence} is too old to repeat")
        return known.get(sequence) if sequence <= known.newest else None

    def record(self, session: int, sequence: int, result: Result) -> None:
        """Keeps an answer. The session must be known, as `answer` has just shown."""
        self.bytes_used += self._sessions[session].put(sequence, result)

    def _expire(self, elapsed_ms: int, *, limit: int) -> None:
        """Ends sessions that have not been used for long."""
        latest_ms = elapsed_ms - 1000 * SESSION_IDLE_S
        for _ in range(min(limit, len(self._sessions))):
            number, oldest = next(iter(self._sessions.items()))
            if oldest.used_ms > latest_ms:
                return
            del self._sessions[number]
            self.bytes_used -= oldest.bytes_used


_BEFORE = {
    "AlreadyExists": "exists already",
    "NotFound": "is not there, or not where it was to go",
    "PathIsDirectory": "is a directory",
    "PathIsFile": "is a file, or below one",
    "DirectoryNotEmpty": "is a directory with entries",
    "HasSnapshots": "has snapshots, or has some below it",
    "CheckpointInUse": "is a checkpoint that somebody else writes to, or has changed meanwhile",
    "CapacityExceeded": "found no room: delete files, or start the cluster with more --memory",
}


def refused_before(reason: str, command: Mutation) -> Refused:
    """The refusal of a command that is repeated, of which only the reason is remembered."""
    if isinstance(command, Put):
        more = f" or one of {len(command.files) - 1} more files" if len(command.files) > 1 else ""
        what = f"{command.files[0].path if command.files else 'a put of no files'}{more}"
    elif isinstance(command, Rename | Clone):
        what = f"{command.source} or {command.target}"
    elif isinstance(command, CreateSnapshot):
        what = f"{' or '.join(command.paths[:2]) or 'nothing'} or its snapshot"
    elif isinstance(command, Replace):
        what = " or ".join(swap.path for swap in command.swaps[:2]) or "nothing"
    elif isinstance(command, KeepLeases):
        what = "leases"
    elif isinstance(command, Rollback) and command.cut:
        what = f"the cut {command.name!r}, or one of its directories,"
    else:
        what = command.path
    why = _BEFORE.get(reason, f"was refused with {reason} when it was first sent")
    return Refused(reason, f"{what} {why}")
