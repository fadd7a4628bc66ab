"""Questions to the namespace, and their answers. They change nothing."""

from typing import Any

import msgspec
from msgspec import Struct

from diskless import paths, policy
from diskless.errors import DisklessError, NotFound, PathIsFile
from diskless.model import Extent, FileRecord, HeldShard, Place, Stripe
from diskless.namespace import quotas
from diskless.namespace.behind import pieces_behind
from diskless.namespace.compare import DiffPage, diff_page
from diskless.namespace.health import judge
from diskless.namespace.leases import LeaseStatus
from diskless.namespace.ledger import Verdict
from diskless.namespace.lookback import Events, EventsFound
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import is_cold
from diskless.namespace.tokens import Token
from diskless.namespace.tree import Directory, File
from diskless.namespace.usage import UsagePage, usage_page
from diskless.namespace.views import (
    PathStatus,
    SnapshotStatus,
    Summary,
    TierPiece,
    TierPlace,
    TierStatus,
    snapshot_status,
    tier_place,
    tier_places,
    tier_status,
)
from diskless.notes import Noted

PAGE_ENTRIES_MAX = 5000
NEWEST_MAX = 200
NEWEST_NAMES_MAX = 4000
"""That one question looks at: about a millisecond."""
TIER_PARTS_MAX = 64
"""Of a file's places in one answer."""
PAGE_BYTES_MAX = 3 << 20
"""Of one page's entries as JSON, where a character takes up to 6 bytes: a frame holds 4 MiB."""
ENTRY_BYTES = 200
"""Of an entry without its path."""
WALK_STEPS_MAX = 1000
"""Of one page of a walk; a step of a comparison may look at two leaves."""
REVIEW_SHARDS_MAX = 2000
CARE_EXTENTS_MAX = 2000
"""Parts of a file that are looked at to say how well it is: about 2 GiB."""
LEASES_SHOWN_MAX = 1000
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


def answer(state: NamespaceState, query: Query) -> Any:
    """The answer from `state`. Raises what the question deserves, such as NotFound."""
    match query:
        case Stat(path):
            return state.stat(path)
        case Page(path, after, limit):
            entries, more = state.page(
                path, after=after, limit=min(max(limit, 1), PAGE_ENTRIES_MAX)
            )
            return _that_fits(Listed(entries, more))
        case Newest(path, after, limit):
            return NewestFound(
                *state.newest(
                    path,
                    after=after,
                    limit=min(max(limit, 1), NEWEST_MAX),
                    names_max=NEWEST_NAMES_MAX,
                )
            )
        case Open(path):
            return _opened(state, path)
        case OpenMany(wanted):
            return _opened_many(state, wanted[:OPEN_FILES_MAX])
        case Locate(stripes):
            return state.locate(stripes)
        case Summarize(path):
            return state.summary(path)
        case Snapshots(path, after, limit):
            return _snapshots(state, path, after, min(max(limit, 1), PAGE_ENTRIES_MAX))
        case SnapshotNumber(number):
            return snapshot_status(state.history.numbered(number))
        case Usage(path, cursor, limit):
            return usage_page(state, path, cursor=cursor, limit=min(max(limit, 1), WALK_STEPS_MAX))
        case Diff():
            return _diff(state, query)
        case Review(place, shards):
            return [state.ledger.verdict(shard, place) for shard in shards]
        case Placed(place):
            return state.health.shards_at[place]
        case Tokens(after, limit):
            return _tokens(state, after, min(max(limit, 1), PAGE_ENTRIES_MAX))
        case Policy(path):
            return _policy(state, path)
        case TierState():
            return tier_status(state.tier)
        case TierPlaces(ids):
            return [tier_place(state.tier, id_) for id_ in ids[:PAGE_ENTRIES_MAX]]
        case TierParts(id_, at):
            return tier_places(state.tier, id_, at, limit=TIER_PARTS_MAX)
        case Behind(extent):
            return pieces_behind(state, extent)
        case LeasesOf(path):
            return state.leases.page(state, path, LEASES_SHOWN_MAX)
        case Report() | Events() | NotesOf():
            raise AssertionError("for the agent to answer, which knows more than the state")


def _opened(state: NamespaceState, path: str) -> OpenedFile:
    record, stripes = state.open(path)
    if is_cold(record):
        return OpenedFile(record, stripes, tier_place(state.tier, record.id))
    return OpenedFile(record, stripes)


def _opened_many(state: NamespaceState, wanted: tuple[str, ...]) -> OpenedFiles:
    records: list[FileRecord | None] = []
    refusals: dict[int, NotOpened] = {}
    stripes: dict[str, Stripe] = {}
    for number, path in enumerate(wanted):
        try:
            record, found = state.open(path)
        except DisklessError as error:
            records.append(None)
            refusals[number] = NotOpened(error.reason, str(error))
        else:
            records.append(record)
            stripes.update((stripe.id, stripe) for stripe in found)
    return OpenedFiles(records, refusals, list(stripes.values()))


def _policy(state: NamespaceState, path: str) -> PolicyShown:
    paths.split(path)
    defaults = {key: known.default for key, known in policy.KEYS.items()}
    defaults[policy.DURABILITY] = state.tier.default_durability
    defaults[policy.PARITY] = str(state.parity_shards)
    found = []
    for key, default in defaults.items():
        value, source = state.policies.effective(path, key, default=default)
        found.append((key, value, source))
    held = [
        (above, state.policies.quotas[above], quotas.used(state, above))
        for above in quotas.at_or_above(path)
        if above in state.policies.quotas
    ]
    try:
        node = state.get(path)
    except NotFound:
        return PolicyShown(found, held)
    return PolicyShown(found, held, _care(state, node.record) if type(node) is File else None)


def _care(state: NamespaceState, record: FileRecord) -> FileCare:
    k, ledger = state.parity_shards, state.ledger
    parity = margin = k
    for extent in record.extents[:CARE_EXTENTS_MAX]:
        stripe = ledger.get(extent.stripe)
        parity = min(parity, stripe.parity_shards)
        margin = min(margin, max(judge(stripe, state.agents).spare, -1))
    priority, asked = policy.priority_of(record.grade), policy.parity_of(record.grade, k)
    return FileCare(priority, asked, parity, margin)


def _snapshots(state: NamespaceState, path: str, after: int, limit: int) -> SnapshotsListed:
    history = state.history
    known = history.at(path).values() if path else history.by_id.values()
    if path and not known:
        state.get(path)
    found: list[SnapshotStatus] = []
    size, more = 0, False
    for snapshot in known:
        if snapshot.id <= after:
            continue
        size += 6 * (len(snapshot.path) + 2 * len(snapshot.name)) + ENTRY_BYTES
        if len(found) == limit or (found and size > PAGE_BYTES_MAX):
            more = True
            break
        found.append(snapshot_status(snapshot))
    return SnapshotsListed(found, more)


def _tokens(state: NamespaceState, after: str, limit: int) -> TokensListed:
    entries, more = state.tokens.page(after=after, limit=limit)
    size = 0
    for count, token in enumerate(entries):
        size += 6 * (len(token.name) + sum(map(len, token.paths))) + ENTRY_BYTES
        if count and size > PAGE_BYTES_MAX:
            return TokensListed(entries[:count], True)
    return TokensListed(entries, more)


def _diff(state: NamespaceState, query: Diff) -> DiffPage:
    before = state.history.get(query.path, query.before).root
    if query.after:
        after = state.history.get(query.path, query.after).root
    else:
        node = state.get(query.path)
        if not isinstance(node, Directory):
            raise PathIsFile(f"{query.path} is a file now")
        after = node
    return diff_page(
        before,
        after,
        cursor=query.cursor,
        limit=min(max(query.limit, 1), WALK_STEPS_MAX),
        chars_max=PAGE_BYTES_MAX // 6 - ENTRY_BYTES * WALK_STEPS_MAX // 6,
    )


def _that_fits(page: Listed) -> Listed:
    size = 0
    for count, entry in enumerate(page.entries):
        size += 6 * len(entry.path) + ENTRY_BYTES
        if count and size > PAGE_BYTES_MAX:
            return Listed(page.entries[:count], True)
    return page
