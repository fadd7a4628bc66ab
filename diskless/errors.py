"""Every exception of diskless, with its wire reason and its exit code.

An error crosses a wire as its class name (the *reason*) and one line of text;
`error_from_wire` builds the same class again on the other side. Code decides by
class, never by the text. Where Python has a built-in exception for the case, ours
is a subclass of it too, so that users need not know diskless to catch it.
"""

from typing import ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class DisklessError(Exception):
    """Base of all errors that diskless raises on purpose.

    `retryable` says that the same request may succeed if it is sent again, to this
    agent or another, and that sending it again is safe.
    """

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    @property
    def reason(self) -> str:
        return type(self).__name__


class BadSettings(DisklessError, ValueError):
    """Settings that no cluster can run with."""

    exit_code = 2


class BadRequest(DisklessError, ValueError):
    """A request that makes no sense: a relative path, a negative offset, a cycle."""

    exit_code = 2


class NotFound(DisklessError, FileNotFoundError):
    exit_code = 3


class AlreadyExists(DisklessError, FileExistsError):
    exit_code = 4


class PathIsDirectory(DisklessError, IsADirectoryError):
    exit_code = 5


class PathIsFile(DisklessError, NotADirectoryError):
    """A directory was needed where a file is."""

    exit_code = 5


class DirectoryNotEmpty(DisklessError, OSError):
    exit_code = 5


class HasSnapshots(DisklessError, OSError):
    """A directory with snapshots, its own or of one below it, is neither moved nor deleted."""

    exit_code = 23


class ReadOnly(DisklessError, PermissionError):
    """What is at or below `.snapshot` can only be read."""

    exit_code = 24


class CheckpointInUse(DisklessError, OSError):
    """A query of another application writes below a checkpoint, or has just written there."""

    exit_code = 29


class CannotReturn(DisklessError, ValueError):
    """A query cannot be brought back to that batch: what it takes is gone, or never was."""

    exit_code = 30


class UnknownFormat(DisklessError, ValueError):
    """A file of a checkpoint is damaged, or of a format that this version does not know."""

    exit_code = 30


class TooFewShards(DisklessError, OSError):
    """A stripe has fewer readable shards than it needs: its bytes cannot be had now."""

    exit_code = 6


class ShardsAway(TooFewShards):
    """As TooFewShards, for now: the agents that hold the others are silent, but not lost."""

    retryable = True


class CorruptData(DisklessError, OSError):
    """Bytes failed their checksum and no other copy of them could be found."""

    exit_code = 6


class CapacityExceeded(DisklessError, OSError):
    """There is no room in the memory of enough agents."""

    exit_code = 7


class MemoryFull(DisklessError, OSError):
    """There is no room for now: some is made as what is in the tier leaves memory."""

    exit_code = 7
    retryable = True


class TooFewAgents(DisklessError, OSError):
    """Fewer agents are alive than a protected write needs, so it is refused."""

    exit_code = 8


class Unavailable(DisklessError, ConnectionError):
    """An agent, or the whole cluster, cannot be reached now."""

    exit_code = 9
    retryable = True


class Garbled(Unavailable):
    """A frame was damaged between client and agent: nothing came of it, and the connection is
    closed. Sent again it most likely gets through; if it never does, that is CorruptData."""


class AgentGone(Unavailable):
    """Nobody listens where an agent was: its process has ended, and its memory with it."""


class NoQuorum(Unavailable):
    """Too many voters are lost or cannot be reached, so the namespace cannot serve."""


class NotLeader(DisklessError, ConnectionError):
    """The agent that was asked does not lead; replies name the one that does."""

    exit_code = 9
    retryable = True


class StaleShards(DisklessError, OSError):
    """A commit names shards of an agent that is down, or of a superseded incarnation."""

    exit_code = 9
    retryable = True


class SessionExpired(DisklessError, OSError):
    """The table of answers no longer knows this client or this sequence number.

    Whether the command ran cannot be told any more, so it is never run again.
    """

    exit_code = 9


RESTORED = (
    "the cluster was restored from its tier since this client began: what the client knows may be "
    "gone. Connect again; in Spark, restart the query"
)


class Restored(DisklessError, OSError):
    """This client began before a restore: what it was told then may have been lost since."""

    exit_code = 28


class UploadLost(DisklessError, OSError):
    """An upload, or stripes of it, were dropped before it was committed: send it again."""

    exit_code = 9


class DeadlineExceeded(DisklessError, TimeoutError):
    exit_code = 10


class Unauthorized(DisklessError, PermissionError):
    """A key or a token is missing, wrong, expired or revoked; or no agent listens there."""

    exit_code = 11

    def __init__(self, message: str = "", *, why: str = "") -> None:
        """`why` is what refusals are counted by (`identity.refusals`); it does not travel."""
        super().__init__(message)
        self.why = why


class Forbidden(DisklessError, PermissionError):
    """A principal that is known here asked for what its token does not cover."""

    exit_code = 25


class BadFrame(DisklessError, ValueError):
    """A client sent bytes that are no frame; its connection is closed."""

    exit_code = 12


class NoCluster(DisklessError, LookupError):
    """No cluster of that name is known here."""

    exit_code = 13


class ClusterExists(DisklessError, OSError):
    """A cluster of that name runs already, with other settings."""

    exit_code = 14


class FilesExist(DisklessError, OSError):
    """Stopping the cluster would destroy files."""

    exit_code = 15


class LaunchFailed(DisklessError, RuntimeError):
    """Ray or an agent did not start."""

    exit_code = 16


class SparkUnusable(DisklessError, RuntimeError):
    """Java or pyspark is missing or too old, or the jar for Spark cannot be compiled."""

    exit_code = 17


class OverBudget(DisklessError, RuntimeError):
    """A fault was not planted: more agents would be down than chaos was allowed."""

    exit_code = 18


class PromiseBroken(DisklessError, RuntimeError):
    """A chaos run saw acknowledged data lost or duplicated, or a wrong byte."""

    exit_code = 19


class NotHealed(DisklessError, RuntimeError):
    """After a chaos run the margin was not k again in time."""

    exit_code = 20


class BeyondPromise(DisklessError, RuntimeError):
    """A chaos run broke more than k agents, and the store failed loudly, as it promises."""

    exit_code = 21


class StoreDown(Unavailable):
    """The tier's store does not answer, or not now: it is away, slow, full, or asks for patience.

    A write that ended so may have happened, or may yet happen.
    """


class StoreDenied(DisklessError, PermissionError):
    """The tier's store is there and refuses: credentials, rights, or what it cannot do."""

    exit_code = 26


class NoSuchBucket(DisklessError, FileNotFoundError):
    """The bucket or container that a tier's address names does not exist."""

    exit_code = 26


class WrongKey(DisklessError, ValueError):
    """The tier is encrypted with another key, or with none, or with one that was not given."""

    exit_code = 26


class Superseded(DisklessError, OSError):
    """A later epoch, or another cluster, continues the tier's chain: this one's part is over."""

    exit_code = 27


class TierBehind(DeadlineExceeded):
    """What was done is in the cluster's memory, but not in its tier within the deadline."""


class NotDurable(Unavailable):
    """What was done is in the cluster's memory and not in its tier yet, and its path asks for
    that: ask again, it will not be done twice."""


class Closing(Unavailable):
    """The cluster is being ended: what it holds is brought into its tier, and nothing is changed
    any more."""


class DamagedTier(CorruptData):
    """An object of the tier is gone, torn or altered: nothing of it is believed."""

    def __init__(self, message: str = "", *, name: str = "", before: int = 0) -> None:
        """`name` is the object; `before` the number of the newest manifest that does not need
        it, 0 if there is none. They do not travel."""
        super().__init__(message)
        self.name = name
        self.before = before


class InternalError(DisklessError, RuntimeError):
    """A bug in diskless: the agent's log has the traceback."""


def without_frames(error: E) -> E:
    """The same error, to be kept: it does not hold what it came through any more, nor the bytes
    that were being worked on there."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _all_subclasses(cls: type[DisklessError]) -> dict[str, type[DisklessError]]:
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found |= _all_subclasses(sub)
    return found


BY_REASON = _all_subclasses(DisklessError)


def error_from_wire(reason: str, message: str) -> DisklessError:
    """The exception that `reason` names; an unknown reason keeps its name in the text."""
    cls = BY_REASON.get(reason)
    if cls is None:
        return DisklessError(f"{reason}: {message}")
    return cls(message)
