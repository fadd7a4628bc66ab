"""Questions to the namespace, and the forms of their answers (`answers` gives them)."""

from typing import Any

import msgspec
from msgspec import Struct

from diskless.model import Extent, FileRecord, HeldShard, Place, Stripe
from diskless.namespace.compare import DiffPage
from diskless.namespace.leases import LeaseStatus
from diskless.namespace.ledger import Verdict
from diskless.namespace.lookback import Events, EventsFound
from diskless.namespace.tokens import Token
from diskless.namespace.usage import UsagePage
from diskless.namespace.views import (
    PathStatus,
    SnapshotStatus,
    Summary,
    TierPiece,
    TierPlace,
    TierStatus,
)
from diskless.notes import Noted

PAGE_ENTRIES_MAX = 5000
WALK_STEPS_MAX = 1000
"""Of one page of a walk; a step of a comparison may look at two leaves."""
REVIEW_SHARDS_MAX = 2000
OPEN_FILES_MAX = 256
"""That one question may open: some milliseconds."""


class _Query(Struct, frozen=True, tag=True, array_like=True):
    pass


class Stat(_Query, frozen=True, tag=True, array_like=True):
    path: str


class Page(_Query, frozen=True, tag=True, array_like=True):
    path: str
    after: str
    limit: int


class Newest(_Query, frozen=True, tag=True, array_like=True):
    """Of a directory in which names are numbers, as in Spark's logs, the files with the greatest
    ones: of so many names beyond `after`, whose order is another one, as one turn can look at."""

    path: str
    after: str
    limit: int


class Open(_Query, frozen=True, tag=True, array_like=True):
    path: str


class OpenMany(_Query, frozen=True, tag=True, array_like=True):
    """As `Open` of each; what one is refused with stands in its place."""

    paths: tuple[str, ...]


class Locate(_Query, frozen=True, tag=True, array_like=True):
    stripes: tuple[str, ...]


class Summarize(_Query, frozen=True, tag=True, array_like=True):
    path: str


class Snapshots(_Query, frozen=True, tag=True, array_like=True):
    """Of a directory, or of all if `path` is empty, numbered beyond `after`: the oldest
    first."""

    path: str
    after: int
    limit: int


class SnapshotNumber(_Query, frozen=True, tag=True, array_like=True):
    """The snapshot that an answer to a command names by its number."""

    number: int


class Usage(_Query, frozen=True, tag=True, array_like=True):
    """What is at a path and nowhere else: one page of it."""

    path: str
    cursor: str
    limit: int


class Diff(_Query, frozen=True, tag=True, array_like=True):
    """What has changed in a directory from one of its snapshots to another, or until now if
    `after` is empty: one page of it."""

    path: str
    before: str
    after: str
    cursor: str
    limit: int


class Review(_Query, frozen=True, tag=True, array_like=True):
    """What to do with these shards, which lie at `place`."""

    place: Place
    shards: tuple[HeldShard, ...]


class Placed(_Query, frozen=True, tag=True, array_like=True):
    """How many shards of live stripes should be at a place."""

    place: Place


class Report(_Query, frozen=True, tag=True, array_like=True):
    """The whole cluster's status, as JSON; answered by the leader's agent."""


class Tokens(_Query, frozen=True, tag=True, array_like=True):
    """Those named beyond `after`, by name."""

    after: str
    limit: int


class Policy(_Query, frozen=True, tag=True, array_like=True):
    """What holds at a path, which need not be there."""

    path: str


class TierState(_Query, frozen=True, tag=True, array_like=True):
    """How far the durable tier reaches, and what is there."""

    awaited: int = 0
    """A change that somebody waits for: then the drain does not take its time."""


class TierPlaces(_Query, frozen=True, tag=True, array_like=True):
    """Where files lie in the tier, by their ids, large ones with their first part: None for each
    that does not."""

    ids: tuple[int, ...]


class TierParts(_Query, frozen=True, tag=True, array_like=True):
    """Where a file lies in the tier from its byte `at` on: of a large one TIER_PARTS_MAX parts at
    most. Empty if it does not lie there."""

    id: int
    at: int = 0


class Behind(_Query, frozen=True, tag=True, array_like=True):
    """What the tier has of an extent: None if it has not all of it."""

    extent: Extent


class NotesOf(_Query, frozen=True, tag=True, array_like=True):
    """The last notes of a query's batches, by its checkpoint. They are not of the namespace: the
    leader has them beside it."""

    path: str
    limit: int


class LeasesOf(_Query, frozen=True, tag=True, array_like=True):
    """The checkpoints at and below a path that applications write to."""

    path: str


Query = (
    Stat
    | Page
    | Newest
    | Open
    | OpenMany
    | Locate
    | Summarize
    | Snapshots
    | SnapshotNumber
    | Usage
    | Diff
    | Review
    | Placed
    | Tokens
    | Policy
    | TierState
    | TierPlaces
    | TierParts
    | Behind
    | LeasesOf
    | NotesOf
    | Report
    | Events
)


class Listed(Struct, frozen=True, array_like=True):
    entries: list[PathStatus]
    more: bool


class NewestFound(Struct, frozen=True, array_like=True):
    """The greatest number first. `after` is where the next question goes on, which may find
    greater ones; empty if all names were looked at."""

    entries: list[PathStatus]
    after: str


class SnapshotsListed(Struct, frozen=True, array_like=True):
    entries: list[SnapshotStatus]
    more: bool


class TokensListed(Struct, frozen=True, array_like=True):
    entries: list[Token]
    more: bool


class OpenedFile(Struct, frozen=True, array_like=True):
    """A file with no bytes here has `place`; one that the tier has not either has none."""

    record: FileRecord
    stripes: list[Stripe]
    place: TierPlace | None = None


class FileCare(Struct, frozen=True, array_like=True):
    """How a file is looked after, whatever its path asks for by now."""

    priority: int
    parity_asked: int
    """By the path that it was written to, or moved to."""
    parity: int
    """What it has: the least of its stripes. Inline files have all that the cluster has."""
    margin: int
    """How many more losses it survives; -1 if it cannot be read now. A cold file has all."""


class NotOpened(Struct, frozen=True, array_like=True):
    """Why a file of many cannot be opened."""

    reason: str
    message: str


class OpenedFiles(Struct, frozen=True, array_like=True):
    """In the order of the question; the stripes of all, each once. A file that was refused has no
    record."""

    records: list[FileRecord | None]
    refusals: dict[int, NotOpened]
    stripes: list[Stripe]


class PolicyShown(Struct, frozen=True, array_like=True):
    """Each key with what holds and the path that says so, which is empty for a default; the
    quotas at the path and above it, each with its bytes and what it holds; and how the file is
    looked after that is there, if one is."""

    entries: list[tuple[str, str, str]]
    quotas: list[tuple[str, int, int]] = []
    file: FileCare | None = None


ANSWERS: dict[type, Any] = {
    Stat: PathStatus,
    Page: Listed,
    Newest: NewestFound,
    Open: OpenedFile,
    OpenMany: OpenedFiles,
    Locate: list[Stripe],
    Summarize: Summary,
    Snapshots: SnapshotsListed,
    SnapshotNumber: SnapshotStatus,
    Usage: UsagePage,
    Diff: DiffPage,
    Review: list[Verdict],
    Placed: int,
    Report: bytes,
    Tokens: TokensListed,
    Policy: PolicyShown,
    TierState: TierStatus,
    TierPlaces: list[TierPlace | None],
    TierParts: list[TierPlace],
    Behind: list[TierPiece] | None,
    LeasesOf: list[LeaseStatus],
    NotesOf: Noted,
    Events: EventsFound,
}

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Query).decode
_ANSWER_DECODERS = {kind: msgspec.msgpack.Decoder(answer) for kind, answer in ANSWERS.items()}


def decode_answer(query: Query, data: bytes) -> Any:
    return _ANSWER_DECODERS[type(query)].decode(data)
