"""Questions to the namespace, and their answers. They change nothing."""

from typing import Any

import msgspec
from msgspec import Struct

from diskless import paths, policy
from diskless.errors import PathIsFile
from diskless.model import FileRecord, HeldShard, Place, Stripe
from diskless.namespace.compare import DiffPage, diff_page
from diskless.namespace.ledger import Verdict
from diskless.namespace.lookback import Events, EventsFound
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import is_cold
from diskless.namespace.tokens import Token
from diskless.namespace.tree import Directory
from diskless.namespace.usage import UsagePage, usage_page
from diskless.namespace.views import (
    PathStatus,
    SnapshotStatus,
    Summary,
    TierPlace,
    TierStatus,
    snapshot_status,
    tier_place,
    tier_status,
)

PAGE_ENTRIES_MAX = 5000
PAGE_BYTES_MAX = 3 << 20
"""Of one page's entries as JSON, where a character takes up to 6 bytes: a frame holds 4 MiB."""
ENTRY_BYTES = 200
"""Of an entry without its path."""
WALK_STEPS_MAX = 1000
"""Of one page of a walk; a step of a comparison may look at two leaves."""
REVIEW_SHARDS_MAX = 2000


class _Query(Struct, frozen=True, tag=True, array_like=True):
    pass


class Stat(_Query, frozen=True, tag=True, array_like=True):
    path: str


class Page(_Query, frozen=True, tag=True, array_like=True):
    path: str
    after: str
    limit: int


class Open(_Query, frozen=True, tag=True, array_like=True):
    path: str


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


class TierPlaces(_Query, frozen=True, tag=True, array_like=True):
    """Where files lie in the tier, by their ids: None for each that does not."""

    ids: tuple[int, ...]


Query = (
    Stat
    | Page
    | Open
    | Locate
    | Summarize
    | Snapshots
    | SnapshotNumber
    | Usage
    | Diff
    | Review
    | Tokens
    | Policy
    | TierState
    | TierPlaces
    | Report
    | Events
)


class Listed(Struct, frozen=True, array_like=True):
    entries: list[PathStatus]
    more: bool


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


class PolicyShown(Struct, frozen=True, array_like=True):
    """Each key with what holds and the path that says so, which is empty for a default."""

    entries: list[tuple[str, str, str]]


ANSWERS: dict[type, Any] = {
    Stat: PathStatus,
    Page: Listed,
    Open: OpenedFile,
    Locate: list[Stripe],
    Summarize: Summary,
    Snapshots: SnapshotsListed,
    SnapshotNumber: SnapshotStatus,
    Usage: UsagePage,
    Diff: DiffPage,
    Review: list[Verdict],
    Report: bytes,
    Tokens: TokensListed,
    Policy: PolicyShown,
    TierState: TierStatus,
    TierPlaces: list[TierPlace | None],
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
        case Open(path):
            return _opened(state, path)
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
        case Tokens(after, limit):
            return _tokens(state, after, min(max(limit, 1), PAGE_ENTRIES_MAX))
        case Policy(path):
            return _policy(state, path)
        case TierState():
            return tier_status(state.tier)
        case TierPlaces(ids):
            return [tier_place(state.tier, id_) for id_ in ids[:PAGE_ENTRIES_MAX]]
        case Report() | Events():
            raise AssertionError("for the agent to answer, which knows more than the state")


def _opened(state: NamespaceState, path: str) -> OpenedFile:
    record, stripes = state.open(path)
    if is_cold(record):
        return OpenedFile(record, stripes, tier_place(state.tier, record.id))
    return OpenedFile(record, stripes)


def _policy(state: NamespaceState, path: str) -> PolicyShown:
    paths.split(path)
    defaults = {policy.DURABILITY: state.tier.default_durability}
    found = []
    for key, default in defaults.items():
        value, source = state.policies.effective(path, key, default=default)
        found.append((key, value, source))
    return PolicyShown(found)


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
