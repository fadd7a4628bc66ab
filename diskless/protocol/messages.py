"""The kinds of frames, and the meta of those that every client needs: who is there, files and
directories, refusals.

docs/frames.md is the page for other languages; these structs are its Python side. Those about one
concern are in modules of its name beside this one, and `requests` is the table of all requests.
"""

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from diskless.errors import DisklessError, error_from_wire
from diskless.model import Extent, Stripe

NUMBER_MAX = 2**63 - 1
Natural = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""A number that a command may carry: the log has no room for larger ones."""


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


class Summary(Struct):
    path: str


class Summed(Struct):
    files: int
    directories: int
    bytes: int


class Refusal(Struct):
    reason: str
    message: str
    retryable: bool = False

    @classmethod
    def of(cls, error: DisklessError) -> "Refusal":
        return cls(error.reason, str(error), error.retryable)

    def error(self) -> DisklessError:
        return error_from_wire(self.reason, self.message)


encode = msgspec.json.encode
