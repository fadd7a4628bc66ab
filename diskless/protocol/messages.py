"""The meta of every request and reply between a client and an agent.

docs/frames.md is the page for other languages; these structs are its Python side
and are checked on decoding, so that a handler only sees well-formed requests.
"""

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from diskless.errors import DisklessError, error_from_wire
from diskless.model import DrillStatus, Event, Extent, Stripe, TierOptions
from diskless.notes import NOTES_KEPT, NOTES_PER_MESSAGE, QUERY_CHARS_MAX, BatchNote

NUMBER_MAX = 2**63 - 1
Natural = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""A number that a command may carry: the log has no room for larger ones."""
KINDS_MAX = 32
"""Of events that one request names."""


class Kind(IntEnum):
    __hash__ = int.__hash__  # An enumeration's own runs in Python, with every look into a table.

    HELLO = 1
    SESSION = 2
    ROSTER = 3
    PUT = 4
    WRITE = 5
    COMMIT = 6
    ABORT = 7
    OPEN = 8
    READ = 9
    STAT = 10
    LIST = 11
    MKDIRS = 12
    RENAME = 13
    DELETE = 14
    SUMMARY = 15
    STATUS = 16
    EVENTS = 17
    DRAIN = 18
    SNAPSHOT = 19
    SNAPSHOTS = 20
    RENAME_SNAPSHOT = 21
    DELETE_SNAPSHOTS = 22
    CLONE = 23
    ROLLBACK = 24
    DIFF = 25
    USAGE = 26
    PROVE = 27
    RENEW = 28
    ISSUE_TOKEN = 29
    REVOKE_TOKEN = 30
    TOKENS = 31
    FAULTS = 32
    SET_POLICY = 33
    REMOVE_POLICY = 34
    POLICY = 35
    FLUSH = 36
    ATTACH_TIER = 37
    DETACH_TIER = 38
    OPEN_MANY = 48
    PRUNE = 50
    REPLACE = 51
    LEASES = 52
    KEEP_LEASES = 53
    NOTE_BATCHES = 54
    BATCH_NOTES = 55
    DRILLED = 60
    DONE = 0x80
    REFUSED = 0x81


class Empty(Struct):
    pass


class Hello(Struct):
    """A client's claims, which are no secret, and what the agent's proof must be about."""

    claims: str
    nonce: str
    client: str = ""


class Challenged(Struct):
    """The agent's proof that it belongs to the cluster, and what the client's must be about."""

    slot: int
    nonce: str
    proof: str


class Prove(Struct):
    proof: str


class Peer(Struct, frozen=True):
    """A gateway that clients may use."""

    slot: int
    gateway: str
    socket: str
    host: str
    up: bool
    slow: bool = False


class Roster(Struct):
    agents: list[Peer]


class Welcome(Struct):
    """Which cluster and slot this is, the handshake has proved already."""

    agents: list[Peer]
    epoch: int = 0
    """Differs after a restore: a client that has met another one knows files that may be gone."""


class OpenSession(Struct, omit_defaults=True):
    """`application` names who shares this client's leases on checkpoints; empty: it has no part
    in them."""

    application: str = ""


class Session(Struct):
    session: int


class MarkedExtent(Extent, frozen=True, array_like=True, gc=False):
    """An extent with the agents' word that its holder may read it; "" where none is needed.
    The mark of a whole extent is good for its parts."""

    mark: str = ""


class MarkedStripe(Stripe, frozen=True, array_like=True, gc=False):
    """A sealed stripe with the agents' word that it was sealed for its holder."""

    mark: str = ""


class NewFile(Struct):
    """One piece of an upload's bytes; the checksum is checked if it is given."""

    path: str
    size: int
    checksum: str = ""


class Put(Struct, kw_only=True, omit_defaults=True):
    session: Natural
    sequence: Natural
    files: list[NewFile]
    overwrite: bool = False
    parents: bool = True


class Write(Struct, omit_defaults=True):
    """The next bytes of an upload. `resume` lists what another agent had sealed of it; at
    the bytes `ends` of the upload one of its files ends and the next begins. `path` is where the
    first of them goes: it decides how well the bytes are protected before the commit says it."""

    upload: Natural
    offset: Natural
    resume: list[MarkedStripe] = []
    ends: list[int] = []
    path: str = ""


class Written(Struct):
    """`sealed` continues, from byte `sealed_from`, the list of an upload's safe stripes."""

    received: int
    sealed_from: int
    sealed: list[MarkedStripe]


class Commit(Put):
    upload: Natural
    offset: Natural
    resume: list[MarkedStripe] = []


class Abort(Struct):
    upload: int


class Status(Struct, frozen=True):
    """What a client sees of a path."""

    path: str
    directory: bool
    size: int
    mtime_ms: int
    id: int
    checksum: str


class Committed(Struct):
    files: list[Status]


class Open(Struct):
    path: str
    prefetch: int = 0
    places: bool = False
    """Whether to tell where the bytes are too, for a reader that chooses a host."""


class Opened(Struct, omit_defaults=True):
    file: Status
    extents: list[MarkedExtent]
    places: list[list[int]] = []
    """For each extent the slots that hold its stripe's data shards, if asked for."""
    near: int | None = None
    """Then also the slot whose agent has probably a copy of the whole file."""


class OpenMany(Struct):
    """Small files, to be read whole: the bytes of each come along while there is room."""

    paths: list[str]


class OpenedOne(Struct, omit_defaults=True):
    """One of many: a file, or what it was refused with. `here` says that its bytes come along,
    after those of the files before it."""

    file: Status | None = None
    here: bool = False
    refusal: "Refusal | None" = None


class OpenedMany(Struct):
    files: list[OpenedOne]


class Read(Struct, omit_defaults=True):
    extents: list[MarkedExtent]
    size: int = 0
    """Of the whole file, so that agents keep no copies of very large ones; 0: not told."""


class Stat(Struct):
    path: str


class List(Struct):
    path: str
    after: str = ""
    limit: int = 1000


class Listing(Struct):
    entries: list[Status]
    more: bool


class Mkdirs(Struct, omit_defaults=True):
    session: Natural
    sequence: Natural
    path: str
    parents: bool = True


class Created(Struct):
    created: bool


class Rename(Struct):
    session: Natural
    sequence: Natural
    source: str
    target: str
    overwrite: bool = False


class Delete(Struct, omit_defaults=True):
    session: Natural
    sequence: Natural
    path: str
    recursive: bool = False
    snapshots: bool = False
    """Whether the snapshots at and below the path go with it; else they keep it."""


class Deleted(Struct):
    deleted: bool


class Snapshot(Struct, kw_only=True):
    """Keeps directories as they are now. Several are one cut, at one moment; the name is made
    up if it is empty."""

    session: Natural
    sequence: Natural
    paths: list[str]
    name: str = ""
    cut: bool = False


class Snapshotted(Struct):
    """The name that the snapshot got; empty if it has been deleted since."""

    name: str


class Snapshots(Struct):
    """Those of a directory, or all if the path is empty; the oldest first, from beyond the
    number `after` on."""

    path: str = ""
    after: Natural = 0
    limit: int = 1000


class SnapshotInfo(Struct, frozen=True):
    path: str
    name: str
    time_ms: int
    op: int
    """The position in the log that it shows."""
    cut: str
    files: int
    directories: int
    bytes: int
    id: int


class SnapshotList(Struct):
    snapshots: list[SnapshotInfo]
    more: bool


class RenameSnapshot(Struct):
    session: Natural
    sequence: Natural
    path: str
    old: str
    new: str


class DeleteSnapshots(Struct):
    session: Natural
    sequence: Natural
    path: str
    names: list[str]


class Clone(Struct):
    session: Natural
    sequence: Natural
    source: str
    target: str


class Rollback(Struct, kw_only=True):
    """Brings a directory back to a snapshot of it, or with `cut` all directories of a cut."""

    session: Natural
    sequence: Natural
    path: str = ""
    name: str
    cut: bool = False
    guarded: bool = False
    """Whether it is refused while an application has a lease there."""


class RolledBack(Struct):
    """The snapshot of what was there before; empty if nothing was, or it is gone by now."""

    before: str


class Prune(Struct):
    """Deletes files below a directory, each by its path from there, that are there."""

    session: Natural
    sequence: Natural
    path: str
    names: list[str]


class Pruned(Struct):
    deleted: int


class Swap(Struct, frozen=True):
    """`path` becomes what `source` is, if it is still what its snapshot `since` shows."""

    path: str
    source: str
    since: str


class Replace(Struct):
    """All of these, or none."""

    session: Natural
    sequence: Natural
    swaps: list[Swap]
    force: bool = False


class Leases(Struct):
    path: str


class LeaseInfo(Struct, frozen=True):
    """A checkpoint that an application writes to, since when, and how long ago it was heard."""

    path: str
    application: str
    since_ms: int
    silent_ms: int


class LeaseList(Struct):
    leases: list[LeaseInfo]


class KeepLeases(Struct, kw_only=True):
    """Queries that are alive, by their checkpoints, and those that have ended."""

    session: Natural
    sequence: Natural
    roots: list[str]
    over: list[str] = []


class LeasesKept(Struct):
    kept: int


class Diff(Struct):
    """What is other in `b`, or in the directory as it is now, than in `a`."""

    path: str
    a: str
    b: str = ""
    after: str = ""
    limit: int = 1000


class Change(Struct, frozen=True):
    """Of a directory that is new or gone nothing below it is told."""

    kind: str
    """`+` for what is new, `-` for what is gone, `M` for a file with other bytes."""
    path: str
    """Below the directory."""
    directory: bool
    bytes_before: int
    bytes_after: int


class Changes(Struct):
    changes: list[Change]
    after: str
    """Where to continue; empty at the end."""


class Usage(Struct):
    """How many bytes at and below a path nothing else names."""

    path: str
    after: str = ""


class Used(Struct):
    own_bytes: int
    after: str
    """Where to continue, as in `Changes`: the sum of all pages counts."""


class Summary(Struct):
    path: str


class Summed(Struct):
    files: int
    directories: int
    bytes: int


class Events(Struct, omit_defaults=True):
    """The newest after an op, that `who` asked for and that concern `path`, of some kinds, since
    a time; what is empty or 0 does not matter. `before` is where an earlier page said to
    continue."""

    after: Natural = 0
    limit: int = 1000
    who: str = ""
    path: str = ""
    since_ms: Natural = 0
    before: str = ""
    kinds: Annotated[list[str], Meta(max_length=KINDS_MAX)] = []


class EventPage(Struct):
    events: list[Event]
    before: str = ""
    """Where to continue, further back; empty at the end."""
    oldest_ms: int = 0
    """How far back this page has looked, whatever it found; 0 if nothing was there."""


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


class Faults(Struct, omit_defaults=True):
    """Faults to plant in the very agent that is asked; what is None stays as it is.

    `heal` comes before everything else; `mend` is the part of it that concerns shards.
    """

    heal: bool = False
    mend: bool = False
    cut: list[int] | None = None
    delays_ms: dict[int, int] | None = None
    ballast_bytes: int | None = None
    corrupt: int = 0
    seed: int = 0


class Planted(Struct):
    """The faults that an agent has now, and what `corrupt` and `heal` did to shards."""

    cut: list[int]
    delays_ms: dict[int, int]
    ballast_bytes: int
    damaged: int
    flipped: int
    mended: int


class Renew(Struct, omit_defaults=True):
    """Has the very agent that is asked show a new certificate from now on, or only say what it
    shows."""

    show: bool = False


class Certificate(Struct):
    """What an agent shows of itself at its TCP doors; without TLS there is no fingerprint."""

    fingerprint: str = ""
    """SHA-256, in hex."""
    begins_s: int = 0
    ends_s: int = 0
    """Unix times."""
    renewed: bool = False


class Drain(Struct):
    """Moves everything off an agent, or, with `undo`, lets it take shards again."""

    slot: Natural
    undo: bool = False


class Drained(Struct):
    changed: bool


class SetPolicy(Struct):
    path: str
    key: str
    value: str


class RemovePolicy(Struct):
    path: str
    key: str = ""
    """All that the path has if it is empty."""


class PolicyChanged(Struct):
    changed: bool


class Policy(Struct):
    path: str


class PolicyEntry(Struct):
    """What holds at a path, and the path that says so; "" is the cluster's default."""

    key: str
    value: str
    source: str


class QuotaEntry(Struct):
    """A path at or above the one that was asked about that may hold only so much."""

    path: str
    bytes_max: int
    bytes_used: int


class FileCare(Struct):
    """How the file at the path is looked after. Its parity is what it has, and its margin how
    many more losses it survives: -1 if it cannot be read now."""

    priority: int
    parity_asked: int
    parity: int
    margin: int


class Policies(Struct, omit_defaults=True):
    entries: list[PolicyEntry]
    quotas: list[QuotaEntry] = []
    file: FileCare | None = None


class Flush(Struct):
    """Waits, but not for long, until the tier has all up to a change; 0 is the last one now."""

    change: int = 0
    closing: bool | None = None
    """Whether nothing may be changed from now on; None leaves it as it is."""


class Flushed(Struct):
    """How far the tier is: ask again with the same change until the horizon has reached it."""

    change: int
    horizon: int
    newest: int
    """The last change by now."""
    uri: str
    epoch: int
    number: int
    cold_files: int = 0
    """Of which the bytes are in the tier alone."""
    cold_bytes: int = 0
    closed: bool = False


class AttachTier(Struct):
    """A tier for a cluster that has none: an address without credentials, the epoch to continue
    with, and the number of the chain's last manifest."""

    uri: str
    epoch: int
    number: int
    options: TierOptions = TierOptions()


class Drilled(Struct):
    """What a drill of the tier has found."""

    result: DrillStatus


class DetachTier(Struct):
    pass


class Detached(Struct):
    left: int
    """What is still to be forgotten: ask again until it is 0."""
    changed: bool


class NoteBatches(Struct):
    """What Spark's listener has to say of batches of the query whose checkpoint is at `path`. It
    is kept for a while and may be lost; it may be sent again."""

    path: str
    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS_MAX)]
    notes: Annotated[list[BatchNote], Meta(min_length=1, max_length=NOTES_PER_MESSAGE)]


class BatchNotes(Struct):
    path: str
    limit: Natural = NOTES_KEPT


class Refusal(Struct):
    reason: str
    message: str
    retryable: bool = False

    @classmethod
    def of(cls, error: DisklessError) -> "Refusal":
        return cls(error.reason, str(error), error.retryable)

    def error(self) -> DisklessError:
        return error_from_wire(self.reason, self.message)


Mutation = (
    Put
    | Mkdirs
    | Rename
    | Delete
    | Snapshot
    | RenameSnapshot
    | DeleteSnapshots
    | Clone
    | Rollback
    | Prune
    | Replace
    | KeepLeases
)
"""What happens once: its session and sequence make it so."""

REQUESTS: dict[Kind, type[Struct]] = {
    Kind.HELLO: Hello,
    Kind.PROVE: Prove,
    Kind.SESSION: OpenSession,
    Kind.ROSTER: Empty,
    Kind.PUT: Put,
    Kind.WRITE: Write,
    Kind.COMMIT: Commit,
    Kind.ABORT: Abort,
    Kind.OPEN: Open,
    Kind.OPEN_MANY: OpenMany,
    Kind.READ: Read,
    Kind.STAT: Stat,
    Kind.LIST: List,
    Kind.MKDIRS: Mkdirs,
    Kind.RENAME: Rename,
    Kind.DELETE: Delete,
    Kind.SUMMARY: Summary,
    Kind.STATUS: Empty,
    Kind.EVENTS: Events,
    Kind.DRAIN: Drain,
    Kind.SNAPSHOT: Snapshot,
    Kind.SNAPSHOTS: Snapshots,
    Kind.RENAME_SNAPSHOT: RenameSnapshot,
    Kind.DELETE_SNAPSHOTS: DeleteSnapshots,
    Kind.CLONE: Clone,
    Kind.ROLLBACK: Rollback,
    Kind.PRUNE: Prune,
    Kind.REPLACE: Replace,
    Kind.LEASES: Leases,
    Kind.KEEP_LEASES: KeepLeases,
    Kind.NOTE_BATCHES: NoteBatches,
    Kind.BATCH_NOTES: BatchNotes,
    Kind.DIFF: Diff,
    Kind.USAGE: Usage,
    Kind.RENEW: Renew,
    Kind.ISSUE_TOKEN: IssueToken,
    Kind.REVOKE_TOKEN: RevokeToken,
    Kind.TOKENS: Tokens,
    Kind.FAULTS: Faults,
    Kind.SET_POLICY: SetPolicy,
    Kind.REMOVE_POLICY: RemovePolicy,
    Kind.POLICY: Policy,
    Kind.FLUSH: Flush,
    Kind.ATTACH_TIER: AttachTier,
    Kind.DETACH_TIER: DetachTier,
    Kind.DRILLED: Drilled,
}

encode = msgspec.json.encode
DECODERS = {kind: msgspec.json.Decoder(struct) for kind, struct in REQUESTS.items()}
